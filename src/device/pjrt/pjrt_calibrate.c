/* pjrt_calibrate.c - see pjrt_calibrate.h. */
#include "device/pjrt/pjrt_calibrate.h"
#include "base/clock.h"
#include "base/minmax.h"
#include "device/calibration.h"

#include <stdio.h>

enum { SIDE = 512, ELEMENTS = 4 << 20, TRIES = 3 };

/* A modest device, for tests and for processes that measure nothing. */
static const struct calibration fixed = {.flops = {[DT_F32] = 5e10, [DT_BF16] = 5e10, [DT_F16] = 5e10},
                                         .tf32_flops = 5e10,
                                         .attn_flops = {[DT_F32] = 2e10, [DT_BF16] = 2e10, [DT_F16] = 2e10},
                                         .bandwidth = 2e10,
                                         .cache_bandwidth = 2e10,
                                         .lower_bandwidth = FACTS_DISK_ASSUMED,
                                         .host_bandwidth = 2e10,
                                         .coded_rate = 1e9,
                                         .curve_rate = 1e9,
                                         .attn_bwd_share = 1,
                                         .attn_general_share = 1,
                                         .attn_wide_share = 1,
                                         .attn_long_share = 1,
                                         .score_rate = CALIBRATION_UNLIMITED,
                                         .score_row_rate = CALIBRATION_UNLIMITED,
                                         .pack_bandwidth = CALIBRATION_UNLIMITED,
                                         .plain_rate = CALIBRATION_UNLIMITED,
                                         .update_rate = CALIBRATION_UNLIMITED,
                                         .op_seconds = 1e-6,
                                         .matmul_seconds = 1e-6};

/* The shortest of a few runs of one op; 0: it failed. The first compiles it. */
static double seconds_of(struct device *dev, const struct op *op, const struct tensor *t, int ins)
{
    double best = 0;
    char *base = dev->ops->base(dev);
    size_t bytes = (size_t)tensor_bytes(t);
    struct kernel_call call = {.op = op, .team = dev->team};
    for (int i = 0; i < ins; i++) call.desc[i] = t, call.in[i] = base + (size_t)i * bytes;
    call.desc[OP_MAX_IN] = t, call.out[0] = base + (size_t)ins * bytes;
    for (int i = 0; i <= TRIES; i++) {
        double start = clock_seconds();
        dev->ops->run(dev, &call);
        if (dev->ops->sync(dev, NULL) != PLIM_OK) return 0;
        double took = clock_seconds() - start;
        if (i && (best == 0 || took < best)) best = took;
    }
    return best;
}

static bool measure(struct device *dev, struct calibration *out)
{
    static const enum dtype kinds[] = {DT_F32, DT_BF16, DT_F16};
    struct tensor square = {.ndim = 2, .dim = {SIDE, SIDE}, .view_of = -1, .owner = -1};
    struct tensor line = {.ndim = 1, .dim = {ELEMENTS}, .view_of = -1, .owner = -1};
    struct op linear = tape_op(OP_LINEAR, -1), add = tape_op(OP_ADD, -1);
    *out = fixed;
    double adding = seconds_of(dev, &add, &line, 2);
    bool good = adding > 0;
    for (int i = 0; i < 3 && good; i++) {
        square.type = kinds[i];
        double product = seconds_of(dev, &linear, &square, 2);
        good = product > 0;
        if (good) out->flops[kinds[i]] = 2.0 * SIDE * SIDE * SIDE / product;
        out->attn_flops[kinds[i]] = out->flops[kinds[i]];
    }
    if (!good) return false;
    out->tf32_flops = out->flops[DT_F32];
    out->bandwidth = out->cache_bandwidth = out->host_bandwidth = 3.0 * ELEMENTS * 4 / adding;
    out->curve_rate = out->bandwidth / 12;
    return true;
}

void pjrt_calibrate(struct device *dev, const char *version)
{
    struct calibration speed = fixed;
    char key[512];
    snprintf(key, sizeof key, "%s, %s, %d threads", dev->facts.name, version, dev->facts.threads);
    bool known = calibration_wanted(dev->context) && calibration_load(dev->context, "pjrt", key, &speed);
    if (!known && calibration_wanted(dev->context)) {
        struct calibration measured;
        bool room = dev->ops->commit(dev, (size_t)3 * ELEMENTS * 4, NULL) == PLIM_OK;
        if (room && measure(dev, &measured))
            speed = measured, calibration_save(dev->context, "pjrt", key, &speed);
        dev->ops->commit(dev, 0, NULL);
    }
    calibration_apply(&speed, &dev->facts);
}
