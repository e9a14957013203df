/* run-tests: not=tsan */
/* test_optimizer_bits.c - narrow optimizer state: roundings at random are those of the wide result, whatever the cut;
 * moments of 8 bits follow the wide ones, lose no v, and may be cut at blocks. */
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"
#include "tensor/quant8.h"
#include "tensor/stochastic.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { N = 5 * QUANT8_BLOCK + 77 };

static const struct op_attr attr = {
    .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .stream = 99, .stochastic = true};

static void fill_scalars(float *scalars, int step)
{
    memset(scalars, 0, SCALAR_COUNT * sizeof *scalars);
    scalars[SCALAR_LR] = 3e-3f;
    scalars[SCALAR_BIAS1] = (float)(1 - pow(0.9, step));
    scalars[SCALAR_BIAS2] = (float)(1 - pow(0.999, step));
    scalars[SCALAR_KEY_LOW] = (float)(4321 + step), scalars[SCALAR_KEY_HIGH] = 17;
}

static float gradient(int i, int step) { return sinf((float)(i * 37 + step * 101)) * (i % 7 ? 0.1f : 3.0f); }

/* Elements [begin, end) of a parameter with 16-bit state. */
struct narrow {
    uint16_t p[N], m[N], v[N];
};

static void narrow_step(struct narrow *x, const float *g, int step, int begin, int end)
{
    float scalars[SCALAR_COUNT];
    struct op op = {.kind = OP_ADAMW, .attr = attr};
    struct tensor b = {.type = DT_BF16, .ndim = 1, .dim = {end - begin}},
                  f = {.type = DT_F32, .ndim = 1, .dim = {end - begin}};
    struct kernel_call call = {.op = &op,
                               .desc = {[ADAMW_P] = &b, [ADAMW_G] = &f, [ADAMW_M] = &b, [ADAMW_V] = &b}};
    op.attr.first = begin;
    fill_scalars(scalars, step);
    call.in[ADAMW_P] = call.out[ADAMW_NEW_P] = x->p + begin, call.in[ADAMW_G] = (void *)(g + begin);
    call.in[ADAMW_M] = call.out[ADAMW_NEW_M] = x->m + begin,
    call.in[ADAMW_V] = call.out[ADAMW_NEW_V] = x->v + begin;
    call.in[ADAMW_SCALARS] = scalars;
    cpu_adamw(&call);
}

static void wide_step(float *p, float *m, float *v, const float *g, int step)
{
    float scalars[SCALAR_COUNT];
    struct op op = {.kind = OP_ADAMW, .attr = attr};
    struct tensor f = {.type = DT_F32, .ndim = 1, .dim = {N}};
    struct kernel_call call = {.op = &op,
                               .in = {[ADAMW_P] = p, [ADAMW_G] = (void *)g, [ADAMW_M] = m, [ADAMW_V] = v},
                               .out = {[ADAMW_NEW_P] = p, [ADAMW_NEW_M] = m, [ADAMW_NEW_V] = v},
                               .desc = {[ADAMW_P] = &f, [ADAMW_G] = &f, [ADAMW_M] = &f, [ADAMW_V] = &f}};
    fill_scalars(scalars, step);
    call.in[ADAMW_SCALARS] = scalars;
    cpu_adamw(&call);
}

static void narrow_is_wide_rounded(void **state)
{
    (void)state;
    static struct narrow x, cut;
    static float p[N], m[N], v[N], g[N];
    uint32_t key = stochastic_key(17u << 16 | 4322, attr.stream);
    for (int i = 0; i < N; i++) {
        x.p[i] = f32_to_bf16((float)(i % 129 - 64) / 64), x.m[i] = f32_to_bf16(0.01f * (float)(i % 5));
        x.v[i] = f32_to_bf16(0.001f * (float)(1 + i % 3));
        p[i] = bf16_to_f32(x.p[i]), m[i] = bf16_to_f32(x.m[i]), v[i] = bf16_to_f32(x.v[i]),
        g[i] = gradient(i, 1);
    }
    cut = x;
    narrow_step(&x, g, 1, 0, N);
    wide_step(p, m, v, g, 1);
    for (int i = 0; i < N; i++) {
        uint32_t r = stochastic_bits(key, (uint64_t)i);
        assert_int_equal(x.p[i], stochastic_bf16(p[i], STOCHASTIC_P(r)));
        assert_int_equal(x.m[i], stochastic_bf16(m[i], STOCHASTIC_M(r)));
        assert_int_equal(x.v[i], stochastic_bf16(v[i], STOCHASTIC_V(r)));
    }
    narrow_step(&cut, g, 1, 0, 333);
    narrow_step(&cut, g, 1, 333, N);
    assert_memory_equal(&x, &cut, sizeof x);
}

/* A hundred steps much smaller than a unit in the last place: rounding to nearest would stand still. */
static void small_steps_arrive(void **state)
{
    (void)state;
    static uint16_t p[N];
    static float g[N];
    float scalars[SCALAR_COUNT];
    struct op op = {.kind = OP_SGD, .attr = {.stream = 5, .stochastic = true}};
    struct tensor b = {.type = DT_BF16, .ndim = 1, .dim = {N}}, f = {.type = DT_F32, .ndim = 1, .dim = {N}};
    for (int i = 0; i < N; i++) p[i] = f32_to_bf16(1.0f), g[i] = -1;
    for (int step = 1; step <= 100; step++) {
        fill_scalars(scalars, step);
        scalars[SCALAR_LR] = 1e-4f;
        struct kernel_call call = {.op = &op,
                                   .in = {[SGD_P] = p, [SGD_G] = g},
                                   .out = {[SGD_NEW_P] = p},
                                   .desc = {[SGD_P] = &b, [SGD_G] = &f}};
        call.in[SGD_SCALARS] = scalars;
        cpu_sgd(&call);
    }
    double mean = 0;
    for (int i = 0; i < N; i++) mean += (double)bf16_to_f32(p[i]) / N;
    /* 100 tosses up to the next number, 2^-7 away: deviation 0.0089, that of the mean of all 2.4e-4 */
    assert_true(fabs(mean - 1.01) < 1e-3);
}

struct eight {
    float p[N], m_scale[(N + 255) / 256], v_scale[(N + 255) / 256];
    uint8_t m[N], v[N];
};

static void eight_step(struct eight *x, const float *g, int step, int begin, int end)
{
    float scalars[SCALAR_COUNT];
    struct op op = {.kind = OP_ADAMW8, .attr = attr};
    int64_t n = end - begin, block = begin / QUANT8_BLOCK;
    struct tensor f = {.type = DT_F32, .ndim = 1, .dim = {n}}, q = {.type = DT_U8, .ndim = 1, .dim = {n}};
    struct tensor s = {.type = DT_F32, .ndim = 1, .dim = {quant8_blocks(n)}};
    struct kernel_call call = {.op = &op,
                               .desc = {[ADAMW8_P] = &f,
                                        [ADAMW8_G] = &f,
                                        [ADAMW8_MQ] = &q,
                                        [ADAMW8_VQ] = &q,
                                        [ADAMW8_MS] = &s,
                                        [ADAMW8_VS] = &s}};
    op.attr.first = begin;
    fill_scalars(scalars, step);
    call.in[ADAMW8_P] = call.out[ADAMW8_NEW_P] = x->p + begin, call.in[ADAMW8_G] = (void *)(g + begin);
    call.in[ADAMW8_MQ] = call.out[ADAMW8_NEW_MQ] = x->m + begin,
    call.in[ADAMW8_VQ] = call.out[ADAMW8_NEW_VQ] = x->v + begin;
    call.in[ADAMW8_MS] = call.out[ADAMW8_NEW_MS] = x->m_scale + block,
    call.in[ADAMW8_VS] = call.out[ADAMW8_NEW_VS] = x->v_scale + block;
    call.in[ADAMW8_SCALARS] = scalars;
    cpu_adamw8(&call);
}

/* Each code is that of its moment, by the plain definition. */
static void check_codes(const struct quant8_map *map, const float *x, const uint8_t *codes,
                        const float *scales)
{
    for (int i = 0; i < N; i++) {
        float inverse = scales[i / QUANT8_BLOCK] > 0 ? 1 / scales[i / QUANT8_BLOCK] : 0, y = x[i] * inverse;
        int want = quant8_code(map, y);
        if (map->zero == 0 && y > 0 && want == 0) want = 1;
        assert_int_equal(codes[i], want);
    }
}

static void eight_bits_follow(void **state)
{
    (void)state;
    static struct eight x, cut;
    static float p[N], m[N], v[N], g[N];
    memset(&x, 0, sizeof x);
    for (int i = 0; i < N; i++) p[i] = x.p[i] = (float)(i % 129 - 64) / 64, g[i] = gradient(i, 1);
    for (int i = 3 * QUANT8_BLOCK; i < 4 * QUANT8_BLOCK; i++) g[i] = 0; /* a block that stays at 0 */
    cut = x;
    eight_step(&x, g, 1, 0, N); /* from zero moments: the same arithmetic as the wide step */
    wide_step(p, m, v, g, 1);
    assert_memory_equal(x.p, p, sizeof p);
    check_codes(quant8_signed(), m, x.m, x.m_scale);
    check_codes(quant8_unsigned(), v, x.v, x.v_scale);
    for (int i = 0; i < N; i++) assert_true(v[i] == 0 || x.v[i] > 0);
    assert_true(x.m_scale[3] == 0 && x.v_scale[3] == 0);
    for (int step = 2; step <= 20; step++) {
        for (int i = 0; i < N; i++) g[i] = gradient(i, step);
        eight_step(&x, g, step, 0, N);
        wide_step(p, m, v, g, step);
    }
    double worst = 0;
    for (int i = 0; i < N; i++) {
        double e = fabs((double)x.p[i] - (double)p[i]);
        if (e > worst) worst = e;
    }
    assert_true(worst < 20 * 3e-3 * 0.5); /* half of the way they have gone */
    for (int i = 0; i < N; i++) g[i] = gradient(i, 1);
    for (int i = 3 * QUANT8_BLOCK; i < 4 * QUANT8_BLOCK; i++) g[i] = 0;
    struct eight whole = cut;
    eight_step(&whole, g, 1, 0, N);
    eight_step(&cut, g, 1, 0, 2 * QUANT8_BLOCK);
    eight_step(&cut, g, 1, 2 * QUANT8_BLOCK, N);
    assert_memory_equal(&whole, &cut, sizeof cut);
}

/* Numbers that cannot be are stored as something, and nothing is read beside the tables. */
static void not_a_number_is_survived(void **state)
{
    (void)state;
    static struct eight x;
    static float g[N];
    memset(&x, 0, sizeof x);
    for (int i = 0; i < N; i++) g[i] = i % 3 ? NAN : INFINITY;
    eight_step(&x, g, 1, 0, N);
    eight_step(&x, g, 2, 0, N);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(narrow_is_wide_rounded),
        cmocka_unit_test(small_steps_arrive),
        cmocka_unit_test(eight_bits_follow),
        cmocka_unit_test(not_a_number_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
