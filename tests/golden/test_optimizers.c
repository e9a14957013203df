/* test_optimizers.c - ten steps of each optimizer against PyTorch's and transformers', from the same gradients.
 *
 * Gradients are bf16 numbers, given once as f32 and once as bf16 beside a bf16 parameter with its master: both must
 * follow torch's fp32 optimizer. Numbers: make_optimizers.py. */
#include "store/safetensors.h"
#include "device/cpu/kernels.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

enum { STEPS = 10, MOST = 19 * 23 };

struct shape {
    const char *name;
    int ndim;
    int64_t dim[2];
};
static const struct shape shapes[] = {{"matrix", 2, {19, 23}}, {"vector", 1, {40}}};

/* One parameter on its way; narrow: bf16 with a master. */
struct walk {
    const struct shape *shape;
    bool narrow;
    int64_t n;
    float p[MOST], m[MOST], v[MOST], row[MOST], col[MOST];
    uint16_t weight[MOST], low[MOST], grad[MOST];
    float wide_grad[MOST], scalars[SCALAR_COUNT], factor[FACTOR_COUNT];
    void *work;
};

static void read_into(const struct safetensors *set, const char *name, enum dtype type, void *out)
{
    struct plim_error err = {0};
    const struct safetensor *t = safetensors_find(set, name);
    if (!t) fail_msg("%s is missing", name);
    if (safetensors_read_all(set, t, type, out, &err) != PLIM_OK) fail_msg("%s", err.text);
}

static struct tensor desc_of(const struct walk *w, enum dtype type)
{
    struct tensor t = {.type = type, .ndim = w->shape->ndim, .view_of = -1, .owner = -1};
    for (int i = 0; i < t.ndim; i++) t.dim[i] = w->shape->dim[i];
    return t;
}

static struct tensor list_of(int64_t n)
{
    return (struct tensor){.type = DT_F32, .ndim = 1, .dim = {n}, .view_of = -1, .owner = -1};
}

static void step_adamw(struct walk *w, const struct op *op)
{
    struct tensor p = desc_of(w, w->narrow ? DT_BF16 : DT_F32), f = desc_of(w, DT_F32),
                  low = desc_of(w, DT_U16);
    struct kernel_call call = {.op = op,
                               .in = {[ADAMW_P] = w->narrow ? (void *)w->weight : w->p,
                                      [ADAMW_G] = w->narrow ? (void *)w->grad : w->wide_grad,
                                      [ADAMW_M] = w->m,
                                      [ADAMW_V] = w->v},
                               .desc = {[ADAMW_P] = &p, [ADAMW_G] = &p, [ADAMW_M] = &f, [ADAMW_V] = &f}};
    call.out[ADAMW_NEW_P] = call.in[ADAMW_P], call.out[ADAMW_NEW_M] = w->m, call.out[ADAMW_NEW_V] = w->v,
    call.in[ADAMW_SCALARS] = w->scalars;
    if (w->narrow)
        call.in[ADAMW_MASTER] = call.out[ADAMW_NEW_MASTER] = w->low, call.desc[ADAMW_MASTER] = &low;
    cpu_adamw(&call);
}

static void step_adafactor(struct walk *w, const struct op *op)
{
    bool factored = w->shape->ndim == 2;
    struct tensor p = desc_of(w, w->narrow ? DT_BF16 : DT_F32), f = desc_of(w, DT_F32),
                  low = desc_of(w, DT_U16);
    struct tensor row = list_of(w->shape->dim[0]), col = list_of(w->shape->dim[1]),
                  two = list_of(FACTOR_COUNT);
    void *grad = w->narrow ? (void *)w->grad : w->wide_grad;
    struct kernel_call stat = {
        .op = op,
        .in = {[FACTOR_STAT_G] = grad,
               [FACTOR_STAT_ROW] = w->row,
               [FACTOR_STAT_COL] = factored ? w->col : NULL,
               [FACTOR_STAT_SCALARS] = w->scalars},
        .out = {[FACTOR_STAT_NEW_ROW] = w->row,
                [FACTOR_STAT_NEW_COL] = factored ? w->col : NULL,
                [FACTOR_STAT_FACTOR] = w->factor},
        .desc = {[FACTOR_STAT_G] = &p, [FACTOR_STAT_ROW] = &row, [FACTOR_STAT_COL] = factored ? &col : NULL},
        .work = w->work};
    cpu_factor_stat(&stat);
    struct kernel_call step = {.op = op,
                               .in = {[ADAFACTOR_P] = w->narrow ? (void *)w->weight : w->p,
                                      [ADAFACTOR_G] = grad,
                                      [ADAFACTOR_ROW] = w->row,
                                      [ADAFACTOR_COL] = factored ? w->col : NULL,
                                      [ADAFACTOR_FACTOR] = w->factor},
                               .desc = {[ADAFACTOR_P] = &p,
                                        [ADAFACTOR_G] = &p,
                                        [ADAFACTOR_ROW] = &row,
                                        [ADAFACTOR_COL] = factored ? &col : NULL,
                                        [ADAFACTOR_FACTOR] = &two}};
    step.out[ADAFACTOR_NEW_P] = step.in[ADAFACTOR_P], step.in[ADAFACTOR_SCALARS] = w->scalars;
    if (op->attr.beta1 > 0)
        step.in[ADAFACTOR_M] = step.out[ADAFACTOR_NEW_M] = w->m, step.desc[ADAFACTOR_M] = &f;
    if (w->narrow)
        step.in[ADAFACTOR_MASTER] = step.out[ADAFACTOR_NEW_MASTER] = w->low,
        step.desc[ADAFACTOR_MASTER] = &low;
    cpu_adafactor(&step);
}

static double worst_error(const struct walk *w, const float *want)
{
    double worst = 0;
    for (int64_t i = 0; i < w->n; i++) {
        float p = w->narrow ? master_join(w->weight[i], w->low[i]) : w->p[i];
        double e = fabs((double)p - (double)want[i]) / (1 + fabs((double)want[i]));
        if (e > worst) worst = e;
    }
    return worst;
}

static double follow(const struct safetensors *set, const char *name, const struct op *op, double limit,
                     const struct shape *shape, bool narrow)
{
    struct walk *w = calloc(1, sizeof *w);
    char key[64];
    float want[MOST];
    double worst = 0;
    assert_non_null(w);
    w->shape = shape, w->narrow = narrow,
    w->n = shape->ndim == 2 ? shape->dim[0] * shape->dim[1] : shape->dim[0];
    w->work = aligned_alloc(64, 1 << 16);
    assert_non_null(w->work);
    snprintf(key, sizeof key, "start:%s", shape->name);
    read_into(set, key, DT_F32, w->p);
    for (int64_t i = 0; i < w->n; i++) master_split(w->p[i], &w->weight[i], &w->low[i]);
    for (int step = 0; step < STEPS; step++) {
        snprintf(key, sizeof key, "grad:%s:%d", shape->name, step);
        read_into(set, key, DT_F32, w->wide_grad);
        read_into(set, key, DT_BF16, w->grad);
        w->scalars[SCALAR_LR] = 1e-2f;
        w->scalars[SCALAR_BIAS1] = (float)(1 - pow(0.9, step + 1));
        w->scalars[SCALAR_BIAS2] = (float)(1 - pow(0.999, step + 1));
        w->scalars[SCALAR_BETA2] = (float)(1 - pow(step + 1, -0.8));
        (op->kind == OP_ADAMW ? step_adamw : step_adafactor)(w, op);
        snprintf(key, sizeof key, "%s:%s:%d", name, shape->name, step);
        read_into(set, key, DT_F32, want);
        double e = worst_error(w, want);
        if (e > worst) worst = e;
    }
    if (worst > limit) fail_msg("%s %s%s: error %.3g", name, shape->name, narrow ? " bf16" : "", worst);
    free(w->work);
    free(w);
    return worst;
}

static void optimizers_follow(void **state)
{
    static const struct {
        const char *name;
        struct op op;
        double limit;
    } cases[] = {
        {"adafactor", {.kind = OP_ADAFACTOR, .attr = {.eps = 1e-30f, .limit = 1}}, 1e-5},
        {"adafactor_beta1",
         {.kind = OP_ADAFACTOR, .attr = {.eps = 1e-30f, .limit = 1, .beta1 = 0.9f, .decay = 0.1f}},
         1e-5},
        {"adamw",
         {.kind = OP_ADAMW, .attr = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .decay = 0.1f}},
         1e-6},
    };
    struct safetensors set;
    struct plim_error err = {0};
    char path[600];
    const char *src = getenv("SRC_DIR");
    (void)state;
    snprintf(path, sizeof path, "%s/tests/golden/optimizers/expected.safetensors", src ? src : ".");
    if (safetensors_open(path, &set, &err) != PLIM_OK) fail_msg("%s", err.text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double worst = 0;
        for (size_t s = 0; s < 2; s++)
            for (int narrow = 0; narrow < 2; narrow++)
                worst = fmax(worst,
                             follow(&set, cases[i].name, &cases[i].op, cases[i].limit, &shapes[s], narrow));
        print_message("# %s: worst error %.2e\n", cases[i].name, worst);
    }
    safetensors_close(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(optimizers_follow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
