/* print.c - a tape for people: one line per op. */
#include "tape/op.h"

static const char *const part_names[PART_COUNT] = {"fwd", "head", "bwd", "again", "upd"};

static void put_operand(const struct tape *tape, int id, struct strbuf *out)
{
    char name[160];
    const struct tensor *t = &tape->tensors[id];
    strbuf_addf(out, " %s:%s[", tape_tensor_name(tape, id, name, sizeof name), dtype_name(t->type));
    for (int i = 0; i < t->ndim; i++) strbuf_addf(out, i ? ",%lld" : "%lld", (long long)t->dim[i]);
    strbuf_addf(out, "]");
    if (t->tier != TIER_DEVICE) strbuf_addf(out, "@%s", tier_name(t->tier));
}

static void put_op(const struct tape *tape, int index, struct strbuf *out)
{
    const struct op *op = &tape->ops[index];
    strbuf_addf(out, "%5d %-5s", index, part_names[op->part]);
    if (op->layer >= 0)
        strbuf_addf(out, " %3d", op->layer);
    else
        strbuf_addf(out, "   -");
    strbuf_addf(out, "  %-11s%s", op_name(op->kind), op->attr.on_host ? " (host)" : "");
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (op->out[i] >= 0) put_operand(tape, op->out[i], out);
    strbuf_addf(out, op->accumulate == ACC_ADD ? " +=" : op->accumulate == ACC_AFTER_FIRST ? " (+)=" : " <-");
    for (int i = 0; i < OP_MAX_IN; i++)
        if (op->in[i] >= 0) put_operand(tape, op->in[i], out);
    strbuf_addf(out, "\n");
}

void tape_print(const struct tape *tape, struct strbuf *out)
{
    for (int i = 0; i < tape->nops; i++) {
        if (i == tape->loop_end) strbuf_addf(out, "      ---- once per optimizer step ----\n");
        put_op(tape, i, out);
    }
}
