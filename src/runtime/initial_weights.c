/* initial_weights.c - see initial_weights.h. */
#include "runtime/initial_weights.h"
#include "base/hash.h"
#include "base/rng.h"
#include "runtime/load.h"
#include "model/weights.h"
#include "model/weights_blocks.h"
#include "tape/quantised.h"

#include <math.h>
#include <stdio.h>
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
    const float *norms; /* INIT_ROW_NORMS: all of them */
    uint64_t seed, stream;
    int64_t offset; /* of the numbers that are made, in the parameter */
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
    else if (f->init.kind == INIT_UNIFORM)
        for (int64_t i = 0; i < n; i++)
            b->values[i] = (float)((2 * rng_uniform(f->seed, f->stream, (uint64_t)(first + i)) - 1) *
                                   (double)f->init.std);
    else if (f->init.kind == INIT_ROW_NORMS)
        memcpy(b->values, f->norms + first, (size_t)n * sizeof *b->values);
    else
        for (int64_t i = 0; i < n; i++) b->values[i] = f->init.kind == INIT_ONES ? 1.0f : 0.0f;
    int64_t at = f->offset + first;
    if (type == DT_F32) return weights_put(f->exec, f->param, at, b->values, n, err);
    bool split = f->master >= 0 && dtype_master(type) == DT_U16;
    if (split)
        for (int64_t i = 0; i < n; i++) master_split(b->values[i], &b->high[i], &b->low[i]);
    else
        dtype_convert(b->high, type, b->values, DT_F32, n);
    enum plim_status status = weights_put(f->exec, f->param, at, b->high, n, err);
    if (status != PLIM_OK || f->master < 0) return status;
    return weights_put(f->exec, f->master, at, split ? (void *)b->low : (void *)b->values, n, err);
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

/* Fills `count` elements of a parameter and its master; `name` chooses the random numbers. */
static enum plim_status fill_part(struct fill *f, int param, const char *name, int64_t offset, int64_t count,
                                  uint64_t seed, struct plim_error *err)
{
    struct threads *team = f->exec->device->team;
    f->param = param, f->master = weights_master(f->exec->tape, param), f->seed = seed;
    f->stream = hash_text(name), f->offset = offset, f->count = count;
    threads_each(team, (count + f->piece - 1) / f->piece, 1, fill_body, f);
    for (int w = 0; w < threads_count(team); w++)
        if (f->workers[w].err.status != PLIM_OK) {
            *err = f->workers[w].err;
            return err->status;
        }
    return PLIM_OK;
}

static enum plim_status fill_param(struct fill *f, int param, uint64_t seed, struct plim_error *err)
{
    const struct tape *tape = f->exec->tape;
    char name[160];
    return fill_part(f, param, tape_tensor_name(tape, param, name, sizeof name), 0,
                     tensor_count(&tape->tensors[param]), seed, err);
}

static enum plim_status fill_weights(struct exec *exec, const struct model_spec *spec, uint64_t seed,
                                     bool head_only, struct plim_error *err)
{
    const struct tape *tape = exec->tape;
    int workers = threads_count(exec->device->team);
    struct fill *f = fill_open(exec->device, workers);
    enum plim_status status = f && f->piece ? PLIM_OK : PLIM_NO_MEMORY;
    if (status != PLIM_OK) plim_fail(err, status, "out of memory while weights were made");
    for (int i = 0; i < tape->ntensors && status == PLIM_OK; i++) {
        const struct tensor *t = &tape->tensors[i];
        if (t->cls != CLASS_PARAM || t->view_of >= 0 || (t->flags & TENSOR_ADDED)) continue;
        if (head_only && !model_param_is_head(spec, t->label)) continue;
        f->exec = exec, f->init = model_param_init(spec, t->label);
        status = fill_param(f, i, seed, err);
    }
    fill_close(f, workers);
    return status;
}

enum plim_status initial_weights(struct exec *exec, const struct model_spec *spec, uint64_t seed,
                                 struct plim_error *err)
{
    return fill_weights(exec, spec, seed, false, err);
}

/* --- adapters ---------------------------------------------------------------------------------------------- */

/* The part of the model's weights whose module has that magnitude vector; false: there is none. */
static bool find_weight(const struct tape *tape, const struct model_spec *spec, int magnitude, int *param,
                        struct weights_part *part)
{
    char name[192], own[256];
    tape_tensor_name(tape, magnitude, name, sizeof name);
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        bool weight = t->cls == CLASS_PARAM && t->view_of < 0 && !(t->flags & TENSOR_ADDED) &&
                      (t->ndim == 2 || weights_param_in_blocks(tape, i));
        int count = weight ? weights_part_count(tape, i) : 0;
        for (int k = 0; k < count; k++) {
            *part = weights_part(spec, tape, i, k);
            size_t n = strlen(part->name) - strlen(".weight");
            snprintf(own, sizeof own, "%s%.*s.lora_magnitude_vector", ADAPTER_PREFIX, (int)n, part->name);
            *param = i;
            if (!strcmp(own, name)) return true;
        }
    }
    return false;
}

/* Reading a weight of the base line by line, as fp32. */
struct base_lines {
    struct exec *exec;
    int param;
    struct weights_part part;
    struct quantised_part blocks; /* of a weight in blocks; type NULL: it is numbers */
    int64_t columns;
    void *raw; /* a line, or a panel */
    float *line;
};

static enum plim_status read_line(struct base_lines *b, int64_t r, struct plim_error *err)
{
    enum dtype type = b->exec->tape->tensors[b->param].type;
    if (!b->blocks.type) {
        int64_t size = (int64_t)dtype_size(type), bytes = b->columns * size;
        enum plim_status status =
            exec_read(b->exec, b->param, b->raw, b->part.first * size + r * bytes, bytes, err);
        if (status == PLIM_OK) dtype_convert(b->line, DT_F32, b->raw, type, b->columns);
        return status;
    }
    int64_t bytes = panel_bytes(b->blocks.type, b->columns);
    enum plim_status status = PLIM_OK;
    if (r % PANEL_LINES == 0)
        status = exec_read(b->exec, b->param, b->raw, b->blocks.offset + r / PANEL_LINES * bytes, bytes, err);
    if (status == PLIM_OK) panel_read(b->blocks.type, b->columns, b->raw, (int)(r % PANEL_LINES), b->line);
    return status;
}

/* A part of a weight in blocks, with the lines of a product. False: the part is not there. */
static bool find_blocks(struct base_lines *b)
{
    const struct op_attr *attr = weights_blocks_format(b->exec->tape, b->param);
    int64_t k = quantised_columns(attr, tensor_bytes(&b->exec->tape->tensors[b->param]));
    for (int i = 0; quantised_part(attr, k, i, &b->blocks); i++)
        if (b->blocks.first == b->part.first / k) return b->columns = k, true;
    return false;
}

/* |W| of each output of the weight that a magnitude vector belongs to: B or an embedding's A is zero, so W + s B A is W. */
static enum plim_status output_norms(struct exec *exec, const struct model_spec *spec,
                                     const struct adapter *adapter, int magnitude, float *out,
                                     struct plim_error *err)
{
    const struct tape *tape = exec->tape;
    struct base_lines b = {.exec = exec};
    if (!find_weight(tape, spec, magnitude, &b.param, &b.part))
        return plim_fail(err, PLIM_BUG, "a magnitude vector without its weight");
    bool blocks = weights_param_in_blocks(tape, b.param),
         columns = !blocks && adapter_outputs_are_columns(adapter, &tape->tensors[b.param]);
    b.columns = b.part.dim[1];
    if (blocks && !find_blocks(&b)) return plim_fail(err, PLIM_BUG, "a weight in blocks without its part");
    int64_t count = tensor_count(&tape->tensors[magnitude]), lines = columns ? b.part.dim[0] : count;
    double *sum = calloc((size_t)count, sizeof *sum);
    b.raw = malloc((size_t)b.columns * PANEL_LINES * sizeof(float)),
    b.line = malloc((size_t)b.columns * sizeof(float));
    enum plim_status status = b.raw && b.line && sum
                                  ? PLIM_OK
                                  : plim_fail(err, PLIM_NO_MEMORY, "out of memory while an adapter was made");
    for (int64_t r = 0; r < lines && status == PLIM_OK; r++) {
        status = read_line(&b, r, err);
        for (int64_t c = 0; c < b.columns && status == PLIM_OK; c++)
            sum[columns ? c : r] += (double)b.line[c] * (double)b.line[c];
    }
    for (int64_t i = 0; i < count && status == PLIM_OK; i++) out[i] = (float)sqrt(sum[i]);
    free(b.raw), free(b.line), free(sum);
    return status;
}

/* Each tensor of the files has its own random numbers: they do not depend on which of them are one parameter. */
static enum plim_status fill_added(struct fill *f, int param, const struct model_spec *spec,
                                   const struct adapter *adapter, uint64_t seed, struct plim_error *err)
{
    const struct tensor *t = &f->exec->tape->tensors[param];
    float *norms = NULL;
    enum plim_status status = PLIM_OK;
    f->init = adapter_param_init(adapter, t);
    if (f->init.kind == INIT_ROW_NORMS) {
        norms = malloc((size_t)tensor_count(t) * sizeof *norms);
        status = norms ? output_norms(f->exec, spec, adapter, param, norms, err)
                       : plim_fail(err, PLIM_NO_MEMORY, "out of memory while an adapter was made");
        f->norms = norms;
    }
    for (int i = 0; i < weights_part_count(f->exec->tape, param) && status == PLIM_OK; i++) {
        const struct weights_part part = weights_part(spec, f->exec->tape, param, i);
        status = fill_part(f, param, part.name, part.first, part.count, seed, err);
    }
    free(norms);
    return status;
}

enum plim_status initial_adapter(struct exec *exec, const struct model_spec *spec,
                                 const struct adapter *adapter, uint64_t seed, struct plim_error *err)
{
    const struct tape *tape = exec->tape;
    int workers = threads_count(exec->device->team);
    struct fill *f = fill_open(exec->device, workers);
    enum plim_status status = f && f->piece ? PLIM_OK : PLIM_NO_MEMORY;
    if (status != PLIM_OK) plim_fail(err, status, "out of memory while an adapter was made");
    for (int i = 0; i < tape->ntensors && status == PLIM_OK; i++) {
        const struct tensor *t = &tape->tensors[i];
        if (t->cls != CLASS_PARAM || t->view_of >= 0 || !(t->flags & TENSOR_ADDED)) continue;
        f->exec = exec;
        status = fill_added(f, i, spec, adapter, seed, err);
    }
    fill_close(f, workers);
    return status;
}

enum plim_status initial_head(struct exec *exec, const struct model_spec *spec, uint64_t seed,
                              struct plim_error *err)
{
    return fill_weights(exec, spec, seed, true, err);
}
