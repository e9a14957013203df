/* quantise.c - see quantise.h. */
#include "model/quantise.h"
#include "model/weights.h"
#include "tape/op.h"
#include "tape/quantised.h"
#include "tensor/f8_lines.h"

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

/* Ways in which a parameter is read. */
struct uses {
    bool product, table, logits, other;
    bool columns; /* product of a matrix stored [in,out] */
    bool norms;   /* of DoRA, along what a product sums over */
    bool experts; /* product of one matrix for each expert */
};

static bool names_tensor(const int *ids, int count, int id)
{
    for (int i = 0; i < count; i++)
        if (ids[i] == id) return true;
    return false;
}

/* Some lines of it alone, as numbers. */
static bool names_view(const struct tape *tape, const int *ids, int count, int id)
{
    for (int i = 0; i < count; i++)
        if (ids[i] >= 0 && ids[i] != id && tape_root(tape, ids[i]) == id) return true;
    return false;
}

/* Logits of a router: which experts a row has hangs on their last bits. */
static bool is_routed(const struct tape *tape, int logits)
{
    for (int i = 0; i < tape->nops; i++)
        if (tape->ops[i].kind == OP_ROUTE && tape->ops[i].in[ROUTE_LOGITS] == logits) return true;
    return false;
}

static struct uses uses_of(const struct tape *tape, int id)
{
    struct uses u = {0};
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        u.other = u.other || names_view(tape, op->in, OP_MAX_IN, id);
        if (!names_tensor(op->in, OP_MAX_IN, id)) continue;
        if (op->kind == OP_LINEAR && op->in[LINEAR_W] == id && !is_routed(tape, op->out[LINEAR_Y]))
            u.product = true, u.logits = u.logits || op->part == PART_HEAD, u.columns = op->attr.weight_kn;
        else if (op->kind == OP_EXPERT_LINEAR && op->in[EXPERT_LINEAR_W] == id)
            u.product = u.experts = true;
        else if (op->kind == OP_EMBED && op->in[EMBED_W] == id && op->in[EMBED_ADD] < 0 && !op->attr.first)
            u.table = true;
        else if (op->kind == OP_DORA_NORM && op->in[DORA_NORM_W] == id)
            u.norms = true;
        else
            u.other = true;
    }
    u.other = u.other || (u.norms && !u.product);
    return u;
}

/* --- choosing --------------------------------------------------------------------------------------------- */

/* The type of one part, whose lines have k elements: 0 where it cannot be in blocks. */
static int part_type(enum weights_kind kind, const struct uses *u, int64_t k, const struct safetensor *file)
{
    static const int made[2][WEIGHTS_KINDS] = {
        {0, BLOCK_Q8_0, BLOCK_Q4_0, BLOCK_NF4, BLOCK_FP4, 0}, /* by kind; fp8 is not in blocks */
        {0, BLOCK_Q8_0, BLOCK_Q8_0, 0, 0, 0}, /* of the token table and of the output projection */
    };
    int number = made[u->table || u->logits][kind];
    if (kind == WEIGHTS_AS_IS || (file && weights_in_blocks(file)))
        number = file && weights_in_blocks(file) ? block_type_number(file->type_name) : 0;
    const struct block_type *type = number > 0 ? block_type_of((uint32_t)number) : NULL;
    return block_type_multiplies(type) && k % type->elements == 0 ? number : 0;
}

/* The choice to make, and for which parameter. */
struct choice {
    enum weights_kind kind;
    bool experts, tables; /* there are kernels for experts in blocks, and of which types */
    bool train;
    const struct weights_files *files;
    const struct model_spec *spec;
    const struct tape *tape;
};

/* Lines of a matrix are along what it is summed over. */
static struct lines {
    int64_t count, k;
} lines_of(const struct tensor *t, bool columns)
{
    const int64_t *dim = t->dim + (t->ndim - 2);
    return columns ? (struct lines){dim[1], dim[0]} : (struct lines){dim[0], dim[1]};
}

static bool may_be_in_blocks(const struct choice *c, int id, const struct uses *u)
{
    const struct tensor *t = &c->tape->tensors[id];
    if (c->train && (u->logits || !(t->flags & TENSOR_FROZEN))) return false;
    if (u->other || !(u->product || u->table) || (u->table && u->columns)) return false;
    if (u->experts ? !c->experts || t->ndim != 3 : t->ndim != 2) return false;
    return lines_of(t, u->columns).count >= PANEL_LINES; /* else it would grow */
}

/* Experts have one type for all of them. */
static void choose_param(const struct choice *c, int id, unsigned char *types)
{
    struct uses u = uses_of(c->tape, id);
    int count = weights_part_count(c->tape, id);
    if (!may_be_in_blocks(c, id, &u) || (count > OP_LINE_PARTS && !u.experts)) return;
    int64_t k = lines_of(&c->tape->tensors[id], u.columns).k;
    for (int i = 0; i < count; i++) {
        struct weights_part part = weights_part(c->spec, c->tape, id, i);
        int type = part_type(c->kind, &u, k, weights_find(c->files, c->spec, part.name));
        bool table = type && block_type_of((uint32_t)type)->table;
        if (!type || (u.experts && ((i > 0 && type != types[0]) || (table && !c->tables)))) {
            memset(types, 0, OP_LINE_PARTS);
            return;
        }
        types[u.experts ? 0 : i] = (unsigned char)type;
    }
}

/* Matrices of numbers, as products alone read them. */
static bool may_be_f8(const struct choice *c, int id)
{
    struct uses u = uses_of(c->tape, id);
    const struct tensor *t = &c->tape->tensors[id];
    if (c->kind != WEIGHTS_FP8 || c->train || !u.product || u.other || u.table || u.logits || u.experts ||
        t->ndim != 2)
        return false;
    for (int i = 0; i < weights_part_count(c->tape, id); i++) {
        struct weights_part part = weights_part(c->spec, c->tape, id, i);
        const struct safetensor *file = weights_find(c->files, c->spec, part.name);
        if (file && weights_in_blocks(file)) return false;
    }
    struct lines lines = lines_of(t, u.columns);
    return lines.count % F8_UNIT == 0 && lines.k % F8_UNIT == 0 && lines.k <= F8_COLUMNS_MAX;
}

enum plim_status quantise_choose(struct quantisation *out, const struct quantise_wish *wish,
                                 const struct model_spec *spec, const struct tape *tape,
                                 struct plim_error *err)
{
    struct weights_files files = {0};
    const char *path = wish->path;
    struct choice c = {wish->kind, wish->experts, wish->tables, wish->train, &files, spec, tape};
    *out = (struct quantisation){.keep_x = wish->train};
    enum plim_status status = PLIM_OK;
    if (path) status = weights_files_open(path, &files, err);
    if (status != PLIM_OK) return status;
    for (int i = 0; i < tape->ntensors; i++) out->count += is_weight(&tape->tensors[i]);
    out->param = calloc((size_t)out->count + 1, sizeof *out->param);
    if (!out->param) status = plim_fail(err, PLIM_NO_MEMORY, "weights: out of memory");
    for (int i = 0, n = 0; i < tape->ntensors && status == PLIM_OK; i++) {
        const struct tensor *t = &tape->tensors[i];
        if (!is_weight(t)) continue;
        out->param[n].label = t->label, out->param[n].layer = t->layer;
        choose_param(&c, i, out->param[n].type);
        out->param[n].f8 = may_be_f8(&c, i);
        n++;
    }
    weights_files_close(&files);
    return status;
}

void quantise_release(struct quantisation *q)
{
    free(q->param);
    *q = (struct quantisation){0};
}

/* --- the tape --------------------------------------------------------------------------------------------- */

/* A linear of a weight in blocks has its operands in the places of linear. */
_Static_assert((int)LINEAR_X == (int)LINEAR_Q_X && (int)LINEAR_W == (int)LINEAR_Q_W &&
                   (int)LINEAR_BIAS == (int)LINEAR_Q_BIAS && (int)LINEAR_ADD == (int)LINEAR_Q_ADD &&
                   (int)LINEAR_X == (int)LINEAR_F8_X && (int)LINEAR_W == (int)LINEAR_F8_W &&
                   (int)LINEAR_BIAS == (int)LINEAR_F8_BIAS && (int)LINEAR_ADD == (int)LINEAR_F8_ADD &&
                   (int)EMBED_IDS == (int)EMBED_Q_IDS && (int)EMBED_W == (int)EMBED_Q_W &&
                   (int)DORA_NORM_A == (int)DORA_NORM_Q_A && (int)DORA_NORM_W == (int)DORA_NORM_Q_W &&
                   (int)DORA_NORM_B == (int)DORA_NORM_Q_B && (int)EXPERT_LINEAR_X == (int)EXPERT_LINEAR_Q_X &&
                   (int)EXPERT_LINEAR_W == (int)EXPERT_LINEAR_Q_W &&
                   (int)EXPERT_LINEAR_ENDS == (int)EXPERT_LINEAR_Q_ENDS,
               "operands keep their places");

static const struct {
    int plain;
    int w; /* its slot */
    int blocks;
} turned[] = {{OP_LINEAR, LINEAR_W, OP_LINEAR_Q},
              {OP_EMBED, EMBED_W, OP_EMBED_Q},
              {OP_DORA_NORM, DORA_NORM_W, OP_DORA_NORM_Q},
              {OP_EXPERT_LINEAR, EXPERT_LINEAR_W, OP_EXPERT_LINEAR_Q}};

static void turn_ops(struct tape *tape, int id, const struct op_lines *lines, bool keep_x)
{
    for (int i = 0; i < tape->nops; i++)
        for (size_t t = 0; t < sizeof turned / sizeof *turned; t++) {
            struct op *op = &tape->ops[i];
            if (op->kind != turned[t].plain || op->in[turned[t].w] != id) continue;
            op->kind = turned[t].blocks;
            op->attr.keep_x = keep_x;
            memcpy(op->attr.lines, lines, sizeof op->attr.lines);
            break;
        }
}

static void turn_param(const struct model_spec *spec, struct tape *tape, int id, const unsigned char *types,
                       bool keep_x)
{
    struct op_attr attr = {0};
    struct tensor *t = &tape->tensors[id];
    struct uses u = uses_of(tape, id);
    int64_t experts = u.experts ? t->dim[0] : 1;
    struct lines lines = lines_of(t, u.columns);
    for (int i = 0; i < OP_LINE_PARTS && types[i]; i++)
        attr.lines[i] =
            (struct op_lines){types[i], types[1] ? weights_part(spec, tape, id, i).dim[0] : lines.count};
    turn_ops(tape, id, attr.lines, keep_x);
    memset(t->dim, 0, sizeof t->dim);
    t->type = DT_U8, t->dim[0] = experts * quantised_bytes(&attr, lines.k), t->ndim = 1;
}

static void turn_f8(struct tape *tape, int id)
{
    struct tensor *t = &tape->tensors[id];
    struct lines lines = lines_of(t, uses_of(tape, id).columns);
    for (int i = 0; i < tape->nops; i++) {
        struct op *op = &tape->ops[i];
        if (op->kind != OP_LINEAR || op->in[LINEAR_W] != id) continue;
        op->kind = OP_LINEAR_F8;
        op->attr.lines[0] = (struct op_lines){0, lines.count};
    }
    memset(t->dim, 0, sizeof t->dim);
    t->type = DT_U8, t->dim[0] = f8_bytes(lines.count, lines.k), t->ndim = 1;
}

/* The place of a parameter, q->count where it is unknown. Tapes have parameters in about the same order: the search begins at
 * `from`. */
static int place_of(const struct quantisation *q, const struct tensor *t, int from)
{
    for (int k = 0; k < q->count; k++) {
        int n = (from + k) % q->count;
        if (q->param[n].layer == t->layer && !strcmp(q->param[n].label, t->label)) return n;
    }
    return q->count;
}

void quantise_tape(const struct quantisation *q, const struct model_spec *spec, struct tape *tape)
{
    for (int i = 0, next = 0; i < tape->ntensors && q->count; i++) {
        if (!is_weight(&tape->tensors[i])) continue;
        int n = place_of(q, &tape->tensors[i], next);
        next = n + 1;
        if (n < q->count && q->param[n].type[0]) turn_param(spec, tape, i, q->param[n].type, q->keep_x);
        if (n < q->count && q->param[n].f8) turn_f8(tape, i);
    }
}
