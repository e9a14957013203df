/* tape.h - a tape is data: a linear list of ops over tensors. Nothing here computes, places or decides.
 *
 *     struct tape tape;
 *     tape_init(&tape);
 *     int x = tape_tensor(&tape, &(struct tensor){.label = "x", .type = DT_F32, .cls = CLASS_ACT, .layer = -1,
 *                                                 .ndim = 2, .dim = {N, C}, .view_of = -1, .owner = -1});
 *     struct op op = tape_op(OP_ACT, layer);
 *     op.in[ACT_X] = x, op.out[ACT_Y] = y;
 *     tape_append(&tape, &op);
 *     if (tape_verify(&tape, &err) != PLIM_OK) ...
 *     tape_release(&tape);
 *
 * Running out of memory is sticky: ids become -1, `failed` is set, and tape_verify reports it.
 *
 * A training tape has two parts. Ops [0, loop_end) are one micro-batch and run once per accumulation step;
 * ops [loop_end, nops) are the update and run once per optimizer step. A forward-only tape has loop_end == nops.
 */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"
#include "tape/preference.h"
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Purpose of a tensor; reports show these classes. */
enum tensor_class {
    CLASS_PARAM,
    CLASS_MASTER, /* the bits of the fp32 master that the weight lacks */
    CLASS_GRAD,   /* gradients of parameters */
    CLASS_STATE,  /* optimizer moments */
    CLASS_ACT,    /* activations and their gradients */
    CLASS_WORK,   /* scratch of one op, staging buffers */
    CLASS_KV,
    CLASS_IO, /* token ids, positions, scalars from the host */
    CLASS_COUNT
};
const char *tensor_class_name(enum tensor_class cls);

enum tier { TIER_DEVICE, TIER_HOST, TIER_DISK, TIER_COUNT };
const char *tier_name(enum tier tier);

enum tensor_flag {
    TENSOR_KEPT = 1,       /* content survives from step to step: parameters, states, constants */
    TENSOR_INPUT = 2,      /* written by the host before the tape (or each micro-batch) runs */
    TENSOR_OUTPUT = 4,     /* read by the host after the tape has run */
    TENSOR_STAT = 8,       /* stays as declared under every precision: statistics, tables, losses */
    TENSOR_ELSEWHERE = 32, /* belongs to the other part, in a tape that is only one part (pass_part) */
    TENSOR_NEAR = 16,      /* too small for a lower tier: it and all that belongs to it stay on the device */
    TENSOR_OF_DISK = 64,   /* a near copy of a tensor on disk */
    TENSOR_FROZEN = 128,   /* a parameter that is not trained: it has no gradient, state or master */
    TENSOR_ADDED = 256,    /* a parameter of an adapter: the model's own files do not have it */
    TENSOR_CARRIED = 512,  /* written in the first micro-batch of a window for all of them */
};

#define TENSOR_MAX_DIM 4

struct tensor {
    const char *label; /* static text; one %d in it is the layer. Parameters carry their Hugging Face name */
    int layer;         /* -1: none */
    enum dtype type;
    enum tensor_class cls;
    enum tier tier;
    unsigned flags;
    int view_of; /* tensor whose bytes this one shares, or -1. Never itself a view */
    int owner;   /* the parameter of a grad, master or state; the activation of a gradient; -1 */
    int ndim;
    int64_t dim[TENSOR_MAX_DIM];
    int64_t view_offset; /* bytes into view_of */
    /* Elements per rank, in the order of ranks; 0: the tensor is whole. Ops access the piece through a
     * view. */
    int64_t piece;
};

static inline int64_t tensor_count(const struct tensor *t) /* elements */
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->dim[i];
    return n;
}
static inline int64_t tensor_bytes(const struct tensor *t) /* on this rank */
{
    return (t->piece ? t->piece : tensor_count(t)) * (int64_t)dtype_size(t->type);
}

/* How an op treats the previous contents of its accumulating outputs (gradients of parameters, the loss). */
enum accumulate {
    ACC_OVERWRITE,
    ACC_AFTER_FIRST, /* overwrite in the first micro-batch of a window, add in the others */
    ACC_ADD,
};

enum op_part { PART_FORWARD, PART_HEAD, PART_BACKWARD, PART_RECOMPUTE, PART_UPDATE, PART_COUNT };

#define OP_MAX_IN  10
#define OP_MAX_OUT 6

/* Keys that a query may see; op.h has the formulas. */
enum mask_kind {
    MASK_CAUSAL, /* its own and earlier ones, at most `window` of them */
    MASK_FULL,   /* all of its row: encoders */
    MASK_CROSS,  /* all of another row: encoder-decoder attention; S and T differ */
    MASK_BLOCKS, /* causal, restricted to the nearest and the first blocks of keys */
    MASK_COUNT
};

enum activation {
    ACTIVATION_SILU,
    ACTIVATION_GELU_TANH, /* "gelu_new", "gelu_pytorch_tanh" */
    ACTIVATION_GELU,      /* by the error function */
    ACTIVATION_RELU,
    ACTIVATION_TANH,
    ACTIVATION_SCALE, /* none: x times attr.scale */
    ACTIVATION_COUNT
};

/* State of which there are two in host memory: the kept tensors, and what is not kept. One of them is valid. */
enum pair_half { HALF_ANY, HALF_HOME, HALF_AWAY };

/* Ranks that take part in an exchange: all, those of a node, or those with the same number on every node. */
enum among { AMONG_ALL, AMONG_NODE, AMONG_NODES };

/* How a sample's rows are reduced to one vector. */
enum pooling { POOLING_MEAN, POOLING_FIRST, POOLING_COUNT };

/* Lines of a quantised weight, and the number of their block type (tensor/blocks.h). */
struct op_lines {
    int type;
    int64_t lines; /* 0: no more */
};
#define OP_LINE_PARTS 3

/* Attributes; op.h says which of them an op reads. */
struct op_attr {
    int heads, kv_heads, head_dim;
    enum mask_kind mask;             /* attention */
    int window;                      /* MASK_CAUSAL: sliding window, 0: none */
    int sparse_block;                /* MASK_BLOCKS: keys per block */
    int local_blocks, global_blocks; /* MASK_BLOCKS: nearest and first blocks */
    enum activation activation;      /* act and glu */
    float cap;                       /* soft-cap of attention's scores, xent's logits, act's tanh; 0: none */
    bool two_sided;  /* attention's bias: keys after and before the query have separate buckets */
    int bias_reach;  /* attention's bias: distance from which all keys are in the last bucket */
    float dropout;   /* probability that a number is dropped */
    bool cached;     /* attention over a KV cache */
    bool whole_rows; /* attention: each row is one sample, pos[t] == t; faster kernels may rely on it */
    bool standard;   /* attention by plain loops over all scores, for debugging */
    bool repeatable; /* same bits on every run, at any cost; any op */
    bool tf32;       /* linear and its gradients: fp32 operands may be multiplied with 10-bit mantissas */
    bool split;      /* linear and its gradients: fp32 operands may be multiplied as sums of two bf16 parts */
    bool fast_sums;  /* linear8: the device may keep fewer bits of a sum than fp32 has */
    bool layer_norm; /* norm: LayerNorm instead of RMSNorm */
    bool plus_one;   /* norm: an RMSNorm whose weight is 1 + w */
    bool joint;      /* glu: gate and up are the halves of one operand's rows */
    bool back;       /* rope: rotates back */
    enum pooling pooling; /* pool */
    bool normalize;       /* pool: vectors of length 1 */
    bool once;            /* take: only the first of two places */
    bool fresh;           /* linear_dw: overwrite dW, even where db is added to */
    bool
        weight_kn; /* linear: weight stored [in,out] (Conv1D) instead of [out,in]; embed: [C,V] instead of [V,C] */
    int top_k;                         /* router_loss: experts of a row */
    bool norm_topk;                    /* route: weights of a row sum to 1 */
    float balance, z_loss;             /* router_loss: factors of its two losses */
    struct preference_rule preference; /* preference */
    bool nesterov;
    float eps;   /* norm, optimizers */
    float scale; /* attention's products, embed's rows, rope_table, pool's vectors, act's scale (0: 1) */
    float beta1, beta2, decay;
    float limit;     /* adafactor: largest rms of a step before the learning rate */
    bool stochastic; /* optimizers: rounding of bf16 results */
    uint32_t stream; /* of random bits: one per parameter, and one per op with dropout */
    /* First element of the parameter in this slice; embed: the table's row for id 0. */
    int64_t first;
    /* linear_q, embed_q, expert_linear_q: format of the weight's bytes. linear, its gradients, adapter_linear: lines of each part. */
    struct op_lines lines[OP_LINE_PARTS];
    bool keep_x;      /* products with weights in blocks: x is not rounded to 8 bits */
    bool e4m3;        /* kv_put8, attn_paged8: codes are e4m3 numbers instead of whole ones */
    enum among among; /* collectives */
    bool on_host;     /* computed by the CPU of a device with its own memory, on operands in host memory */
    bool behind;      /* of a store: it may run until the hold that follows */
    bool primes;      /* of a store: it only runs before the first of several steps (exec_prime) */
    /* Updates by the host before the norm is known (tape/offload_pairs.c). */
    bool guesses;       /* the clip is taken not to bind */
    bool redoes;        /* does nothing where that was right, or where the step is skipped */
    unsigned char half; /* enum pair_half: it only runs while this half is valid */
};

struct op {
    int kind; /* enum op_kind, op.h */
    int layer;
    enum op_part part;
    enum accumulate accumulate;
    int in[OP_MAX_IN], out[OP_MAX_OUT]; /* tensor ids; -1: none */
    struct op_attr attr;
};

/* Memory for a list of ops. */
struct op_room {
    struct op *ops;
    int cap;
};

struct tape {
    struct tensor *tensors;
    int ntensors, tensor_cap;
    struct op *ops;
    int nops, op_cap;
    int loop_end;
    /* Tensors are sharded within each node: pieces are numbered by the rank on its node. */
    bool node_pieces;
    bool failed;
    bool borrowed;          /* ops belong to another tape (tape_borrow) */
    struct op_room room[2]; /* for the next list of ops; empty if ops is NULL */
};

/* Scalars the host writes into the tensor labelled "step.scalars" (f32) before a tape runs. */
enum step_scalar {
    SCALAR_LOSS_GRAD, /* factor of d(sum of token losses): loss scale / tokens of the window */
    SCALAR_LR,
    SCALAR_BIAS1,   /* 1 - beta1^step */
    SCALAR_BIAS2,   /* 1 - beta2^step */
    SCALAR_CLIP,    /* largest global norm, 0: no clipping */
    SCALAR_UNSCALE, /* 1 / loss scale */
    SCALAR_BETA2,   /* Adafactor: 1 - step^-0.8 */
    SCALAR_KEY_LOW, /* 32 random bits of this step, in two whole numbers below 65536 */
    SCALAR_KEY_HIGH,
    SCALAR_FIRST_ROW, /* dropout: index of the micro-batch's first row in the step's batch; a whole number */
    SCALAR_ROW_SKIP,  /* dropout: rows of other ranks between two rows of the micro-batch */
    /* Auxiliary losses: factor of d(loss of a micro-batch): loss scale / passes of the step on all ranks. */
    SCALAR_AUX_GRAD,
    SCALAR_SAMPLE_GRAD, /* preference: factor of d(sum of samples' losses): loss scale / samples of the window */
    SCALAR_COUNT = 16
};

/* Label of the scalars that pending updates read, if the tape has such (pass_update.c). */
#define UPDATE_SCALARS "pending.scalars"

/* Values that OP_CLIP writes for the optimizer ops. */
enum clip_value {
    CLIP_MULTIPLIER, /* factor of every gradient */
    CLIP_NORM,       /* global norm after unscaling */
    CLIP_FINITE,     /* 1: update; 0: skip this step */
    CLIP_COUNT = 4
};

/* Values that OP_FACTOR_STAT writes for OP_ADAFACTOR. */
enum factor_value {
    FACTOR_SCALE, /* factor of the step */
    FACTOR_MEAN,  /* of the row statistic */
    FACTOR_COUNT = 2
};

void tape_init(struct tape *tape);
void tape_release(struct tape *tape);
/* Empties a tape and keeps its memory, for callers that make one tape after another. */
void tape_clear(struct tape *tape);

/* Makes `tape` a copy of `from`: the tensors are copied, the ops are shared until a pass takes them. `from` must not
 * change until then. Returns false and sets the sticky failure when memory is out. */
bool tape_borrow(struct tape *tape, const struct tape *from);

/* Frees memory that a finished tape does not use. */
void tape_trim(struct tape *tape);

int tape_tensor(struct tape *tape, const struct tensor *t);
/* Rows [first, first+rows) of the outermost dimension of `of` (which may itself be a view). */
int tape_view_rows(struct tape *tape, int of, int64_t first, int64_t rows);

/* An op with no inputs and outputs yet. */
static inline struct op tape_op(int kind, int layer)
{
    struct op op = {.kind = kind, .layer = layer};
    memset(op.in, -1, sizeof op.in);
    memset(op.out, -1, sizeof op.out);
    return op;
}

/* Called by tape_append and tape_add when the list of ops must grow. */
bool tape_grow_ops(struct tape *tape);
void tape_append_grown(struct tape *tape, const struct op *op);

static inline void tape_append(struct tape *tape, const struct op *op)
{
    if (tape->nops < tape->op_cap)
        tape->ops[tape->nops++] = *op;
    else
        tape_append_grown(tape, op);
}

/* Appends an op without operands. Returns NULL when memory is out; the pointer is valid until the next op is added. */
static inline struct op *tape_add(struct tape *tape, int kind, int layer)
{
    if (tape->nops == tape->op_cap && !tape_grow_ops(tape)) return NULL;
    struct op *op = &tape->ops[tape->nops++];
    memset(op, 0, sizeof *op);
    op->kind = kind, op->layer = layer;
    memset(op->in, -1, sizeof op->in);
    memset(op->out, -1, sizeof op->out);
    return op;
}

/* For a pass that rewrites all ops: takes the old ones, read-only, and leaves the tape without ops.
 *
 *     struct op_list old = tape_take_ops(tape);
 *     for (int i = 0; i < old.count; i++) ... tape_append(tape, &old.ops[i]) ...
 *     tape_drop_ops(tape, &old);
 */
struct op_list {
    const struct op *ops;
    int count;
    struct op_room room; /* their memory, unless they belong to another tape */
};
struct op_list tape_take_ops(struct tape *tape);
void tape_drop_ops(struct tape *tape, struct op_list *old);

/* The tensor whose lifetime and bytes `id` shares: itself, unless it is a view. */
static inline int tape_root(const struct tape *tape, int id)
{
    return tape->tensors[id].view_of >= 0 ? tape->tensors[id].view_of : id;
}

/* Elements of the parameters: of all, or of those that are trained. */
int64_t tape_param_count(const struct tape *tape, bool trained_only);

/* True if some op applies dropout. */
bool tape_drops(const struct tape *tape);

/* First tensor with that label and layer (-1: any), or -1. */
int tape_find(const struct tape *tape, const char *label, int layer);

/* "model.layers.3.mlp.up_proj.weight", "grad(...)", "mlp.gate[3]": returns buf. */
const char *tape_tensor_name(const struct tape *tape, int id, char *buf, size_t size);

/* Checks every invariant of a tape:
 *  1. ids are in range, missing operands are allowed by the op's row, arity and shapes obey the row's rule
 *  2. an operand was written before it is read (or is kept or an input); views are inside their root
 *  3. an op that adds to its output follows one that wrote it
 *  4. kept tensors are written only in the update part or by cache ops; 0 <= loop_end <= nops
 *  5. only copies cross tiers: other ops have all operands on the device or, with attr.on_host, in host memory */
enum plim_status tape_verify(const struct tape *tape, struct plim_error *err);

/* One line per op: "  12 bwd  3 linear_dx  grad(mlp.h[3]):bf16[8,256,1024] <- ..." */
void tape_print(const struct tape *tape, struct strbuf *out);
/* All that an op's cost depends on, by slots: "bf16[8,256] bf16[1024,256] - > bf16[8,1024] weight_kn=1". */
void tape_print_shapes(const struct tape *tape, int op, struct strbuf *out);
/* Attributes of such a line, for its reader; name NULL behind the last. */
struct tape_shape_attr {
    const char *name;
    int64_t (*get)(const struct op_attr *attr);
    void (*set)(struct op_attr *attr, int64_t value);
};
extern const struct tape_shape_attr tape_shape_attrs[];
