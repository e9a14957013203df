/* model_run.c - see model_run.h. */
#include "support/model_run.h"
#include "base/hash.h"
#include "support/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void write_micro(struct model_rig *rig, int64_t rows, int step, int64_t first_row)
{
    static int32_t ids[MODEL_RUN_ROWS * MODEL_RUN_TIME], targets[MODEL_RUN_ROWS * MODEL_RUN_TIME],
        pos[MODEL_RUN_ROWS * MODEL_RUN_TIME], lengths[MODEL_RUN_ROWS];
    size_t bytes = (size_t)(rows * MODEL_RUN_TIME) * sizeof *ids;
    for (int64_t i = 0; i < rows * MODEL_RUN_TIME; i++) {
        int64_t at = first_row * MODEL_RUN_TIME + i + step * 7;
        ids[i] = (int32_t)(at * at % 103), targets[i] = (int32_t)((at * 3 + 1) % 103);
        pos[i] = (int32_t)(i % MODEL_RUN_TIME);
    }
    rig_write(rig, "ids", ids, bytes);
    rig_write(rig, "targets", targets, bytes);
    rig_write(rig, "pos", pos, bytes);
    for (int64_t b = 0; b < rows; b++) lengths[b] = MODEL_RUN_TIME;
    if (tape_find(&rig->tape, "lengths", -1) >= 0)
        rig_write(rig, "lengths", lengths, (size_t)rows * sizeof *lengths);
}

static void write_scalars(struct model_rig *rig, int step)
{
    float scalars[SCALAR_COUNT] = {0};
    scalars[SCALAR_LOSS_GRAD] = 1.0f / (MODEL_RUN_ROWS * MODEL_RUN_TIME);
    scalars[SCALAR_LR] = 1e-2f;
    scalars[SCALAR_BIAS1] = (float)(1 - pow(0.9, step + 1));
    scalars[SCALAR_BIAS2] = (float)(1 - pow(0.999, step + 1));
    scalars[SCALAR_CLIP] = 1, scalars[SCALAR_UNSCALE] = 1;
    scalars[SCALAR_BETA2] = (float)(1 - pow(step + 1, -0.8));
    scalars[SCALAR_KEY_LOW] = (float)(step * 7919 % 65536), scalars[SCALAR_KEY_HIGH] = (float)(step + 11);
    rig_write(rig, "step.scalars", scalars, sizeof scalars);
}

static uint64_t hash_weights(struct model_rig *rig)
{
    uint64_t hash = 0;
    for (int i = 0; i < rig->tape.ntensors; i++) {
        const struct tensor *t = &rig->tape.tensors[i];
        if (t->cls != CLASS_PARAM || t->view_of >= 0) continue;
        size_t bytes = (size_t)tensor_bytes(t);
        unsigned char *data = malloc(bytes);
        assert_non_null(data);
        rig_read(rig, i, data, bytes);
        hash = hash64(data, bytes, hash);
        free(data);
    }
    return hash;
}

void model_run(struct model_run *run, const char *golden, const struct rig_options *options, int steps)
{
    struct model_rig rig;
    struct rig_options o = *options;
    char path[512];
    int64_t micros = o.accumulation ? o.accumulation : 1;
    memset(run, 0, sizeof *run);
    o.model = golden_model(golden, path, sizeof path);
    o.batch = MODEL_RUN_ROWS / micros, o.time = MODEL_RUN_TIME, o.head = HEAD_LOSS, o.grad = o.update = true;
    rig_open(&rig, &o);
    assert_true(steps <= MODEL_RUN_STEPS);
    for (run->steps = 0; run->steps < steps; run->steps++) {
        double loss[2];
        write_scalars(&rig, run->steps);
        for (int64_t m = 0; m < micros; m++) {
            write_micro(&rig, o.batch, run->steps, m * o.batch);
            if (exec_loop(&rig.exec, m, &rig.err) != PLIM_OK) fail_msg("%s", rig.err.text);
        }
        rig_read(&rig, tape_find(&rig.tape, "loss", -1), loss, sizeof loss);
        if (exec_update(&rig.exec, &rig.err) != PLIM_OK) fail_msg("%s", rig.err.text);
        assert_true(loss[1] == MODEL_RUN_ROWS * MODEL_RUN_TIME);
        run->loss[run->steps] = loss[0] / loss[1];
    }
    run->weights = hash_weights(&rig);
    rig_close(&rig);
}

bool model_run_same(const struct model_run *a, const struct model_run *b)
{
    return a->weights == b->weights && a->steps == b->steps && !memcmp(a->loss, b->loss, sizeof a->loss);
}
