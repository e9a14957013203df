/* weights_start.c - see weights_start.h. */
#include "train/weights_start.h"
#include "base/rng.h"
#include "model/load.h"
#include "model/weights.h"
#include "train/trainer.h"

#include <stdlib.h>
#include <string.h>

#define PIECE 4096 /* elements made at a time */

/* FNV-1a of the name: which stream of random numbers a tensor takes. */
static uint64_t stream_of(const char *name)
{
    uint64_t hash = 1469598103934665603ull;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 1099511628211ull;
    return hash;
}

struct fill {
    struct exec *exec;
    int param, master;
    struct param_init init;
    uint64_t seed, stream;
    int64_t count;
    struct plim_error errors[]; /* by worker */
};

/* One piece of a parameter: fp32 values, then its own type and, where there is one, the master's. */
static enum plim_status fill_piece(struct fill *f, int64_t piece, struct plim_error *err)
{
    float values[PIECE];
    uint16_t high[PIECE], low[PIECE];
    int64_t first = piece * PIECE, n = f->count - first < PIECE ? f->count - first : PIECE;
    enum dtype type = f->exec->tape->tensors[f->param].type;
    if (f->init.kind == INIT_NORMAL)
        rng_fill_normal(f->seed, f->stream, (uint64_t)first, values, (size_t)n, 0, f->init.std);
    else
        for (int64_t i = 0; i < n; i++) values[i] = f->init.kind == INIT_ONES ? 1.0f : 0.0f;
    if (type == DT_F32) return weights_put(f->exec, f->param, first, values, n, err);
    enum plim_status status;
    if (type == DT_BF16) {
        for (int64_t i = 0; i < n; i++) master_split(values[i], &high[i], &low[i]);
        status = weights_put(f->exec, f->param, first, high, n, err);
        if (status == PLIM_OK && f->master >= 0) status = weights_put(f->exec, f->master, first, low, n, err);
        return status;
    }
    dtype_convert(high, type, values, DT_F32, n);
    status = weights_put(f->exec, f->param, first, high, n, err);
    if (status == PLIM_OK && f->master >= 0) status = weights_put(f->exec, f->master, first, values, n, err);
    return status;
}

static void fill_body(void *arg, int64_t begin, int64_t end, int worker)
{
    struct fill *f = arg;
    for (int64_t p = begin; p < end && f->errors[worker].status == PLIM_OK; p++)
        fill_piece(f, p, &f->errors[worker]);
}

static enum plim_status fresh_weights(struct trainer *t, struct plim_error *err)
{
    const struct tape *tape = &t->plan.tape;
    int workers = threads_count(t->device->team);
    struct fill *f = calloc(1, sizeof *f + (size_t)workers * sizeof f->errors[0]);
    if (!f) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while weights were made");
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < tape->ntensors && status == PLIM_OK; i++) {
        if (tape->tensors[i].cls != CLASS_PARAM || tape->tensors[i].view_of >= 0) continue;
        char name[160];
        f->exec = &t->exec, f->param = i, f->master = weights_master(tape, i);
        f->init = model_param_init(&t->job->spec, tape->tensors[i].label);
        f->seed = (uint64_t)t->job->training.seed;
        f->stream = stream_of(tape_tensor_name(tape, i, name, sizeof name));
        f->count = tensor_count(&tape->tensors[i]);
        threads_each(t->device->team, (f->count + PIECE - 1) / PIECE, 1, fill_body, f);
        for (int w = 0; w < workers && status == PLIM_OK; w++)
            if (f->errors[w].status != PLIM_OK) status = f->errors[w].status, *err = f->errors[w];
    }
    free(f);
    return status;
}

static void note_line(void *arg, enum log_level level, const char *line)
{
    (void)level;
    trainer_tell(arg, &(struct train_event){.kind = TRAIN_NOTE, .text = line});
}

enum plim_status weights_start(struct trainer *t, struct plim_error *err)
{
    if (!t->job->model.path) return fresh_weights(t, err);
    struct log log = {LOG_LEVEL_INFO, note_line, t};
    return weights_from_directory(&t->exec, &t->job->spec, t->job->model.path, &log, err);
}
