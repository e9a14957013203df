/* run-tests: not=tsan */
/* test_cpu_optimizer.c - optimizers that follow their formulas, masters that lose nothing, clipping. */
#include "device/cpu/kernels.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};

#define ADAM                                                                                                 \
    {                                                                                                        \
        .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .decay = 0.1f                                          \
    }

enum { PARAMS = 1237, STEPS = 10 };

struct adam {
    enum dtype type;
    float p[PARAMS], g[PARAMS], m[PARAMS], v[PARAMS]; /* p and master hold the narrow types' bits too */
    float master[PARAMS];
    float scalars[SCALAR_COUNT], coef[CLIP_COUNT];
};

/* A stream of gradients and a start, the same for every type: a start that f16 and bf16 hold exactly. */
static void adam_init(struct adam *a, enum dtype type)
{
    memset(a, 0, sizeof *a);
    a->type = type;
    for (int i = 0; i < PARAMS; i++) {
        float start = (float)(i % 129 - 64) / 64.0f;
        uint16_t *low = (uint16_t *)a->master;
        if (type == DT_BF16)
            master_split(start, (uint16_t *)a->p + i, low + i);
        else
            dtype_convert((char *)a->p + (size_t)i * dtype_size(type), type, &start, DT_F32, 1);
        if (type == DT_F16) a->master[i] = start;
    }
}

static void adam_gradient(struct adam *a, int step)
{
    for (int i = 0; i < PARAMS; i++) a->g[i] = sinf((float)(i * 37 + step * 101)) * (i % 7 ? 0.1f : 30.0f);
    a->scalars[SCALAR_LR] = 3e-3f;
    a->scalars[SCALAR_BIAS1] = (float)(1 - pow(0.9, step));
    a->scalars[SCALAR_BIAS2] = (float)(1 - pow(0.999, step));
}

static void adam_step(struct adam *a, kernel_run *kernel, bool with_coef)
{
    struct tensor p = {.type = a->type, .ndim = 1, .dim = {PARAMS}},
                  f = {.type = DT_F32, .ndim = 1, .dim = {PARAMS}};
    struct tensor master = {.type = dtype_master(a->type), .ndim = 1, .dim = {PARAMS}};
    bool adamw = kernel == cpu_adamw, has_master = a->type != DT_F32;
    struct op op = {.kind = adamw ? OP_ADAMW : OP_SGD, .attr = ADAM};
    const struct update_slots at = op_row(op.kind)->update;
    struct kernel_call call = {.op = &op};
    call.in[UPDATE_P] = call.out[UPDATE_NEW_P] = a->p, call.desc[UPDATE_P] = &p;
    call.in[UPDATE_G] = a->g, call.desc[UPDATE_G] = &f;
    call.in[at.m] = call.out[at.new_m] = a->m, call.desc[at.m] = &f;
    if (adamw) call.in[at.v] = call.out[at.new_v] = a->v, call.desc[at.v] = &f;
    if (has_master) call.in[at.master] = call.out[at.new_master] = a->master, call.desc[at.master] = &master;
    call.in[at.scalars] = a->scalars;
    call.in[at.coef] = with_coef ? a->coef : NULL;
    kernel(&call);
}

static float adam_value(const struct adam *a, int i)
{
    if (a->type == DT_F32) return a->p[i];
    if (a->type == DT_F16) return a->master[i];
    return master_join(((const uint16_t *)a->p)[i], ((const uint16_t *)a->master)[i]);
}

static void adamw_follows_the_formula(void **state)
{
    (void)state;
    struct adam *a = malloc(sizeof *a);
    assert_non_null(a);
    adam_init(a, DT_F32);
    static double p[PARAMS], m[PARAMS], v[PARAMS];
    for (int i = 0; i < PARAMS; i++) p[i] = (double)a->p[i];
    for (int step = 1; step <= STEPS; step++) {
        adam_gradient(a, step);
        adam_step(a, cpu_adamw, false);
        double lr = (double)a->scalars[SCALAR_LR], bias1 = 1 - pow(0.9, step), bias2 = 1 - pow(0.999, step);
        for (int i = 0; i < PARAMS; i++) {
            double g = (double)a->g[i];
            p[i] *= 1 - lr * 0.1;
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.999 * v[i] + 0.001 * g * g;
            p[i] -= lr / bias1 * m[i] / (sqrt(v[i]) / sqrt(bias2) + 1e-8);
        }
    }
    for (int i = 0; i < PARAMS; i++) {
        assert_true(fabs((double)a->p[i] - p[i]) < 1e-6);
        assert_true(fabs((double)a->m[i] - m[i]) < 1e-6 * (fabs(m[i]) + 1));
        assert_true(fabs((double)a->v[i] - v[i]) < 1e-6 * (v[i] + 1e-3));
    }
    free(a);
}

/* The narrow parameter with its master is the fp32 parameter, to the bit, step after step. */
static void masters_lose_nothing(void **state)
{
    (void)state;
    struct adam *wide = malloc(sizeof *wide), *narrow = malloc(sizeof *narrow);
    kernel_run *const kernels[] = {cpu_adamw, cpu_sgd};
    assert_true(wide && narrow);
    for (int k = 0; k < 2; k++)
        for (int t = 1; t < 3; t++) {
            adam_init(wide, DT_F32);
            adam_init(narrow, types[t]);
            for (int step = 1; step <= STEPS; step++) {
                adam_gradient(wide, step);
                adam_gradient(narrow, step);
                adam_step(wide, kernels[k], false);
                adam_step(narrow, kernels[k], false);
            }
            for (int i = 0; i < PARAMS; i++) {
                float value = adam_value(narrow, i);
                assert_memory_equal(&value, &wide->p[i], sizeof value);
                if (types[t] == DT_F16) assert_int_equal(((uint16_t *)narrow->p)[i], f32_to_f16(value));
            }
            assert_memory_equal(wide->m, narrow->m, sizeof wide->m);
        }
    free(wide);
    free(narrow);
}

static void a_step_that_is_not_finite_is_left_out(void **state)
{
    (void)state;
    struct adam *a = malloc(sizeof *a), *before = malloc(sizeof *before);
    assert_true(a && before);
    adam_init(a, DT_BF16);
    adam_gradient(a, 1);
    a->g[5] = INFINITY;
    struct tensor g = {.type = DT_F32, .ndim = 1, .dim = {PARAMS}};
    double sum = 0, partial;
    struct kernel_call call = {.in = {a->g}, .out = {&sum}, .desc = {&g}, .work = &partial};
    cpu_sumsq(&call);
    assert_true(isinf(sum));
    a->scalars[SCALAR_UNSCALE] = 0.5f;
    struct tensor one = {.type = DT_F64, .ndim = 1, .dim = {1}};
    call = (struct kernel_call){.in = {&sum, a->scalars}, .out = {a->coef}, .desc = {&one}};
    cpu_clip(&call);
    assert_true(a->coef[CLIP_FINITE] == 0 && a->coef[CLIP_MULTIPLIER] == 0);
    *before = *a;
    adam_step(a, cpu_adamw, true);
    adam_step(a, cpu_sgd, true);
    assert_memory_equal(a, before, sizeof *a);
    free(a);
    free(before);
}

static void clip_bounds_the_global_norm(void **state)
{
    (void)state;
    static const struct {
        double sum;
        float clip, unscale, multiplier, norm;
    } cases[] = {
        {100, 0, 1, 1, 10},      {100, 20, 1, 1, 10}, {100, 5, 1, 0.5f, 10},
        {100, 2, 0.5f, 0.2f, 5}, {0, 1, 1, 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float scalars[SCALAR_COUNT] = {0}, coef[CLIP_COUNT];
        scalars[SCALAR_CLIP] = cases[i].clip, scalars[SCALAR_UNSCALE] = cases[i].unscale;
        double sums[] = {cases[i].sum / 2, 0, cases[i].sum / 2};
        struct tensor three = {.type = DT_F64, .ndim = 1, .dim = {3}};
        cpu_clip(&(struct kernel_call){.in = {sums, scalars}, .out = {coef}, .desc = {&three}});
        assert_true(fabsf(coef[CLIP_MULTIPLIER] - cases[i].multiplier) < 1e-6f);
        assert_true(fabsf(coef[CLIP_NORM] - cases[i].norm) < 1e-6f);
        assert_true(coef[CLIP_FINITE] == 1);
    }
}

/* Whole lines go past the caches, others do not (rows_update.h). */
static void an_update_elsewhere_has_the_bits_of_one_in_place(void **state)
{
    (void)state;
    enum { MOST = 3 * 16384 + 64, ARRAYS = 4 };
    static const int64_t counts[] = {32, 96, 100, 16384, MOST};
    static const size_t wide[ARRAYS] = {2, 2, 4, 4};
    static _Alignas(64) char old[ARRAYS][4 * MOST + 64], now[ARRAYS][4 * MOST + 64];
    static uint16_t g[MOST];
    float scalars[SCALAR_COUNT] = {[SCALAR_LR] = 3e-3f, [SCALAR_BIAS1] = 0.1f, [SCALAR_BIAS2] = 0.001f};
    struct op op = {.kind = OP_ADAMW, .attr = ADAM};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t shift = 0; shift <= 32; shift += 32) { /* bytes: lines, and not */
            struct tensor b = {.type = DT_BF16, .ndim = 1, .dim = {counts[c]}};
            struct tensor low = b, f = b;
            struct kernel_call call = {.op = &op};
            const int in[ARRAYS] = {ADAMW_P, ADAMW_MASTER, ADAMW_M, ADAMW_V};
            const int out[ARRAYS] = {ADAMW_NEW_P, ADAMW_NEW_MASTER, ADAMW_NEW_M, ADAMW_NEW_V};
            low.type = dtype_master(DT_BF16), f.type = DT_F32;
            for (int64_t i = 0; i < counts[c]; i++) {
                float x = sinf((float)i), m = 0.01f * x, v = 1e-4f * x * x;
                g[i] = f32_to_bf16(cosf((float)(3 * i)));
                master_split(x, (uint16_t *)(void *)(old[0] + shift) + i,
                             (uint16_t *)(void *)(old[1] + shift) + i);
                memcpy(old[2] + shift + 4 * i, &m, 4), memcpy(old[3] + shift + 4 * i, &v, 4);
            }
            call.in[ADAMW_G] = g, call.in[ADAMW_SCALARS] = scalars, call.desc[ADAMW_G] = &b;
            call.desc[ADAMW_P] = &b, call.desc[ADAMW_MASTER] = &low;
            call.desc[ADAMW_M] = call.desc[ADAMW_V] = &f;
            for (int a = 0; a < ARRAYS; a++)
                call.in[in[a]] = old[a] + shift, call.out[out[a]] = now[a] + shift;
            cpu_adamw(&call);
            for (int a = 0; a < ARRAYS; a++) call.out[out[a]] = old[a] + shift;
            cpu_adamw(&call);
            for (int a = 0; a < ARRAYS; a++)
                assert_memory_equal(old[a] + shift, now[a] + shift, wide[a] * (size_t)counts[c]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_follows_the_formula),
        cmocka_unit_test(masters_lose_nothing),
        cmocka_unit_test(a_step_that_is_not_finite_is_left_out),
        cmocka_unit_test(clip_bounds_the_global_norm),
        cmocka_unit_test(an_update_elsewhere_has_the_bits_of_one_in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
