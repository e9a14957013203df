/* emit.h - one row per op: how it is written as StableHLO, and the scratch it is likely to need.
 *
 *     static void emit_add(struct emit *e)
 *     {
 *         emit_out(e, ADD_Y, hlo_add(e->h, emit_real(e, ADD_A), emit_real(e, ADD_B)));
 *     }
 *     const struct emitter pjrt_add = {.emit = emit_add};
 *
 * An emitter reads operands by slot (tape/slots.h) and writes each output once. It computes in F32 at least and lets emit_out round
 * once, as op.h asks.
 */
#pragma once

#include "device/kernel.h"
#include "device/pjrt/hlo.h"

struct module;

struct emit {
    struct hlo *h;
    const struct op *op;
    const struct tensor *const
        *desc;             /* as in struct kernel_call: of in[0..], then of out[0..]; NULL: no operand */
    const int64_t *size;   /* by the letters of the op's patterns (op_sizes) */
    bool accumulate;       /* outputs marked acc are added to */
    struct module *module; /* private: the present value of each tensor */
};

struct emitter {
    /* run is not used: a plug-in runs programs. workspace: bytes of the largest temporaries that are no operands. */
    struct kernel kernel;
    void (*emit)(struct emit *e);
};

/* pjrt_<name> of every op that kernels compute, each in one of the emit_*.c files: an op without one does not link. */
#define PJRT_EMIT_KERNEL(X, kind, name)   X(kind, name)
#define PJRT_EMIT_CPU_ONLY(X, kind, name) X(kind, name)
#define PJRT_EMIT_COPY(X, kind, name)
#define PJRT_EMIT_NONE(X, kind, name)
#define PJRT_DECLARE_ONE(kind, name)      extern const struct emitter pjrt_##name;
#define PJRT_DECLARE(kind, name, kernels) PJRT_EMIT_##kernels(PJRT_DECLARE_ONE, kind, name)
OP_KINDS(PJRT_DECLARE)
#undef PJRT_DECLARE_ONE
#undef PJRT_DECLARE

/* Their kernels by op kind, as struct device has them; NULL: a copy between tiers, or no work of a kernel. */
const struct kernel *const *pjrt_kernels(void);

/* --- operands ------------------------------------------------------------------------------------------------ */

static inline const struct tensor *emit_in_tensor(const struct emit *e, int slot) { return e->desc[slot]; }
static inline const struct tensor *emit_out_tensor(const struct emit *e, int slot)
{
    return e->desc[OP_MAX_IN + slot];
}
static inline bool emit_has(const struct emit *e, int slot) { return e->desc[slot] != NULL; }
static inline bool emit_wants(const struct emit *e, int slot) { return e->desc[OP_MAX_IN + slot] != NULL; }

/* An operand with its own type and, unless the op's row only counts its elements ("x#RC"), its own shape. A counted one has one dimension
 * for each letter of its pattern, so that rows are rows whatever the tensor's shape is; "#N" stays as it is. */
struct hlo_value emit_in(struct emit *e, int slot);
/* A floating operand in F32 (F64 stays F64). */
struct hlo_value emit_real(struct emit *e, int slot);
/* One number of a vector of scalars, in F32. */
struct hlo_value emit_scalar(struct emit *e, int slot, int index);

/* Sets an output: the value is rounded to the output's type; its shape may differ if the number of elements is the same. */
void emit_out(struct emit *e, int slot, struct hlo_value v);
/* Sets an output marked acc: adds the previous contents if e->accumulate says so, in F32 at least, and rounds the total once. */
void emit_sum(struct emit *e, int slot, struct hlo_value v);
/* The present contents of an output, with its own type and shape. For outputs that are written in part. */
struct hlo_value emit_old(struct emit *e, int slot);
