/* test_encoders.c - encoders against PyTorch's numbers (make_encoders.py): logits of tokens and labels, vectors of rows,
 * every gradient and ten AdamW losses of all three heads, fp32 within 1e-5 relative; gradients in bf16 at most 1.25 times as far off as
 * PyTorch's own. */
#include "runtime/initial_weights.h"
#include "runtime/load.h"
#include "support/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define NOTHING 1e-6 /* norm of a gradient that is rounding alone */

/* Pairs that are told apart have a loss near 0, of which only 20 times the error of a cosine is certain. */
#define SMALL_LOSS 0.1

static const char *const models[] = {"bert", "roberta", "distilbert"};
static const struct task {
    const char *name;
    enum model_head loss, logits;
} tasks[] = {{"tokens", HEAD_LOSS, HEAD_LOGITS},
             {"labels", HEAD_LABELS, HEAD_LABEL_LOGITS},
             {"pairs", HEAD_PAIRS, HEAD_EMBEDDING}};
enum { MODELS = 3, TASKS = 3 };

static void hide_padding(const struct golden *g, float *logits, int64_t width)
{
    int32_t *lengths = golden_read(g, "lengths", DT_I32, NULL);
    for (int64_t b = 0; b < g->batch; b++)
        for (int64_t i = lengths[b] * width; i < g->time * width; i++) logits[b * g->time * width + i] = 0;
    free(lengths);
}

static void check(const struct golden *g, const char *what, const float *have, const float *want, int64_t n)
{
    double error = golden_error(have, want, n, NOTHING);
    if (!(error <= GOLDEN_TOLERANCE)) fail_msg("%s: %s: error %.3g", g->name, what, error);
    print_message("# %s: %s: error %.2e\n", g->name, what, error);
}

static void check_vectors(const struct golden *g)
{
    static const char *const names[] = {"embedding:mean0", "embedding:mean1", "embedding:first0",
                                        "embedding:first1"};
    for (int i = 0; i < 4; i++) {
        struct model_rig rig = {0};
        int64_t count;
        golden_run(&rig, g,
                   &(struct rig_options){
                       .head = HEAD_EMBEDDING, .pooling = (enum pooling)(i / 2), .normalize = i % 2},
                   0);
        float *have = golden_floats(&rig, tape_find(&rig.tape, "embedding", -1)),
              *want = golden_read(g, names[i], DT_F32, &count);
        check(g, names[i], have, want, count);
        free(have), free(want);
        rig_close(&rig);
    }
}

static void check_logits(const struct golden *g, enum model_head head)
{
    struct model_rig rig = {0};
    int64_t count;
    golden_run(&rig, g, &(struct rig_options){.head = head}, 0);
    float *have = golden_floats(&rig, tape_find(&rig.tape, "logits", -1)),
          *want = golden_read(g, "logits", DT_F32, &count);
    hide_padding(g, have, count / g->batch / g->time);
    check(g, "logits", have, want, count);
    free(have), free(want);
    rig_close(&rig);
}

static struct golden_errors gradient_errors(const struct golden *g, enum model_head head,
                                            enum precision precision)
{
    struct model_rig rig = {0};
    golden_run(&rig, g, &(struct rig_options){.head = head, .grad = true, .precision = precision}, 0);
    struct golden_errors e = golden_gradients(&rig, g, NOTHING);
    rig_close(&rig);
    assert_true(e.count > 20);
    return e;
}

static void gradients_of(const struct golden *g, const struct task *task)
{
    struct golden_errors wide = gradient_errors(g, task->loss, PRECISION_F32),
                         narrow = gradient_errors(g, task->loss, PRECISION_BF16);
    double ours = sqrt(narrow.ours / narrow.count), torch = sqrt(narrow.torch / narrow.count);
    print_message("# %s: worst gradient error %.2e; bf16 rms %.2e, torch's %.2e\n", g->name, wide.worst, ours,
                  torch);
    if (!(wide.worst <= GOLDEN_TOLERANCE))
        fail_msg("%s: gradient of %s: error %.3g", g->name, wide.worst_name, wide.worst);
    if (!(ours <= 1.25 * torch)) fail_msg("%s: bf16 gradients: %.3g, torch %.3g", g->name, ours, torch);
}

static double loss_of(const struct golden *g, const struct rig_options *how, int *dropouts)
{
    struct model_rig rig = {0};
    double loss[2];
    golden_run(&rig, g, how, 0);
    rig_read(&rig, tape_find(&rig.tape, "loss", -1), loss, sizeof loss);
    *dropouts = 0;
    for (int i = 0; i < rig.tape.nops; i++)
        *dropouts += rig.tape.ops[i].kind == OP_DROPOUT && rig.tape.ops[i].part == PART_FORWARD;
    rig_close(&rig);
    return loss[0];
}

/* Nothing is dropped unless the tape trains; what is dropped does not depend on what is recomputed. */
static void dropout_of(const struct golden *g, const struct task *task)
{
    bool distil = strstr(g->name, "distilbert") != NULL;
    int none, some, again, layers = 2, wanted = 1 + layers * (distil ? 1 : 2) + (task->loss == HEAD_LABELS);
    struct rig_options how = {.head = task->loss, .grad = true, .dropout = 0.3};
    double plain = loss_of(g, &how, &none);
    how.training = true;
    double dropped = loss_of(g, &how, &some);
    how.recompute = (struct recompute_options){RECOMPUTE_FULL, 0};
    assert_true(loss_of(g, &how, &again) == dropped && dropped != plain);
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
    golden_open(&g, "bert-labels");
    golden_model("bert-tokens", other, sizeof other);
    golden_run(&rig, &g, &(struct rig_options){.head = HEAD_LABEL_LOGITS}, 0);
    assert_int_equal(weights_from_directory(&rig.exec, &rig.spec, other, NULL, &rig.err), PLIM_BAD_INPUT);
    assert_non_null(strstr(rig.err.text, "classifier.weight"));
    assert_int_equal(initial_head(&rig.exec, &rig.spec, 7, &rig.err), PLIM_OK);
    assert_int_equal(weights_to_train(&rig.exec, &rig.spec, other, NULL, &rig.err), PLIM_OK);
    assert_int_equal(safetensors_open(other, &set, &rig.err), PLIM_OK);
    const struct safetensor *file = safetensors_find(&set, "bert.embeddings.word_embeddings.weight");
    float *want = malloc((size_t)file->count * sizeof *want), *words = NULL, *head = NULL;
    assert_int_equal(safetensors_read_all(&set, file, DT_F32, want, &rig.err), PLIM_OK);
    words = golden_floats(&rig, tape_find(&rig.tape, "bert.embeddings.word_embeddings.weight", -1));
    head = golden_floats(&rig, tape_find(&rig.tape, "classifier.weight", -1));
    assert_memory_equal(words, want, (size_t)file->count * sizeof *want);
    assert_true(head[0] != 0 && fabsf(head[0]) < 0.2f); /* of deviation 0.02 */
    free(want), free(words), free(head);
    safetensors_close(&set);
    rig_close(&rig);
    golden_close(&g);
}

static void each(void (*body)(const struct golden *, const struct task *))
{
    for (int m = 0; m < MODELS; m++)
        for (int i = 0; i < TASKS; i++) {
            struct golden g;
            char name[64];
            snprintf(name, sizeof name, "%s-%s", models[m], tasks[i].name);
            golden_open(&g, name);
            body(&g, &tasks[i]);
            golden_close(&g);
        }
}

static void outputs_of(const struct golden *g, const struct task *task)
{
    if (task->loss == HEAD_PAIRS)
        check_vectors(g);
    else
        check_logits(g, task->logits);
}

static void losses_of(const struct golden *g, const struct task *task)
{
    struct rig_options ways[] = {
        {.head = task->loss},
        {.head = task->loss, .recompute = {RECOMPUTE_FULL, 0}},
        {.head = task->loss, .recompute = {RECOMPUTE_SELECTIVE, 1}, .in_backward = true}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) golden_losses(g, &ways[i], SMALL_LOSS);
}

static void test_outputs(void **state)
{
    (void)state;
    each(outputs_of);
}

static void test_gradients(void **state)
{
    (void)state;
    each(gradients_of);
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

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outputs), cmocka_unit_test(test_gradients), cmocka_unit_test(test_ten_steps),
        cmocka_unit_test(test_dropout), cmocka_unit_test(test_new_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
