/* The ledger: budget, classes, peaks, refusals, many threads. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/threads.h"
#include "mem/ledger.h"
#include <string.h>

static const char *const classes[] = {"param", "grad", "act"};

static void check(struct ledger *ledger)
{
    struct plim_error err = {0};
    if (ledger_check(ledger, &err) != PLIM_OK) fail_msg("%s", err.text);
}

static void test_reserve_and_release(void **state)
{
    (void)state;
    struct ledger ledger;
    struct ledger_state s;
    ledger_init(&ledger, "host", 1000, classes, 3);
    assert_int_equal(ledger_reserve(&ledger, 0, 600, NULL), PLIM_OK);
    assert_int_equal(ledger_reserve(&ledger, 2, 400, NULL), PLIM_OK);
    assert_int_equal(ledger_left(&ledger), 0);
    ledger_release(&ledger, 2, 400);
    assert_int_equal(ledger_reserve(&ledger, 1, 300, NULL), PLIM_OK);
    ledger_read(&ledger, &s);
    assert_true(s.current == 900 && s.peak == 1000 && s.by_class[1] == 300);
    assert_true(s.at_peak[0] == 600 && s.at_peak[1] == 0 && s.at_peak[2] == 400);
    assert_true(s.peak_by_class[2] == 400 && s.by_class[2] == 0);
    check(&ledger);
    ledger_reset_peak(&ledger);
    assert_int_equal(ledger_peak(&ledger), 900);
    check(&ledger);
    ledger_destroy(&ledger);
}

static void test_refuses_with_a_text(void **state)
{
    (void)state;
    struct ledger ledger;
    struct ledger_state s;
    struct plim_error err = {0};
    ledger_init(&ledger, "device", 10 << 20, classes, 3);
    assert_int_equal(ledger_reserve(&ledger, 0, 8 << 20, &err), PLIM_OK);
    assert_int_equal(ledger_reserve(&ledger, 2, 5 << 20, &err), PLIM_NO_MEMORY);
    assert_int_equal(err.status, PLIM_NO_MEMORY);
    assert_string_equal(
        err.text, "device memory: cannot reserve 5.00 MiB for 'act': 3.00 MiB (3,145,728 bytes) missing; "
                  "8.00 MiB of the budget of 10.0 MiB are in use");
    assert_int_equal(ledger_reserve(&ledger, 2, UINT64_MAX, &err), PLIM_NO_MEMORY);
    ledger_read(&ledger, &s);
    assert_true(s.current == 8 << 20 && s.peak == 8 << 20 && s.refused == 2);
    assert_int_equal(ledger_reserve(&ledger, 2, 2 << 20, &err), PLIM_OK);
    assert_int_equal(ledger_reserve(&ledger, 2, 0, &err), PLIM_OK);
    check(&ledger);
    ledger_destroy(&ledger);
}

static void test_budget_may_fall_below_use(void **state)
{
    (void)state;
    struct ledger ledger;
    ledger_init(&ledger, "host", LEDGER_UNLIMITED, classes, 3);
    assert_int_equal(ledger_reserve(&ledger, 0, 500, NULL), PLIM_OK);
    assert_int_equal(ledger_over(&ledger), 0);
    ledger_set_budget(&ledger, 200);
    assert_int_equal(ledger_over(&ledger), 300);
    assert_int_equal(ledger_left(&ledger), 0);
    assert_int_equal(ledger_current(&ledger), 500);
    assert_int_equal(ledger_reserve(&ledger, 0, 1, NULL), PLIM_NO_MEMORY);
    assert_int_equal(ledger_reserve(&ledger, 0, 0, NULL), PLIM_OK);
    ledger_release(&ledger, 0, 400);
    assert_int_equal(ledger_over(&ledger), 0);
    assert_int_equal(ledger_reserve(&ledger, 0, 100, NULL), PLIM_OK);
    check(&ledger);
    ledger_destroy(&ledger);
}

static void test_our_own_bugs(void **state)
{
    (void)state;
    struct ledger ledger;
    struct plim_error err = {0};
    ledger_init(&ledger, "host", 100, classes, 3);
    assert_int_equal(ledger_reserve(&ledger, 3, 1, &err), PLIM_BUG);
    assert_int_equal(ledger_reserve(&ledger, -1, 1, &err), PLIM_BUG);
    check(&ledger);
    ledger_release(&ledger, 0, 1);
    assert_int_equal(ledger_check(&ledger, &err), PLIM_BUG);
    assert_non_null(strstr(err.text, "more than was reserved"));
    assert_int_equal(ledger_current(&ledger), 0);
    ledger_destroy(&ledger);
    ledger_init(&ledger, "host", 100, classes, 3);
    ledger_release(&ledger, 7, 1);
    assert_int_equal(ledger_check(&ledger, &err), PLIM_BUG);
    ledger.state.broken = 0;
    ledger.state.by_class[0] = 5;
    assert_int_equal(ledger_check(&ledger, &err), PLIM_BUG);
    ledger_destroy(&ledger);
}

static void test_injected_fault(void **state)
{
    (void)state;
    struct ledger ledger;
    struct fault fault = FAULT_INIT;
    struct plim_error err = {0};
    ledger_init(&ledger, "host", 100, classes, 3);
    ledger.fault = &fault;
    fault_set(&fault, FAULT_RESERVE, 2);
    assert_int_equal(ledger_reserve(&ledger, 0, 1, &err), PLIM_OK);
    assert_int_equal(ledger_reserve(&ledger, 0, 1, &err), PLIM_NO_MEMORY);
    assert_non_null(strstr(err.text, "injected"));
    assert_int_equal(ledger_reserve(&ledger, 0, 1, &err), PLIM_OK);
    assert_int_equal(ledger_current(&ledger), 2);
    ledger_destroy(&ledger);
}

static void take_and_give(void *arg, int64_t begin, int64_t end, int worker)
{
    struct ledger *ledger = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int cls = (int)(i % 3);
        if (ledger_reserve(ledger, cls, 10, NULL) == PLIM_OK) ledger_release(ledger, cls, 10);
        if (i % 100 == 0) ledger_set_budget(ledger, i % 200 ? 20 : 30);
    }
}

static void test_threads(void **state)
{
    (void)state;
    struct ledger ledger;
    struct threads *team;
    ledger_init(&ledger, "host", 30, classes, 3);
    threads_start(4, &team, NULL);
    threads_each(team, 4000, 50, take_and_give, &ledger);
    threads_free(team);
    assert_int_equal(ledger_current(&ledger), 0);
    assert_true(ledger_peak(&ledger) <= 30 && ledger_peak(&ledger) >= 10);
    check(&ledger);
    ledger_destroy(&ledger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reserve_and_release),
        cmocka_unit_test(test_refuses_with_a_text),
        cmocka_unit_test(test_budget_may_fall_below_use),
        cmocka_unit_test(test_our_own_bugs),
        cmocka_unit_test(test_injected_fault),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
