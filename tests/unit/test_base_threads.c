/* Threads: every item once, no matter how the loop is cut; errors; many short loops. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/clock.h"
#include "base/threads.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

struct marks {
    _Atomic int *count;
    int64_t n, grain;
    int workers;
    _Atomic int calls;
    _Atomic bool wrong;
};

static void mark(void *arg, int64_t begin, int64_t end, int worker)
{
    struct marks *m = arg;
    atomic_fetch_add(&m->calls, 1);
    if (begin < 0 || begin >= end || end > m->n || worker < 0 || worker >= m->workers)
        atomic_store(&m->wrong, true);
    for (int64_t i = begin; i < end; i++) atomic_fetch_add(&m->count[i], 1);
}

static void check_loop(struct threads *team, int64_t n, int64_t grain)
{
    struct marks m = {
        .count = calloc((size_t)n + 1, sizeof(int)), .n = n, .grain = grain, .workers = threads_count(team)};
    threads_each(team, n, grain, mark, &m);
    assert_false(atomic_load(&m.wrong));
    for (int64_t i = 0; i < n; i++) assert_int_equal(atomic_load(&m.count[i]), 1);
    if (m.workers > 1 && grain > 0 && grain <= n)
        assert_int_equal(atomic_load(&m.calls), n > 0 ? (n + grain - 1) / grain : 0);
    free((void *)m.count);
}

static void test_every_item_once(void **state)
{
    (void)state;
    static const int counts[] = {1, 2, 3, 8};
    for (size_t i = 0; i < 4; i++) {
        struct threads *team;
        assert_int_equal(threads_start(counts[i], &team, NULL), PLIM_OK);
        assert_int_equal(threads_count(team), counts[i]);
        check_loop(team, 0, 1);
        check_loop(team, 1, 1);
        check_loop(team, 1000, 1);
        check_loop(team, 1000, 7);
        check_loop(team, 1000, 999);
        check_loop(team, 1000, 1000);
        check_loop(team, 1000, 5000);
        check_loop(team, 100, 0);
        check_loop(team, 100, INT64_MAX);
        threads_free(team);
    }
}

static void test_no_team_is_one_thread(void **state)
{
    (void)state;
    assert_int_equal(threads_count(NULL), 1);
    check_loop(NULL, 100, 3);
    threads_free(NULL);
}

static void test_one_thread_runs_inline_once(void **state)
{
    (void)state;
    struct threads *team;
    threads_start(1, &team, NULL);
    struct marks m = {.count = calloc(100, sizeof(int)), .n = 100, .grain = 3, .workers = 1};
    threads_each(team, 100, 3, mark, &m);
    assert_int_equal(atomic_load(&m.calls), 1);
    free((void *)m.count);
    threads_free(team);
}

static void test_default_and_bad_counts(void **state)
{
    (void)state;
    struct threads *team;
    struct plim_error err = {0};
    assert_int_equal(threads_start(0, &team, &err), PLIM_OK);
    assert_true(threads_count(team) >= 1);
    threads_free(team);
    assert_int_equal(threads_start(-1, &team, &err), PLIM_BAD_INPUT);
    assert_null(team);
    assert_int_equal(threads_start(100000, &team, &err), PLIM_BAD_INPUT);
}

struct sums {
    const double *in;
    double *partial; /* per chunk */
};

static void sum_chunk(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    struct sums *s = arg;
    double sum = 0;
    for (int64_t i = begin; i < end; i++) sum += s->in[i];
    s->partial[begin / 64] = sum;
}

/* Plain (not atomic) results per chunk: equal for every thread count, and visible after the loop. */
static void test_results_do_not_depend_on_the_count(void **state)
{
    (void)state;
    enum { N = 64 * 200 };
    double *in = malloc(N * sizeof *in), partial[3][200];
    for (int i = 0; i < N; i++) in[i] = 1.0 / (i + 1);
    for (int t = 0; t < 3; t++) {
        struct threads *team;
        threads_start(t + 2, &team, NULL);
        struct sums s = {in, partial[t]};
        threads_each(team, N, 64, sum_chunk, &s);
        threads_free(team);
    }
    assert_memory_equal(partial[0], partial[1], sizeof partial[0]);
    assert_memory_equal(partial[0], partial[2], sizeof partial[0]);
    free(in);
}

static void add_one(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    int *values = arg;
    for (int64_t i = begin; i < end; i++) values[i]++;
}

/* Successive loops hand plain memory from thread to thread; pauses let workers fall asleep in between. */
static void test_many_loops(void **state)
{
    (void)state;
    struct threads *team;
    int values[37] = {0};
    threads_start(3, &team, NULL);
    for (int i = 0; i < 3000; i++) {
        threads_each(team, 37, 4, add_one, values);
        if (i % 500 == 0) usleep(2000);
    }
    for (int i = 0; i < 37; i++) assert_int_equal(values[i], 3000);
    threads_free(team);
}

static void slow_chunk(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)end, (void)worker;
    if (begin % 2) usleep(3000);
    ((int *)arg)[begin]++;
}

/* The caller is done long before a worker is, and sleeps until it is. */
static void test_waits_for_slow_workers(void **state)
{
    (void)state;
    struct threads *team;
    int done[16] = {0};
    threads_start(4, &team, NULL);
    threads_each(team, 16, 1, slow_chunk, done);
    for (int i = 0; i < 16; i++) assert_int_equal(done[i], 1);
    threads_free(team);
}

static void test_start_and_stop(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        struct threads *team;
        assert_int_equal(threads_start(4, &team, NULL), PLIM_OK);
        if (i % 2) check_loop(team, 10, 1);
        threads_free(team);
    }
}

static void test_clock(void **state)
{
    (void)state;
    double a = clock_seconds();
    usleep(1000);
    double b = clock_seconds();
    assert_true(b - a >= 0.001);
    assert_true(clock_wall() > 1.6e9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_once),
        cmocka_unit_test(test_no_team_is_one_thread),
        cmocka_unit_test(test_one_thread_runs_inline_once),
        cmocka_unit_test(test_default_and_bad_counts),
        cmocka_unit_test(test_results_do_not_depend_on_the_count),
        cmocka_unit_test(test_many_loops),
        cmocka_unit_test(test_waits_for_slow_workers),
        cmocka_unit_test(test_start_and_stop),
        cmocka_unit_test(test_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
