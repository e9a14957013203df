/* Arenas: present below the mark, forbidden above it, given back when it falls. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "mem/arena.h"
#include "mem/os.h"
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const classes[] = {"arena"};

#define MIB   ((uint64_t)1 << 20)
#define SLACK (3 * MIB) /* the kernel counts per CPU and sums now and then */

/* The thread sanitizer shadows every byte written and narrows the address space: sizes mean nothing there. */
#if defined(__SANITIZE_THREAD__)
#define SHADOWED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SHADOWED 1
#endif
#endif
#ifndef SHADOWED
#define SHADOWED 0
#endif

static uint64_t rss(void)
{
    struct os_process me;
    assert_int_equal(os_process_memory(&me, NULL), PLIM_OK);
    return me.rss;
}

/* Is the process within SLACK of `want` bytes? */
static bool rss_is(uint64_t want)
{
    uint64_t now = rss();
    return SHADOWED || (now + SLACK >= want && now <= want + SLACK);
}

/* Does writing there kill a process? Asked in a child. */
static bool faults(char *at)
{
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        *(volatile char *)at = 1;
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status);
}

static bool all_zero(const char *at, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (at[i]) return false;
    return true;
}

static void test_commit_is_prefaulted(void **state)
{
    (void)state;
    struct arena arena;
    struct plim_error err = {0};
    uint64_t before = rss();
    assert_int_equal(arena_reserve(&arena, 4096 * MIB, NULL, 0, &err), PLIM_OK);
    assert_true(rss_is(before));
    if (arena_commit(&arena, 33 * MIB, NULL, &err) != PLIM_OK) fail_msg("%s", err.text);
    assert_true(rss_is(before + 33 * MIB));
    char *base = arena_base(&arena);
    assert_int_equal((uintptr_t)base % (2 * MIB), 0);
    assert_true(all_zero(base, 33 * MIB));
    assert_int_equal(arena_committed(&arena), 33 * MIB);
    memset(base, 7, 33 * MIB);
    assert_true(rss_is(before + 33 * MIB));
    arena_release(&arena);
    assert_true(rss_is(before));
    arena_release(&arena);
}

static void test_grow_keeps_and_shrink_gives_back(void **state)
{
    (void)state;
    struct arena arena;
    struct plim_error err = {0};
    assert_int_equal(arena_reserve(&arena, 64 * MIB, NULL, 0, &err), PLIM_OK);
    arena_commit(&arena, 16 * MIB, NULL, &err);
    char *base = arena_base(&arena);
    memset(base, 5, 16 * MIB);
    uint64_t small = rss();
    assert_int_equal(arena_commit(&arena, 48 * MIB, NULL, &err), PLIM_OK);
    assert_ptr_equal(arena_base(&arena), base);
    assert_true(base[0] == 5 && base[16 * MIB - 1] == 5 && all_zero(base + 16 * MIB, 32 * MIB));
    assert_true(rss_is(small + 32 * MIB));
    memset(base + 16 * MIB, 6, 32 * MIB);
    assert_int_equal(arena_commit(&arena, 16 * MIB, NULL, &err), PLIM_OK);
    assert_true(rss_is(small));
    assert_int_equal(base[16 * MIB - 1], 5);
    assert_int_equal(arena_commit(&arena, 17 * MIB, NULL, &err), PLIM_OK);
    assert_true(all_zero(base + 16 * MIB, MIB));
    assert_int_equal(arena_commit(&arena, 0, NULL, &err), PLIM_OK);
    assert_true(rss_is(small - 16 * MIB));
    arena_release(&arena);
}

static void test_new_bytes_in_an_old_page_are_zero(void **state)
{
    (void)state;
    struct arena arena;
    arena_reserve(&arena, MIB, NULL, 0, NULL);
    assert_int_equal(arena_commit(&arena, 1000, NULL, NULL), PLIM_OK);
    char *base = arena_base(&arena);
    memset(base, 9, 1000);
    assert_int_equal(arena_commit(&arena, 100, NULL, NULL), PLIM_OK);
    assert_int_equal(arena_commit(&arena, 200, NULL, NULL), PLIM_OK);
    assert_true(base[99] == 9 && all_zero(base + 100, 100));
    assert_int_equal(arena_commit(&arena, 3 * os_page_size(), NULL, NULL), PLIM_OK);
    assert_true(base[99] == 9 && all_zero(base + 100, 3 * os_page_size() - 100));
    arena_release(&arena);
}

static void test_above_the_mark_faults(void **state)
{
    (void)state;
    struct arena arena;
    uint64_t page = os_page_size();
    arena_reserve(&arena, 16 * MIB, NULL, 0, NULL);
    char *base = arena_base(&arena);
    assert_true(faults(base));
    arena_commit(&arena, 2 * page - 10, NULL, NULL);
    assert_false(faults(base));
    assert_false(faults(base + 2 * page - 11));
    assert_true(faults(base + 2 * page));
    arena_commit(&arena, 16 * MIB, NULL, NULL);
    assert_false(faults(base + 16 * MIB - 1));
    arena_commit(&arena, page, NULL, NULL);
    assert_true(faults(base + page));
    assert_true(faults(base + 16 * MIB - 1));
    arena_release(&arena);
}

static void test_ledger_is_exact(void **state)
{
    (void)state;
    struct ledger ledger;
    struct arena arena;
    struct plim_error err = {0};
    ledger_init(&ledger, "host", 10 * MIB, classes, 1);
    assert_int_equal(arena_reserve(&arena, 100 * MIB, &ledger, 0, &err), PLIM_OK);
    assert_int_equal(ledger_current(&ledger), 0);
    assert_int_equal(arena_commit(&arena, 12345, NULL, &err), PLIM_OK);
    assert_int_equal(ledger_current(&ledger), 12345);
    assert_int_equal(arena_commit(&arena, 9 * MIB + 1, NULL, &err), PLIM_OK);
    assert_int_equal(ledger_current(&ledger), 9 * MIB + 1);
    assert_int_equal(arena_commit(&arena, 10 * MIB + 1, NULL, &err), PLIM_NO_MEMORY);
    assert_non_null(strstr(err.text, "(1 bytes) missing"));
    assert_int_equal(arena_committed(&arena), 9 * MIB + 1);
    assert_int_equal(arena_commit(&arena, 777, NULL, &err), PLIM_OK);
    assert_int_equal(ledger_current(&ledger), 777);
    arena_release(&arena);
    assert_int_equal(ledger_current(&ledger), 0);
    assert_int_equal(ledger_peak(&ledger), 9 * MIB + 1);
    assert_int_equal(ledger_check(&ledger, &err), PLIM_OK);
    ledger_destroy(&ledger);
}

static void test_failures_change_nothing(void **state)
{
    (void)state;
    struct ledger ledger;
    struct arena arena;
    struct fault fault = FAULT_INIT;
    struct plim_error err = {0};
    ledger_init(&ledger, "host", LEDGER_UNLIMITED, classes, 1);
    arena_reserve(&arena, 64 * MIB, &ledger, 0, &err);
    arena.fault = &fault;
    arena_commit(&arena, 4 * MIB, NULL, &err);
    memset(arena_base(&arena), 3, 4 * MIB);
    fault_set(&fault, FAULT_ALLOC, 1);
    assert_int_equal(arena_commit(&arena, 32 * MIB, NULL, &err), PLIM_NO_MEMORY);
    assert_non_null(strstr(err.text, "28.0 MiB (29,360,128 bytes)"));
    assert_int_equal(arena_committed(&arena), 4 * MIB);
    assert_int_equal(ledger_current(&ledger), 4 * MIB);
    assert_true(arena_base(&arena)[4 * MIB - 1] == 3 && faults(arena_base(&arena) + 4 * MIB));
    assert_int_equal(arena_commit(&arena, 32 * MIB, NULL, &err), PLIM_OK);
    assert_int_equal(arena_commit(&arena, 65 * MIB, NULL, &err), PLIM_NO_MEMORY);
    arena_release(&arena);
    assert_int_equal(ledger_current(&ledger), 0);
    ledger_destroy(&ledger);
}

static void test_more_than_the_machine_has(void **state)
{
    (void)state;
    struct arena arena;
    struct os_machine box;
    struct plim_error err = {0};
    if (SHADOWED) skip();
    assert_int_equal(os_machine_memory(&box, NULL), PLIM_OK);
    assert_int_equal(arena_reserve(&arena, 2 * box.total, NULL, 0, &err), PLIM_OK);
    assert_int_equal(arena_commit(&arena, 2 * box.total, NULL, &err), PLIM_NO_MEMORY);
    assert_non_null(strstr(err.text, "available"));
    assert_int_equal(arena_committed(&arena), 0);
    arena_release(&arena);
    assert_int_equal(arena_reserve(&arena, (uint64_t)1 << 60, NULL, 0, &err), PLIM_NO_MEMORY);
    assert_int_equal(arena_reserve(&arena, 0, NULL, 0, &err), PLIM_BAD_INPUT);
    arena_release(&arena);
}

static void test_threads_bring_pages_in(void **state)
{
    (void)state;
    struct arena arena;
    struct threads *team;
    threads_start(3, &team, NULL);
    arena_reserve(&arena, 128 * MIB, NULL, 0, NULL);
    uint64_t before = rss();
    assert_int_equal(arena_commit(&arena, 50 * MIB + 5, team, NULL), PLIM_OK);
    assert_true(rss_is(before + 50 * MIB));
    assert_true(all_zero(arena_base(&arena), 50 * MIB + 5));
    arena_release(&arena);
    threads_free(team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commit_is_prefaulted),
        cmocka_unit_test(test_grow_keeps_and_shrink_gives_back),
        cmocka_unit_test(test_new_bytes_in_an_old_page_are_zero),
        cmocka_unit_test(test_above_the_mark_faults),
        cmocka_unit_test(test_ledger_is_exact),
        cmocka_unit_test(test_failures_change_nothing),
        cmocka_unit_test(test_more_than_the_machine_has),
        cmocka_unit_test(test_threads_bring_pages_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
