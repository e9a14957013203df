/* calibrate.c - see calibrate.h. */
#include "device/cpu/calibrate.h"
#include "base/cpu_load.h"
#include "device/cpu/cpu_features.h"
#include "device/cpu/cpu_model.h"
#include <stdio.h>

/* Two cores of a small server, without bf16 instructions; no cache is modelled. */
static const struct calibration modest = {.flops = {[DT_F32] = 80e9, [DT_BF16] = 70e9, [DT_F16] = 70e9},
                                          .tf32_flops = 80e9,
                                          .attn_flops = {[DT_F32] = 40e9, [DT_BF16] = 35e9, [DT_F16] = 35e9},
                                          .bandwidth = 20e9,
                                          .cache_bandwidth = 20e9,
                                          .lower_bandwidth = FACTS_DISK_ASSUMED,
                                          .host_bandwidth = 20e9,
                                          .coded_rate = 250e6,
                                          .op_seconds = 4e-6};

size_t calibrate_cache_bytes(const struct context *context)
{
    return calibration_wanted(context) ? cpu_cache_bytes() : 0;
}

/* Everything the numbers depend on. */
static void describe(char *key, size_t size, int threads)
{
    char model[128];
    snprintf(key, size, "%s, %s, %d threads, plimsoll %s", cpu_model_name(model, sizeof model),
             cpu_level_name(cpu_level()), threads, PLIMSOLL_VERSION);
}

/* Once when a device is opened; with time for it, the medians of several times. */
static enum plim_status measure_rounds(const struct context *context, struct threads *team,
                                       struct calibration *out, struct plim_error *err)
{
    struct calibration list[CALIBRATION_ROUNDS];
    int n = calibration_anew(context) ? CALIBRATION_ROUNDS : 1;
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < n && status == PLIM_OK; i++) status = calibrate_measure(team, &list[i], err);
    if (status == PLIM_OK) calibration_median(list, n, out);
    return status;
}

static bool measure_all(void *arg, struct threads *team, struct calibration *out)
{
    return measure_rounds(*(const struct context **)arg, team, out, NULL) == PLIM_OK;
}

static enum plim_status measure(const struct context *context, struct threads *team, struct calibration *out,
                                struct plim_error *err)
{
    struct cpu_load before;
    enum plim_status status = PLIM_OK;
    cpu_load_read(&before);
    if (!calibration_apart(context, threads_count(team), measure_all, &context, out))
        status = measure_rounds(context, team, out, err);
    out->others = cpu_load_others(&before);
    out->lower_bandwidth = FACTS_DISK_ASSUMED;
    out->host_bandwidth = out->bandwidth;
    return status;
}

static bool can_keep(const struct context *context)
{
    struct strbuf folder = STRBUF_INIT;
    bool kept = context_cache(context, &folder);
    strbuf_release(&folder);
    return kept;
}

/* Uses only what could be saved: otherwise the next process would measure other numbers and make another plan. */
static enum plim_status measure_and_keep(const struct context *context, struct threads *team, const char *key,
                                         struct calibration *out, struct plim_error *err)
{
    enum plim_status status = measure(context, team, out, err);
    if (status != PLIM_OK) return status;
    bool kept = calibration_save(context, "cpu", key, out);
    if (!calibration_anew(context) && !(kept && calibration_load(context, "cpu", key, out))) *out = modest;
    return PLIM_OK;
}

enum plim_status calibrate_cpu(const struct context *context, struct threads *team, struct calibration *out,
                               struct plim_error *err)
{
    char key[256];
    if (!calibration_wanted(context) || (!calibration_anew(context) && !can_keep(context))) {
        *out = modest;
        return PLIM_OK;
    }
    describe(key, sizeof key, threads_count(team));
    if (calibration_load(context, "cpu", key, out)) return PLIM_OK;
    int lock = calibration_enter(context);
    enum plim_status status =
        calibration_load(context, "cpu", key, out) ? PLIM_OK : measure_and_keep(context, team, key, out, err);
    calibration_leave(lock);
    return status;
}
