/* quantise.c - see quantise.h. */
#include "model/quantise.h"
#include "model/weights.h"
#include "tape/op.h"
#include "tape/quantised.h"

#include <stdlib.h>

static const char *const names[WEIGHTS_KINDS] = {WEIGHTS_KIND_NAMES};

const char *weights_kind_name(enum weights_kind kind) { return names[kind]; }

enum weights_kind weights_kind_parse(const char *name)
{
    int k = 0;
    while (k < WEIGHTS_KINDS && strcmp(name, names[k])) k++;
    return (enum weights_kind)k;
}

static bool is_weight(const struct tensor *t)
{
    return t->cls == CLASS_PARAM && t->view_of < 0 && t->owner < 0;
}

/* What a parameter is read by. */
struct uses {
    bool product, table, logits, other;
};

static bool names_tensor(const int *ids, int count, int id)
{
    for (int i = 0; i < count; i++)
        if (ids[i] == id) return true;
    return false;
}

static struct uses uses_of(const struct tape *tape, int id)
{
    struct uses u = {0};
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        if (!names_tensor(op->in, OP_MAX_IN, id)) continue;
        if (op->kind == OP_LINEAR && op->in[LINEAR_W] == id && !op->attr.weight_kn)
            u.product = true, u.logits = u.logits || op->part == PART_HEAD;
        else if (op->kind == OP_EMBED && op->in[EMBED_W] == id && op->in[EMBED_ADD] < 0 && !op->attr.first)
            u.table = true;
        else
            u.other = true;
    }
    return u;
}

/* --- choosing --------------------------------------------------------------------------------------------- */

/* The type of one part: 0 where it cannot be in blocks. */
static int part_type(enum weights_kind kind, const struct uses *u, const struct weights_part *part,
                     const struct safetensor *file)
{
    static const int made[WEIGHTS_KINDS] = {[WEIGHTS_Q8] = BLOCK_Q8_0, [WEIGHTS_Q4] = BLOCK_Q4_0};
    bool ends = u->table || u->logits;
    int number = kind == WEIGHTS_Q4 && ends ? BLOCK_Q8_0 : made[kind];
    if (kind == WEIGHTS_AS_IS || (file && weights_in_blocks(file)))
        number = file && weights_in_blocks(file) ? block_type_number(file->type_name) : 0;
    const struct block_type *type = number > 0 ? block_type_of((uint32_t)number) : NULL;
    return block_type_multiplies(type) && part->dim[1] % type->elements == 0 ? number : 0;
}

static void choose_param(const struct weights_files *files, enum weights_kind kind,
                         const struct model_spec *spec, const struct tape *tape, int id, unsigned char *types)
{
    struct uses u = uses_of(tape, id);
    int count = weights_part_count(tape, id);
    if (tape->tensors[id].ndim != 2 || u.other || !(u.product || u.table) || count > OP_LINE_PARTS) return;
    for (int i = 0; i < count; i++) {
        struct weights_part part = weights_part(spec, tape, id, i);
        types[i] = (unsigned char)part_type(kind, &u, &part, weights_find(files, spec, part.name));
        if (types[i]) continue;
        memset(types, 0, OP_LINE_PARTS);
        return;
    }
}

enum plim_status quantise_choose(struct quantisation *out, enum weights_kind kind, const char *path,
                                 const struct model_spec *spec, const struct tape *tape,
                                 struct plim_error *err)
{
    struct weights_files files;
    *out = (struct quantisation){0};
    enum plim_status status = weights_files_open(path, &files, err);
    if (status != PLIM_OK) return status;
    for (int i = 0; i < tape->ntensors; i++) out->count += is_weight(&tape->tensors[i]);
    out->type = calloc((size_t)out->count + 1, sizeof *out->type);
    if (!out->type) status = plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", path);
    for (int i = 0, n = 0; i < tape->ntensors && status == PLIM_OK; i++)
        if (is_weight(&tape->tensors[i])) choose_param(&files, kind, spec, tape, i, out->type[n++]);
    weights_files_close(&files);
    return status;
}

void quantise_release(struct quantisation *q)
{
    free(q->type);
    *q = (struct quantisation){0};
}

/* --- the tape --------------------------------------------------------------------------------------------- */

/* A linear of a weight in blocks has its operands in the places of linear. */
_Static_assert((int)LINEAR_X == (int)LINEAR_Q_X && (int)LINEAR_W == (int)LINEAR_Q_W &&
                   (int)LINEAR_BIAS == (int)LINEAR_Q_BIAS && (int)LINEAR_ADD == (int)LINEAR_Q_ADD &&
                   (int)EMBED_IDS == (int)EMBED_Q_IDS && (int)EMBED_W == (int)EMBED_Q_W,
               "operands keep their places");

static void turn_ops(struct tape *tape, int id, const struct op_lines *lines)
{
    for (int i = 0; i < tape->nops; i++) {
        struct op *op = &tape->ops[i];
        bool product = op->kind == OP_LINEAR && op->in[LINEAR_W] == id,
             table = op->kind == OP_EMBED && op->in[EMBED_W] == id;
        if (!product && !table) continue;
        op->kind = product ? OP_LINEAR_Q : OP_EMBED_Q;
        memcpy(op->attr.lines, lines, sizeof op->attr.lines);
    }
}

static void turn_param(const struct model_spec *spec, struct tape *tape, int id, const unsigned char *types)
{
    struct op_attr attr = {0};
    struct tensor *t = &tape->tensors[id];
    for (int i = 0; i < OP_LINE_PARTS && types[i]; i++)
        attr.lines[i] = (struct op_lines){types[i], weights_part(spec, tape, id, i).dim[0]};
    turn_ops(tape, id, attr.lines);
    t->type = DT_U8, t->dim[0] = quantised_bytes(&attr, t->dim[1]), t->dim[1] = 0, t->ndim = 1;
}

void quantise_tape(const struct quantisation *q, const struct model_spec *spec, struct tape *tape)
{
    for (int i = 0, n = 0; i < tape->ntensors && n < q->count; i++) {
        if (!is_weight(&tape->tensors[i])) continue;
        if (q->type[n][0]) turn_param(spec, tape, i, q->type[n]);
        n++;
    }
}
