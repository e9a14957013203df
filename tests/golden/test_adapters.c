/* test_adapters.c - adapters against PEFT's numbers, computed in float64 (make_adapters.py): our fp32 logits, every gradient and ten
 * AdamW losses are within 1e-5 relative; the same bits whatever the passes; and weights with the adapter merged in.
 *
 *     test_adapters                       the committed cases
 *     test_adapters adapter-olmo2 ...     these, of $GOLDEN_ADAPTERS (live_adapters.py) */
#include "model/peft.h"
#include "runtime/load.h"
#include "support/golden.h"
#include "tape/op.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char *const committed[] = {"adapter-llama",      "adapter-llama-part",  "adapter-qwen2-dora",
                                        "adapter-gemma3",     "adapter-gpt2",        "adapter-phi3",
                                        "adapter-qwen2_moe",  "adapter-bert",        "adapter-t5",
                                        "adapter-llama-head", "adapter-llama-embed", "adapter-llama-dora-all",
                                        "adapter-gpt2-dora",  "adapter-nf4-dora"};
static const char *const *cases = committed;
static size_t case_count = sizeof committed / sizeof *committed;

static struct rig_options how(const char *name, char *folder, size_t size)
{
    golden_model(name, folder, size);
    return (struct rig_options){.adapter = folder, .in_blocks = strstr(name, "nf4") != NULL};
}

static void check(const char *name, const char *what, double error)
{
    if (!(error <= GOLDEN_TOLERANCE)) fail_msg("%s: %s: error %.3g", name, what, error);
}

/* PyTorch's own error in fp32, for the log. */
static double torch_error(const struct golden *g, const char *of)
{
    char key[64];
    snprintf(key, sizeof key, "fp32err:%s", of);
    float *error = golden_read(g, key, DT_F32, NULL);
    if (!error) fail_msg("%s: no %s", g->name, key);
    double value = *error;
    free(error);
    return value;
}

/* Padding has no logits that anybody reads. */
static void clear_padding(const struct golden *g, float *logits, int64_t count)
{
    int32_t *lengths = golden_read(g, "lengths", DT_I32, NULL);
    int64_t row = count / g->batch, each = row / g->time;
    for (int64_t b = 0; lengths && b < g->batch; b++)
        memset(logits + b * row + lengths[b] * each, 0, (size_t)(row - lengths[b] * each) * sizeof *logits);
    free(lengths);
}

static double logits_error(struct model_rig *rig, const struct golden *g)
{
    int64_t count;
    float *have = golden_floats(rig, tape_find(&rig->tape, "logits", -1)),
          *want = golden_read(g, "logits", DT_F32, &count);
    clear_padding(g, have, count), clear_padding(g, want, count);
    double error = golden_error(have, want, count, 0);
    free(have), free(want);
    return error;
}

static void test_logits(void **state)
{
    (void)state;
    for (size_t i = 0; i < case_count; i++) {
        char folder[512];
        struct golden g;
        struct model_rig rig = {0};
        struct rig_options o = how(cases[i], folder, sizeof folder);
        o.head = HEAD_LOGITS;
        golden_open(&g, cases[i]);
        golden_run(&rig, &g, &o, 0);
        double error = logits_error(&rig, &g);
        print_message("# %s: logits error %.2e, PyTorch's fp32 %.2e\n", cases[i], error,
                      torch_error(&g, "logits"));
        check(cases[i], "logits", error);
        rig_close(&rig);
        golden_close(&g);
    }
}

/* Every gradient of PEFT's has ours, and ours no other. */
static void compare_gradients(struct model_rig *rig, const struct golden *g)
{
    size_t wanted = 0, found = 0;
    double worst = 0;
    for (size_t i = 0; i < g->expected.count; i++)
        wanted += !strncmp(g->expected.tensors[i].name, "grad:", 5);
    for (int i = 0; i < rig->tape.ntensors; i++) {
        if (rig->tape.tensors[i].cls != CLASS_GRAD) continue;
        float *have = golden_floats(rig, i);
        int owner = rig->tape.tensors[i].owner, n = weights_part_count(&rig->tape, owner);
        for (int k = 0; k < n; k++) {
            const struct weights_part part = weights_part(&rig->spec, &rig->tape, owner, k);
            char key[256] = "grad:";
            int64_t count = 0;
            adapter_file_name(rig->adapter, part.name, key + 5, sizeof key - 5);
            float *want = golden_read(g, key, DT_F32, &count);
            if (!want) fail_msg("%s: PEFT has no %s", g->name, key);
            assert_int_equal(count, part.count);
            double error = golden_error(have + part.first, want, count,
                                        1e-7); /* keys' biases: softmax does not see them */
            check(g->name, key, error);
            worst = fmax(worst, error), found++;
            free(want);
        }
        free(have);
    }
    print_message("# %s: worst of %zu gradients %.2e, PyTorch's fp32 %.2e\n", g->name, found, worst,
                  torch_error(g, "gradients"));
    assert_int_equal(found, wanted);
}

/* A base in 4 bits stays so, under DoRA too. */
static void check_blocks(const struct model_rig *rig, const struct rig_options *o)
{
    int norms[2] = {0};
    for (int i = 0; i < rig->tape.nops; i++)
        norms[0] += rig->tape.ops[i].kind == OP_DORA_NORM,
            norms[1] += rig->tape.ops[i].kind == OP_DORA_NORM_Q;
    if (o->in_blocks) assert_true(norms[1] == 7 && norms[0] == 0);
}

/* Adapters of one rank on queries, keys and values are one pair of matrices before the split: it rotates as without them, and nothing else does. */
static void test_joint(void **state)
{
    static const struct {
        const char *name;
        bool joint;
    } wanted[] = {{"adapter-llama", true}, {"adapter-llama-part", false}, {"adapter-qwen2-dora", false}};
    (void)state;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && cases == committed; i++) {
        char folder[512];
        struct golden g;
        struct model_rig rig = {0};
        struct rig_options o = how(wanted[i].name, folder, sizeof folder);
        int in_parts = 0, rotated = 0;
        golden_open(&g, wanted[i].name);
        golden_run(&rig, &g, &o, 0);
        for (int k = 0; k < rig.tape.nops; k++) {
            const struct op *op = &rig.tape.ops[k];
            in_parts += op->kind == OP_LINEAR && op->attr.lines[0].lines > 0;
            rotated += op->kind == OP_ROPE;
        }
        assert_int_equal(in_parts, wanted[i].joint ? rig.spec.num_layers : 0);
        assert_int_equal(rotated > 0, !wanted[i].joint);
        rig_close(&rig);
        golden_close(&g);
    }
}

static void test_gradients(void **state)
{
    (void)state;
    for (size_t i = 0; i < case_count; i++) {
        char folder[512];
        struct golden g;
        struct model_rig rig = {0};
        struct rig_options o = how(cases[i], folder, sizeof folder);
        o.grad = true;
        golden_open(&g, cases[i]);
        golden_run(&rig, &g, &o, 0);
        compare_gradients(&rig, &g);
        check_blocks(&rig, &o);
        rig_close(&rig);
        golden_close(&g);
    }
}

/* Ten losses, and the same ones to the bit under other passes. */
static void test_losses(void **state)
{
    (void)state;
    static const struct recompute_options ways[] = {
        {RECOMPUTE_NONE, 0}, {RECOMPUTE_FULL, 0}, {RECOMPUTE_SELECTIVE, 1}};
    for (size_t i = 0; i < case_count; i++) {
        char folder[512];
        struct golden g;
        double sums[3];
        golden_open(&g, cases[i]);
        for (int w = 0; w < 3; w++) {
            struct rig_options o = how(cases[i], folder, sizeof folder);
            o.recompute = ways[w], o.in_backward = w == 1, o.threads = 1 + w;
            if (w == 2)
                o.offload = (struct offload_options){
                    .state_tier = TIER_DISK, .param_tier = TIER_DISK, .slice_bytes = 4096};
            sums[w] = golden_losses(&g, &o, 0);
        }
        print_message("# %s: PyTorch's fp32 losses %.2e\n", cases[i], torch_error(&g, "losses"));
        assert_true(sums[0] == sums[1] && sums[0] == sums[2]);
        golden_close(&g);
    }
}

/* The weights with the adapter merged in compute PEFT's logits, and are PEFT's weights. */
static void test_merged(void **state)
{
    (void)state;
    for (size_t i = 0; i < case_count; i++) {
        char folder[512];
        struct golden g;
        struct model_rig rig = {0};
        golden_open(&g, cases[i]);
        golden_run(&rig, &g, &(struct rig_options){.head = HEAD_LOGITS}, 0);
        double plain = logits_error(&rig, &g);
        if (weights_merge(&rig.exec, &rig.spec, golden_model(cases[i], folder, sizeof folder), &rig.err) !=
            PLIM_OK)
            fail_msg("%s: %s", cases[i], rig.err.text);
        golden_run(&rig, &g, &(struct rig_options){.head = HEAD_LOGITS}, 0);
        double error = logits_error(&rig, &g);
        print_message("# %s: merged logits error %.2e (without the adapter %.2e)\n", cases[i], error, plain);
        assert_true(plain > 1e-3);
        check(cases[i], "merged logits", error);
        rig_close(&rig);
        golden_close(&g);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_joint), cmocka_unit_test(test_logits),
                                       cmocka_unit_test(test_gradients), cmocka_unit_test(test_losses),
                                       cmocka_unit_test(test_merged)};
    if (argc > 1) cases = (const char *const *)argv + 1, case_count = (size_t)argc - 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
