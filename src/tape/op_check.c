/* op_check.c - reads the operand patterns of the op table (op.h) against real operands.
 *
 * Sizes are bound in rounds: exact patterns bind every letter at once, '#' patterns bind the one letter that is
 * still open by division. Two rounds are enough for every row; what stays open is unconstrained.
 */
#include "tape/op.h"
#include "tensor/quant8.h"

#include <ctype.h>
#include <string.h>

struct binding {
    int64_t size[OP_LETTERS]; /* by letter, 0: open */
    enum dtype compute, any, state;
    bool has_compute, has_any, has_state;
};

static bool bind_type(struct binding *b, char kind, enum dtype type)
{
    switch (kind) {
    case 'f':
        return type == DT_F32;
    case 'g':
    case 'e':
        return type == DT_F32 || (b->has_compute ? type == b->compute : dtype_is_compute(type));
    case 's':
        if (!b->has_state) b->state = type, b->has_state = true;
        return b->state == type && (type == DT_F32 || type == DT_BF16);
    case 'b':
        return type == DT_E4M3 || type == DT_E5M2;
    case 'q':
        return type == DT_U8;
    case 'd':
        return type == DT_F64;
    case 'i':
        return type == DT_I32;
    case 'm':
        return type == dtype_master(b->compute);
    case 'y':
        if (!b->has_any) b->any = type, b->has_any = true;
        return b->any == type;
    default:
        if (!b->has_compute) b->compute = type, b->has_compute = true;
        return b->compute == type && dtype_is_compute(type);
    }
}

static bool bind_letter(struct binding *b, char letter, int64_t size)
{
    if (isdigit((unsigned char)letter)) return size == letter - '0';
    if (!b->size[(int)letter]) b->size[(int)letter] = size;
    return b->size[(int)letter] == size;
}

static bool bind_exact(struct binding *b, const char *dims, int n, const struct tensor *t, bool swap)
{
    if (t->ndim != n) return false;
    for (int i = 0; i < n; i++)
        if (!bind_letter(b, dims[swap ? n - 1 - i : i], t->dim[i])) return false;
    return true;
}

/* True unless the element count (or the number of blocks) contradicts what is bound. */
static bool bind_count(struct binding *b, const char *dims, int n, int64_t count, bool blocks)
{
    int64_t known = 1;
    char open = 0;
    int opens = 0;
    for (int i = 0; i < n; i++) {
        if (isdigit((unsigned char)dims[i]))
            known *= dims[i] - '0';
        else if (b->size[(int)dims[i]])
            known *= b->size[(int)dims[i]];
        else
            open = dims[i], opens++;
    }
    if (blocks) return opens > 0 || quant8_blocks(known) == count;
    if (opens == 0) return known == count;
    if (known == 0 || count % known) return false;
    if (opens == 1) b->size[(int)open] = count / known;
    return true;
}

static bool bind_operand(struct binding *b, const char *pattern, const struct tensor *t, const struct op *op,
                         bool counts)
{
    bool count_only = pattern[1] == '#' || pattern[1] == '%';
    if (count_only != counts) return true; /* another round's */
    const char *dims = pattern + (count_only ? 2 : 1);
    int n = 0;
    while (dims[n] && dims[n] != '?') n++;
    bool swap = (pattern[0] == 'w' || pattern[0] == 'g') && op->attr.weight_kn;
    int64_t count = tensor_count(t);
    if (pattern[0] == 'j' && op->attr.joint) {
        if (count % 2) return false;
        count /= 2;
    }
    return counts ? bind_count(b, dims, n, count, pattern[1] == '%') : bind_exact(b, dims, n, t, swap);
}

/* One operand in one of the rounds: 0 types, 1 exact shapes, 2 and 3 counts. */
static enum plim_status check_operand(struct binding *b, const struct tape *tape, const struct op *op,
                                      const char *pattern, int id, int round, struct plim_error *err)
{
    const char *name = op_name(op->kind);
    char text[160];
    if (id < 0) {
        if (strchr(pattern, '?')) return PLIM_OK;
        return plim_fail(err, PLIM_BUG, "op %s: operand '%s' is absent", name, pattern);
    }
    if (id >= tape->ntensors) return plim_fail(err, PLIM_BUG, "op %s: tensor id %d out of range", name, id);
    if (pattern[0] == '*') return PLIM_OK;
    const struct tensor *t = &tape->tensors[id];
    bool good = round == 0 ? bind_type(b, pattern[0], t->type) : bind_operand(b, pattern, t, op, round > 1);
    if (good) return PLIM_OK;
    return plim_fail(err, PLIM_BUG, "op %s: operand %s does not match '%s'", name,
                     tape_tensor_name(tape, id, text, sizeof text), pattern);
}

/* The one sum of sizes: a row of queries, keys and values. */
static bool parts_fill_rows(const struct binding *b, const struct op *op)
{
    if (op->kind != OP_SPLIT3 && op->kind != OP_JOIN3) return true;
    return b->size['L'] == (b->size['H'] + 2 * b->size['K']) * b->size['D'];
}

/* Parts of a weight are all of its lines, and each reads numbers of its own. */
static bool parts_are_whole(const struct binding *b, const struct op *op)
{
    int64_t lines = 0, parts = 0;
    bool linear = op->kind == OP_LINEAR || op->kind == OP_LINEAR_DX || op->kind == OP_LINEAR_DW;
    if (!linear && op->kind != OP_ADAPTER_LINEAR) return true;
    for (int p = 0; p < OP_LINE_PARTS && op->attr.lines[p].lines; p++)
        lines += op->attr.lines[p].lines, parts++;
    if (!b->size['L']) return true; /* linear_dw of a bias alone */
    if (!parts) return b->size['L'] == b->size['K'];
    return lines == b->size['M'] && b->size['L'] == parts * b->size['K'] && !op->attr.weight_kn;
}

/* A table turns pairs of the front part of a head, at most all of it. */
static bool table_fits(const struct binding *b)
{
    return b->size['E'] % 2 == 0 && b->size['E'] <= b->size['D'];
}

static bool is_rotation(const struct op *op)
{
    return op->kind == OP_ROPE || op->kind == OP_SPLIT3 || op->kind == OP_JOIN3;
}

/* The other half of glu's rows is in one operand or in two. */
static bool halves_agree(const struct op *op)
{
    if (op->kind == OP_GLU) return op->attr.joint == (op->in[GLU_UP] < 0);
    if (op->kind != OP_GLU_BWD) return true;
    return op->attr.joint == (op->in[GLU_BWD_UP] < 0) && op->attr.joint == (op->out[GLU_BWD_DUP] < 0);
}

/* Checks attention's operands against its attributes; NULL: all is well. q and k, pos and scalars are found by their
 * slots. */
static const char *attention_wants(const struct tape *tape, const struct op *op)
{
    bool back = op->kind == OP_ATTN_BWD;
    const struct op_attr *attr = &op->attr;
    const struct tensor *q = &tape->tensors[op->in[back ? ATTN_BWD_Q : ATTN_Q]],
                        *k = &tape->tensors[op->in[back ? ATTN_BWD_K : ATTN_K]];
    bool causal = attr->mask == MASK_CAUSAL || attr->mask == MASK_BLOCKS;
    if (causal && op->in[back ? ATTN_BWD_POS : ATTN_POS] < 0) return "a causal mask needs positions";
    if (!attr->cached && attr->mask != MASK_CROSS && q->dim[1] != k->dim[1])
        return "queries and keys of one row differ in number";
    if (attr->mask == MASK_BLOCKS && (attr->sparse_block < 1 || attr->local_blocks < 1))
        return "blocks of keys have no size";
    if (attr->dropout > 0 && op->in[back ? ATTN_BWD_SCALARS : ATTN_SCALARS] < 0)
        return "dropout needs the step's scalars";
    return q->dim[2] % k->dim[2] ? "heads are no multiple of key heads" : NULL;
}

/* Gradients of frozen parameters are absent, and so is what only they read. */
static const char *gradients_want(const struct op *op)
{
    if (op->kind == OP_NORM_BWD)
        return op->out[NORM_BWD_DBIAS] >= 0 && op->out[NORM_BWD_DW] < 0 ? "db comes with dw" : NULL;
    if ((op->in[LINEAR_DW_X] < 0) != (op->out[LINEAR_DW_DW] < 0)) return "x and dW come together";
    return op->out[LINEAR_DW_DW] < 0 && op->out[LINEAR_DW_DBIAS] < 0 ? "no gradient is wanted" : NULL;
}

static const char *attributes_want(const struct tape *tape, const struct op *op)
{
    if (op->kind == OP_NORM_BWD || op->kind == OP_LINEAR_DW) return gradients_want(op);
    return op->kind == OP_ATTN || op->kind == OP_ATTN_BWD ? attention_wants(tape, op) : NULL;
}

static enum plim_status bind(struct binding *b, const struct tape *tape, const struct op *op,
                             struct plim_error *err)
{
    const struct op_row *row = op_row(op->kind);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < OP_MAX_IN && row->in[i]; i++) {
            enum plim_status s = check_operand(b, tape, op, row->in[i], op->in[i], round, err);
            if (s != PLIM_OK) return s;
        }
        for (int i = 0; i < OP_MAX_OUT && row->out[i]; i++) {
            enum plim_status s = check_operand(b, tape, op, row->out[i], op->out[i], round, err);
            if (s != PLIM_OK) return s;
        }
    }
    return PLIM_OK;
}

void op_sizes(const struct tape *tape, const struct op *op, int64_t size[OP_LETTERS])
{
    struct binding b = {0};
    bind(&b, tape, op, NULL);
    memcpy(size, b.size, sizeof b.size);
}

enum plim_status op_check(const struct tape *tape, const struct op *op, struct plim_error *err)
{
    if (op->kind < 0 || op->kind >= OP_KIND_COUNT)
        return plim_fail(err, PLIM_BUG, "op kind %d out of range", op->kind);
    struct binding b = {0};
    enum plim_status status = bind(&b, tape, op, err);
    if (status != PLIM_OK) return status;
    if (!parts_fill_rows(&b, op) || !parts_are_whole(&b, op))
        return plim_fail(err, PLIM_BUG, "op %s: parts do not add up to a row", op_name(op->kind));
    if (is_rotation(op) && !table_fits(&b))
        return plim_fail(err, PLIM_BUG, "op %s: the table is wider than a head", op_name(op->kind));
    if (!halves_agree(op))
        return plim_fail(err, PLIM_BUG, "op %s: gate and up are neither two nor one", op_name(op->kind));
    const char *wrong = attributes_want(tape, op);
    return wrong ? plim_fail(err, PLIM_BUG, "op %s: %s", op_name(op->kind), wrong) : PLIM_OK;
}
