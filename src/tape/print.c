/* print.c - a tape for people: one line per op. */
#include "tape/op.h"

static const char *const part_names[PART_COUNT] = {"fwd", "head", "bwd", "again", "upd"};

static void put_shape(const struct tensor *t, struct strbuf *out)
{
    strbuf_addf(out, "%s[", dtype_name(t->type));
    for (int i = 0; i < t->ndim; i++) strbuf_addf(out, i ? ",%lld" : "%lld", (long long)t->dim[i]);
    strbuf_addf(out, "]");
    if (t->tier != TIER_DEVICE) strbuf_addf(out, "@%s", tier_name(t->tier));
}

static void put_operand(const struct tape *tape, int id, struct strbuf *out)
{
    char name[160];
    strbuf_addf(out, " %s:", tape_tensor_name(tape, id, name, sizeof name));
    put_shape(&tape->tensors[id], out);
}

static void put_op(const struct tape *tape, int index, struct strbuf *out)
{
    const struct op *op = &tape->ops[index];
    strbuf_addf(out, "%5d %-5s", index, part_names[op->part]);
    if (op->layer >= 0)
        strbuf_addf(out, " %3d", op->layer);
    else
        strbuf_addf(out, "   -");
    static const char *const halves[] = {"", " [home]", " [away]"}; /* it runs while that one is valid */
    strbuf_addf(out, "  %-11s%s%s%s", op_name(op->kind), op->attr.on_host ? " (host)" : "",
                op->attr.guesses  ? " (before the norm)"
                : op->attr.redoes ? " (if clipped)"
                                  : "",
                halves[op->attr.half]);
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (op->out[i] >= 0) put_operand(tape, op->out[i], out);
    strbuf_addf(out, op->accumulate == ACC_ADD ? " +=" : op->accumulate == ACC_AFTER_FIRST ? " (+)=" : " <-");
    for (int i = 0; i < OP_MAX_IN; i++)
        if (op->in[i] >= 0) put_operand(tape, op->in[i], out);
    strbuf_addf(out, "\n");
}

#define ATTR(name)                                                                                           \
    static int64_t get_##name(const struct op_attr *a) { return (int64_t)a->name; }                          \
    static void set_##name(struct op_attr *a, int64_t value) { a->name = (__typeof__(a->name))value; }
#define ATTRS(X)                                                                                             \
    X(mask)                                                                                                  \
    X(window)                                                                                                \
    X(sparse_block)                                                                                          \
    X(local_blocks)                                                                                          \
    X(global_blocks)                                                                                         \
    X(cached)                                                                                                \
    X(whole_rows)                                                                                            \
    X(standard)                                                                                              \
    X(tf32)                                                                                                  \
    X(split)                                                                                                 \
    X(weight_kn)                                                                                             \
    X(among)                                                                                                 \
    X(on_host)                                                                                               \
    X(behind)
ATTRS(ATTR)
#define ROW(name) {#name, get_##name, set_##name},
const struct tape_shape_attr tape_shape_attrs[] = {ATTRS(ROW){NULL, NULL, NULL}};

void tape_print_shapes(const struct tape *tape, int index, struct strbuf *out)
{
    const struct op *op = &tape->ops[index];
    const struct op_row *row = op_row(op->kind);
    for (int i = 0; i < OP_MAX_IN + OP_MAX_OUT; i++) {
        bool in = i < OP_MAX_IN;
        int id = in ? op->in[i] : op->out[i - OP_MAX_IN];
        if (i == OP_MAX_IN) strbuf_addf(out, "> ");
        if (!(in ? row->in[i] : row->out[i - OP_MAX_IN])) continue;
        if (id >= 0)
            put_shape(&tape->tensors[id], out);
        else
            strbuf_addf(out, "-");
        strbuf_addf(out, " ");
    }
    for (const struct tape_shape_attr *a = tape_shape_attrs; a->name; a++)
        if (a->get(&op->attr)) strbuf_addf(out, "%s=%lld ", a->name, (long long)a->get(&op->attr));
    if (out->len) strbuf_truncate(out, out->len - 1);
}

void tape_print(const struct tape *tape, struct strbuf *out)
{
    for (int i = 0; i < tape->nops; i++) {
        if (i == tape->loop_end) strbuf_addf(out, "      ---- once per optimizer step ----\n");
        put_op(tape, i, out);
    }
}
