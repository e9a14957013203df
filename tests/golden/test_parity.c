/* test_parity.c - logits, every gradient and ten AdamW losses against PyTorch's numbers (see README.md).
 *
 * fp32: within 1e-5 relative. bf16: compared with PyTorch's fp32, no worse than PyTorch's own bf16 run. The
 * folder of cases is $GOLDEN_DIR, by default the one beside the sources; a live comparison points it at a fresh
 * one. */
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

#define FP32_TOLERANCE 1e-5
/* PyTorch's bf16 error is one draw of rounding and ours is another: a single small tensor may come out a few times
 * worse, one model a little worse, all models together not at all. */
#define BF16_SLACK        1.25
#define BF16_TENSOR_SLACK 3.0
/* Of experts, a rounding may send a token to another one, in PyTorch's run or in ours, and a single token is much of so
 * small a model: gradients of one expert tell nothing then, and neither does one draw. All of them together, and logits, may be as
 * far off as PyTorch's own were in the worst of several draws (make_golden.py, routed_deviation). */

struct golden {
    char model[512];
    struct safetensors expected;
    int64_t batch, time;
    int32_t *ids, *targets, *pos;
    int64_t tokens;
};

static const char *golden_dir(void)
{
    const char *dir = getenv("GOLDEN_DIR"), *src = getenv("SRC_DIR");
    static char path[512];
    if (dir) return dir;
    snprintf(path, sizeof path, "%s/tests/golden", src ? src : ".");
    return path;
}

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

static void golden_open(struct golden *g, const char *name)
{
    struct plim_error err = {0};
    char path[600];
    memset(g, 0, sizeof *g);
    snprintf(path, sizeof path, "%s/%s/expected.safetensors", golden_dir(), name);
    if (safetensors_open(path, &g->expected, &err) != PLIM_OK) fail_msg("%s", err.text);
    snprintf(g->model, sizeof g->model, "%s/%s", golden_dir(), name);
    snprintf(path, sizeof path, "%s/%s/MODEL", golden_dir(), name);
    FILE *borrowed = fopen(path, "r");
    if (borrowed) {
        char other[64] = "";
        assert_int_equal(fscanf(borrowed, "%63s", other), 1);
        fclose(borrowed);
        snprintf(g->model, sizeof g->model, "%s/%s", golden_dir(), other);
    }
    const struct safetensor *ids = safetensors_find(&g->expected, "ids");
    assert_non_null(ids);
    g->batch = ids->dim[0], g->time = ids->dim[1];
    g->ids = read_tensor(g, "ids", DT_I32, NULL);
    g->targets = read_tensor(g, "targets", DT_I32, NULL);
    g->pos = read_tensor(g, "pos", DT_I32, NULL);
    for (int64_t i = 0; i < g->batch * g->time; i++) g->tokens += g->targets[i] >= 0;
}

static void golden_close(struct golden *g)
{
    free(g->ids), free(g->targets), free(g->pos);
    safetensors_close(&g->expected);
}

static void write_batch(struct model_rig *rig, const struct golden *g, bool with_targets)
{
    size_t bytes = (size_t)(g->batch * g->time) * sizeof(int32_t);
    rig_write(rig, "ids", g->ids, bytes);
    rig_write(rig, "pos", g->pos, bytes);
    if (with_targets) rig_write(rig, "targets", g->targets, bytes);
}

static void write_scalars(struct model_rig *rig, const struct golden *g, int step)
{
    float scalars[SCALAR_COUNT] = {0};
    scalars[SCALAR_LOSS_GRAD] = 1.0f / (float)g->tokens;
    scalars[SCALAR_LR] = 1e-3f;
    scalars[SCALAR_BIAS1] = (float)(1 - pow(0.9, step + 1));
    scalars[SCALAR_BIAS2] = (float)(1 - pow(0.999, step + 1));
    scalars[SCALAR_UNSCALE] = scalars[SCALAR_AUX_GRAD] = 1;
    rig_write(rig, "step.scalars", scalars, sizeof scalars);
}

/* |a - b| / |b| */
static double relative_error(const float *a, const float *b, int64_t n)
{
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) diff += pow((double)a[i] - b[i], 2), norm += pow(b[i], 2);
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

/* Error of a device tensor of any floating type, from element `first` on, against the golden one, which may be shorter;
 * *allowed is what bf16 may have. */
static double error_of(struct model_rig *rig, const struct golden *g, int id, int64_t first, const char *name,
                       const char *key, double *allowed)
{
    char err_key[256];
    int64_t count;
    float *want = read_tensor(g, key, DT_F32, &count);
    if (!want) fail_msg("golden file has no %s", key);
    const struct tensor *t = &rig->tape.tensors[id];
    assert_in_range(first + count, 1, tensor_count(t));
    void *raw = malloc((size_t)tensor_bytes(t));
    float *have = malloc((size_t)tensor_count(t) * sizeof *have);
    rig_read(rig, id, raw, (size_t)tensor_bytes(t));
    dtype_convert(have, DT_F32, raw, t->type, tensor_count(t));
    double error = relative_error(have + first, want, count);
    snprintf(err_key, sizeof err_key, "bf16err:%s", name);
    float *torch = read_tensor(g, err_key, DT_F32, NULL);
    *allowed = torch ? torch[0] : 0;
    free(want), free(raw), free(have), free(torch);
    return error;
}

/* What bf16 may be off by: PyTorch's own error and a little; of experts, the most that PyTorch's had. */
static double bf16_limit(const struct golden *g, bool routed, const char *what, double torch_bf16)
{
    char key[64];
    if (!routed) return BF16_SLACK * torch_bf16;
    snprintf(key, sizeof key, "bf16most:%s", what);
    float *most = read_tensor(g, key, DT_F32, NULL);
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
    struct model_rig rig;
    double torch;
    golden_open(&g, name);
    rig_open(
        &rig,
        &(struct rig_options){
            .model = g.model, .batch = g.batch, .time = g.time, .head = HEAD_LOGITS, .precision = precision});
    write_batch(&rig, &g, false);
    assert_int_equal(exec_loop(&rig.exec, 0, &rig.err), PLIM_OK);
    double error = error_of(&rig, &g, tape_find(&rig.tape, "logits", -1), 0, "logits", "logits", &torch);
    bool narrow = precision != PRECISION_F32, routed = rig.spec.num_experts > 0;
    check_error(name, "logits", error, narrow ? bf16_limit(&g, routed, "logits", torch) : FP32_TOLERANCE);
    print_message("# %s: logits error %.2e (torch bf16 %.2e)\n", name, error, torch);
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
    struct model_rig rig;
    double sum_ours = 0, sum_torch = 0, worst = 0;
    golden_open(&g, name);
    rig_open(&rig,
             &(struct rig_options){
                 .model = g.model, .batch = g.batch, .time = g.time, .grad = true, .precision = precision});
    write_batch(&rig, &g, true);
    write_scalars(&rig, &g, 0);
    assert_int_equal(exec_loop(&rig.exec, 0, &rig.err), PLIM_OK);
    int n = 0;
    for (int i = 0; i < rig.tape.ntensors; i++) {
        if (rig.tape.tensors[i].cls != CLASS_GRAD) continue;
        int owner = rig.tape.tensors[i].owner, count = weights_part_count(&rig.tape, owner);
        int64_t covered = 0;
        for (int k = 0; k < count; k++) {
            const struct weights_part part = weights_part(&rig.spec, &rig.tape, owner, k);
            char key[220];
            double torch;
            snprintf(key, sizeof key, "grad:%s", part.name);
            double error = error_of(&rig, &g, i, part.first, part.name, key, &torch);
            if (precision == PRECISION_F32) check_error(name, key, error, FP32_TOLERANCE);
            /* One tensor is one draw; all of them together are the comparison. */
            if (precision != PRECISION_F32 && !rig.spec.num_experts && error > BF16_TENSOR_SLACK * torch)
                fail_msg("%s: %s: %.3g, torch %.3g", name, key, error, torch);
            sum_ours += error * error, sum_torch += torch * torch, n++, covered += part.count;
            if (error > worst) worst = error;
        }
        assert_int_equal(covered, tensor_count(&rig.tape.tensors[i]));
    }
    assert_true(n > 4);
    bool routed = rig.spec.num_experts > 0;
    if (precision != PRECISION_F32)
        check_error(name, "all gradients", sqrt(sum_ours / n),
                    bf16_limit(&g, routed, "gradients", sqrt(sum_torch / n)));
    print_message("# %s: worst gradient error %.2e, rms %.2e (torch bf16 %.2e)\n", name, worst,
                  sqrt(sum_ours / n), sqrt(sum_torch / n));
    all[routed].ours += sum_ours, all[routed].torch += sum_torch, all[routed].count += n;
    rig_close(&rig);
    golden_close(&g);
}

/* The losses of the router, where there is one. */
static double router_loss(struct model_rig *rig)
{
    double loss[3] = {0};
    int id = tape_find(&rig->tape, "router.loss", -1);
    if (id >= 0) rig_read(rig, id, loss, sizeof loss);
    return loss[0] + loss[1];
}

static void check_losses(const char *name, const struct rig_options *how)
{
    struct golden g;
    struct model_rig rig;
    golden_open(&g, name);
    struct rig_options o = *how;
    o.model = g.model, o.batch = g.batch, o.time = g.time, o.grad = o.update = true;
    rig_open(&rig, &o);
    float *want = read_tensor(&g, "losses", DT_F32, NULL);
    double worst = 0;
    if (want) {
        for (int step = 0; step < 10; step++) {
            double loss[2];
            write_batch(&rig, &g, true);
            write_scalars(&rig, &g, step);
            assert_int_equal(exec_loop(&rig.exec, 0, &rig.err), PLIM_OK);
            rig_read(&rig, tape_find(&rig.tape, "loss", -1), loss, sizeof loss);
            double mean = loss[0] / loss[1] + router_loss(&rig);
            assert_int_equal(exec_update(&rig.exec, &rig.err), PLIM_OK);
            double error = fabs(mean - want[step]) / want[step];
            if (!(error <= FP32_TOLERANCE))
                fail_msg("%s: step %d: loss %.8f, torch %.8f", name, step, mean, want[step]);
            worst = fmax(worst, error);
        }
    }
    print_message("# %s: worst error of ten losses %.2e\n", name, worst);
    free(want);
    rig_close(&rig);
    golden_close(&g);
}

static const char *const cases[] = {"llama-tied", "llama-untied", "llama-packed", "mistral",   "qwen2",
                                    "gpt2",       "qwen3",        "gemma2",       "gemma3",    "phi3",
                                    "olmo2",      "smollm3",      "mixtral",      "qwen3_moe", "olmoe",
                                    "qwen2_moe",  "llama-sparse"};
#define NCASES (sizeof cases / sizeof *cases)

static void test_logits_fp32(void **state)
{
    (void)state;
    for (size_t i = 0; i < NCASES; i++) check_logits(cases[i], PRECISION_F32);
}

static void test_logits_bf16(void **state)
{
    (void)state;
    for (size_t i = 0; i < NCASES; i++) check_logits(cases[i], PRECISION_BF16);
}

static void test_gradients_fp32(void **state)
{
    (void)state;
    struct error_sum all[2] = {0};
    for (size_t i = 0; i < NCASES; i++) check_gradients(cases[i], PRECISION_F32, all);
}

static void test_gradients_bf16(void **state)
{
    (void)state;
    struct error_sum all[2] = {0};
    for (size_t i = 0; i < NCASES; i++) check_gradients(cases[i], PRECISION_BF16, all);
    for (int routed = 0; routed < 2; routed++) {
        print_message("# all %d gradients %s experts in bf16: rms error %.3e, PyTorch's %.3e\n",
                      all[routed].count, routed ? "with" : "without",
                      sqrt(all[routed].ours / all[routed].count),
                      sqrt(all[routed].torch / all[routed].count));
    }
    assert_true(all[0].ours <= all[0].torch);
}

static void test_ten_steps(void **state)
{
    (void)state;
    for (size_t i = 0; i < NCASES; i++) check_losses(cases[i], &(struct rig_options){0});
}

static void test_ten_steps_under_every_trick(void **state)
{
    (void)state;
    for (size_t i = 0; i < NCASES; i++) {
        check_losses(cases[i], &(struct rig_options){.recompute = {RECOMPUTE_FULL, 0}});
        check_losses(cases[i],
                     &(struct rig_options){.recompute = {RECOMPUTE_SELECTIVE, 1}, .in_backward = true});
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_fp32),    cmocka_unit_test(test_logits_bf16),
        cmocka_unit_test(test_gradients_fp32), cmocka_unit_test(test_gradients_bf16),
        cmocka_unit_test(test_ten_steps),      cmocka_unit_test(test_ten_steps_under_every_trick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
