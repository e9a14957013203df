/* op.h - the op table: one row per op drives shape rule, gradient, cost, in-place permission and printer.
 *
 * Semantics. N is B*T rows; dtypes: "x-type" is the compute type (f32, bf16, f16); statistics are f32; gradients
 * of parameters are f32. All arithmetic inside an op is at least fp32; results are rounded once.
 * acc: the output obeys op.accumulate. [..] marks optional operands (-1 when absent).
 *
 *  op            inputs                                            outputs                     meaning
 *  embed         ids[B,T]i32 W[V,C] [add[B,T,C]]                   y[B,T,C]                    y = W[ids] (+ add)
 *  norm          x[B,T,C] w[C] [b[C]]                              y[B,T,C] stat[B,T,S]f32     RMS (S=1: rstd) or LayerNorm (S=2: mean, rstd)
 *  linear        x[..,K] W[M,K]|[K,M] [bias[M]] [add[..,M]]        y[..,M]                     y = x W' + bias + add
 *  rope_table    pos[B,T]i32 inv_freq[D/2]f32                      table[B,T,D]f32             cos in the first half, sin in the second
 *  rope          q[B,T,H,D] k[B,T,K,D] table                       q' k'                       HF half-rotation: (x1 c - x2 s, x2 c + x1 s); inverse: s := -s
 *  attn          q[B,T,H,D] k[B,S,K,D] v[B,S,K,D] pos[B,T]         o[B,T,H,D] lse[B,H,T]f32    softmax(scale q k') v over visible keys
 *  swiglu        gate[..,F] up[..,F]                               h[..,F]                     silu(gate) * up
 *  gelu          x                                                 y                           tanh form ("gelu_new")
 *  add           a b                                               y
 *  xent          logits[N,V] targets[N]i32 scalars                 loss[2]f64 acc [dlogits]    loss += (sum of -log p[target], count); dlogits = (p - onehot) * scalars[LOSS_GRAD]; target < 0 is ignored (zero row)
 *  kv_append     k[B,T,K,D] v pos kc[B,S,K,D] vc                   kc vc                       kc[b,pos[b,t]] = k[b,t]
 *  split3        x[B,T,3C]                                         q k v [B,T,H,D]             thirds of each row; C = H*D
 *  embed_bwd     ids dy[B,T,C]                                     dW[V,C]f32 acc
 *  norm_bwd      dy x w stat [add]                                 dx dw[C]f32 acc [db acc]    dx = d norm (+ add)
 *  linear_dx     dy[..,M] W [add[..,K]]                            dx[..,K]                    dx = dy W (+ add)
 *  linear_dw     dy[..,M] x[..,K]                                  dW f32 acc [db[M]f32 acc]   in W's layout
 *  attn_bwd      do q k v o lse pos                                dq dk dv
 *  swiglu_bwd    dh gate up                                        dgate dup
 *  gelu_bwd      dy x                                              dx
 *  join3         q k v [B,T,H,D]                                   x[B,T,3C]                   inverse of split3
 *  sumsq         grad                                              sum[1]f64 acc               sum of squares in fixed blocks of 4096, in order
 *  clip          sum scalars                                       coef[4]f32                  see enum clip_value; multiplier = unscale * min(1, clip / (norm + 1e-6))
 *  adamw         p g m v [master] scalars [coef]                   p m v [master]              torch.optim.AdamW; decay on p before the step
 *  sgd           p g [momentum] [master] scalars [coef]            p [momentum] [master]       torch.optim.SGD with momentum beta1
 *  fetch         far                                               near                        copy from a lower tier
 *  store         near                                              far                         copy to a lower tier
 *
 * Visible keys of query t in row b: without a cache S == T, keys [max(t - pos[t], t - window + 1), t] (samples
 * packed into one row restart pos at 0, which makes attention block-diagonal); with a cache keys
 * [max(0, pos[t] - window + 1), pos[t]]. GQA: query head h reads kv head h / (H / K).
 * The master of a bf16 parameter is u16 (see master_split), of an f16 parameter f32; an f32 one has none.
 */
#ifndef PLIM_TAPE_OP_H
#define PLIM_TAPE_OP_H

#include "tape/tape.h"

enum op_kind {
    OP_EMBED,
    OP_NORM,
    OP_LINEAR,
    OP_ROPE_TABLE,
    OP_ROPE,
    OP_ATTN,
    OP_SWIGLU,
    OP_GELU,
    OP_ADD,
    OP_XENT,
    OP_KV_APPEND,
    OP_SPLIT3,
    OP_EMBED_BWD,
    OP_NORM_BWD,
    OP_LINEAR_DX,
    OP_LINEAR_DW,
    OP_ATTN_BWD,
    OP_SWIGLU_BWD,
    OP_GELU_BWD,
    OP_JOIN3,
    OP_SUMSQ,
    OP_CLIP,
    OP_ADAMW,
    OP_SGD,
    OP_FETCH,
    OP_STORE,
    OP_KIND_COUNT
};

/* What an op costs, for the planner's clock. */
struct op_cost {
    double matmul_flops;
    double attn_flops;
    double bytes;     /* read and written once */
    double far_bytes; /* moved between tiers */
};

struct grad_pass;

/* Operand patterns. The first letter is the type: x compute type, f f32, d f64, i i32, m the master of the
 * compute type, w a weight of the compute type or g a gradient of one (dimensions swapped when attr.weight_kn),
 * y any type, the same everywhere. Then the dimensions: letters are bound to sizes and must agree across
 * operands, digits are constants; after '#' only the number of elements is compared. A trailing '?' marks an
 * operand that may be absent. */
struct op_row {
    const char *name;
    const char *in[OP_MAX_IN], *out[OP_MAX_OUT];
    int shares[OP_MAX_OUT]; /* input slot + 1 whose bytes output i may take over, 0: none */
    bool cheap;             /* selective recomputation drops its outputs and runs it again */
    /* Emits the backward ops (pass_grad.c); NULL: not differentiable. */
    void (*grad)(struct grad_pass *, const struct op *);
    /* Adds the flops; bytes are counted by the caller. NULL: none. */
    void (*flops)(const struct tape *, const struct op *, struct op_cost *);
};

const struct op_row *op_row(int kind);

/* Arity, types and shapes against the row: PLIM_BUG with a line naming the operand that is wrong. */
enum plim_status op_check(const struct tape *tape, const struct op *op, struct plim_error *err);

struct op_cost op_cost_of(const struct tape *tape, const struct op *op);

#endif
