/* emit.h - one row per op: how it is written as StableHLO, and the scratch it is likely to need.
 *
 *     static void emit_add(struct emit *e)
 *     {
 *         emit_out(e, ADD_Y, hlo_add(e->h, emit_real(e, ADD_A), emit_real(e, ADD_B)));
 *     }
 *     const struct emitter pjrt_add = {.emit = emit_add};
 *
 * An emitter reads operands by slot (tape/slots.h) and writes each output once. It computes in F32 at least and lets emit_out round
 * once, as op.h asks. A new op needs a row in PJRT_EMITTERS and an emitter in one of the emit_*.c files.
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

/* Ops with an emitter; docs/design/pjrt.md lists the others. */
#define PJRT_FORWARD(X)                                                                                      \
    X(EMBED, embed)                                                                                          \
    X(ADD, add)                                                                                              \
    X(LINEAR, linear)                                                                                        \
    X(NORM, norm)                                                                                            \
    X(ROPE_TABLE, rope_table)                                                                                \
    X(ROPE, rope)                                                                                            \
    X(GLU, glu)                                                                                              \
    X(ACT, act)                                                                                              \
    X(ATTN, attn)                                                                                            \
    X(SPLIT3, split3)                                                                                        \
    X(KV_PUT, kv_put)                                                                                        \
    X(ATTN_PAGED, attn_paged)                                                                                \
    X(KV_APPEND, kv_append)                                                                                  \
    X(KV_PUT8, kv_put8)                                                                                      \
    X(ATTN_PAGED8, attn_paged8)                                                                              \
    X(XENT, xent)                                                                                            \
    X(SAMPLE, sample)                                                                                        \
    X(POOL, pool)                                                                                            \
    X(ROW_GATE, row_gate)                                                                                    \
    X(DROPOUT, dropout)                                                                                      \
    X(TAKE, take)                                                                                            \
    X(DORA_NORM, dora_norm)                                                                                  \
    X(DORA_NORM_Q, dora_norm_q)                                                                              \
    X(COLUMN_SCALE, column_scale)                                                                            \
    X(LINEAR_Q, linear_q)                                                                                    \
    X(EMBED_Q, embed_q)                                                                                      \
    X(EXPERT_LINEAR_Q, expert_linear_q)                                                                      \
    X(PREFERENCE, preference)                                                                                \
    X(ADAPTER_LINEAR, adapter_linear)
#define PJRT_BACKWARD(X)                                                                                     \
    X(LINEAR_DX, linear_dx)                                                                                  \
    X(LINEAR_Q_DX, linear_q_dx)                                                                              \
    X(LINEAR_DW, linear_dw)                                                                                  \
    X(EMBED_BWD, embed_bwd)                                                                                  \
    X(NORM_BWD, norm_bwd)                                                                                    \
    X(GLU_BWD, glu_bwd)                                                                                      \
    X(ACT_BWD, act_bwd)                                                                                      \
    X(JOIN3, join3)                                                                                          \
    X(ROW_GATE_BWD, row_gate_bwd)                                                                            \
    X(POOL_BWD, pool_bwd)                                                                                    \
    X(ATTN_BWD, attn_bwd)                                                                                    \
    X(SUMSQ, sumsq)                                                                                          \
    X(CLIP, clip)                                                                                            \
    X(ADAMW, adamw)                                                                                          \
    X(SGD, sgd)                                                                                              \
    X(ROUTE, route)                                                                                          \
    X(ROUTE_BWD, route_bwd)                                                                                  \
    X(ROUTER_LOSS, router_loss)                                                                              \
    X(DISPATCH, dispatch)                                                                                    \
    X(COMBINE, combine)                                                                                      \
    X(COMBINE_DW, combine_dw)                                                                                \
    X(EXPERT_LINEAR, expert_linear)                                                                          \
    X(EXPERT_LINEAR_DX, expert_linear_dx)                                                                    \
    X(EXPERT_LINEAR_Q_DX, expert_linear_q_dx)                                                                \
    X(COLUMN_SCALE_BWD, column_scale_bwd)                                                                    \
    X(EXPERT_LINEAR_DW, expert_linear_dw)                                                                    \
    X(ADAMW8, adamw8)                                                                                        \
    X(FACTOR_STAT, factor_stat)                                                                              \
    X(ADAFACTOR, adafactor)
#define PJRT_EMITTERS(X) PJRT_FORWARD(X) PJRT_BACKWARD(X)

#define PJRT_DECLARE(kind, name) extern const struct emitter pjrt_##name;
PJRT_EMITTERS(PJRT_DECLARE)
#undef PJRT_DECLARE

/* Their kernels by op kind, as struct device has them; NULL: not supported. */
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
