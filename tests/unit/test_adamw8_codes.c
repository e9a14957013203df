/* run-tests: not=tsan */
/* test_adamw8_codes.c - what the row function of 8-bit AdamW stores, on every instruction set of the machine: codes and
 * scales are those of the definition for moments that span many decades, lie on midpoints, are denormal, zero,
 * infinite or not a number; whatever the length of the last block. */
#include "device/cpu/rows.h"
#include "tensor/quant8.h"
#include "tensor/stochastic.h"
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

enum { BLOCKS = 9, N = BLOCKS * QUANT8_BLOCK, GUARD = 64 };

static struct {
    float p[N], g[N];
    uint8_t mq[N + GUARD], vq[N + GUARD];
    float m_scale[BLOCKS + 1], v_scale[BLOCKS + 1];
} x;

static float wide_p[N], wide_m[N], wide_v[N];

/* The step is m = g and v = g^2 where moments are 0 (which they are in the first of two steps). */
static struct row_update update_of(void)
{
    return (struct row_update){.p_in = x.p,
                               .p = x.p,
                               .g = x.g,
                               .wide_g = true,
                               .wide_state = true,
                               .multiplier = 1,
                               .keep = 1,
                               .mix1 = 1,
                               .beta2 = 0.75f,
                               .mix2 = 1,
                               .step = 0.01f,
                               .root = 1,
                               .eps = 1e-8f,
                               .mq_in = x.mq,
                               .mq = x.mq,
                               .vq_in = x.vq,
                               .vq = x.vq,
                               .m_scale_in = x.m_scale,
                               .m_scale = x.m_scale,
                               .v_scale_in = x.v_scale,
                               .v_scale = x.v_scale};
}

/* The code of the definition, found by looking at every midpoint. */
static int slow_code(const struct quant8_map *map, float moment, float inverse)
{
    float size = fabsf(moment * inverse);
    int k = 0, most = QUANT8_CODES - 1 - map->zero;
    while (k < most && !(size <= map->middle[map->zero + k])) k++; /* not a number: the last */
    if (map->zero == 0) return k == 0 && size > 0 ? 1 : k;
    return moment < 0 ? map->zero - (k < map->zero ? k : map->zero) : map->zero + k;
}

static void check_block(const struct quant8_map *map, const float *moment, const uint8_t *codes, float scale,
                        int n)
{
    float top = 0, inverse = scale > 0 ? 1 / scale : 0;
    bool sane = true;
    for (int i = 0; i < n; i++) {
        top = fmaxf(top, fabsf(moment[i]));
        sane = sane && isfinite(moment[i]);
    }
    if (sane && scale != (top >= FLT_MIN ? top : 0)) fail_msg("scale %g, not %g", (double)scale, (double)top);
    for (int i = 0; i < n; i++) {
        int want = slow_code(map, moment[i], inverse);
        if (codes[i] != want)
            fail_msg("%g of %g: %d, not %d", (double)moment[i], (double)scale, codes[i], want);
    }
}

static void check_step(const struct row_ops *rows, int n)
{
    struct row_update u = update_of(), wide = u;
    for (int i = 0; i < n; i++) {
        wide_p[i] = x.p[i];
        wide_m[i] = quant8_signed()->value[x.mq[i]] * x.m_scale[i / QUANT8_BLOCK];
        wide_v[i] = quant8_unsigned()->value[x.vq[i]] * x.v_scale[i / QUANT8_BLOCK];
    }
    wide.p_in = wide.p = wide_p, wide.m_in = wide.m = wide_m, wide.v_in = wide.v = wide_v;
    memset(x.mq + n, 0xa5, GUARD), memset(x.vq + n, 0xa5, GUARD);
    rows->adamw(DT_F32, &wide, n);
    rows->adamw8(DT_F32, &u, n);
    assert_memory_equal(x.p, wide_p, (size_t)n * sizeof *x.p);
    for (int i = 0; i < GUARD; i++) assert_true(x.mq[n + i] == 0xa5 && x.vq[n + i] == 0xa5);
    for (int at = 0; at < n; at += QUANT8_BLOCK) {
        int count = n - at < QUANT8_BLOCK ? n - at : QUANT8_BLOCK, b = at / QUANT8_BLOCK;
        check_block(quant8_signed(), wide_m + at, x.mq + at, x.m_scale[b], count);
        check_block(quant8_unsigned(), wide_v + at, x.vq + at, x.v_scale[b], count);
    }
}

static float random_float(uint32_t i, int decades)
{
    double unit = (double)stochastic_mix(i) / 4294967296.0, sign = stochastic_mix(~i) & 1 ? 1 : -1;
    return (float)(sign * pow(10, -decades * unit));
}

static void prepare(uint32_t seed, int decades)
{
    memset(&x, 0, sizeof x);
    for (uint32_t i = 0; i < N; i++) {
        x.p[i] = random_float(i, 2), x.g[i] = random_float(seed * 65537 + i, decades);
        x.mq[i] = (uint8_t)quant8_signed()->zero;
    }
}

/* A step from zero moments, and one from what that has left. */
static void each_level(void (*spoil)(void))
{
    static const int lengths[] = {N, N - 1, 16, 1, 17, 5 * QUANT8_BLOCK + 240, 2 * QUANT8_BLOCK + 3, 255};
    for (int level = 0; level < CPU_LEVELS; level++)
        for (uint32_t seed = 0; seed < 24 && cpu_has((enum cpu_level)level); seed++) {
            prepare(seed, 1 + (int)seed % 12);
            spoil();
            check_step(row_ops_at((enum cpu_level)level), lengths[seed % 8]);
            for (uint32_t i = 0; i < N; i++) x.g[i] = random_float(seed + 7919 * i, 3);
            check_step(row_ops_at((enum cpu_level)level), lengths[seed % 8]);
        }
}

static void as_they_are(void) {}

/* Block 0: every midpoint and both neighbours of a third of them, beside a 1. Then a block of zeroes, one of
 * denormals, one below the least scale, one above what has a normal inverse. */
static void at_the_edges(void)
{
    const struct quant8_map *map = quant8_signed();
    for (int i = 0; i < 254; i++) {
        float to = i % 3 == 0 ? -INFINITY : INFINITY;
        x.g[i] = i % 3 == 1 ? map->middle[i] : nextafterf(map->middle[i], to);
    }
    x.g[254] = 1, x.g[255] = -0.0f;
    for (int i = QUANT8_BLOCK; i < 5 * QUANT8_BLOCK; i++) {
        static const float times[] = {0, 1e-40f, 1e-38f, 3e38f};
        x.g[i] *= times[i / QUANT8_BLOCK - 1];
    }
    for (int i = 5 * QUANT8_BLOCK; i < 6 * QUANT8_BLOCK; i++) x.g[i] = i % 2 ? -1 : 1;
}

static void beyond_all_measure(void)
{
    x.g[7] = INFINITY, x.g[9] = -INFINITY;
    x.g[QUANT8_BLOCK + 8] = NAN, x.g[QUANT8_BLOCK + 9] = -NAN;
    x.g[3 * QUANT8_BLOCK + 255] = -NAN;
    x.g[4 * QUANT8_BLOCK] = -INFINITY;
    x.g[5 * QUANT8_BLOCK + 1] = 1e30f; /* its square is infinite */
}

static void ordinary_moments(void **state)
{
    (void)state;
    each_level(as_they_are);
}

static void moments_at_the_edges(void **state)
{
    (void)state;
    each_level(at_the_edges);
}

static void moments_beyond_all_measure(void **state)
{
    (void)state;
    each_level(beyond_all_measure);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ordinary_moments),
        cmocka_unit_test(moments_at_the_edges),
        cmocka_unit_test(moments_beyond_all_measure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
