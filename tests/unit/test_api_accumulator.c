/* run-tests: not=tsan */
/* test_api_accumulator.c - the public accumulator: windows of any sizes give the gradient of the whole batch, clipping, loss scale,
 * state, and what wrong values get. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <plimsoll/plimsoll.h>

#include <math.h>
#include <string.h>

static struct plim_error err;
static struct plim_context *context;

#define assert_ok(call)                                                                                      \
    do {                                                                                                     \
        if ((call) != PLIM_OK) fail_msg("%s", err.text);                                                     \
    } while (0)
#define assert_bad(call, words)                                                                              \
    do {                                                                                                     \
        memset(&err, 0, sizeof err);                                                                         \
        assert_int_equal(call, PLIM_BAD_INPUT);                                                              \
        if (!strstr(err.text, words)) fail_msg("'%s' is not in: %s", words, err.text);                       \
    } while (0)

static int open_context(void **state)
{
    (void)state;
    return plim_context_open(NULL, &context, &err) != PLIM_OK;
}

static int close_context(void **state)
{
    (void)state;
    plim_context_close(context);
    return 0;
}

static struct plim_accumulator *accumulate(struct plim_accumulator_options o)
{
    struct plim_accumulator *a = NULL;
    o.size = sizeof o;
    assert_ok(plim_accumulator_open(context, &o, &a, &err));
    return a;
}

static void test_accumulator_options(void **state)
{
    (void)state;
    struct plim_accumulator *a = NULL;
    struct plim_accumulator_options o = {.size = sizeof o, .effective_batch = 64, .micro_batch = 8};
    assert_ok(plim_accumulator_open(context, &o, &a, &err));
    assert_int_equal(plim_accumulator_steps(a), 8);
    plim_accumulator_close(a);
    o.ranks = 2, o.steps = 4;
    assert_ok(plim_accumulator_open(context, &o, &a, &err));
    assert_int_equal(plim_accumulator_steps(a), 4);
    plim_accumulator_close(a);
    o.steps = 5;
    assert_bad(plim_accumulator_open(context, &o, &a, &err), "makes 4; leave one out");
    assert_null(a);
    o.steps = 0, o.effective_batch = 70;
    assert_bad(plim_accumulator_open(context, &o, &a, &err), "use 64 or 80");
    o.effective_batch = 7;
    assert_bad(plim_accumulator_open(context, &o, &a, &err), "use 16, or a smaller micro_batch");
    o.effective_batch = -1;
    assert_bad(plim_accumulator_open(context, &o, &a, &err), "effective_batch is -1");
    o = (struct plim_accumulator_options){.size = sizeof o};
    assert_bad(plim_accumulator_open(context, &o, &a, &err),
               "give steps, or effective_batch and micro_batch");
    o.steps = 4, o.clip_norm = (double)NAN;
    assert_bad(plim_accumulator_open(context, &o, &a, &err), "clip_norm");
    o.clip_norm = 0, o.initial_scale = -2;
    assert_bad(plim_accumulator_open(context, &o, &a, &err), "initial_scale");
}

/* A linear model in doubles: the gradient of a row is its input times the error. Inputs are small whole numbers, so that sums are
 * exact in any order. */
enum { ROWS = 37, WIDTH = 5 };
struct rows {
    double x[ROWS][WIDTH], y[ROWS], w[WIDTH];
};

static void make_rows(struct rows *r)
{
    uint32_t seed = 12345;
    for (int i = 0; i < ROWS; i++) {
        for (int k = 0; k < WIDTH; k++) r->x[i][k] = (seed = seed * 1664525 + 1013904223) >> 29;
        r->y[i] = (seed = seed * 1664525 + 1013904223) >> 28;
    }
    for (int k = 0; k < WIDTH; k++) r->w[k] = k + 1;
}

/* Adds the gradient of the summed loss, scaled, of rows [from, to). */
static void backward(const struct rows *r, int from, int to, double scale, double *grad)
{
    for (int i = from; i < to; i++) {
        double error = -r->y[i];
        for (int k = 0; k < WIDTH; k++) error += r->x[i][k] * r->w[k];
        for (int k = 0; k < WIDTH; k++) grad[k] += scale * error * r->x[i][k];
    }
}

/* Splits the rows into micro-batches of these sizes; the window's gradient as an optimizer would get it. */
static void train_window(struct plim_accumulator *a, const struct rows *r, const int *sizes, double *grad)
{
    struct plim_window window = {.size = sizeof window, .grad_norm = -1};
    memset(grad, 0, WIDTH * sizeof *grad);
    for (int at = 0, i = 0; at < ROWS; at += sizes[i++]) {
        struct plim_micro_step micro = {
            .size = sizeof micro, .tokens = sizes[i], .last = at + sizes[i] == ROWS};
        assert_ok(plim_accumulator_next(a, &micro, &err));
        assert_int_equal(micro.index, i);
        assert_int_equal(micro.window_tokens, at + sizes[i]);
        assert_int_equal(micro.step_due, at + sizes[i] == ROWS);
        backward(r, at, at + sizes[i], micro.loss_scale, grad);
    }
    assert_ok(plim_accumulator_finish(a, &window, &err));
    assert_true(window.take);
    for (int k = 0; k < WIDTH; k++) grad[k] *= window.grad_scale;
}

static void test_accumulator_equals_full_batch(void **state)
{
    (void)state;
    static const int splits[][8] = {
        {37}, {10, 10, 10, 7}, {1, 20, 0, 3, 13}, {36, 1}, {5, 5, 5, 5, 5, 5, 5, 2}};
    double whole[WIDTH], grad[WIDTH], mean[WIDTH] = {0};
    struct rows rows;
    make_rows(&rows);
    backward(&rows, 0, ROWS, 1, mean);
    for (int scaling = 0; scaling < 2; scaling++)
        for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
            struct plim_accumulator *a =
                accumulate((struct plim_accumulator_options){.steps = 8, .loss_scaling = scaling});
            train_window(a, &rows, splits[i], i || scaling ? grad : whole);
            if (i || scaling) assert_memory_equal(grad, whole, sizeof whole);
            plim_accumulator_close(a);
        }
    for (int k = 0; k < WIDTH; k++) assert_true(fabs(whole[k] - mean[k] / ROWS) <= 1e-15 * fabs(whole[k]));
}

/* Four ranks with different numbers of tokens, whose gradients are summed or averaged. */
static void test_accumulator_ranks(void **state)
{
    (void)state;
    static const int part[5] = {0, 4, 20, 25, ROWS};
    double sum[WIDTH] = {0}, mean[WIDTH] = {0};
    struct rows rows;
    make_rows(&rows);
    backward(&rows, 0, ROWS, 1, mean);
    for (int average = 0; average < 2; average++) {
        double scale = 0;
        memset(sum, 0, sizeof sum);
        for (int rank = 0; rank < 4; rank++) {
            struct plim_accumulator *a = accumulate(
                (struct plim_accumulator_options){.steps = 1, .ranks = 4, .ranks_average = average});
            struct plim_micro_step micro = {.size = sizeof micro, .tokens = part[rank + 1] - part[rank]};
            struct plim_window window = {.size = sizeof window, .tokens = ROWS};
            assert_ok(plim_accumulator_next(a, &micro, &err));
            backward(&rows, part[rank], part[rank + 1], micro.loss_scale, sum);
            assert_ok(plim_accumulator_finish(a, &window, &err));
            assert_true(!scale || scale == window.grad_scale);
            scale = window.grad_scale;
            plim_accumulator_close(a);
        }
        for (int k = 0; k < WIDTH; k++)
            assert_true(fabs(sum[k] / (average ? 4 : 1) * scale - mean[k] / ROWS) < 1e-12);
    }
}

static struct plim_window one_window(struct plim_accumulator *a, double norm, int overflow)
{
    struct plim_micro_step micro = {.size = sizeof micro, .last = 1};
    struct plim_window window = {.size = sizeof window, .grad_norm = norm, .overflow = overflow};
    assert_ok(plim_accumulator_next(a, &micro, &err));
    assert_ok(plim_accumulator_finish(a, &window, &err));
    return window;
}

static void test_accumulator_clips_and_scales(void **state)
{
    (void)state;
    struct plim_accumulator *a = accumulate((struct plim_accumulator_options){
        .steps = 4, .clip_norm = 1, .loss_scaling = 1, .growth_interval = 3, .clear_every = 2});
    struct plim_window w = one_window(a, 4 * 65536.0, 0);
    assert_true(w.true_norm == 4 && w.grad_scale == 1.0 / 65536 * (1 / (4 + 1e-6)));
    assert_true(w.take && w.steps == 1 && !w.clear_cache && w.next_scale == 65536);
    w = one_window(a, 0.5 * 65536, 0);
    assert_true(w.true_norm == 0.5 && w.grad_scale == 1.0 / 65536 && w.clear_cache);
    w = one_window(a, -1, 0); /* unknown: not clipped */
    assert_true(w.true_norm == -1 && w.grad_scale == 1.0 / 65536 && w.next_scale == 131072);
    w = one_window(a, 1, 1);
    assert_true(!w.take && w.steps == 3 && w.skipped == 1 && w.next_scale == 65536 && !w.clear_cache);
    w = one_window(a, (double)INFINITY, 0); /* as good as an overflow */
    assert_true(!w.take && w.skipped == 2 && w.next_scale == 32768);
    w = one_window(a, 1, 0), w = one_window(a, 1, 0);
    assert_true(w.next_scale == 32768);

    char *saved = plim_accumulator_state(a); /* two good steps of three */
    struct plim_accumulator *b =
        accumulate((struct plim_accumulator_options){.steps = 4, .loss_scaling = 1, .growth_interval = 3});
    assert_ok(plim_accumulator_restore(b, saved, &err));
    w = one_window(b, 1, 0);
    assert_true(w.next_scale == 65536 && w.steps == 6 && w.skipped == 2);
    assert_bad(plim_accumulator_restore(b, "{", &err), "plim_accumulator_restore:1");
    assert_bad(plim_accumulator_restore(b, "{\"scale\": 0}", &err), "no scale above 0");
    assert_bad(plim_accumulator_restore(b, "{\"scale\": 2, \"good_steps\": -1}", &err),
               "no count 'good_steps'");
    assert_bad(plim_accumulator_restore(b, NULL, &err), "state is NULL");
    plim_free(saved);
    plim_accumulator_close(b);
    plim_accumulator_close(a);
}

static void test_accumulator_misuse(void **state)
{
    (void)state;
    struct plim_accumulator *a = accumulate((struct plim_accumulator_options){.steps = 2});
    struct plim_micro_step micro = {.size = sizeof micro};
    struct plim_window window = {.size = sizeof window};
    assert_bad(plim_accumulator_finish(a, &window, &err), "has no micro-batch");
    micro.tokens = -5;
    assert_bad(plim_accumulator_next(a, &micro, &err), "tokens is -5");
    micro.tokens = 0;
    assert_ok(plim_accumulator_next(a, &micro, &err));
    assert_ok(plim_accumulator_finish(a, &window, &err)); /* a window may end early */
    assert_true(window.grad_scale == 1);
    assert_ok(plim_accumulator_next(a, &micro, &err));
    assert_ok(plim_accumulator_next(a, &micro, &err));
    assert_true(micro.step_due && micro.index == 1);
    assert_bad(plim_accumulator_next(a, &micro, &err), "call plim_accumulator_finish first");
    assert_ok(plim_accumulator_finish(a, &window, &err));
    assert_true(window.grad_scale == 0.5 && window.steps == 2);
    micro.tokens = 7, window.tokens = 6;
    assert_ok(plim_accumulator_next(a, &micro, &err));
    assert_bad(plim_accumulator_finish(a, &window, &err), "this rank alone had 7");
    plim_accumulator_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accumulator_options), cmocka_unit_test(test_accumulator_equals_full_batch),
        cmocka_unit_test(test_accumulator_ranks),   cmocka_unit_test(test_accumulator_clips_and_scales),
        cmocka_unit_test(test_accumulator_misuse),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
