/* run-tests: not=tsan */
/* test_freeze.c - frozen parameters: those that are trained have the gradients that they have when all are, bit for bit, and
 * the others have none; updates leave them alone; and names that match wrongly are refused. */
#include "model/hf.h"
#include "support/golden.h"
#include "support/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char *const models[] = {"llama-tied", "gpt2",        "gemma3", "phi3",   "mixtral",
                                     "qwen2_moe",  "bert-tokens", "t5-v10", "granite"};
#define NMODELS (sizeof models / sizeof *models)

/* Patterns that match something in every model above, and the trained share of each. */
static const char *const trained[] = {
    "*.bias",                   /* biases alone: no product with x */
    "*norm*",                   /* nothing below the first norm is derived */
    "*.1.*.weight",             /* the last layer */
    "*embed*",                  /* the very first op, below everything */
    "*[kqv]*.weight",           /* inside attention */
    "*down*",         "*proj*", /* after it */
};
#define NTRAINED (sizeof trained / sizeof *trained)

static struct string_list list_of(const char **items, size_t count)
{
    return (struct string_list){items, count, count};
}

static const struct string_list nothing;

static bool applies(const char *model, const char *pattern)
{
    struct model_spec spec;
    struct tape tape;
    struct plim_error err = {0};
    char path[512];
    const char *items[] = {pattern};
    struct string_list only = list_of(items, 1);
    struct model_freezing freezing = {&nothing, &only};
    tape_init(&tape);
    assert_int_equal(hf_config_load(golden_model(model, path, sizeof path), &spec, &err), PLIM_OK);
    struct model_shape shape = {
        .batch = 1, .time = 4, .head = HEAD_LOSS, .source_time = model_has_source(&spec) ? 4 : 0};
    assert_int_equal(model_emit(&spec, &shape, &tape, &err), PLIM_OK);
    enum plim_status status = model_freeze(&spec, &freezing, &tape, &err);
    tape_release(&tape);
    return status == PLIM_OK;
}

/* The gradient of the parameter with that name; NULL: it has none. */
static float *gradient_of(struct model_rig *rig, const struct tensor *param)
{
    for (int i = 0; i < rig->tape.ntensors; i++) {
        const struct tensor *t = &rig->tape.tensors[i];
        if (t->cls != CLASS_GRAD || t->view_of >= 0) continue;
        const struct tensor *of = &rig->tape.tensors[t->owner];
        if (of->layer == param->layer && !strcmp(of->label, param->label)) return golden_floats(rig, i);
    }
    return NULL;
}

/* Products that make gradients of weights. */
static int count_products(const struct tape *tape)
{
    int n = 0;
    for (int i = 0; i < tape->nops; i++)
        n += tape->ops[i].kind == OP_LINEAR_DW && tape->ops[i].out[LINEAR_DW_DW] >= 0;
    return n;
}

static void compare(struct model_rig *all, struct model_rig *some, const char *model, const char *pattern)
{
    int with = 0;
    for (int i = 0; i < some->tape.ntensors; i++) {
        const struct tensor *t = &some->tape.tensors[i];
        if (t->cls != CLASS_PARAM || t->view_of >= 0) continue;
        float *want = gradient_of(all, t), *have = gradient_of(some, t);
        bool frozen = t->flags & TENSOR_FROZEN;
        if (frozen != !have)
            fail_msg("%s, %s: %s has %s gradient", model, pattern, t->label, have ? "a" : "no");
        if (have && memcmp(have, want, (size_t)tensor_count(t) * sizeof *have))
            fail_msg("%s, %s: the gradient of %s differs", model, pattern, t->label);
        with += have != NULL;
        free(want), free(have);
    }
    assert_true(with > 0);
    assert_true(count_products(&some->tape) < count_products(&all->tape));
}

static void test_gradients(void **state)
{
    (void)state;
    static const struct recompute_options ways[] = {
        {RECOMPUTE_NONE, 0}, {RECOMPUTE_FULL, 0}, {RECOMPUTE_SELECTIVE, 0}};
    int compared = 0;
    for (size_t m = 0; m < NMODELS; m += EVERY) {
        struct golden g;
        struct model_rig all = {0};
        golden_open(&g, models[m]);
        golden_run(&all, &g, &(struct rig_options){.grad = true, .loss_chunks = 2}, 0);
        for (size_t p = 0; p < NTRAINED; p++) {
            struct model_rig some = {0};
            const char *items[] = {trained[p]};
            struct string_list only = list_of(items, 1);
            struct model_freezing freezing = {&nothing, &only};
            if (!applies(models[m], trained[p])) continue;
            struct rig_options o = {
                .grad = true, .freezing = &freezing, .loss_chunks = 2, .recompute = ways[(m + p) % 3]};
            golden_run(&some, &g, &o, 0);
            compare(&all, &some, models[m], trained[p]);
            rig_close(&some);
            compared++;
        }
        rig_close(&all);
        golden_close(&g);
    }
    assert_true(compared >= (int)(4 * NMODELS / EVERY));
}

/* A frozen parameter keeps its bits, has neither master nor moments, and the others learn. */
static void test_updates(void **state)
{
    (void)state;
    const char *items[] = {"embed_tokens", "layers.0"};
    struct string_list freeze = list_of(items, 2);
    struct model_freezing freezing = {&freeze, &nothing};
    struct golden g;
    struct model_rig rig = {0};
    float *before[256] = {0};
    golden_open(&g, "llama-untied");
    struct rig_options o = {.grad = true, .update = true, .freezing = &freezing, .precision = PRECISION_BF16};
    golden_run(&rig, &g, &o, 0);
    for (int i = 0; i < rig.tape.ntensors; i++) {
        const struct tensor *t = &rig.tape.tensors[i];
        bool companion = t->cls == CLASS_MASTER || t->cls == CLASS_STATE || t->cls == CLASS_GRAD;
        if (companion && t->owner >= 0) assert_false(rig.tape.tensors[t->owner].flags & TENSOR_FROZEN);
        if (t->cls == CLASS_PARAM) before[i] = golden_floats(&rig, i);
    }
    assert_int_equal(exec_update(&rig.exec, &rig.err), PLIM_OK);
    for (int i = 0; i < 256; i++) {
        if (!before[i]) continue;
        const struct tensor *t = &rig.tape.tensors[i];
        float *after = golden_floats(&rig, i);
        bool same = !memcmp(before[i], after, (size_t)tensor_count(t) * sizeof *after);
        assert_int_equal(same, (t->flags & TENSOR_FROZEN) != 0);
        free(after), free(before[i]);
    }
    rig_close(&rig);
    golden_close(&g);
}

static void expect(const char **freeze, size_t nfreeze, const char **only, size_t nonly, const char *text)
{
    struct model_spec spec;
    struct tape tape;
    struct plim_error err = {0};
    char path[512];
    struct string_list a = list_of(freeze, nfreeze), b = list_of(only, nonly);
    struct model_freezing freezing = {&a, &b};
    struct model_shape shape = {.batch = 1, .time = 4, .head = HEAD_LOSS};
    tape_init(&tape);
    assert_int_equal(hf_config_load(golden_model("llama-untied", path, sizeof path), &spec, &err), PLIM_OK);
    assert_int_equal(model_emit(&spec, &shape, &tape, &err), PLIM_OK);
    enum plim_status status = model_freeze(&spec, &freezing, &tape, &err);
    assert_int_equal(status, text ? PLIM_BAD_INPUT : PLIM_OK);
    if (text && !strstr(err.text, text)) fail_msg("'%s' lacks '%s'", err.text, text);
    tape_release(&tape);
}

static void test_refusals(void **state)
{
    (void)state;
    expect((const char *[]){"lm_heat"}, 1, NULL, 0, "'lm_heat' matches no parameter");
    expect((const char *[]){""}, 1, NULL, 0, "matches no parameter");
    expect((const char *[]){"lm"}, 1, NULL, 0, "matches no parameter"); /* not a whole part of a name */
    expect((const char *[]){"q_proj"}, 1, NULL, 0,
           "only a part of model.layers.0.self_attn.{q,k,v}_proj.weight");
    expect((const char *[]){"*"}, 1, NULL, 0, "every parameter is frozen");
    expect((const char *[]){"lm_head"}, 1, (const char *[]){"lm_head"}, 1, "every parameter is frozen");
    expect(NULL, 0, (const char *[]){"q_proj", "k_proj", "v_proj"}, 3, NULL);
    expect((const char *[]){"layers.1", "mlp.*_proj.weight"}, 2, NULL, 0, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients), cmocka_unit_test(test_updates),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
