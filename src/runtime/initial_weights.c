/* initial_weights.c - see initial_weights.h. */
#include "runtime/initial_weights.h"
#include "base/hash.h"
#include "base/rng.h"
#include "runtime/load.h"
#include "model/weights.h"

#include <stdlib.h>
#include <string.h>

/* Elements made at a time: on the CPU as few as fit a cache and a worker's stack, which is resident anyway; for a device with its
 * own memory enough for a copy. */
#define PIECE_HOST   4096
#define PIECE_DEVICE (256 << 10)

struct buffers { /* of one worker; NULL on the CPU */
    float *values;
    uint16_t *high, *low;
    struct plim_error err;
};

struct fill {
    struct exec *exec;
    int param, master;
    struct param_init init;
    uint64_t seed, stream;
    int64_t count, piece;
    struct buffers workers[];
};

/* Numbers [first, first + n), of which those before init.narrow have a deviation of their own. */
static void fill_normal(const struct fill *f, int64_t first, int64_t n, float *out)
{
    int64_t narrow = f->init.narrow - first < 0 ? 0 : f->init.narrow - first < n ? f->init.narrow - first : n;
    if (narrow > 0)
        rng_fill_normal(f->seed, f->stream, (uint64_t)first, out, (size_t)narrow, 0, f->init.narrow_std);
    if (narrow < n)
        rng_fill_normal(f->seed, f->stream, (uint64_t)(first + narrow), out + narrow, (size_t)(n - narrow), 0,
                        f->init.std);
}

/* One piece of a parameter: fp32 values, then its own type and, where there is one, the master's. */
static enum plim_status fill_piece(struct fill *f, int64_t piece, const struct buffers *b,
                                   struct plim_error *err)
{
    int64_t first = piece * f->piece, n = f->count - first < f->piece ? f->count - first : f->piece;
    enum dtype type = f->exec->tape->tensors[f->param].type;
    if (f->init.kind == INIT_NORMAL)
        fill_normal(f, first, n, b->values);
    else
        for (int64_t i = 0; i < n; i++) b->values[i] = f->init.kind == INIT_ONES ? 1.0f : 0.0f;
    if (type == DT_F32) return weights_put(f->exec, f->param, first, b->values, n, err);
    bool split = f->master >= 0 && dtype_master(type) == DT_U16;
    if (split)
        for (int64_t i = 0; i < n; i++) master_split(b->values[i], &b->high[i], &b->low[i]);
    else
        dtype_convert(b->high, type, b->values, DT_F32, n);
    enum plim_status status = weights_put(f->exec, f->param, first, b->high, n, err);
    if (status != PLIM_OK || f->master < 0) return status;
    return weights_put(f->exec, f->master, first, split ? (void *)b->low : (void *)b->values, n, err);
}

static void fill_body(void *arg, int64_t begin, int64_t end, int worker)
{
    struct fill *f = arg;
    struct plim_error *err = &f->workers[worker].err;
    float values[PIECE_HOST];
    uint16_t high[PIECE_HOST], low[PIECE_HOST];
    struct buffers b = {.values = values, .high = high, .low = low};
    if (f->workers[worker].values) b = f->workers[worker];
    for (int64_t p = begin; p < end && err->status == PLIM_OK; p++) fill_piece(f, p, &b, err);
}

static struct fill *fill_open(const struct device *device, int workers)
{
    struct fill *f = calloc(1, sizeof *f + (size_t)workers * sizeof f->workers[0]);
    bool good = f != NULL;
    if (f) f->piece = device->facts.unified_memory ? PIECE_HOST : PIECE_DEVICE;
    for (int w = 0; w < workers && good && !device->facts.unified_memory; w++) {
        struct buffers *b = &f->workers[w];
        b->values = malloc((size_t)f->piece * sizeof *b->values);
        b->high = malloc((size_t)f->piece * sizeof *b->high);
        b->low = malloc((size_t)f->piece * sizeof *b->low);
        good = b->values && b->high && b->low;
    }
    if (f && !good) f->piece = 0; /* the caller sees that memory was short */
    return f;
}

static void fill_close(struct fill *f, int workers)
{
    for (int w = 0; w < workers && f; w++)
        free(f->workers[w].values), free(f->workers[w].high), free(f->workers[w].low);
    free(f);
}

static enum plim_status fill_weights(struct exec *exec, const struct model_spec *spec, uint64_t seed,
                                     bool head_only, struct plim_error *err)
{
    const struct tape *tape = exec->tape;
    struct threads *team = exec->device->team;
    int workers = threads_count(team);
    struct fill *f = fill_open(exec->device, workers);
    enum plim_status status = f && f->piece ? PLIM_OK : PLIM_NO_MEMORY;
    if (status != PLIM_OK) plim_fail(err, status, "out of memory while weights were made");
    for (int i = 0; i < tape->ntensors && status == PLIM_OK; i++) {
        if (tape->tensors[i].cls != CLASS_PARAM || tape->tensors[i].view_of >= 0) continue;
        if (head_only && !model_param_is_head(spec, tape->tensors[i].label)) continue;
        char name[160];
        f->exec = exec, f->param = i, f->master = weights_master(tape, i);
        f->init = model_param_init(spec, tape->tensors[i].label);
        f->seed = seed;
        f->stream = hash_text(tape_tensor_name(tape, i, name, sizeof name));
        f->count = tensor_count(&tape->tensors[i]);
        threads_each(team, (f->count + f->piece - 1) / f->piece, 1, fill_body, f);
        for (int w = 0; w < workers && status == PLIM_OK; w++)
            if (f->workers[w].err.status != PLIM_OK)
                status = f->workers[w].err.status, *err = f->workers[w].err;
    }
    fill_close(f, workers);
    return status;
}

enum plim_status initial_weights(struct exec *exec, const struct model_spec *spec, uint64_t seed,
                                 struct plim_error *err)
{
    return fill_weights(exec, spec, seed, false, err);
}

enum plim_status initial_head(struct exec *exec, const struct model_spec *spec, uint64_t seed,
                              struct plim_error *err)
{
    return fill_weights(exec, spec, seed, true, err);
}
