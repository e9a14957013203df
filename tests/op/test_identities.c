/* test_identities.c - the parts of the reference that have no gradient to check are proved by identities:
 * closed forms of the optimizers, and equal ways to say the same attention. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "support/ref_probe.h"

#include <math.h>
#include <string.h>

static void close_to(double got, double want)
{
    if (!(fabs(got - want) <= 1e-11 * (1 + fabs(want)))) fail_msg("%.15g is not %.15g", got, want);
}

/* --- attention --------------------------------------------------------------------------------------------
 */

static struct probe attention(const char *q, const char *kv, const char *pos, const char *lse)
{
    struct probe r = probe_make(OP_ATTN, 1);
    r.op.attr.scale = 0.5f;
    probe_in(&r, ATTN_Q, DT_F32, q);
    probe_in(&r, ATTN_K, DT_F32, kv);
    probe_in(&r, ATTN_V, DT_F32, kv);
    probe_in(&r, ATTN_POS, DT_I32, pos);
    for (int64_t i = 0; i < r.desc[ATTN_POS].dim[0] * r.desc[ATTN_POS].dim[1]; i++)
        r.call.in[ATTN_POS].i[i] = (int32_t)(i % r.desc[ATTN_POS].dim[1]);
    probe_out(&r, ATTN_O, DT_F32, q);
    probe_out(&r, ATTN_LSE, DT_F32, lse);
    return r;
}

/* Probabilities sum to one: values that are all one come out as one. The first query sees one key only. */
static void attention_is_an_average(void **state)
{
    (void)state;
    struct probe r = attention("2 6 4 3", "2 6 2 3", "2 6", "2 4 6");
    for (int64_t i = 0; i < 2 * 6 * 2 * 3; i++) r.call.in[ATTN_V].f[i] = 1;
    probe_run(&r);
    for (int64_t i = 0; i < 2 * 6 * 4 * 3; i++) close_to(r.call.out[ATTN_O].f[i], 1);
    const double *q = r.call.in[ATTN_Q].f, *k = r.call.in[ATTN_K].f;
    close_to(r.call.out[ATTN_LSE].f[0], 0.5 * (q[0] * k[0] + q[1] * k[1] + q[2] * k[2]));
    probe_free(&r);
}

/* Query head h reads kv head h / (H / K): repeating kv heads changes nothing. */
static void grouped_heads_are_repeated_heads(void **state)
{
    (void)state;
    struct probe few = attention("2 5 6 3", "2 5 2 3", "2 5", "2 6 5");
    struct probe all = attention("2 5 6 3", "2 5 6 3", "2 5", "2 6 5");
    memcpy(all.call.in[ATTN_Q].f, few.call.in[ATTN_Q].f, sizeof(double) * 2 * 5 * 6 * 3);
    for (int i = ATTN_K; i <= ATTN_V; i++)
        for (int64_t row = 0; row < 2 * 5; row++)
            for (int64_t h = 0; h < 6; h++)
                memcpy(all.call.in[i].f + (row * 6 + h) * 3, few.call.in[i].f + (row * 2 + h / 3) * 3,
                       3 * sizeof(double));
    probe_run(&few), probe_run(&all);
    for (int64_t i = 0; i < 2 * 5 * 6 * 3; i++)
        close_to(few.call.out[ATTN_O].f[i], all.call.out[ATTN_O].f[i]);
    for (int64_t i = 0; i < 2 * 6 * 5; i++)
        close_to(few.call.out[ATTN_LSE].f[i], all.call.out[ATTN_LSE].f[i]);
    probe_free(&few), probe_free(&all);
}

/* Two samples packed into one row (positions restart) attend as if each were alone. */
static void packed_samples_are_separate(void **state)
{
    (void)state;
    struct probe both = attention("1 7 2 3", "1 7 2 3", "1 7", "1 2 7");
    struct probe first = attention("1 4 2 3", "1 4 2 3", "1 4", "1 2 4");
    struct probe second = attention("1 3 2 3", "1 3 2 3", "1 3", "1 2 3");
    probe_ints(&both, ATTN_POS, (const int[]){0, 1, 2, 3, 0, 1, 2}, 7);
    for (int i = ATTN_Q; i <= ATTN_V; i++) {
        memcpy(first.call.in[i].f, both.call.in[i].f, sizeof(double) * 4 * 6);
        memcpy(second.call.in[i].f, both.call.in[i].f + 4 * 6, sizeof(double) * 3 * 6);
    }
    probe_run(&both), probe_run(&first), probe_run(&second);
    for (int i = 0; i < 4 * 6; i++) close_to(both.call.out[ATTN_O].f[i], first.call.out[ATTN_O].f[i]);
    for (int i = 0; i < 3 * 6; i++)
        close_to(both.call.out[ATTN_O].f[4 * 6 + i], second.call.out[ATTN_O].f[i]);
    probe_free(&both), probe_free(&first), probe_free(&second);
}

/* Appending keys one position at a time and attending over the cache equals attending over the whole row. */
static void cache_of(int window)
{
    struct probe whole = attention("1 5 4 3", "1 5 2 3", "1 5", "1 4 5"),
                 append = probe_make(OP_KV_APPEND, 2);
    struct probe step = attention("1 1 4 3", "1 8 2 3", "1 1", "1 4 1");
    whole.op.attr.window = step.op.attr.window = window;
    step.op.attr.cached = true;
    probe_in(&append, KV_APPEND_K, DT_F32, "1 1 2 3"), probe_in(&append, KV_APPEND_V, DT_F32, "1 1 2 3"),
        probe_in(&append, KV_APPEND_POS, DT_I32, "1 1");
    probe_in(&append, KV_APPEND_KC, DT_F32, "1 8 2 3"), probe_in(&append, KV_APPEND_VC, DT_F32, "1 8 2 3");
    probe_out(&append, KV_APPEND_NEW_KC, DT_F32, "1 8 2 3"),
        probe_out(&append, KV_APPEND_NEW_VC, DT_F32, "1 8 2 3");
    probe_run(&whole);
    for (int t = 0; t < 5; t++) {
        append.call.in[KV_APPEND_POS].i[0] = step.call.in[ATTN_POS].i[0] = t;
        probe_reals(&append, KV_APPEND_K, whole.call.in[ATTN_K].f + t * 6, 6);
        probe_reals(&append, KV_APPEND_V, whole.call.in[ATTN_V].f + t * 6, 6);
        probe_run(&append);
        probe_reals(&append, KV_APPEND_KC, append.call.out[KV_APPEND_NEW_KC].f, 8 * 6);
        probe_reals(&append, KV_APPEND_VC, append.call.out[KV_APPEND_NEW_VC].f, 8 * 6);
        probe_reals(&step, ATTN_K, append.call.out[KV_APPEND_NEW_KC].f, 8 * 6);
        probe_reals(&step, ATTN_V, append.call.out[KV_APPEND_NEW_VC].f, 8 * 6);
        probe_reals(&step, ATTN_Q, whole.call.in[ATTN_Q].f + t * 12, 12);
        probe_run(&step);
        for (int i = 0; i < 12; i++)
            close_to(step.call.out[ATTN_O].f[i], whole.call.out[ATTN_O].f[t * 12 + i]);
        for (int h = 0; h < 4; h++)
            close_to(step.call.out[ATTN_LSE].f[h], whole.call.out[ATTN_LSE].f[h * 5 + t]);
    }
    probe_free(&whole), probe_free(&append), probe_free(&step);
}

static void cache_is_the_whole_row(void **state)
{
    (void)state;
    cache_of(0);
    cache_of(2);
}

/* A query and a key rotated by their positions meet at an angle that depends on the distance alone. */
static void rope_sees_distance(void **state)
{
    (void)state;
    struct probe table = probe_make(OP_ROPE_TABLE, 3), rope = probe_make(OP_SPLIT3, 4);
    probe_in(&table, ROPE_TABLE_POS, DT_I32, "1 4");
    probe_ints(&table, ROPE_TABLE_POS, (const int[]){2, 5, 40, 43}, 4);
    probe_in(&table, ROPE_TABLE_INV_FREQ, DT_F32, "3");
    probe_reals(&table, ROPE_TABLE_INV_FREQ, (const double[]){1, 0.1, 0.01}, 3);
    probe_out(&table, ROPE_TABLE_TABLE, DT_F32, "1 4 6");
    probe_run(&table);
    probe_in(&rope, SPLIT3_X, DT_F32, "1 4 18");
    probe_copy(&rope, SPLIT3_TABLE, table.call.out[ROPE_TABLE_TABLE],
               probe_out_desc(&table, ROPE_TABLE_TABLE));
    for (int i = SPLIT3_Q; i <= SPLIT3_V; i++) probe_out(&rope, i, DT_F32, "1 4 1 6");
    for (int t = 1; t < 4; t++)
        memcpy(rope.call.in[SPLIT3_X].f + 18 * t, rope.call.in[SPLIT3_X].f, 18 * sizeof(double));
    probe_run(&rope);
    double near = 0, far = 0;
    for (int d = 0; d < 6; d++) {
        near += rope.call.out[SPLIT3_Q].f[6 * 1 + d] * rope.call.out[SPLIT3_K].f[d];        /* 5 and 2 */
        far += rope.call.out[SPLIT3_Q].f[6 * 3 + d] * rope.call.out[SPLIT3_K].f[6 * 2 + d]; /* 43 and 40 */
    }
    close_to(near, far);
    probe_free(&table), probe_free(&rope);
}

/* --- norms and loss of known inputs -----------------------------------------------------------------------
 */

static void norms_of_known_rows(void **state)
{
    (void)state;
    struct probe r = probe_make(OP_NORM, 5);
    probe_in(&r, NORM_X, DT_F32, "1 4"), probe_in(&r, NORM_W, DT_F32, "4"),
        probe_in(&r, NORM_BIAS, DT_F32, "4");
    probe_out(&r, NORM_Y, DT_F32, "1 4"), probe_out(&r, NORM_STAT, DT_F32, "1 2");
    probe_reals(&r, NORM_X, (const double[]){1, 3, 1, 3}, 4);
    probe_reals(&r, NORM_W, (const double[]){1, 1, 2, 2}, 4);
    probe_reals(&r, NORM_BIAS, (const double[]){0, 10, 0, 10}, 4);
    r.op.attr.layer_norm = true;
    probe_run(&r);
    static const double layer[] = {-1, 11, -2, 12};
    for (int i = 0; i < 4; i++) close_to(r.call.out[NORM_Y].f[i], layer[i]);
    close_to(r.call.out[NORM_STAT].f[0], 2);
    close_to(r.call.out[NORM_STAT].f[1], 1);
    probe_free(&r);

    r = probe_make(OP_NORM, 6);
    probe_in(&r, NORM_X, DT_F32, "1 2"), probe_in(&r, NORM_W, DT_F32, "2");
    probe_out(&r, NORM_Y, DT_F32, "1 2"), probe_out(&r, NORM_STAT, DT_F32, "1 1");
    probe_reals(&r, NORM_X, (const double[]){1, 7}, 2);
    probe_reals(&r, NORM_W, (const double[]){5, 10}, 2);
    probe_run(&r); /* root of the mean square of (1,7) is 5 */
    close_to(r.call.out[NORM_Y].f[0], 1), close_to(r.call.out[NORM_Y].f[1], 14),
        close_to(r.call.out[NORM_STAT].f[0], 0.2);
    probe_free(&r);
}

/* Equal logits: the loss of a row is log V, whatever the logits' level. */
static void loss_of_equal_logits(void **state)
{
    (void)state;
    struct probe r = probe_make(OP_XENT, 7);
    probe_in(&r, XENT_LOGITS, DT_F32, "3 8"), probe_in(&r, XENT_TARGETS, DT_I32, "3"),
        probe_in(&r, XENT_SCALARS, DT_F32, "16");
    probe_ints(&r, XENT_TARGETS, (const int[]){0, -1, 7}, 3);
    for (int i = 0; i < 24; i++) r.call.in[XENT_LOGITS].f[i] = 1000.0 * (i / 8);
    probe_out(&r, XENT_LOSS, DT_F64, "2");
    probe_run(&r);
    close_to(r.call.out[XENT_LOSS].f[0], 2 * log(8));
    close_to(r.call.out[XENT_LOSS].f[1], 2);
    probe_free(&r);
}

/* --- the update part --------------------------------------------------------------------------------------
 */

static struct probe clip(double sum, double limit, double unscale)
{
    struct probe r = probe_make(OP_CLIP, 8);
    probe_in(&r, CLIP_SUMS, DT_F64, "1"), probe_in(&r, CLIP_SCALARS, DT_F32, "16"),
        probe_out(&r, CLIP_COEF, DT_F32, "4");
    r.call.in[CLIP_SUMS].f[0] = sum;
    r.call.in[CLIP_SCALARS].f[SCALAR_CLIP] = limit;
    r.call.in[CLIP_SCALARS].f[SCALAR_UNSCALE] = unscale;
    probe_run(&r);
    return r;
}

static void clip_coefficients(void **state)
{
    (void)state;
    static const struct {
        double sum, limit, unscale, multiplier, norm, finite;
    } rows[] = {
        {400, 5, 0.5, 0.5 * 5 / (10 + 1e-6), 10, 1}, /* norm 20 x 0.5 */
        {9, 5, 1, 1, 3, 1},                          /* below the limit */
        {400, 0, 0.5, 0.5, 10, 1},                   /* no limit */
        {(double)INFINITY, 1, 1, 0, (double)INFINITY, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct probe r = clip(rows[i].sum, rows[i].limit, rows[i].unscale);
        const double *coef = r.call.out[CLIP_COEF].f;
        close_to(coef[CLIP_MULTIPLIER], rows[i].multiplier);
        assert_true(coef[CLIP_NORM] == rows[i].norm && coef[CLIP_FINITE] == rows[i].finite);
        probe_free(&r);
    }
}

/* With a constant gradient the corrected moments are g and g squared at every step, so each step is
 * p (1 - lr decay) - lr g / (|g| + eps). */
static void adamw_constant_gradient(void **state)
{
    (void)state;
    const double lr = 0.125, g = -0.75;
    struct probe r = probe_make(OP_ADAMW, 9);
    r.op.attr = (struct op_attr){.beta1 = 0.75f, .beta2 = 0.875f, .eps = 0.25f, .decay = 0.5f};
    for (int i = ADAMW_P; i <= ADAMW_V; i++) probe_in(&r, i, DT_F32, "1");
    probe_in(&r, ADAMW_SCALARS, DT_F32, "16");
    for (int i = ADAMW_NEW_P; i <= ADAMW_NEW_V; i++) probe_out(&r, i, DT_F32, "1");
    double p = r.call.in[ADAMW_P].f[0];
    r.call.in[ADAMW_G].f[0] = g, r.call.in[ADAMW_M].f[0] = r.call.in[ADAMW_V].f[0] = 0;
    r.call.in[ADAMW_SCALARS].f[SCALAR_LR] = lr;
    for (int step = 1; step < 20; step++) {
        r.call.in[ADAMW_SCALARS].f[SCALAR_BIAS1] = 1 - pow(0.75, step);
        r.call.in[ADAMW_SCALARS].f[SCALAR_BIAS2] = 1 - pow(0.875, step);
        probe_run(&r);
        p = p * (1 - lr * 0.5) - lr * g / (fabs(g) + 0.25);
        close_to(r.call.out[ADAMW_NEW_P].f[0], p);
        probe_reals(&r, ADAMW_P, r.call.out[ADAMW_NEW_P].f, 1);
        probe_reals(&r, ADAMW_M, r.call.out[ADAMW_NEW_M].f, 1);
        probe_reals(&r, ADAMW_V, r.call.out[ADAMW_NEW_V].f, 1);
    }
    probe_free(&r);
}

/* With a constant gradient momentum is the geometric sum g (1 - b^n) / (1 - b). */
static void sgd_of(bool nesterov)
{
    const double lr = 0.125, g = -0.75, beta = 0.75;
    struct probe r = probe_make(OP_SGD, 10);
    r.op.attr = (struct op_attr){.beta1 = 0.75f, .nesterov = nesterov};
    for (int i = SGD_P; i <= SGD_M; i++) probe_in(&r, i, DT_F32, "1");
    probe_in(&r, SGD_SCALARS, DT_F32, "16");
    for (int i = SGD_NEW_P; i <= SGD_NEW_M; i++) probe_out(&r, i, DT_F32, "1");
    double p = r.call.in[SGD_P].f[0];
    r.call.in[SGD_G].f[0] = g, r.call.in[SGD_M].f[0] = 0, r.call.in[SGD_SCALARS].f[SCALAR_LR] = lr;
    for (int step = 1; step < 20; step++) {
        double momentum = g * (1 - pow(beta, step)) / (1 - beta);
        probe_run(&r);
        p -= lr * (nesterov ? g + beta * momentum : momentum);
        close_to(r.call.out[SGD_NEW_P].f[0], p);
        close_to(r.call.out[SGD_NEW_M].f[0], momentum);
        probe_reals(&r, SGD_P, r.call.out[SGD_NEW_P].f, 1);
        probe_reals(&r, SGD_M, r.call.out[SGD_NEW_M].f, 1);
    }
    probe_free(&r);
}

static void sgd_constant_gradient(void **state)
{
    (void)state;
    sgd_of(false);
    sgd_of(true);
}

/* One plain step with decay and a clip coefficient; then the same step refused. */
static void sgd_decay_clip_skip(void **state)
{
    (void)state;
    struct probe r = probe_make(OP_SGD, 11);
    r.op.attr.decay = 0.25f;
    probe_in(&r, SGD_P, DT_F32, "1"), probe_in(&r, SGD_G, DT_F32, "1"),
        probe_in(&r, SGD_SCALARS, DT_F32, "16"), probe_in(&r, SGD_COEF, DT_F32, "4");
    probe_out(&r, SGD_NEW_P, DT_F32, "1");
    double p = r.call.in[SGD_P].f[0], g = r.call.in[SGD_G].f[0];
    r.call.in[SGD_SCALARS].f[SCALAR_LR] = 0.5;
    r.call.in[SGD_COEF].f[CLIP_MULTIPLIER] = 0.1, r.call.in[SGD_COEF].f[CLIP_FINITE] = 1;
    probe_run(&r);
    close_to(r.call.out[SGD_NEW_P].f[0], p - 0.5 * (0.1 * g + 0.25 * p));
    r.call.in[SGD_COEF].f[CLIP_FINITE] = 0;
    probe_run(&r);
    assert_true(r.call.out[SGD_NEW_P].f[0] == p);
    probe_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_an_average),     cmocka_unit_test(grouped_heads_are_repeated_heads),
        cmocka_unit_test(packed_samples_are_separate), cmocka_unit_test(cache_is_the_whole_row),
        cmocka_unit_test(rope_sees_distance),          cmocka_unit_test(norms_of_known_rows),
        cmocka_unit_test(loss_of_equal_logits),        cmocka_unit_test(clip_coefficients),
        cmocka_unit_test(adamw_constant_gradient),     cmocka_unit_test(sgd_constant_gradient),
        cmocka_unit_test(sgd_decay_clip_skip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
