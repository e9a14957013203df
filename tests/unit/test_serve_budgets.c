/* run-tests: long, slow, not=asan, not=tsan */
/* test_serve_budgets.c - more budget never means less service: models x devices x budgets from far too small to far too
 * large. No budget above the smallest accepted one is refused; context, concurrent requests and predicted tokens/s never
 * fall.
 *
 *     test_serve_budgets [BUDGETS [DEVICE...]]     14 budgets; devices: presets, or "here"
 *
 * 450 plans by default, three times as many in `make test-long`.
 */
#include "base/file.h"
#include "base/minmax.h"
#include "device/registry.h"
#include "job/preset.h"
#include "serve/engine.h"
#include "serve/server.h"
#include "support/pace.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define MIB ((int64_t)1 << 20)
#define GIB ((int64_t)1 << 30)
enum { TOO_SMALL = 4 }; /* budgets below the smallest that is enough */

static const char *usual[] = {"rtx-4090", "h200", "cpu-4gb", "a10g", "here"};
static int budgets, device_count = sizeof usual / sizeof *usual;
static const char **devices = usual;

static const struct shape {
    const char *name;
    int64_t hidden, inner, layers, heads, kv_heads, head, vocab, positions;
} shapes[] = {
    {"0.6b", 1024, 3072, 28, 16, 8, 128, 151936, 40960},  {"1b", 2048, 8192, 16, 32, 8, 64, 128256, 131072},
    {"7b", 4096, 11008, 32, 32, 32, 128, 32000, 4096},    {"8b", 4096, 14336, 32, 32, 8, 128, 128256, 131072},
    {"70b", 8192, 28672, 80, 64, 8, 128, 128256, 131072}, {"tiny", 288, 768, 6, 6, 6, 48, 32000, 256},
};

/* --- a model without weights -------------------------------------------------------------------------------- */

static int64_t weight_bytes(const struct shape *s)
{
    int64_t attention = 2 * s->hidden * s->head * (s->heads + s->kv_heads);
    return 2 * (s->vocab * s->hidden + s->layers * (attention + 3 * s->hidden * s->inner));
}

static void write_text(const char *folder, const char *name, const void *text, size_t len)
{
    char path[256];
    struct plim_error err = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (file_write_atomic(path, text, len, &err) != PLIM_OK) fail_msg("%s", err.text);
}

/* One tensor of two bytes: planning reads the type of the weights, and their shapes from config.json. */
static void write_model(const char *folder, const struct shape *s)
{
    static const char header[] =
        "{\"model.norm.weight\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]}}    ";
    char config[1024], weights[8 + sizeof header + 1] = {(char)(sizeof header - 1)};
    int n =
        snprintf(config, sizeof config,
                 "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"rms_norm_eps\":1e-5,"
                 "\"tie_word_embeddings\":true,\"hidden_size\":%lld,\"intermediate_size\":%lld,"
                 "\"num_hidden_layers\":%lld,\"num_attention_heads\":%lld,\"num_key_value_heads\":%lld,"
                 "\"head_dim\":%lld,\"vocab_size\":%lld,\"max_position_embeddings\":%lld}",
                 (long long)s->hidden, (long long)s->inner, (long long)s->layers, (long long)s->heads,
                 (long long)s->kv_heads, (long long)s->head, (long long)s->vocab, (long long)s->positions);
    memcpy(weights + 8, header, sizeof header - 1);
    write_text(folder, "config.json", config, (size_t)n);
    write_text(folder, "model.safetensors", weights, 8 + sizeof header - 1 + 2);
}

/* --- a device that need not be here ------------------------------------------------------------------------- */

static void close_nothing(struct device *device) { (void)device; }
static const struct device_ops absent = {.name = "absent", .close = close_nothing};

static struct device *open_device(const char *name, struct device *space)
{
    struct plim_error err = {0};
    struct preset preset;
    struct device *device = space;
    if (!strcmp(name, "here")) {
        if (backend_open_fallback(NULL, 2, &device, &err) != PLIM_OK) fail_msg("%s", err.text);
        return device;
    }
    if (preset_find(name, &preset, &err) != PLIM_OK) fail_msg("%s", err.text);
    *space = (struct device){.ops = &absent, .facts = preset.facts};
    return space;
}

/* The linker puts it in place of os_process_counted: plans must not depend on the heap of earlier ones. */
uint64_t __wrap_os_process_counted(void);
uint64_t __wrap_os_process_counted(void) { return 0; }

/* --- plans -------------------------------------------------------------------------------------------------- */

static int64_t caller_bytes(void *caller, int64_t budget) { return server_share(caller, budget); }

static enum plim_status plan(const char *folder, struct device *device, int64_t budget,
                             struct engine_plan *out, struct plim_error *err)
{
    struct server_options server = {0};
    struct engine_refusal refusal = {0};
    struct engine *e;
    struct engine_options o = {.model = folder,
                               .budget = budget,
                               .caller_bytes = server_share(&server, budget),
                               .caller_bytes_under = caller_bytes,
                               .caller = &server,
                               .scratch = folder,
                               .stream = true,
                               .stream_last = true,
                               .allow_window = true,
                               .refusal = &refusal,
                               .plan_only = true};
    enum plim_status status = engine_open(device, &o, &e, err);
    *out = (struct engine_plan){.total = refusal.enough};
    if (status != PLIM_OK) return status;
    *out = *engine_plan(e);
    engine_close(e);
    return PLIM_OK;
}

/* Compares with the best of all smaller budgets, so that small losses cannot add up. */
static int compare(const char *where, const struct engine_plan *best, const struct engine_plan *p)
{
    const struct {
        const char *what;
        double had, has, part;
    } promises[] = {
        {"context", (double)best->context, (double)p->context, 1},
        {"requests", best->parallel, p->parallel, 1},
        {"tokens of a step", (double)best->step_tokens, (double)p->step_tokens, 1},
        {"parameters on the device", -(double)best->streamed, -(double)p->streamed, 1},
        {"prefill rate", best->prefill_rate, p->prefill_rate, 0.99},
        {"decode rate", best->decode_rate, p->decode_rate, 0.99},
        {"decode rate of all", best->full_rate, p->full_rate, 0.99},
    };
    int worse = 0;
    for (size_t i = 0; i < sizeof promises / sizeof *promises; i++) {
        if (promises[i].has >= promises[i].had * promises[i].part) continue;
        print_error("%s: %s falls from %g to %g\n", where, promises[i].what, promises[i].had,
                    promises[i].has);
        worse++;
    }
    return worse;
}

static void keep_best(struct engine_plan *best, const struct engine_plan *p)
{
    double prefill = best->prefill_rate, decode = best->decode_rate, full = best->full_rate;
    *best = *p;
    best->prefill_rate = fmax(prefill, p->prefill_rate), best->decode_rate = fmax(decode, p->decode_rate);
    best->full_rate = fmax(full, p->full_rate);
}

/* The first budgets are too small, most of the others little above the smallest that is enough. */
static int64_t budget_at(int i, int64_t enough, int64_t far)
{
    double t = (double)(i - TOO_SMALL) / (budgets - 1 - TOO_SMALL);
    return (int64_t)((double)enough * (t < 0 ? 1 + t : pow((double)far / (double)enough, t * t)));
}

static int sweep(const char *folder, const struct shape *s, const char *name, struct device *device)
{
    struct engine_plan best = {0}, p;
    struct plim_error err = {0};
    int bad = 0;
    if (plan(folder, device, MIB, &p, &err) != PLIM_NO_FIT) fail_msg("%s on %s in 1 MiB", s->name, name);
    int64_t enough = p.total, far = 3 * weight_bytes(s) + 40 * GIB;
    for (int i = 0; i < budgets; i++) {
        int64_t budget = budget_at(i, enough, far);
        char where[96];
        snprintf(where, sizeof where, "%s on %s at %lld", s->name, name, (long long)budget);
        enum plim_status status = plan(folder, device, budget, &p, &err);
        bool lawful = status == PLIM_OK ? p.total <= budget : status == PLIM_NO_FIT && !best.total;
        if (!lawful) print_error("%s: %s\n", where, status == PLIM_OK ? "takes more" : err.text), bad++;
        if (status != PLIM_OK) continue;
        if (best.total) bad += compare(where, &best, &p);
        keep_best(&best, &p);
    }
    return bad;
}

/* Without a budget the plan takes no more than the device has. */
static int check_default(const char *folder, const struct shape *s, const char *name, struct device *device)
{
    struct engine_plan p;
    struct plim_error err = {0};
    int64_t memory = (int64_t)device->facts.memory_bytes;
    enum plim_status status = plan(folder, device, 0, &p, &err);
    bool few = !strcmp(s->name, "8b") && !strcmp(name, "rtx-4090") && (p.context < 8192 || p.parallel < 64);
    if (status == PLIM_NO_FIT || (status == PLIM_OK && p.total <= memory && !few)) return 0;
    print_error("%s on %s without a budget: %s%lld of %lld bytes, %d requests of %lld tokens\n", s->name,
                name, err.text, (long long)p.total, (long long)memory, p.parallel, (long long)p.context);
    return 1;
}

static void more_budget_is_never_less(void **state)
{
    char folder[] = "/tmp/plimsoll-serve-budgets-XXXXXX", path[128];
    int bad = 0;
    (void)state;
    assert_non_null(mkdtemp(folder));
    for (size_t m = 0; m < sizeof shapes / sizeof *shapes; m++) {
        write_model(folder, &shapes[m]);
        for (int d = 0; d < device_count; d++) {
            struct device space, *device = open_device(devices[d], &space);
            bad += sweep(folder, &shapes[m], devices[d], device);
            bad += check_default(folder, &shapes[m], devices[d], device);
            device->ops->close(device);
        }
    }
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) snprintf(path, sizeof path, "%s/%s", folder, files[i]), unlink(path);
    rmdir(folder);
    assert_int_equal(bad, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(more_budget_is_never_less)};
    budgets = SOME > 1 ? 14 : 40;
    if (argc > 1) budgets = (int)max64(atoi(argv[1]), TOO_SMALL + 2);
    if (argc > 2) devices = (const char **)argv + 2, device_count = argc - 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
