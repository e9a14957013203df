/* numerics.c - see numerics.h. */
#include "train/numerics.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>

#define PIECE 8192

struct counts {
    int64_t all, not_finite, tiny;
};

static struct counts look_at(const struct exec *exec, int id)
{
    const struct tensor *t = &exec->tape->tensors[id];
    struct counts c = {.all = tensor_count(t)};
    int64_t size = (int64_t)dtype_size(t->type);
    double least = dtype_smallest_normal(t->type), values[PIECE], raw[PIECE];
    for (int64_t at = 0; at < c.all; at += PIECE) {
        int64_t n = c.all - at < PIECE ? c.all - at : PIECE;
        if (exec_read(exec, id, raw, at * size, n * size, NULL) != PLIM_OK) break;
        dtype_convert(values, DT_F64, raw, t->type, n);
        for (int64_t i = 0; i < n; i++)
            c.not_finite += !isfinite(values[i]), c.tiny += fabs(values[i]) < least;
    }
    return c;
}

static void tell(struct numerics *n, const struct exec *exec, int op, int id, int64_t count, int64_t all,
                 const char *what)
{
    char name[200], line[400];
    snprintf(line, sizeof line, "numerics: step %lld: op %d %s writes %s (%s): %lld of %lld values %s",
             (long long)n->trainer->step + 1, op, op_name(exec->tape->ops[op].kind),
             tape_tensor_name(exec->tape, id, name, sizeof name), dtype_name(exec->tape->tensors[id].type),
             (long long)count, (long long)all, what);
    trainer_tell(n->trainer, &(struct train_event){.kind = TRAIN_NOTE, .text = line});
}

/* Is what the op read mostly zero already? Then its output's zeros are no loss. */
static bool input_is_tiny(const struct exec *exec, const struct op *op)
{
    if (op->in[0] < 0 || !dtype_is_float(exec->tape->tensors[op->in[0]].type)) return true;
    struct counts c = look_at(exec, op->in[0]);
    return 2 * c.tiny > c.all;
}

void numerics_inspect(void *arg, const struct exec *exec, int index)
{
    struct numerics *n = arg;
    const struct op *op = &exec->tape->ops[index];
    for (int o = 0; o < OP_MAX_OUT; o++) {
        int id = op->out[o];
        if (id < 0 || exec->tape->tensors[id].tier != TIER_DEVICE ||
            !dtype_is_float(exec->tape->tensors[id].type))
            continue;
        struct counts c = look_at(exec, id);
        if (c.not_finite && !n->told_overflow) {
            n->told_overflow = true;
            tell(n, exec, index, id, c.not_finite, c.all, "are not finite");
        }
        bool narrow = dtype_size(exec->tape->tensors[id].type) <= 2;
        if (narrow && !n->told_underflow && 2 * c.tiny > c.all && !input_is_tiny(exec, op)) {
            n->told_underflow = true;
            tell(n, exec, index, id, c.tiny, c.all, "are zero or subnormal");
        }
    }
}
