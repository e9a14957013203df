/* pass.h - passes that rewrite a tape. Each is a pure function of the tape and its options, in its own file.
 *
 * The order in which a training tape is made:
 *
 *     model_emit        forward ops in f32, ending in linear + xent
 *     pass_precision    chooses the narrow tensors
 *     pass_loss_chunks  computes the head over row slices, so that logits [B,T,V] never exist as a whole
 *     pass_grad         adds backward ops; each head slice is differentiated in place
 *     pass_fp8          converts operands of the blocks' products to fp8
 *     pass_recompute    drops chosen activations and recomputes them
 *     pass_update       adds optimizer ops: at the end, inside backward, or inside the next step's forward
 *     pass_shard        divides classes of tensors among ranks and adds the exchanges
 *     pass_offload      moves classes of tensors to a lower tier and adds fetch and store ops; decides who updates them
 *     pass_offload_activations         offloads activations of chosen layers until backward
 *     pass_prefetch       overlaps copies and exchanges with computing: earlier fetches, longer holds of stores' buffers
 *     pass_stage          splits copies between a GPU and a disk into two steps through host memory
 *
 * Every pass leaves a tape that tape_verify accepts and that tape_print can show.
 */
#pragma once

#include "tape/op.h"

/* Precision of a job: names, in this order, and the element type of each. fp8 is bf16 with pass_fp8. */
enum precision { PRECISION_F32, PRECISION_BF16, PRECISION_F16, PRECISION_F8, PRECISION_COUNT };
#define PRECISION_NAMES "fp32", "bf16", "fp16", "fp8"
const char *precision_name(enum precision p);
enum dtype precision_type(enum precision p);
enum precision precision_parse(const char *name); /* PRECISION_COUNT: no such name */

/* Parameters and activations take the compute type; statistics keep theirs. */
enum plim_status pass_precision(struct tape *tape, enum precision precision, struct plim_error *err);

/* Packs what rows i and rows / 2 + i of a batch [rows,time] begin with: packed positions for each such pair, inputs "share.pack" and
 * "share.wide" say which (data/share.h). Right behind the model and its adapters; not for experts, which count tokens. */
struct share_options {
    int64_t rows, time, packed;
};
enum plim_status pass_share(struct tape *tape, const struct share_options *options, struct plim_error *err);

/* Cuts the head into `chunks` slices of whole GEMM_KC rows, so that the weight gradient is summed in the same order
 * for any number. Makes fewer slices if the rows do not allow as many. */
enum plim_status pass_loss_chunks(struct tape *tape, int chunks, struct plim_error *err);

/* The head's ops, one behind the other: the output projection, with an adapter the product that is added to it, with DoRA the
 * scale of its columns. pass_head_before: the one before ops[i], whose result ops[i] reads in slot pass_head_slot; NULL: none. */
bool pass_is_head(const struct op *op);
int pass_head_slot(const struct op *op);
const struct op *pass_head_before(const struct op *ops, int i);
#define LOSS_CHUNK_ROWS 512

enum plim_status pass_grad(struct tape *tape, struct plim_error *err);

/* Products with the blocks' weights become products of fp8 numbers (linear8), their operands converted where they are made
 * (quantise8). Everything else, gradients of parameters and updates included, stays as it is. Runs between pass_grad and
 * pass_recompute. */
struct fp8_options {
    enum dtype gradients; /* type of dy: DT_E5M2 or DT_E4M3; x and W are e4m3 */
    /* Weights are converted once per step, for forward and backward, and kept until its end: two more bytes per element. Otherwise
     * each product converts its weight. */
    bool keep_weights;
};
/* PLIM_BAD_INPUT: the tape has no such product. */
enum { FP8_MULTIPLE = 16 }; /* of every dimension of a product, as tensor cores want it */
enum plim_status pass_fp8(struct tape *tape, const struct fp8_options *options, struct plim_error *err);

enum recompute { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, RECOMPUTE_COUNT };
const char *recompute_name(enum recompute r);

struct recompute_options {
    enum recompute policy; /* for layers not counted in full_layers */
    int full_layers;       /* number of layers recomputed in full regardless of the policy */
    int full_first;        /* the first of them */
};
enum plim_status pass_recompute(struct tape *tape, const struct recompute_options *options,
                                struct plim_error *err);

/* Keeps only the loop or the update; runs between pass_update and pass_offload. See pass_part.c. */
enum tape_part { TAPE_WHOLE, TAPE_LOOP, TAPE_UPDATE };
enum plim_status pass_part(struct tape *tape, enum tape_part part, bool grads_offloaded,
                           struct plim_error *err);

/* Stores gradients of parameters in the compute type instead of f32: half the bytes, one rounding per op that adds to
 * them. Runs after pass_grad and before pass_update. */
void pass_narrow_grads(struct tape *tape);

enum optimizer { OPTIMIZER_ADAMW, OPTIMIZER_SGD, OPTIMIZER_ADAMW8, OPTIMIZER_ADAFACTOR, OPTIMIZER_COUNT };
const char *optimizer_name(enum optimizer o);

/* Parameters with fewer elements keep f32 moments under OPTIMIZER_ADAMW8. */
#define ADAMW8_LEAST 4096

enum { UPDATE_PARTS = 3 };

struct update_options {
    enum optimizer optimizer;
    float beta1, beta2, eps, weight_decay; /* decay applies to parameters of two or more dimensions */
    float limit;                           /* Adafactor: largest rms of a step */
    bool no_master; /* a bf16 parameter is rounded stochastically instead of having an fp32 master */
    /* Moments are bf16, rounded stochastically (except 8-bit moments and Adafactor's statistics). */
    bool narrow_state;
    /* Rows of the parts of a parameter with {a,b,c} in its name: Adafactor keeps statistics per part. A parameter with other
     * rows (A of an adapter) has as many for each part. 0: no such parameter. */
    int64_t joint_rows[UPDATE_PARTS];
    bool global_norm; /* clipping or loss scaling: sum of squares of all gradients first */
    /* Update each parameter as soon as its gradient is complete. Needs accumulation 1 and no global norm. */
    bool in_backward;
    /* Update each parameter in the next step's first micro-batch, before forward reads it; only the global norm follows the
     * loop. See pass_update.c. */
    bool in_forward;
    bool guards_loss;    /* in_backward: skip updates if the loss is not finite; single rank only */
    enum tape_part part; /* TAPE_LOOP: omits what follows the global norm, since pass_part drops it */
    bool part_state;     /* of a loop: it has moments and masters, by which pass_offload chooses gradients */
};
enum plim_status pass_update(struct tape *tape, const struct update_options *options, struct plim_error *err);

/* With several ranks, each rank keeps only its piece of:
 *
 *     ZERO_NONE       nothing: every rank keeps everything
 *     ZERO_STATE      moments and masters (ZeRO 1)
 *     ZERO_GRADS      also gradients (ZeRO 2)
 *     ZERO_PARAMS     also parameters (ZeRO 3), gathered around the ops that read them
 *     ZERO_NODE       like ZERO_PARAMS, but sharded among the ranks of one node: every node has a whole model, and nodes
 *                     sum their gradients before the update (hybrid sharding)
 *
 * The stage does not decide the order of summation. At every stage, gradients are either summed over ranks in every
 * micro-batch and accumulate in pieces, or (whole_grads) accumulate whole and are summed once. So the first four stages
 * give the same bits for the same number of ranks and micro-batch; ZERO_NODE sums within each node first. Small tensors
 * (TENSOR_NEAR) stay whole and are summed once. */
enum zero { ZERO_NONE, ZERO_STATE, ZERO_GRADS, ZERO_PARAMS, ZERO_NODE, ZERO_COUNT };

struct shard_options {
    int ranks, rank;
    enum zero zero;
    int node_ranks;      /* ranks of a node, for ZERO_NODE; divides ranks */
    bool whole_grads;    /* gradients stay whole and are summed once, before the update */
    int64_t whole_below; /* parameters with fewer elements stay whole at every stage */
    /* A parameter stays gathered from forward to backward if at most this many elements of others are read in
     * between. */
    int64_t reuse;
};
enum plim_status pass_shard(struct tape *tape, const struct shard_options *options, struct plim_error *err);

struct offload_options {
    enum tier state_tier; /* tier of moments and masters; TIER_DEVICE: they stay */
    enum tier grad_tier;  /* tier where gradients wait between micro-batches and for the update */
    enum tier param_tier; /* tier of parameters while no op reads them */
    int64_t slice_bytes;  /* maximum offloaded bytes per slice of a parameter's update */
    bool overlap_disk; /* for a disk: slices are read ahead and written behind other ops (offload_near.c) */
    /* Offloaded parts of the state, out of OFFLOAD_SHARES (0: all); the last parameters' first. */
    int state_share;
    int param_share; /* likewise of the parameters */
    /* Slices of adamw and sgd with state in host memory that the CPU updates, out of OFFLOAD_SHARES. */
    int host_share;
    bool once; /* a step has one micro-batch: no gradient is fetched to be added to */
    /* Updates inside forward: those by the host that need nothing from the device are made as early as possible. */
    bool in_forward;
    /* Part of each of them that is made before the norm is known, out of OFFLOAD_SHARES; one micro-batch (offload_pairs.c). */
    int before_norm;
    /* Below host memory: parts that are on disk, out of OFFLOAD_SHARES parts of the state and then as many of the
     * parameters that leave the device. */
    int disk_share;
};
#define OFFLOAD_SHARES 16

enum plim_status pass_offload(struct tape *tape, const struct offload_options *options,
                              struct plim_error *err);

/* Offloads the activations of the first layers that backward reads to host memory in the meantime; for devices with
 * their own memory. `pace`: copying one layer's activations takes at most as long as computing this many layers. */
enum plim_status pass_offload_activations(struct tape *tape, int layers, double pace, struct plim_error *err);

/* For devices that overlap copies with computing. Moves fetches this many computing ops earlier, as far as the tape
 * allows, and holds buffers for as many ops after a store, so that later ops do not wait for their bytes. The
 * update's fetches are early already, and offloaded activations have their own holds. Overlapped exchanges between
 * ranks work alike: gathers of the loop come earlier, and what an exchange reads is held longer. */
struct prefetch_options {
    int loop_lead, loop_lag, update_lag;
    int state_lead,
        weights_lead; /* of updates inside the loop: state they need, weights that the host returns */
    int gather_lead, exchange_lag, exchange_update_lag;
    int64_t most_ahead, most_live; /* maximum elements gathered ahead, and whole at once; 0: no limit */
};
enum plim_status pass_prefetch(struct tape *tape, const struct prefetch_options *options,
                               struct plim_error *err);

/* For devices with their own memory, after all passes that order copies: tensors on disk pass through stages in host
 * memory, each at most this many bytes unless a row has more. */
enum plim_status pass_stage(struct tape *tape, int64_t most, struct plim_error *err);
