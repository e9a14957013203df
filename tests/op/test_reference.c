/* test_reference.c - proofs of the reference itself: gradients by central differences, the rest by
 * identities.
 *
 * A forward op with outputs y_j is made a number L = sum_j sum_i w_ji y_ji with random weights w. What the
 * backward op makes of w must equal dL/dx for every single element of every differentiable input. Everything
 * is double, so differences are good to about nine digits.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "support/ref_probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- gradients -------------------------------------------------------------------------------------------
 */

/* Central differences of the forward op against a gradient of its input `slot`. */
static void check_gradient(struct probe *forward, int slot, const double *grad)
{
    const double h = 1e-5;
    int64_t n = tensor_count(&forward->desc[slot]);
    double *x = forward->call.in[slot].f, largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(grad[i]));
    for (int64_t i = 0; i < n; i++) {
        double at = x[i];
        x[i] = at + h;
        double above = probe_value(forward);
        x[i] = at - h;
        double below = probe_value(forward), slope = (above - below) / (2 * h);
        x[i] = at;
        if (!(fabs(slope - grad[i]) <= 1e-7 * (1 + largest)))
            fail_msg("%s input %d element %lld: gradient %.12g, differences give %.12g",
                     op_row(forward->op.kind)->name, slot, (long long)i, grad[i], slope);
    }
}

static void embed_gradient(void **state)
{
    (void)state;
    struct probe f = probe_make(OP_EMBED, 1), b = probe_make(OP_EMBED_BWD, 2);
    probe_in(&f, 0, DT_I32, "2 5");
    probe_ints(&f, 0, (const int[]){3, 0, 3, 6, 1, 1, 3, 2, 2, 2}, 10);
    probe_in(&f, 1, DT_F32, "7 3");
    probe_in(&f, 2, DT_F32, "2 5 3");
    probe_out(&f, 0, DT_F32, "2 5 3");
    probe_weigh(&f, 0);
    probe_use(&b, 0, f.call.in[0], &f.desc[0]);
    probe_use(&b, 1, f.weight[0], probe_out_desc(&f, 0));
    probe_out(&b, 0, DT_F32, "7 3");
    probe_run(&b);
    check_gradient(&f, 1, b.call.out[0].f);
    check_gradient(&f, 2, f.weight[0].f); /* the addend's gradient is dy: no op is needed */
    probe_free(&f), probe_free(&b);
}

static void norm_gradient_of(bool layer, bool bias)
{
    struct probe f = probe_make(OP_NORM, 3), b = probe_make(OP_NORM_BWD, 4);
    f.op.attr.layer_norm = b.op.attr.layer_norm = layer;
    f.op.attr.eps = b.op.attr.eps = 1e-2f;
    probe_in(&f, 0, DT_F32, "2 3 7");
    probe_in(&f, 1, DT_F32, "7");
    if (bias) probe_in(&f, 2, DT_F32, "7");
    probe_out(&f, 0, DT_F32, "2 3 7");
    probe_out(&f, 1, DT_F32, layer ? "2 3 2" : "2 3 1");
    probe_weigh(&f, 0);
    probe_run(&f);
    probe_use(&b, 0, f.weight[0], probe_out_desc(&f, 0));
    probe_use(&b, 1, f.call.in[0], &f.desc[0]);
    probe_use(&b, 2, f.call.in[1], &f.desc[1]);
    probe_copy(&b, 3, f.call.out[1], probe_out_desc(&f, 1));
    probe_out(&b, 0, DT_F32, "2 3 7");
    probe_out(&b, 1, DT_F32, "7");
    if (bias) probe_out(&b, 2, DT_F32, "7");
    probe_run(&b);
    for (int i = 0; i < 2 + bias; i++) check_gradient(&f, i, b.call.out[i].f);
    probe_free(&f), probe_free(&b);
}

static void norm_gradient(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) norm_gradient_of(i & 1, i & 2);
}

static void linear_gradient_of(bool kn)
{
    struct probe f = probe_make(OP_LINEAR, 5), dx = probe_make(OP_LINEAR_DX, 6),
                 dw = probe_make(OP_LINEAR_DW, 7);
    f.op.attr.weight_kn = dx.op.attr.weight_kn = dw.op.attr.weight_kn = kn;
    probe_in(&f, 0, DT_F32, "2 3 5");
    probe_in(&f, 1, DT_F32, kn ? "5 4" : "4 5");
    probe_in(&f, 2, DT_F32, "4");
    probe_in(&f, 3, DT_F32, "2 3 4");
    probe_out(&f, 0, DT_F32, "2 3 4");
    probe_weigh(&f, 0);
    probe_use(&dx, 0, f.weight[0], probe_out_desc(&f, 0));
    probe_use(&dx, 1, f.call.in[1], &f.desc[1]);
    probe_out(&dx, 0, DT_F32, "2 3 5");
    probe_use(&dw, 0, f.weight[0], probe_out_desc(&f, 0));
    probe_use(&dw, 1, f.call.in[0], &f.desc[0]);
    probe_out(&dw, 0, DT_F32, kn ? "5 4" : "4 5");
    probe_out(&dw, 1, DT_F32, "4");
    probe_run(&dx);
    probe_run(&dw);
    check_gradient(&f, 0, dx.call.out[0].f);
    check_gradient(&f, 1, dw.call.out[0].f);
    check_gradient(&f, 2, dw.call.out[1].f);
    check_gradient(&f, 3, f.weight[0].f);
    probe_free(&f), probe_free(&dx), probe_free(&dw);
}

static void linear_gradient(void **state)
{
    (void)state;
    linear_gradient_of(false);
    linear_gradient_of(true);
}

static void attn_gradient_of(const int *pos, int window)
{
    struct probe f = probe_make(OP_ATTN, 10), b = probe_make(OP_ATTN_BWD, 11);
    f.op.attr = b.op.attr = (struct op_attr){.scale = 0.7f, .window = window};
    probe_in(&f, 0, DT_F32, "2 5 4 3");
    probe_in(&f, 1, DT_F32, "2 5 2 3");
    probe_in(&f, 2, DT_F32, "2 5 2 3");
    probe_in(&f, 3, DT_I32, "2 5");
    probe_ints(&f, 3, pos, 10);
    probe_out(&f, 0, DT_F32, "2 5 4 3");
    probe_out(&f, 1, DT_F32, "2 4 5");
    probe_weigh(&f, 0);
    probe_run(&f);
    probe_use(&b, 0, f.weight[0], probe_out_desc(&f, 0));
    for (int i = 0; i < 3; i++) probe_use(&b, 1 + i, f.call.in[i], &f.desc[i]);
    probe_copy(&b, 4, f.call.out[0], probe_out_desc(&f, 0));
    probe_copy(&b, 5, f.call.out[1], probe_out_desc(&f, 1));
    probe_use(&b, 6, f.call.in[3], &f.desc[3]);
    probe_out(&b, 0, DT_F32, "2 5 4 3");
    probe_out(&b, 1, DT_F32, "2 5 2 3");
    probe_out(&b, 2, DT_F32, "2 5 2 3");
    probe_run(&b);
    for (int i = 0; i < 3; i++) check_gradient(&f, i, b.call.out[i].f);
    probe_free(&f), probe_free(&b);
}

static void attn_gradient(void **state)
{
    (void)state;
    attn_gradient_of((const int[]){0, 1, 2, 3, 4, 0, 1, 2, 3, 4}, 0);
    attn_gradient_of((const int[]){0, 1, 2, 3, 4, 0, 1, 2, 3, 4}, 2);
    attn_gradient_of((const int[]){0, 1, 0, 1, 2, 0, 0, 1, 2, 3}, 0);
    attn_gradient_of((const int[]){0, 1, 0, 1, 2, 0, 0, 1, 2, 3}, 3);
}

/* Ops on equal elements: `inputs` operands, and a backward op that takes dy first. */
static void each_gradient_of(int kind, int backward, int inputs)
{
    struct probe f = probe_make(kind, 12), b = probe_make(backward, 13);
    for (int i = 0; i < inputs; i++) probe_in(&f, i, DT_F32, "5 9");
    probe_out(&f, 0, DT_F32, "5 9");
    probe_weigh(&f, 0);
    probe_use(&b, 0, f.weight[0], probe_out_desc(&f, 0));
    for (int i = 0; i < inputs; i++) probe_use(&b, 1 + i, f.call.in[i], &f.desc[i]);
    for (int i = 0; i < inputs; i++) probe_out(&b, i, DT_F32, "5 9");
    probe_run(&b);
    for (int i = 0; i < inputs; i++) check_gradient(&f, i, b.call.out[i].f);
    probe_free(&f), probe_free(&b);
}

static void activation_gradients(void **state)
{
    (void)state;
    each_gradient_of(OP_SWIGLU, OP_SWIGLU_BWD, 2);
    each_gradient_of(OP_GELU, OP_GELU_BWD, 1);
}

/* The loss op makes its own gradient, times scalars[LOSS_GRAD]; ignored rows have none. */
static void xent_gradient(void **state)
{
    (void)state;
    struct probe f = probe_make(OP_XENT, 14);
    probe_in(&f, 0, DT_F32, "6 11");
    probe_in(&f, 1, DT_I32, "6");
    probe_ints(&f, 1, (const int[]){3, 10, -1, 0, -100, 7}, 6);
    probe_in(&f, 2, DT_F32, "16");
    probe_out(&f, 0, DT_F64, "2");
    probe_weigh(&f, 0);
    f.weight[0].f[0] = f.call.in[2].f[SCALAR_LOSS_GRAD] = 0.37;
    probe_out(&f, 1, DT_F32, "6 11");
    probe_run(&f);
    double gradient[66];
    memcpy(gradient, f.call.out[1].f, sizeof gradient);
    assert_true(f.call.out[0].f[1] == 4);
    for (int v = 0; v < 11; v++) assert_true(gradient[2 * 11 + v] == 0 && gradient[4 * 11 + v] == 0);
    check_gradient(&f, 0, gradient);
    probe_free(&f);
}

/* The gradient of a rotation is the rotation back. */
static void split_gradient_of(bool turned)
{
    static const char *const parts[] = {"2 3 4 6", "2 3 2 6", "2 3 2 6"};
    struct probe f = probe_make(OP_SPLIT3, 15), b = probe_make(OP_JOIN3, 16);
    probe_in(&f, 0, DT_F32, "2 3 48");
    if (turned) probe_in(&f, 1, DT_F32, "2 3 6");
    for (int i = 0; i < 3; i++) probe_out(&f, i, DT_F32, parts[i]), probe_weigh(&f, i);
    for (int i = 0; i < 3; i++) probe_use(&b, i, f.weight[i], probe_out_desc(&f, i));
    if (turned) probe_use(&b, 3, f.call.in[1], &f.desc[1]);
    probe_out(&b, 0, DT_F32, "2 3 48");
    probe_run(&b);
    check_gradient(&f, 0, b.call.out[0].f);
    probe_free(&f), probe_free(&b);
}

static void split_gradient(void **state)
{
    (void)state;
    split_gradient_of(false);
    split_gradient_of(true);
}

/* --- optional addends and accumulation --------------------------------------------------------------------
 */

/* Running a probe with input `slot` present adds that input to output 0. */
static void adds_input(struct probe *r, int slot)
{
    int64_t n = tensor_count(probe_out_desc(r, 0));
    double *plain = malloc((size_t)n * sizeof *plain), *addend = r->call.in[slot].f;
    assert_non_null(plain);
    r->call.in[slot].f = NULL;
    probe_run(r);
    memcpy(plain, r->call.out[0].f, (size_t)n * sizeof *plain);
    r->call.in[slot].f = addend;
    probe_run(r);
    for (int64_t i = 0; i < n; i++)
        assert_true(fabs(r->call.out[0].f[i] - plain[i] - addend[i]) < 1e-12 * (1 + fabs(plain[i])));
    free(plain);
}

static void addends(void **state)
{
    (void)state;
    struct probe dx = probe_make(OP_LINEAR_DX, 20), norm = probe_make(OP_NORM_BWD, 21);
    probe_in(&dx, 0, DT_F32, "6 4"), probe_in(&dx, 1, DT_F32, "4 5"), probe_in(&dx, 2, DT_F32, "6 5");
    probe_out(&dx, 0, DT_F32, "6 5");
    adds_input(&dx, 2);
    probe_in(&norm, 0, DT_F32, "6 4"), probe_in(&norm, 1, DT_F32, "6 4"), probe_in(&norm, 2, DT_F32, "4");
    probe_in(&norm, 3, DT_F32, "6 1"), probe_in(&norm, 4, DT_F32, "6 4");
    probe_out(&norm, 0, DT_F32, "6 4"), probe_out(&norm, 1, DT_F32, "4");
    adds_input(&norm, 4);
    probe_free(&dx), probe_free(&norm);
}

/* Running twice with accumulation gives twice the overwriting result, in each of the first `outs` outputs
 * from `first`. */
static void doubles(struct probe *r, int first, int outs)
{
    double once[OP_MAX_OUT][64];
    r->call.accumulate = false;
    probe_run(r);
    for (int i = first; i < first + outs; i++)
        memcpy(once[i], r->call.out[i].f, (size_t)tensor_count(probe_out_desc(r, i)) * sizeof(double));
    r->call.accumulate = true;
    probe_run(r);
    for (int i = first; i < first + outs; i++)
        for (int64_t j = 0; j < tensor_count(probe_out_desc(r, i)); j++)
            assert_true(fabs(r->call.out[i].f[j] - 2 * once[i][j]) < 1e-12 * (1 + fabs(once[i][j])));
    probe_free(r);
}

static void accumulation(void **state)
{
    (void)state;
    struct probe embed = probe_make(OP_EMBED_BWD, 22), norm = probe_make(OP_NORM_BWD, 23);
    struct probe linear = probe_make(OP_LINEAR_DW, 24), sumsq = probe_make(OP_SUMSQ, 25),
                 xent = probe_make(OP_XENT, 26);
    probe_in(&embed, 0, DT_I32, "3"), probe_in(&embed, 1, DT_F32, "3 2"), probe_out(&embed, 0, DT_F32, "4 2");
    doubles(&embed, 0, 1);
    probe_in(&norm, 0, DT_F32, "6 4"), probe_in(&norm, 1, DT_F32, "6 4"), probe_in(&norm, 2, DT_F32, "4");
    probe_in(&norm, 3, DT_F32, "6 1"), probe_out(&norm, 0, DT_F32, "6 4");
    probe_out(&norm, 1, DT_F32, "4"), probe_out(&norm, 2, DT_F32, "4");
    doubles(&norm, 1, 2);
    probe_in(&linear, 0, DT_F32, "6 4"), probe_in(&linear, 1, DT_F32, "6 5");
    probe_out(&linear, 0, DT_F32, "4 5"), probe_out(&linear, 1, DT_F32, "4");
    doubles(&linear, 0, 2);
    probe_in(&sumsq, 0, DT_F32, "50"), probe_out(&sumsq, 0, DT_F64, "1");
    doubles(&sumsq, 0, 1);
    probe_in(&xent, 0, DT_F32, "6 11"), probe_in(&xent, 1, DT_I32, "6"), probe_in(&xent, 2, DT_F32, "16");
    probe_out(&xent, 0, DT_F64, "2");
    doubles(&xent, 0, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_gradient),       cmocka_unit_test(norm_gradient),
        cmocka_unit_test(linear_gradient),      cmocka_unit_test(attn_gradient),
        cmocka_unit_test(activation_gradients), cmocka_unit_test(xent_gradient),
        cmocka_unit_test(split_gradient),       cmocka_unit_test(addends),
        cmocka_unit_test(accumulation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
