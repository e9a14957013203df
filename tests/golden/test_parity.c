/* test_parity.c - logits, every gradient and ten AdamW losses against PyTorch's numbers (see README.md).
 *
 * fp32: within 1e-5 relative. bf16: compared with PyTorch's fp32. All gradients of models without experts together are no
 * worse than PyTorch's own bf16 run; those of one such model and of one with experts have a limit each (below).
 *
 *     test_parity                             everything
 *     test_parity '*_bf16' mixtral olmoe      tests whose names match, of these models (live_experts.py) */
#include "support/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* PyTorch's bf16 error is one draw of rounding and ours is another: a single small tensor may come out a few times
 * worse, one model a little worse, all models together not at all. */
#define BF16_SLACK        1.25
#define BF16_TENSOR_SLACK 3.0
/* A rounding may send a token to another expert, in PyTorch's run or in ours, and a single token is much of so small a
 * model: one draw tells little then. All gradients as one vector, and logits, may be as far off as PyTorch's own were in
 * the worst of many draws (make_golden.py, routed_deviation); this finds mistakes. Whether ours is worse than PyTorch's is
 * decided over many draws (live_experts.py), whose files have no such limit. */

/* The largest error that bf16 may have: PyTorch's own and a little; with experts, the most that PyTorch's had. */
static double bf16_limit(const struct golden *g, bool routed, const char *what, double torch_bf16)
{
    char key[64];
    if (!routed) return BF16_SLACK * torch_bf16;
    snprintf(key, sizeof key, "bf16most:%s", what);
    float *most = golden_read(g, key, DT_F32, NULL);
    if (!most && getenv("GOLDEN_DIR")) return INFINITY;
    if (!most) fail_msg("golden file has no %s", key);
    double limit = BF16_SLACK * (double)most[0];
    free(most);
    return limit;
}

static void check_error(const char *name, const char *what, double error, double limit)
{
    if (!(error <= limit)) fail_msg("%s: %s: error %.3g, allowed %.3g", name, what, error, limit);
}

static void check_logits(const char *name, enum precision precision)
{
    struct golden g;
    struct model_rig rig = {0};
    int64_t count;
    golden_open(&g, name);
    golden_run(&rig, &g, &(struct rig_options){.head = HEAD_LOGITS, .precision = precision}, 0);
    float *have = golden_floats(&rig, tape_find(&rig.tape, "logits", -1)),
          *want = golden_read(&g, "logits", DT_F32, &count),
          *torch = golden_read(&g, "bf16err:logits", DT_F32, NULL);
    double error = golden_error(have, want, count, 0);
    bool narrow = precision != PRECISION_F32, routed = rig.spec.num_experts > 0;
    check_error(name, "logits", error,
                narrow ? bf16_limit(&g, routed, "logits", torch[0]) : GOLDEN_TOLERANCE);
    print_message("# %s: logits error %.2e (torch bf16 %.2e)\n", name, error, (double)torch[0]);
    free(have), free(want), free(torch);
    rig_close(&rig);
    golden_close(&g);
}

/* Squared errors, ours and PyTorch's, summed over gradients. */
struct error_sum {
    double ours, torch;
    int count;
};

/* `all`: of models without experts, and of those with. */
static void check_gradients(const char *name, enum precision precision, struct error_sum all[2])
{
    struct golden g;
    struct model_rig rig = {0};
    golden_open(&g, name);
    golden_run(&rig, &g, &(struct rig_options){.grad = true, .precision = precision}, 0);
    struct golden_errors e = golden_gradients(&rig, &g, 0);
    bool routed = rig.spec.num_experts > 0;
    double ours = sqrt(e.ours / e.count), torch = sqrt(e.torch / e.count),
           whole = sqrt(e.whole.diff / e.whole.norm);
    if (precision == PRECISION_F32) {
        check_error(name, e.worst_name, e.worst, GOLDEN_TOLERANCE);
    } else {
        /* One tensor is one draw; all of them together are the comparison. */
        if (!routed && e.most > BF16_TENSOR_SLACK)
            fail_msg("%s: %s: %.3g times torch's error", name, e.most_name, e.most);
        check_error(name, "all gradients", routed ? whole : ours, bf16_limit(&g, routed, "gradients", torch));
    }
    print_message("# %s: worst gradient error %.2e, rms %.2e (torch bf16 %.2e)\n", name, e.worst, ours,
                  torch);
    float *torch_whole = golden_read(&g, "bf16err:all gradients", DT_F32, NULL);
    if (torch_whole)
        print_message("# %s: gradients as one vector %.3e (torch bf16 %.3e)\n", name, whole,
                      (double)torch_whole[0]);
    free(torch_whole);
    all[routed].ours += e.ours, all[routed].torch += e.torch, all[routed].count += e.count;
    rig_close(&rig);
    golden_close(&g);
}

static void check_losses(const char *name, const struct rig_options *how)
{
    struct golden g;
    golden_open(&g, name);
    golden_losses(&g, how, 0);
    golden_close(&g);
}

static const char *const all_cases[] = {"llama-tied", "llama-untied", "llama-packed",  "mistral",   "qwen2",
                                        "gpt2",       "qwen3",        "gemma2",        "gemma3",    "phi3",
                                        "olmo2",      "smollm3",      "mixtral",       "qwen3_moe", "olmoe",
                                        "qwen2_moe",  "llama-sparse", "gpt2-by-layer", "granite"};
#define NCASES (sizeof all_cases / sizeof *all_cases)

/* Those to run. */
static const char *const *cases = all_cases;
static size_t case_count = NCASES;

static void test_logits_fp32(void **state)
{
    (void)state;
    for (size_t i = 0; i < case_count; i++) check_logits(cases[i], PRECISION_F32);
}

static void test_logits_bf16(void **state)
{
    (void)state;
    for (size_t i = 0; i < case_count; i++) check_logits(cases[i], PRECISION_BF16);
}

static void test_gradients_fp32(void **state)
{
    (void)state;
    struct error_sum all[2] = {0};
    for (size_t i = 0; i < case_count; i++) check_gradients(cases[i], PRECISION_F32, all);
}

static void test_gradients_bf16(void **state)
{
    (void)state;
    struct error_sum all[2] = {0};
    for (size_t i = 0; i < case_count; i++) check_gradients(cases[i], PRECISION_BF16, all);
    for (int routed = 0; routed < 2; routed++) {
        if (!all[routed].count) continue;
        print_message("# all %d gradients %s experts in bf16: rms error %.3e, PyTorch's %.3e\n",
                      all[routed].count, routed ? "with" : "without",
                      sqrt(all[routed].ours / all[routed].count),
                      sqrt(all[routed].torch / all[routed].count));
    }
    assert_true(!all[0].count || all[0].ours <= all[0].torch);
}

static void test_ten_steps(void **state)
{
    (void)state;
    for (size_t i = 0; i < case_count; i++) check_losses(cases[i], &(struct rig_options){0});
}

static void test_ten_steps_under_every_trick(void **state)
{
    (void)state;
    for (size_t i = 0; i < case_count; i++) {
        check_losses(cases[i], &(struct rig_options){.recompute = {RECOMPUTE_FULL, 0}});
        check_losses(cases[i],
                     &(struct rig_options){.recompute = {RECOMPUTE_SELECTIVE, 1}, .in_backward = true});
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (argc > 2) cases = (const char *const *)argv + 2, case_count = (size_t)argc - 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_fp32),    cmocka_unit_test(test_logits_bf16),
        cmocka_unit_test(test_gradients_fp32), cmocka_unit_test(test_gradients_bf16),
        cmocka_unit_test(test_ten_steps),      cmocka_unit_test(test_ten_steps_under_every_trick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
