/* test_encoders.c - encoders against PyTorch's numbers (make_encoders.py): logits of tokens and labels, vectors of rows,
 * every gradient and ten AdamW losses of all three heads, fp32 within 1e-5 relative; gradients in bf16 no worse than
 * PyTorch's own. The folder of cases is $GOLDEN_DIR, by default the one beside the sources. */
#include "model/weights.h"
#include "runtime/initial_weights.h"
#include "runtime/load.h"
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
#define NOTHING                                                                                              \
    1e-6 /* norm of a gradient that is rounding alone, like that of a bias of keys: softmax does not see it */

/* Pairs that are told apart have a loss near 0, of which only 20 times the error of a cosine is certain. */
#define SMALL_LOSS 0.1

enum { ROWS = 6 };

struct golden {
    char model[512];
    struct safetensors expected;
    int64_t time, counted;
    enum model_head loss, logits;
};

static const char *const models[] = {"bert", "roberta", "distilbert"};
static const struct task {
    const char *name;
    enum model_head loss, logits;
} tasks[] = {{"tokens", HEAD_LOSS, HEAD_LOGITS},
             {"labels", HEAD_LABELS, HEAD_LABEL_LOGITS},
             {"pairs", HEAD_PAIRS, HEAD_EMBEDDING}};
enum { MODELS = 3, TASKS = 3 };

static void *read_tensor(const struct golden *g, const char *name, enum dtype type, int64_t *count)
{
    struct plim_error err = {0};
    const struct safetensor *t = safetensors_find(&g->expected, name);
    if (!t) return NULL;
    void *data = malloc((size_t)t->count * dtype_size(type));
    assert_non_null(data);
    if (safetensors_read_all(&g->expected, t, type, data, &err) != PLIM_OK) fail_msg("%s", err.text);
    if (count) *count = t->count;
    return data;
}

static void golden_open(struct golden *g, const char *model, const struct task *task)
{
    struct plim_error err = {0};
    const char *dir = getenv("GOLDEN_DIR"), *src = getenv("SRC_DIR");
    char path[600];
    *g = (struct golden){.loss = task->loss, .logits = task->logits};
    snprintf(g->model, sizeof g->model, "%s%s/%s-%s",
             dir   ? dir
             : src ? src
                   : ".",
             dir ? "" : "/tests/golden", model, task->name);
    snprintf(path, sizeof path, "%s/expected.safetensors", g->model);
    if (safetensors_open(path, &g->expected, &err) != PLIM_OK) fail_msg("%s", err.text);
    g->time = safetensors_find(&g->expected, "ids")->dim[1];
    int64_t count;
    int32_t *targets = read_tensor(g, "targets", DT_I32, &count);
    for (int64_t i = 0; i < count; i++) g->counted += targets[i] >= 0;
    free(targets);
}

static void write_feeds(struct model_rig *rig, const struct golden *g, int step)
{
    static const char *const feeds[] = {"ids", "pos", "types", "lengths", "targets"};
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
        o.model = g->model, o.batch = ROWS, o.time = g->time;
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

/* |a - b| / |b|, or |a - b| where |b| is next to nothing. */
static double relative_error(const float *a, const float *b, int64_t n)
{
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) diff += pow((double)a[i] - b[i], 2), norm += pow(b[i], 2);
    return norm > NOTHING * NOTHING ? sqrt(diff / norm) : sqrt(diff);
}

static void hide_padding(const struct golden *g, float *logits, int64_t width)
{
    int32_t *lengths = read_tensor(g, "lengths", DT_I32, NULL);
    for (int64_t b = 0; b < ROWS; b++)
        for (int64_t i = lengths[b] * width; i < g->time * width; i++) logits[b * g->time * width + i] = 0;
    free(lengths);
}

static void check(const struct golden *g, const char *what, const float *have, const float *want, int64_t n)
{
    double error = relative_error(have, want, n);
    if (!(error <= TOLERANCE)) fail_msg("%s: %s: error %.3g", g->model, what, error);
    print_message("# %s: %s: error %.2e\n", strrchr(g->model, '/') + 1, what, error);
}

static void check_vectors(const struct golden *g)
{
    static const char *const names[] = {"embedding:mean0", "embedding:mean1", "embedding:first0",
                                        "embedding:first1"};
    for (int i = 0; i < 4; i++) {
        struct model_rig rig = {0};
        int64_t count;
        run(&rig, g,
            &(struct rig_options){
                .head = HEAD_EMBEDDING, .pooling = (enum pooling)(i / 2), .normalize = i % 2},
            0);
        float *have = read_floats(&rig, tape_find(&rig.tape, "embedding", -1)),
              *want = read_tensor(g, names[i], DT_F32, &count);
        check(g, names[i], have, want, count);
        free(have), free(want);
        rig_close(&rig);
    }
}

static void check_logits(const struct golden *g)
{
    struct model_rig rig = {0};
    int64_t count;
    run(&rig, g, &(struct rig_options){.head = g->logits}, 0);
    float *have = read_floats(&rig, tape_find(&rig.tape, "logits", -1)),
          *want = read_tensor(g, "logits", DT_F32, &count);
    hide_padding(g, have, count / ROWS / g->time);
    check(g, "logits", have, want, count);
    free(have), free(want);
    rig_close(&rig);
}

/* The golden tensor of a part of a parameter; files of models without a head leave its prefix out. */
static float *read_part(const struct golden *g, const char *what, const char *name, int64_t *count)
{
    char key[256];
    snprintf(key, sizeof key, "%s:%s", what, name);
    float *there = read_tensor(g, key, DT_F32, count);
    snprintf(key, sizeof key, "%s:%s", what, strchr(name, '.') + 1);
    if (!there) there = read_tensor(g, key, DT_F32, count);
    if (!there) fail_msg("%s: no %s of %s", g->model, what, name);
    return there;
}

struct errors {
    double worst, ours, torch;
    int count;
};

static void check_part(const struct golden *g, const struct weights_part *part, const float *have,
                       struct errors *e)
{
    int64_t count;
    float *want = read_part(g, "grad", part->name, &count),
          *torch = read_part(g, "bf16err", part->name, NULL);
    assert_int_equal(count, part->count);
    double error = relative_error(have + part->first, want, count), norm = 0;
    for (int64_t i = 0; i < count; i++) norm += pow(want[i], 2);
    if (error > e->worst) e->worst = error;
    if (norm > NOTHING * NOTHING) e->ours += error * error, e->torch += pow(torch[0], 2), e->count++;
    free(want), free(torch);
}

static struct errors gradient_errors(const struct golden *g, const struct rig_options *how)
{
    struct errors e = {0};
    struct model_rig rig = {0};
    struct rig_options o = *how;
    o.head = g->loss, o.grad = true;
    run(&rig, g, &o, 0);
    for (int i = 0; i < rig.tape.ntensors; i++) {
        if (rig.tape.tensors[i].cls != CLASS_GRAD) continue;
        float *have = read_floats(&rig, i);
        int owner = rig.tape.tensors[i].owner, n = weights_part_count(&rig.tape, owner);
        for (int k = 0; k < n; k++) {
            const struct weights_part part = weights_part(&rig.spec, &rig.tape, owner, k);
            check_part(g, &part, have, &e);
        }
        free(have);
    }
    rig_close(&rig);
    assert_true(e.count > 20);
    return e;
}

static void check_gradients(const struct golden *g)
{
    struct errors wide = gradient_errors(g, &(struct rig_options){0}),
                  narrow = gradient_errors(g, &(struct rig_options){.precision = PRECISION_BF16});
    double ours = sqrt(narrow.ours / narrow.count), torch = sqrt(narrow.torch / narrow.count);
    print_message("# %s: worst gradient error %.2e; bf16 rms %.2e, torch's %.2e\n",
                  strrchr(g->model, '/') + 1, wide.worst, ours, torch);
    if (!(wide.worst <= TOLERANCE)) fail_msg("%s: gradients: error %.3g", g->model, wide.worst);
    if (!(ours <= 1.25 * torch)) fail_msg("%s: bf16 gradients: %.3g, torch %.3g", g->model, ours, torch);
}

static void check_losses(const struct golden *g, const struct rig_options *how)
{
    struct model_rig rig = {0};
    struct rig_options o = *how;
    o.head = g->loss, o.grad = o.update = true;
    float *want = read_tensor(g, "losses", DT_F32, NULL);
    for (int step = 0; step < 10; step++) {
        double loss[2];
        run(&rig, g, &o, step);
        rig_read(&rig, tape_find(&rig.tape, "loss", -1), loss, sizeof loss);
        assert_int_equal(exec_update(&rig.exec, &rig.err), PLIM_OK);
        double mean = loss[0] / loss[1], error = fabs(mean - want[step]) / fmax(want[step], SMALL_LOSS);
        if (!(error <= TOLERANCE))
            fail_msg("%s: step %d: loss %.8f, torch %.8f", g->model, step, mean, want[step]);
    }
    free(want);
    rig_close(&rig);
}

static double loss_of(const struct golden *g, const struct rig_options *how, int *dropouts)
{
    struct model_rig rig = {0};
    struct rig_options o = *how;
    double loss[2];
    o.head = g->loss, o.grad = true;
    run(&rig, g, &o, 0);
    rig_read(&rig, tape_find(&rig.tape, "loss", -1), loss, sizeof loss);
    *dropouts = 0;
    for (int i = 0; i < rig.tape.nops; i++)
        *dropouts += rig.tape.ops[i].kind == OP_DROPOUT && rig.tape.ops[i].part == PART_FORWARD;
    rig_close(&rig);
    return loss[0];
}

/* Nothing is dropped unless the tape trains; what is dropped does not depend on what is recomputed. */
static void dropout_of(const struct golden *g)
{
    bool distil = strstr(g->model, "distilbert") != NULL;
    int none, some, again, layers = 2, wanted = 1 + layers * (distil ? 1 : 2) + (g->loss == HEAD_LABELS);
    double plain = loss_of(g, &(struct rig_options){.dropout = 0.3}, &none);
    double dropped = loss_of(g, &(struct rig_options){.dropout = 0.3, .training = true}, &some);
    struct rig_options recompute = {.dropout = 0.3, .training = true, .recompute = {RECOMPUTE_FULL, 0}};
    assert_true(loss_of(g, &recompute, &again) == dropped && dropped != plain);
    assert_int_equal(none, 0);
    assert_int_equal(some, wanted);
}

/* A model that says tokens gets labels: refused where it is only read, begun anew where it is to be trained. */
static void test_new_head(void **state)
{
    struct golden g;
    struct model_rig rig = {0};
    struct safetensors set;
    char other[600];
    (void)state;
    golden_open(&g, models[0], &tasks[1]);
    snprintf(other, sizeof other, "%.*s-tokens", (int)(strlen(g.model) - strlen("-labels")), g.model);
    run(&rig, &g, &(struct rig_options){.head = HEAD_LABEL_LOGITS}, 0);
    assert_int_equal(weights_from_directory(&rig.exec, &rig.spec, other, NULL, &rig.err), PLIM_BAD_INPUT);
    assert_non_null(strstr(rig.err.text, "classifier.weight"));
    assert_int_equal(initial_head(&rig.exec, &rig.spec, 7, &rig.err), PLIM_OK);
    assert_int_equal(weights_to_train(&rig.exec, &rig.spec, other, NULL, &rig.err), PLIM_OK);
    assert_int_equal(safetensors_open(other, &set, &rig.err), PLIM_OK);
    const struct safetensor *file = safetensors_find(&set, "bert.embeddings.word_embeddings.weight");
    float *want = malloc((size_t)file->count * sizeof *want), *words = NULL, *head = NULL;
    assert_int_equal(safetensors_read_all(&set, file, DT_F32, want, &rig.err), PLIM_OK);
    words = read_floats(&rig, tape_find(&rig.tape, "bert.embeddings.word_embeddings.weight", -1));
    head = read_floats(&rig, tape_find(&rig.tape, "classifier.weight", -1));
    assert_memory_equal(words, want, (size_t)file->count * sizeof *want);
    assert_true(head[0] != 0 && fabsf(head[0]) < 0.2f); /* of deviation 0.02 */
    free(want), free(words), free(head);
    safetensors_close(&set);
    rig_close(&rig);
    safetensors_close(&g.expected);
}

static void each(void (*body)(const struct golden *))
{
    for (int m = 0; m < MODELS; m++)
        for (int t = 0; t < TASKS; t++) {
            struct golden g;
            golden_open(&g, models[m], &tasks[t]);
            body(&g);
            safetensors_close(&g.expected);
        }
}

static void outputs_of(const struct golden *g)
{
    if (g->loss == HEAD_PAIRS)
        check_vectors(g);
    else
        check_logits(g);
}

static void losses_of(const struct golden *g)
{
    check_losses(g, &(struct rig_options){0});
    check_losses(g, &(struct rig_options){.recompute = {RECOMPUTE_FULL, 0}});
    check_losses(g, &(struct rig_options){.recompute = {RECOMPUTE_SELECTIVE, 1}, .in_backward = true});
}

static void test_outputs(void **state)
{
    (void)state;
    each(outputs_of);
}

static void test_gradients(void **state)
{
    (void)state;
    each(check_gradients);
}

static void test_dropout(void **state)
{
    (void)state;
    each(dropout_of);
}

static void test_ten_steps(void **state)
{
    (void)state;
    each(losses_of);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outputs), cmocka_unit_test(test_gradients), cmocka_unit_test(test_ten_steps),
        cmocka_unit_test(test_dropout), cmocka_unit_test(test_new_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
