/* test_t5.c - encoder-decoders against PyTorch's numbers (make_t5.py): logits, every gradient and ten AdamW losses, fp32 within
 * 1e-5 relative; gradients in bf16 no worse than PyTorch's own; every pass gives the same losses. The folder of cases
 * is $GOLDEN_DIR, by default the one beside the sources. */
#include "model/weights.h"
#include "support/model_rig.h"
#include "store/safetensors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define TOLERANCE 1e-5

struct golden {
    char model[512];
    struct safetensors expected;
    int64_t batch, time, source_time, counted;
};

static const char *const cases[] = {"t5-v10", "t5-v11"};
enum { CASES = 2 };

static void *read_tensor(const struct golden *g, const char *name, enum dtype type, int64_t *count)
{
    struct plim_error err = {0};
    const struct safetensor *t = safetensors_find(&g->expected, name);
    if (!t) fail_msg("%s: no %s", g->model, name);
    void *data = malloc((size_t)t->count * dtype_size(type));
    assert_non_null(data);
    if (safetensors_read_all(&g->expected, t, type, data, &err) != PLIM_OK) fail_msg("%s", err.text);
    if (count) *count = t->count;
    return data;
}

static void golden_open(struct golden *g, const char *name)
{
    struct plim_error err = {0};
    const char *dir = getenv("GOLDEN_DIR"), *src = getenv("SRC_DIR");
    char path[600];
    *g = (struct golden){0};
    if (dir)
        snprintf(g->model, sizeof g->model, "%s/%s", dir, name);
    else
        snprintf(g->model, sizeof g->model, "%s/tests/golden/%s", src ? src : ".", name);
    snprintf(path, sizeof path, "%s/expected.safetensors", g->model);
    if (safetensors_open(path, &g->expected, &err) != PLIM_OK) fail_msg("%s", err.text);
    const struct safetensor *ids = safetensors_find(&g->expected, "ids");
    g->batch = ids->dim[0], g->time = ids->dim[1];
    g->source_time = safetensors_find(&g->expected, "source.ids")->dim[1];
    int64_t count;
    int32_t *targets = read_tensor(g, "targets", DT_I32, &count);
    for (int64_t i = 0; i < count; i++) g->counted += targets[i] >= 0;
    free(targets);
}

static void write_feeds(struct model_rig *rig, const struct golden *g, int step)
{
    static const char *const feeds[] = {"ids", "pos", "source.ids", "source.lengths", "targets"};
    for (size_t i = 0; i < sizeof feeds / sizeof *feeds; i++) {
        int64_t count;
        if (tape_find(&rig->tape, feeds[i], -1) < 0) continue;
        int32_t *data = read_tensor(g, feeds[i], DT_I32, &count);
        rig_write(rig, feeds[i], data, (size_t)count * sizeof *data);
        free(data);
    }
    float scalars[SCALAR_COUNT] = {[SCALAR_LOSS_GRAD] = 1.0f / (float)g->counted,
                                   [SCALAR_LR] = 1e-3f,
                                   [SCALAR_BIAS1] = (float)(1 - pow(0.9, step + 1)),
                                   [SCALAR_BIAS2] = (float)(1 - pow(0.999, step + 1)),
                                   [SCALAR_UNSCALE] = 1};
    if (tape_find(&rig->tape, "step.scalars", -1) >= 0)
        rig_write(rig, "step.scalars", scalars, sizeof scalars);
}

static void run(struct model_rig *rig, const struct golden *g, const struct rig_options *how, int step)
{
    if (!rig->device) {
        struct rig_options o = *how;
        o.model = g->model, o.batch = g->batch, o.time = g->time, o.source_time = g->source_time;
        rig_open(rig, &o);
    }
    write_feeds(rig, g, step);
    if (exec_loop(&rig->exec, 0, &rig->err) != PLIM_OK) fail_msg("%s", rig->err.text);
}

static float *read_floats(struct model_rig *rig, int id)
{
    const struct tensor *t = &rig->tape.tensors[id];
    void *raw = malloc((size_t)tensor_bytes(t));
    float *values = malloc((size_t)tensor_count(t) * sizeof *values);
    rig_read(rig, id, raw, (size_t)tensor_bytes(t));
    dtype_convert(values, DT_F32, raw, t->type, tensor_count(t));
    free(raw);
    return values;
}

static double relative_error(const float *a, const float *b, int64_t n)
{
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) diff += pow((double)a[i] - b[i], 2), norm += pow(b[i], 2);
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

static void logits_of(const struct golden *g)
{
    struct model_rig rig = {0};
    int64_t count;
    run(&rig, g, &(struct rig_options){.head = HEAD_LOGITS}, 0);
    float *have = read_floats(&rig, tape_find(&rig.tape, "logits", -1)),
          *want = read_tensor(g, "logits", DT_F32, &count);
    double error = relative_error(have, want, count);
    print_message("# %s: logits: error %.2e\n", strrchr(g->model, '/') + 1, error);
    if (!(error <= TOLERANCE)) fail_msg("%s: logits: error %.3g", g->model, error);
    free(have), free(want);
    rig_close(&rig);
}

struct errors {
    double worst, ours, torch;
    int count;
};

static void add_error(const struct golden *g, const struct weights_part *part, const float *have,
                      struct errors *e)
{
    char key[256];
    int64_t count;
    snprintf(key, sizeof key, "grad:%s", part->name);
    float *want = read_tensor(g, key, DT_F32, &count);
    snprintf(key, sizeof key, "bf16err:%s", part->name);
    float *torch = read_tensor(g, key, DT_F32, NULL);
    assert_int_equal(count, part->count);
    double error = relative_error(have + part->first, want, count);
    if (error > e->worst) e->worst = error;
    e->ours += error * error, e->torch += pow(torch[0], 2), e->count++;
    free(want), free(torch);
}

static struct errors gradient_errors(const struct golden *g, const struct rig_options *how)
{
    struct errors e = {0};
    struct model_rig rig = {0};
    struct rig_options o = *how;
    o.grad = true;
    run(&rig, g, &o, 0);
    for (int i = 0; i < rig.tape.ntensors; i++) {
        if (rig.tape.tensors[i].cls != CLASS_GRAD) continue;
        float *have = read_floats(&rig, i);
        int owner = rig.tape.tensors[i].owner, n = weights_part_count(&rig.tape, owner);
        for (int k = 0; k < n; k++) {
            const struct weights_part part = weights_part(&rig.spec, &rig.tape, owner, k);
            add_error(g, &part, have, &e);
        }
        free(have);
    }
    rig_close(&rig);
    return e;
}

static void gradients_of(const struct golden *g)
{
    struct errors wide = gradient_errors(g, &(struct rig_options){0}),
                  narrow = gradient_errors(g, &(struct rig_options){.precision = PRECISION_BF16});
    double ours = sqrt(narrow.ours / narrow.count), torch = sqrt(narrow.torch / narrow.count);
    int files = 0; /* every gradient that PyTorch has is compared */
    for (size_t i = 0; i < g->expected.count; i++) files += !strncmp(g->expected.tensors[i].name, "grad:", 5);
    print_message("# %s: worst of %d gradients: error %.2e; bf16 rms %.2e, torch's %.2e\n",
                  strrchr(g->model, '/') + 1, wide.count, wide.worst, ours, torch);
    assert_int_equal(wide.count, files);
    if (!(wide.worst <= TOLERANCE)) fail_msg("%s: gradients: error %.3g", g->model, wide.worst);
    if (!(ours <= 1.25 * torch)) fail_msg("%s: bf16 gradients: %.3g, torch %.3g", g->model, ours, torch);
}

/* Ten losses, of which *sum has the bits. */
static void check_losses(const struct golden *g, const struct rig_options *how, double *sum)
{
    struct model_rig rig = {0};
    struct rig_options o = *how;
    double worst = 0;
    o.grad = o.update = true;
    float *want = read_tensor(g, "losses", DT_F32, NULL);
    *sum = 0;
    for (int step = 0; step < 10; step++) {
        double loss[2];
        run(&rig, g, &o, step);
        rig_read(&rig, tape_find(&rig.tape, "loss", -1), loss, sizeof loss);
        assert_int_equal(exec_update(&rig.exec, &rig.err), PLIM_OK);
        double mean = loss[0] / loss[1], error = fabs(mean - want[step]) / want[step];
        assert_true(loss[1] == (double)g->counted);
        if (!(error <= TOLERANCE))
            fail_msg("%s: step %d: loss %.8f, torch %.8f", g->model, step, mean, want[step]);
        worst = fmax(worst, error), *sum += loss[0];
    }
    print_message("# %s: ten losses: worst error %.2e\n", strrchr(g->model, '/') + 1, worst);
    free(want);
    rig_close(&rig);
}

static void losses_of(const struct golden *g)
{
    static const struct rig_options ways[] = {
        {.threads = 2},
        {.recompute = {RECOMPUTE_FULL, 0}},
        {.recompute = {RECOMPUTE_SELECTIVE, 4}},
        {.recompute = {RECOMPUTE_NONE, 3}, .in_backward = true},
        {.loss_chunks = 4},
        {.offload = {.state_tier = TIER_DISK, .param_tier = TIER_DISK, .slice_bytes = 4096}},
    };
    double first = 0, sum;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        check_losses(g, &ways[i], &sum);
        if (i == 0) first = sum;
        if (sum != first) fail_msg("%s: way %d has other losses", g->model, (int)i);
    }
}

static double loss_of(const struct golden *g, const struct rig_options *how)
{
    struct model_rig rig = {0};
    struct rig_options o = *how;
    double loss[2];
    o.grad = true;
    run(&rig, g, &o, 0);
    rig_read(&rig, tape_find(&rig.tape, "loss", -1), loss, sizeof loss);
    rig_close(&rig);
    return loss[0];
}

/* Nothing is dropped unless the tape trains; what is dropped does not depend on what is recomputed. */
static void dropout_of(const struct golden *g)
{
    double plain = loss_of(g, &(struct rig_options){.dropout = 0.3});
    double dropped = loss_of(g, &(struct rig_options){.dropout = 0.3, .training = true});
    double again =
        loss_of(g, &(struct rig_options){.dropout = 0.3, .training = true, .recompute = {RECOMPUTE_FULL, 0}});
    assert_true(plain == loss_of(g, &(struct rig_options){.threads = 1}));
    assert_true(dropped != plain && again == dropped);
}

/* Layers of both stacks are counted through, and parameters keep their own numbers. */
static void layers_of(const struct golden *g)
{
    struct model_rig rig = {0};
    char name[192];
    int last = -1;
    run(&rig, g, &(struct rig_options){.head = HEAD_LOSS}, 0);
    for (int i = 0; i < rig.tape.nops; i++) {
        const struct op *op = &rig.tape.ops[i];
        if (op->layer < 0) continue;
        assert_true(op->layer == last || op->layer == last + 1);
        last = op->layer;
        if (op->kind != OP_LINEAR) continue;
        tape_tensor_name(&rig.tape, op->in[LINEAR_W], name, sizeof name);
        bool decoder = !strncmp(name, "decoder", 7);
        assert_int_equal(atoi(name + strlen("encoder.block.")),
                         op->layer - (decoder ? rig.spec.num_layers : 0));
    }
    assert_int_equal(last + 1, model_layers(&rig.spec));
    rig_close(&rig);
}

static void each(void (*body)(const struct golden *))
{
    for (int i = 0; i < CASES; i++) {
        struct golden g;
        golden_open(&g, cases[i]);
        body(&g);
        safetensors_close(&g.expected);
    }
}

static void test_logits(void **state)
{
    (void)state;
    each(logits_of);
}

static void test_gradients(void **state)
{
    (void)state;
    each(gradients_of);
}

static void test_ten_steps(void **state)
{
    (void)state;
    each(losses_of);
}

static void test_dropout(void **state)
{
    (void)state;
    each(dropout_of);
}

static void test_layers(void **state)
{
    (void)state;
    each(layers_of);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits),  cmocka_unit_test(test_gradients), cmocka_unit_test(test_ten_steps),
        cmocka_unit_test(test_dropout), cmocka_unit_test(test_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
