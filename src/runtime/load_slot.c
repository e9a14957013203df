/* load_slot.c - PEFT's files into a slot of a server's tape. See load.h. */
#include "base/minmax.h"
#include "model/peft.h"
#include "runtime/load.h"

#include <stdlib.h>
#include <string.h>

/* A pair of matrices, and room for the bytes of one slot of both. */
struct pair {
    const struct adapter_slots *slots;
    const struct tape *tape;
    int a, b, parts;
    char *a_bytes, *b_bytes;
};

static const struct tensor *a_of(const struct pair *p) { return &p->tape->tensors[p->a]; }
static const struct tensor *b_of(const struct pair *p) { return &p->tape->tensors[p->b]; }

/* Part i of an adapter of rank f->r. */
static void put_part(const struct pair *p, int i, const struct adapter_slot_part *part,
                     const struct peft_factors *f)
{
    int64_t in = a_of(p)->dim[2], rank = b_of(p)->dim[2];
    enum dtype type = a_of(p)->type;
    size_t size = dtype_size(type);
    dtype_convert(p->a_bytes + (size_t)(i * rank * in) * size, type, f->a, DT_F32, f->r * in);
    for (int64_t o = 0; o < part->out; o++) {
        float *line = f->b + o * f->r;
        for (int64_t k = 0; k < f->r; k++) line[k] = (float)((double)line[k] * f->scale);
        dtype_convert(p->b_bytes + (size_t)((part->first + o) * rank) * size, type, line, DT_F32, f->r);
    }
}

static enum plim_status refuse_rank(const char *dir, const char *module, int64_t r, int64_t rank,
                                    struct plim_error *err)
{
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "%s: the adapter of %s has rank %lld; this server has room for rank %lld, start it with a larger "
        "--max-adapter-rank",
        dir, module, (long long)r, (long long)rank);
}

static enum plim_status read_pair(const struct pair *p, struct peft *peft, const char *dir,
                                  struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    memset(p->a_bytes, 0, (size_t)adapter_slot_bytes(a_of(p)));
    memset(p->b_bytes, 0, (size_t)adapter_slot_bytes(b_of(p)));
    for (int i = 0; i < p->parts && status == PLIM_OK; i++) {
        struct adapter_slot_part part = adapter_slots_part(p->slots, p->tape, p->a, i);
        struct peft_factors f;
        status = peft_factors(peft, part.module, a_of(p)->dim[2], part.out, &f, err);
        if (status == PLIM_OK && f.r > b_of(p)->dim[2])
            status = refuse_rank(dir, part.module, f.r, b_of(p)->dim[2], err);
        if (status == PLIM_OK && f.r) put_part(p, i, &part, &f);
        peft_factors_release(&f);
    }
    return status;
}

/* The largest pair's bytes; *floats: of its numbers as files are read. */
static int64_t largest_pair(const struct adapter_slots *slots, const struct tape *tape, int64_t *floats)
{
    int64_t most = 0;
    for (int i = 0, b; i < tape->ntensors; i++) {
        if (!adapter_slots_pair(slots, tape, i, &b)) continue;
        const struct tensor *t = &tape->tensors[i], *u = &tape->tensors[b];
        most = max64(most, adapter_slot_bytes(t) + adapter_slot_bytes(u));
        if (floats) *floats = max64(*floats, (tensor_count(t) + tensor_count(u)) / t->dim[0] * 4);
    }
    return most;
}

int64_t slot_bytes(const struct adapter_slots *slots, const struct tape *tape)
{
    int64_t bytes = 0;
    for (int i = 0, b; i < tape->ntensors; i++)
        if (adapter_slots_pair(slots, tape, i, &b))
            bytes += adapter_slot_bytes(&tape->tensors[i]) + adapter_slot_bytes(&tape->tensors[b]);
    return bytes;
}

/* The head of the file has some 400 bytes for each tensor, and two tensors for each part. */
enum { HEAD_OF_PART = 1024 };

int64_t slot_read_bytes(const struct adapter_slots *slots, const struct tape *tape)
{
    int64_t floats = 0, bytes = largest_pair(slots, tape, &floats), parts = 0;
    for (int i = 0, b; i < tape->ntensors; i++) parts += adapter_slots_pair(slots, tape, i, &b);
    return bytes + floats + parts * HEAD_OF_PART;
}

static enum plim_status check_kind(const struct peft *peft, const char *dir, struct plim_error *err)
{
    const struct adapter_options *options = peft_options(peft);
    if (options->type != ADAPTER_DORA && !options->dora) return PLIM_OK;
    return plim_fail(
        err, PLIM_UNSUPPORTED,
        "%s: DoRA cannot be served beside the model; merge the adapter (plimsoll export --merge)", dir);
}

static enum plim_status check_used(const struct peft *peft, const char *dir, struct plim_error *err)
{
    size_t count;
    const char *first = peft_unused(peft, &count);
    if (!first) return PLIM_OK;
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "%s: tensor '%.160s' is of a layer that this server keeps no room for, or of another model (%zu "
        "such tensors)",
        dir, first, count);
}

enum plim_status slot_read(const struct adapter_slots *slots, const struct model_spec *spec,
                           const struct tape *tape, const char *dir, const struct slot_sink *sink,
                           struct plim_error *err)
{
    struct peft *peft;
    enum plim_status status = peft_open(dir, spec, &peft, err);
    if (status != PLIM_OK) return status;
    char *room = malloc((size_t)largest_pair(slots, tape, NULL));
    status = room ? check_kind(peft, dir, err)
                  : plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory while an adapter was read", dir);
    for (int i = 0; i < tape->ntensors && status == PLIM_OK; i++) {
        struct pair p = {slots, tape, i, -1, 0, room, NULL};
        p.parts = adapter_slots_pair(slots, tape, i, &p.b);
        if (!p.parts) continue;
        p.b_bytes = room + adapter_slot_bytes(a_of(&p));
        status = read_pair(&p, peft, dir, err);
        if (status == PLIM_OK && sink)
            status = sink->put(sink->arg, p.a, p.a_bytes, adapter_slot_bytes(a_of(&p)), err);
        if (status == PLIM_OK && sink)
            status = sink->put(sink->arg, p.b, p.b_bytes, adapter_slot_bytes(b_of(&p)), err);
    }
    if (status == PLIM_OK) status = check_used(peft, dir, err);
    free(room);
    peft_close(peft);
    return status;
}
