/* The accounted allocator: counters, ledger, injected failures, threads. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/threads.h"
#include "mem/alloc.h"
#include <string.h>

static void test_counts(void **state)
{
    (void)state;
    struct heap heap;
    heap_init(&heap, NULL, NULL);
    char *a = mem_alloc(&heap, 1, 100), *b = mem_calloc(&heap, 2, 10, 5), *c = mem_alloc(&heap, 1, 0);
    assert_true(a && b && c);
    assert_int_equal((uintptr_t)a % 16, 0);
    assert_int_equal(heap_current(&heap), 150);
    assert_int_equal(heap_class(&heap, 1), 100);
    assert_int_equal(heap_class(&heap, 2), 50);
    assert_int_equal(heap_blocks(&heap), 3);
    for (int i = 0; i < 50; i++) assert_int_equal(b[i], 0);
    mem_free(b);
    mem_free(c);
    assert_int_equal(heap_current(&heap), 100);
    assert_int_equal(heap_peak(&heap), 150);
    mem_free(a);
    mem_free(NULL);
    assert_int_equal(heap_current(&heap), 0);
    assert_int_equal(heap_blocks(&heap), 0);
}

static void test_resize(void **state)
{
    (void)state;
    struct heap heap, other;
    heap_init(&heap, NULL, NULL);
    heap_init(&other, NULL, NULL);
    char *p = mem_realloc(&heap, 3, NULL, 10);
    memcpy(p, "123456789", 10);
    p = mem_realloc(&other, 0, p, 10000);
    assert_string_equal(p, "123456789");
    assert_int_equal(heap_class(&heap, 3), 10000);
    assert_int_equal(heap_current(&other), 0);
    p = mem_realloc(&heap, 3, p, 4);
    assert_int_equal(heap_current(&heap), 4);
    assert_int_equal(heap_peak(&heap), 10000);
    assert_memory_equal(p, "1234", 4);
    assert_int_equal(heap_blocks(&heap), 1);
    mem_free(p);
    assert_int_equal(heap_current(&heap), 0);
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const classes[] = {"small"};
    struct ledger ledger;
    struct heap heap;
    ledger_init(&ledger, "host", 100, classes, 1);
    heap_init(&heap, &ledger, NULL);
    char *p = mem_alloc(&heap, 0, 60);
    assert_non_null(p);
    assert_int_equal(ledger_current(&ledger), 60);
    assert_null(mem_alloc(&heap, 0, 41));
    assert_null(mem_alloc(&heap, 1, 1)); /* the ledger has no such class */
    assert_null(mem_realloc(&heap, 0, p, 101));
    assert_int_equal(ledger_current(&ledger), 60);
    p = mem_realloc(&heap, 0, p, 100);
    assert_non_null(p);
    assert_null(mem_alloc(&heap, 16, 0));
    assert_null(mem_alloc(&heap, -1, 0));
    assert_null(mem_alloc(NULL, 0, SIZE_MAX));
    assert_null(mem_calloc(NULL, 0, SIZE_MAX / 2, 3));
    mem_free(p);
    assert_int_equal(ledger_current(&ledger), 0);
    assert_int_equal(ledger_check(&ledger, NULL), PLIM_OK);
    ledger_destroy(&ledger);
}

static void test_injected_failures(void **state)
{
    (void)state;
    struct fault fault = FAULT_INIT;
    struct heap heap;
    heap_init(&heap, NULL, &fault);
    fault_set(&fault, FAULT_ALLOC, 2);
    char *p = mem_strdup(&heap, 0, "text");
    assert_string_equal(p, "text");
    assert_null(mem_alloc(&heap, 0, 5));
    fault_set(&fault, FAULT_ALLOC, 1);
    assert_null(mem_realloc(&heap, 0, p, 500));
    assert_string_equal(p, "text");
    fault_set(&fault, FAULT_ALLOC, 1);
    assert_null(mem_calloc(&heap, 0, 1, 5));
    fault_set(&fault, FAULT_ALLOC, 1);
    assert_null(mem_strdup(&heap, 0, "x"));
    assert_int_equal(heap_current(&heap), 5);
    mem_free(p);
    assert_int_equal(heap_blocks(&heap), 0);
}

static void test_plain_memory(void **state)
{
    (void)state;
    char *p = mem_alloc(NULL, 0, 5);
    p = mem_realloc(NULL, 0, p, 50);
    assert_non_null(p);
    mem_free(p);
}

static void churn(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        char *p = mem_alloc(arg, (int)(i % 16), (size_t)(i % 100));
        p = mem_realloc(arg, 0, p, 200);
        mem_free(p);
    }
}

static void test_threads(void **state)
{
    (void)state;
    struct heap heap;
    struct threads *team;
    heap_init(&heap, NULL, NULL);
    threads_start(4, &team, NULL);
    threads_each(team, 8000, 100, churn, &heap);
    threads_free(team);
    assert_int_equal(heap_current(&heap), 0);
    assert_int_equal(heap_blocks(&heap), 0);
    assert_true(heap_peak(&heap) >= 200 && heap_peak(&heap) <= 800);
    for (int i = 0; i < 16; i++) assert_int_equal(heap_class(&heap, i), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),       cmocka_unit_test(test_resize),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_injected_failures),
        cmocka_unit_test(test_plain_memory), cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
