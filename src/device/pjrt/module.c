/* module.c - see module.h and emit.h. */
#include "device/pjrt/module.h"
#include "device/device.h"
#include "device/pjrt/emit.h"

#include <stdlib.h>
#include <string.h>

/* --- the table of emitters ------------------------------------------------------------------------------------- */

#define ROW(kind, name) [OP_##kind] = &pjrt_##name,
static const struct emitter *const emitters[OP_KIND_COUNT] = {PJRT_EMITTERS(ROW)};
#undef ROW
#define ROW(kind, name) [OP_##kind] = &pjrt_##name.kernel,
static const struct kernel *const kernels[OP_KIND_COUNT] = {PJRT_EMITTERS(ROW)};
#undef ROW

const struct kernel *const *pjrt_kernels(void) { return kernels; }

/* --- values of tensors ------------------------------------------------------------------------------------------ */

static struct hlo_value shaped_as(struct hlo_value v, const struct tensor *t)
{
    v.type = (enum hlo_type)t->type, v.ndim = t->ndim;
    memcpy(v.dim, t->dim, sizeof t->dim);
    return v;
}

static struct hlo_value zeros_of(struct hlo *h, const struct tensor *t)
{
    return hlo_fill(h, (enum hlo_type)t->type, 0, t->ndim, t->dim);
}

/* The root's value; a tensor that nothing has written yet is zero. */
static struct hlo_value root_value(struct module *m, int root)
{
    if (m->values[root].id < 0) m->values[root] = zeros_of(&m->h, &m->range->tape->tensors[root]);
    return m->values[root];
}

/* Elements [first, first + count) of a flat value of the view's type. A view of another type than its root's counts bytes. */
static struct hlo_value flat_of(struct module *m, int root, enum dtype type)
{
    struct hlo_value v = root_value(m, root);
    v = hlo_reshape(&m->h, v, 1, (const int64_t[]){hlo_count(&v)});
    return hlo_bits(&m->h, v, (enum hlo_type)type);
}

static struct hlo_value value_of(struct module *m, int id)
{
    const struct tensor *t = &m->range->tape->tensors[id];
    if (t->view_of < 0) return root_value(m, id);
    struct hlo_value flat = flat_of(m, t->view_of, t->type);
    int64_t first = t->view_offset / (int64_t)dtype_size(t->type);
    return hlo_reshape(&m->h, hlo_slice(&m->h, flat, 0, first, tensor_count(t)), t->ndim, t->dim);
}

static void set_value(struct module *m, int id, struct hlo_value v)
{
    const struct tensor *t = &m->range->tape->tensors[id];
    v = hlo_convert(&m->h, v, (enum hlo_type)t->type);
    if (t->view_of < 0) {
        m->values[id] = hlo_reshape(&m->h, v, t->ndim, t->dim);
        return;
    }
    const struct tensor *root = &m->range->tape->tensors[t->view_of];
    struct hlo_value part = hlo_reshape(&m->h, v, 1, (const int64_t[]){tensor_count(t)});
    if (tensor_bytes(t) < tensor_bytes(root))
        part = hlo_replace(&m->h, flat_of(m, t->view_of, t->type), part,
                           t->view_offset / (int64_t)dtype_size(t->type));
    part = hlo_bits(&m->h, part, (enum hlo_type)root->type);
    m->values[t->view_of] = hlo_reshape(&m->h, part, root->ndim, root->dim);
}

/* Gives an operand that is only counted the shape of its pattern's letters. */
static struct hlo_value as_counted(struct emit *e, struct hlo_value v, const char *pattern)
{
    int64_t dim[HLO_MAX_DIM], count = 1;
    int n = 0;
    if (pattern[1] != '#' || pattern[2] == 'N' || pattern[0] == 'j') return v;
    for (const char *c = pattern + 2; *c && *c != '?'; c++)
        count *= dim[n++] = *c >= '0' && *c <= '9' ? *c - '0' : e->size[(int)*c];
    return count == hlo_count(&v) ? hlo_reshape(e->h, v, n, dim) : v;
}

struct hlo_value emit_in(struct emit *e, int slot)
{
    return as_counted(e, value_of(e->module, e->op->in[slot]), op_row(e->op->kind)->in[slot]);
}

struct hlo_value emit_real(struct emit *e, int slot)
{
    struct hlo_value v = emit_in(e, slot);
    return v.type == HLO_F64 ? v : hlo_convert(e->h, v, HLO_F32);
}

struct hlo_value emit_scalar(struct emit *e, int slot, int index)
{
    struct hlo_value v = emit_in(e, slot);
    v = hlo_reshape(e->h, v, 1, (const int64_t[]){hlo_count(&v)});
    return hlo_reshape(e->h, hlo_convert(e->h, hlo_slice(e->h, v, 0, index, 1), HLO_F32), 0, NULL);
}

void emit_out(struct emit *e, int slot, struct hlo_value v) { set_value(e->module, e->op->out[slot], v); }

struct hlo_value emit_old(struct emit *e, int slot)
{
    return as_counted(e, value_of(e->module, e->op->out[slot]), op_row(e->op->kind)->out[slot]);
}

void emit_sum(struct emit *e, int slot, struct hlo_value v)
{
    if (e->accumulate) {
        struct hlo_value old = emit_old(e, slot);
        old = hlo_convert(e->h, old, old.type == HLO_F64 ? HLO_F64 : HLO_F32);
        v = hlo_reshape(e->h, hlo_convert(e->h, v, old.type), old.ndim, old.dim);
        v = hlo_add(e->h, old, v);
    }
    emit_out(e, slot, v);
}

/* --- the program ------------------------------------------------------------------------------------------------ */

enum { TOUCHED = 1, READ = 2, WRITTEN = 4, OUTSIDE = 8 };

static void mark(const struct device_range *r, const int *ids, int count, unsigned char *marks, int bits)
{
    for (int k = 0; k < count; k++)
        if (ids[k] >= 0) marks[tape_root(r->tape, ids[k])] |= (unsigned char)bits;
}

/* Which roots the range touches, and which of them exist outside it. */
static void mark_roots(const struct device_range *r, unsigned char *marks)
{
    for (int i = 0; i < r->tape->nops; i++) {
        const struct op *op = &r->tape->ops[i];
        bool inside = i >= r->begin && i < r->end;
        if (inside && !op_computes(op)) continue;
        mark(r, op->in, OP_MAX_IN, marks, inside ? TOUCHED | READ : OUTSIDE);
        mark(r, op->out, OP_MAX_OUT, marks, inside ? TOUCHED | WRITTEN : OUTSIDE);
    }
    for (int i = 0; i < r->tape->ntensors; i++)
        if (r->tape->tensors[i].flags & (TENSOR_KEPT | TENSOR_INPUT | TENSOR_OUTPUT | TENSOR_ELSEWHERE))
            marks[i] |= OUTSIDE;
}

/* With `apart` a tensor is an argument only if the range needs its old contents. */
static bool needs_old(const struct device_range *r, int root)
{
    for (int i = r->begin; i < r->end; i++) {
        const struct op *op = &r->tape->ops[i];
        for (int k = 0; k < OP_MAX_IN; k++)
            if (op->in[k] >= 0 && tape_root(r->tape, op->in[k]) == root) return true;
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (op->out[k] >= 0 && tape_root(r->tape, op->out[k]) == root && device_accumulates(r, op))
                return true;
    }
    return false;
}

static bool list_operands(struct module *m, const unsigned char *marks, bool apart)
{
    m->operands = calloc((size_t)m->range->tape->ntensors + 1, sizeof *m->operands);
    if (!m->operands) return false;
    for (int i = 0; i < m->range->tape->ntensors; i++) {
        if ((marks[i] & (TOUCHED | OUTSIDE)) != (TOUCHED | OUTSIDE)) continue;
        bool read = !apart || needs_old(m->range, i);
        m->operands[m->count++] = (struct module_operand){i, read, marks[i] & WRITTEN ? m->results++ : -1};
    }
    return true;
}

static void write_arguments(struct module *m, bool apart)
{
    struct hlo *h = &m->h;
    const char *comma = "";
    strbuf_add(&h->text, "module @plimsoll {\n  func.func public @main(");
    for (int i = 0; i < m->count; i++) {
        const struct module_operand *o = &m->operands[i];
        if (!o->read) continue;
        const struct tensor *t = &m->range->tape->tensors[o->tensor];
        struct hlo_value v = m->values[o->tensor] = hlo_new(h, (enum hlo_type)t->type, t->ndim, t->dim);
        strbuf_add(&h->text, comma), comma = ", ";
        hlo_write_name(h, &v), strbuf_add(&h->text, ": "), hlo_write_type(h, &v);
        if (o->result >= 0 && !apart) strbuf_addf(&h->text, " {tf.aliasing_output = %d : i32}", o->result);
    }
}

/* One list of all results: their types, or with `names` their names. */
static void write_results(struct module *m, bool names)
{
    const char *comma = "";
    for (int i = 0; i < m->count; i++) {
        const struct module_operand *o = &m->operands[i];
        if (o->result < 0) continue;
        struct hlo_value v = shaped_as(m->values[o->tensor], &m->range->tape->tensors[o->tensor]);
        strbuf_add(&m->h.text, comma), comma = ", ";
        names ? hlo_write_name(&m->h, &v) : hlo_write_type(&m->h, &v);
    }
}

static enum plim_status write_ops(struct module *m, struct plim_error *err)
{
    const struct device_range *r = m->range;
    const struct tensor *desc[OP_MAX_IN + OP_MAX_OUT];
    int64_t size[OP_LETTERS];
    for (int i = r->begin; i < r->end; i++) {
        const struct op *op = &r->tape->ops[i];
        if (op->kind == OP_HOLD) continue;
        if (!emitters[op->kind])
            return plim_fail(err, PLIM_UNSUPPORTED, "no StableHLO is known for op %s", op_name(op->kind));
        device_describe(r->tape, op, desc);
        op_sizes(r->tape, op, size);
        emitters[op->kind]->emit(&(struct emit){&m->h, op, desc, size, device_accumulates(r, op), m});
    }
    return PLIM_OK;
}

static enum plim_status write_module(struct module *m, bool apart, struct plim_error *err)
{
    struct strbuf *text = &m->h.text;
    write_arguments(m, apart);
    strbuf_add(text, ") -> (");
    write_results(m, false);
    strbuf_add(text, ") {\n");
    enum plim_status status = write_ops(m, err);
    for (int i = 0; i < m->count;
         i++) /* a result that no op wrote: cannot be, but must not be invalid text */
        if (m->operands[i].result >= 0) root_value(m, m->operands[i].tensor);
    strbuf_add(text, "    return ");
    write_results(m, true);
    strbuf_add(text, m->results ? " : " : "");
    write_results(m, false);
    strbuf_add(text, "\n  }\n}\n");
    return status == PLIM_OK ? strbuf_status(text, err) : status;
}

enum plim_status module_make(const struct device_range *range, bool apart, struct module *m,
                             struct plim_error *err)
{
    size_t tensors = (size_t)range->tape->ntensors;
    unsigned char *marks = calloc(tensors + 1, 1);
    *m = (struct module){.range = range, .values = malloc((tensors + 1) * sizeof *m->values)};
    bool room = marks && m->values;
    if (room) {
        for (size_t i = 0; i < tensors; i++) m->values[i].id = -1;
        mark_roots(range, marks);
        room = list_operands(m, marks, apart);
    }
    free(marks);
    enum plim_status status = room ? write_module(m, apart, err)
                                   : plim_fail(err, PLIM_NO_MEMORY, "out of memory for a program's text");
    if (status != PLIM_OK) module_release(m);
    return status;
}

void module_release(struct module *m)
{
    strbuf_release(&m->h.text);
    free(m->operands), free(m->values);
    *m = (struct module){0};
}
