/* Random numbers by index: known answers, statistics, independence of order and cut. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/rng.h"
#include "base/threads.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void check(const uint32_t counter[4], const uint32_t key[2], const uint32_t want[4])
{
    uint32_t got[4];
    rng_philox(counter, key, got);
    assert_memory_equal(got, want, sizeof got);
}

/* The published known-answer vectors of Philox-4x32-10. */
static void test_known_answers(void **state)
{
    (void)state;
    check((uint32_t[]){0, 0, 0, 0}, (uint32_t[]){0, 0},
          (uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    check((uint32_t[]){~0u, ~0u, ~0u, ~0u}, (uint32_t[]){~0u, ~0u},
          (uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    check((uint32_t[]){0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, (uint32_t[]){0xa4093822, 0x299f31d0},
          (uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

static void test_names_differ(void **state)
{
    (void)state;
    assert_true(rng_u64(1, 2, 3) == rng_u64(1, 2, 3));
    assert_true(rng_u64(1, 2, 3) != rng_u64(1, 2, 4));
    assert_true(rng_u64(1, 2, 3) != rng_u64(1, 3, 3));
    assert_true(rng_u64(1, 2, 3) != rng_u64(2, 2, 3));
    assert_true(rng_u64(1ull << 32, 0, 0) != rng_u64(0, 0, 0));
    assert_true(rng_u64(0, 1ull << 32, 0) != rng_u64(0, 0, 0));
    assert_true(rng_u64(0, 0, 1ull << 32) != rng_u64(0, 0, 0));
}

static void test_uniform(void **state)
{
    (void)state;
    enum { N = 100000 };
    double sum = 0, square = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = rng_uniform(7, 0, i);
        assert_true(u >= 0 && u < 1);
        sum += u;
        square += u * u;
    }
    assert_true(fabs(sum / N - 0.5) < 0.005);
    assert_true(fabs(square / N - 1.0 / 3) < 0.005);
}

static void test_below(void **state)
{
    (void)state;
    int seen[10] = {0};
    for (uint64_t i = 0; i < 100000; i++) seen[rng_below(7, 2, i, 10)]++;
    for (int i = 0; i < 10; i++) assert_true(abs(seen[i] - 10000) < 500);
    assert_int_equal(rng_below(7, 2, 5, 1), 0);
}

static void test_normal(void **state)
{
    (void)state;
    enum { N = 200000 };
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, neighbours = 0, last = 0;
    for (uint64_t i = 0; i < N; i++) {
        double x = rng_normal(11, 0, i);
        assert_true(isfinite(x) && fabs(x) < 9);
        m1 += x;
        m2 += x * x;
        m3 += x * x * x;
        m4 += x * x * x * x;
        neighbours += x * last;
        last = x;
    }
    assert_true(fabs(m1 / N) < 0.01);
    assert_true(fabs(m2 / N - 1) < 0.02);
    assert_true(fabs(m3 / N) < 0.05);
    assert_true(fabs(m4 / N - 3) < 0.1);
    assert_true(fabs(neighbours / N) < 0.01);
}

struct fill {
    float *out;
};

static void fill_chunk(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    struct fill *f = arg;
    rng_fill_normal(5, 9, (uint64_t)begin, f->out + begin, (size_t)(end - begin), 1.0f, 0.5f);
}

static void test_fill_is_the_same_however_cut(void **state)
{
    (void)state;
    enum { N = 1001 };
    float whole[N], parts[N];
    rng_fill_normal(5, 9, 0, whole, N, 1.0f, 0.5f);
    for (int grain = 1; grain < 20; grain += 3) {
        struct threads *team;
        struct fill f = {parts};
        memset(parts, 0, sizeof parts);
        threads_start(3, &team, NULL);
        threads_each(team, N, grain, fill_chunk, &f);
        threads_free(team);
        assert_memory_equal(whole, parts, sizeof whole);
    }
    for (uint64_t i = 0; i < N; i++) assert_true(fabs(whole[i] - (1 + 0.5 * rng_normal(5, 9, i))) < 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers), cmocka_unit_test(test_names_differ),
        cmocka_unit_test(test_uniform),       cmocka_unit_test(test_below),
        cmocka_unit_test(test_normal),        cmocka_unit_test(test_fill_is_the_same_however_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
