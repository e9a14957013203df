/* run-tests: not=tsan */
/* test_quant8.c - the maps of 8 bits, and rounding at random. */
#include "tensor/dtype.h"
#include "tensor/quant8.h"
#include "tensor/stochastic.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static double rank_of(const struct quant8_map *map, double x)
{
    int best = map->zero;
    for (int i = 0; i < QUANT8_CODES; i++)
        if (fabs((double)map->value[i] - x) < fabs((double)map->value[best] - x)) best = i;
    return best;
}

/* What is known of the dynamic tree: ends, counts per decade, spacing, symmetry. */
static void maps_have_their_shape(void **state)
{
    (void)state;
    const struct quant8_map *with = quant8_signed(), *without = quant8_unsigned();
    assert_true(with->zero == 127 && without->zero == 0);
    assert_true(with->value[127] == 0 && with->value[255] == 1 && without->value[0] == 0 &&
                without->value[255] == 1);
    assert_true(fabs((double)with->value[0] + 0.99296875) < 1e-7);       /* 1 - 0.45 / 64 */
    assert_true(fabs((double)with->value[128] - 0.55e-6) < 1e-13);       /* the middle of the lowest decade */
    assert_true(fabs((double)without->value[1] - 0.325e-6) < 1e-13);     /* of its lower half */
    assert_true(fabs((double)without->value[254] - 0.996484375) < 1e-7); /* 1 - 0.45 / 128 */
    for (int i = 0; i + 1 < QUANT8_CODES; i++) {
        assert_true(with->value[i] < with->value[i + 1] && without->value[i] < without->value[i + 1]);
        assert_true(with->value[i] < with->middle[i] && with->middle[i] < with->value[i + 1]);
    }
    for (int i = 0; i < 127; i++) assert_true(with->value[i] == -with->value[254 - i]);
    for (int d = 0; d < 7; d++) {
        int n[2] = {0, 0};
        double low = pow(10, d - 7), high = pow(10, d - 6);
        for (int i = 0; i < 255; i++) {
            n[0] += (double)with->value[i] > low && (double)with->value[i] < high;
            n[1] += (double)without->value[i] > low && (double)without->value[i] < high;
        }
        assert_true(n[0] == 1 << d && n[1] == 2 << d);
    }
}

static void check_code(const struct quant8_map *map, float x)
{
    int code = quant8_code(map, x), want = (int)rank_of(map, (double)x);
    double here = fabs((double)map->value[code] - (double)x),
           best = fabs((double)map->value[want] - (double)x);
    if (here > best * (1 + 1e-6) + 1e-15) fail_msg("%.9g: code %d, nearest %d", (double)x, code, want);
}

static void codes_are_the_nearest(void **state)
{
    (void)state;
    const struct quant8_map *maps[2] = {quant8_signed(), quant8_unsigned()};
    for (int m = 0; m < 2; m++) {
        const struct quant8_map *map = maps[m];
        for (int i = 0; i < QUANT8_CODES; i++) {
            assert_int_equal(quant8_code(map, map->value[i]), i);
            if (i == QUANT8_CODES - 1) continue;
            check_code(map, nextafterf(map->middle[i], -2));
            check_code(map, nextafterf(map->middle[i], 2));
            int on = quant8_code(map, map->middle[i]);
            assert_int_equal(on, i < map->zero ? i + 1 : i); /* a tie goes towards 0 */
        }
        for (uint32_t i = 0; i < 200000; i++) {
            double u = (double)stochastic_mix(i) / 4294967296.0,
                   size = pow(10, -9 * (double)(i % 1000) / 1000) * u;
            check_code(map, (float)size);
            if (m == 0) check_code(map, -(float)size);
        }
    }
    assert_int_equal(quant8_code(maps[0], -1), 0);
    assert_int_equal(quant8_code(maps[0], -0.0f), 127);
    assert_int_equal(quant8_blocks(0), 0);
    assert_int_equal(quant8_blocks(257), 2);
}

/* The distance from 0 in codes that rise gives, against that of quant8_code and the rule for second moments. */
static void check_rise(const struct quant8_map *map, uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    int want = quant8_code(map, x) - map->zero;
    if (map->zero == 0 && x > 0 && want == 0) want = 1;
    uint32_t sum = bits + quant8_rise(map, bits), minus = bits | 0x80000000u;
    uint32_t other = minus + quant8_rise(map, minus);
    if (sum >> 16 != (uint32_t)want || other >> 16 != (0x8000u | (uint32_t)want))
        fail_msg("%.9g: %x, %x instead of %d", (double)x, sum, other, want);
}

/* All floats from 0 to 2 in steps of a prime, each end of each cell, and each midpoint with its neighbours. */
static void rises_are_the_codes(void **state)
{
    (void)state;
    const struct quant8_map *maps[2] = {quant8_signed(), quant8_unsigned()};
    for (int m = 0; m < 2; m++) {
        for (uint32_t bits = 0; bits < 0x40000000u; bits += 113) check_rise(maps[m], bits);
        for (uint32_t cell = 0; cell < QUANT8_RISES; cell++) {
            check_rise(maps[m], cell << 16), check_rise(maps[m], cell << 16 | 1);
            check_rise(maps[m], cell << 16 | 0xfffe), check_rise(maps[m], cell << 16 | 0xffff);
        }
        for (int i = maps[m]->zero; i < QUANT8_CODES - 1; i++) {
            uint32_t bits;
            memcpy(&bits, &maps[m]->middle[i], 4);
            for (uint32_t j = 0; j < 9; j++) check_rise(maps[m], bits + j - 4);
        }
    }
}

/* Rounded many times the mean is the number, and each result is one of its two neighbours. */
static void rounding_has_no_bias(void **state)
{
    (void)state;
    static const float values[] = {1.0f, 1.001f, 1.0039f, -3.14159f, 1e-20f, 65504.3f, -1.9999f, 3e-39f};
    enum { TIMES = 1 << 16 };
    for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
        float down = bf16_to_f32(stochastic_bf16(values[k], 0)),
              up = bf16_to_f32(stochastic_bf16(values[k], 0xffff));
        double gap = fabs((double)up - (double)down);
        for (int which = 0; which < 3; which++) {
            double sum = 0;
            uint32_t key = stochastic_key(12345u + (uint32_t)which, (uint32_t)k);
            for (uint64_t i = 0; i < TIMES; i++) {
                uint32_t r = stochastic_bits(key, i);
                uint32_t bits = which == 0 ? STOCHASTIC_P(r) : which == 1 ? STOCHASTIC_M(r) : STOCHASTIC_V(r);
                float x = bf16_to_f32(stochastic_bf16(values[k], bits));
                assert_true(x == down || x == up);
                sum += (double)x;
            }
            /* the mean of so many coin tosses errs by gap / 2 / 256; five deviations */
            assert_true(fabs(sum / TIMES - (double)values[k]) <= gap * 0.01 + 1e-45);
        }
    }
    assert_int_equal(stochastic_bf16(INFINITY, 0xffff), 0x7f80);
    assert_true(isnan(bf16_to_f32(stochastic_bf16(NAN, 0xffff))));
    uint32_t bits = 0x7fffffff;
    float worst;
    memcpy(&worst, &bits, 4);
    assert_true(isnan(bf16_to_f32(stochastic_bf16(worst, 0xffff))));
}

/* The three numbers of an element, neighbours, steps and tensors draw independently. */
static void bits_are_independent(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    double cross[5] = {0};
    uint32_t key = stochastic_key(7, 1), other_step = stochastic_key(8, 1), other = stochastic_key(7, 2);
    for (uint64_t i = 0; i < N; i++) {
        uint32_t r = stochastic_bits(key, i);
        double p = (double)STOCHASTIC_P(r) / 65536 - 0.5;
        cross[0] += p * ((double)STOCHASTIC_M(r) / 65536 - 0.5);
        cross[1] += p * ((double)STOCHASTIC_V(r) / 65536 - 0.5);
        cross[2] += p * ((double)STOCHASTIC_P(stochastic_bits(key, i + 1)) / 65536 - 0.5);
        cross[3] += p * ((double)STOCHASTIC_P(stochastic_bits(other_step, i)) / 65536 - 0.5);
        cross[4] += p * ((double)STOCHASTIC_P(stochastic_bits(other, i)) / 65536 - 0.5);
    }
    /* products have deviation 1/12: five deviations of the mean */
    for (int i = 0; i < 5; i++) assert_true(fabs(cross[i] / N) < 5.0 / 12 / 256);
    /* A vector that is written down, for whoever computes this elsewhere. */
    assert_int_equal(stochastic_mix(1), 0x514e28b7);
    assert_int_equal(stochastic_key(0x12345678, 0x9abcdef0),
                     stochastic_mix(stochastic_mix(0x9abcdef0) ^ 0x12345678));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_have_their_shape), cmocka_unit_test(codes_are_the_nearest),
        cmocka_unit_test(rises_are_the_codes),   cmocka_unit_test(rounding_has_no_bias),
        cmocka_unit_test(bits_are_independent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
