/* pass.h - tape to tape. Each pass is a pure function of the tape and its options, and each is its own file.
 *
 * The order in which a training tape is made:
 *
 *     model_emit        forward ops in f32, ending in linear + xent
 *     pass_precision    which tensors are narrow
 *     pass_loss_chunks  the head over row slices, so that logits [B,T,V] never exist
 *     pass_grad         backward ops; each head slice is differentiated where it stands
 *     pass_recompute    chosen activations are dropped and recomputed
 *     pass_update       optimizer ops, at the end or inside the backward part
 *     pass_shard        which class is in pieces, one on each rank, with the exchanges between ranks
 *     pass_offload      which class lives on a lower tier, with fetch and store ops, and who updates it
 *     pass_offload_activations         activations of chosen layers are offloaded until backward
 *     pass_prefetch       copies and exchanges run beside computing: fetches earlier, buffers of stores held longer
 *     pass_stage          copies between a GPU and a disk, in two steps through host memory
 *
 * Every pass leaves a tape that tape_verify accepts and that tape_print can show.
 */
#ifndef PLIM_TAPE_PASS_H
#define PLIM_TAPE_PASS_H

#include "tape/op.h"

/* What a job computes in: its names, in this order, and the element type of each. */
enum precision { PRECISION_F32, PRECISION_BF16, PRECISION_F16, PRECISION_COUNT };
#define PRECISION_NAMES "fp32", "bf16", "fp16"
const char *precision_name(enum precision p);
enum dtype precision_type(enum precision p);
enum precision precision_parse(const char *name); /* PRECISION_COUNT: no such name */

/* Parameters and activations take the compute type; statistics keep theirs. */
enum plim_status pass_precision(struct tape *tape, enum precision precision, struct plim_error *err);

/* Cut the head into `chunks` slices of whole GEMM_KC rows (so that the weight gradient is summed in the same
 * order whatever the number); fewer slices are made when the rows do not allow as many. */
enum plim_status pass_loss_chunks(struct tape *tape, int chunks, struct plim_error *err);
#define LOSS_CHUNK_ROWS 512

enum plim_status pass_grad(struct tape *tape, struct plim_error *err);

enum recompute { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, RECOMPUTE_COUNT };
const char *recompute_name(enum recompute r);

struct recompute_options {
    enum recompute policy; /* for layers not counted in full_layers */
    int full_layers;       /* this many layers are recomputed in full whatever the policy, */
    int full_first;        /* from this one on */
};
enum plim_status pass_recompute(struct tape *tape, const struct recompute_options *options,
                                struct plim_error *err);

/* The loop or the update alone, between pass_update and pass_offload; see pass_part.c. */
enum tape_part { TAPE_WHOLE, TAPE_LOOP, TAPE_UPDATE };
enum plim_status pass_part(struct tape *tape, enum tape_part part, bool grads_offloaded,
                           struct plim_error *err);

/* Gradients of parameters of the compute type take that type too, instead of f32: half the bytes, one rounding per
 * op that adds to them. After pass_grad, before pass_update. */
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
    bool
        narrow_state; /* moments are bf16, rounded stochastically (not those of 8 bits, nor Adafactor's statistics) */
    /* Rows of the parts of a parameter whose name has {a,b,c} in it: Adafactor's statistics are each part's own. 0: there is
     * no such parameter. */
    int64_t joint_rows[UPDATE_PARTS];
    bool global_norm;    /* clipping or loss scaling: sum of squares of all gradients first */
    bool in_backward;    /* each parameter is updated as soon as its gradient is complete;
                                              needs accumulation 1 and no global norm */
    bool guards_loss;    /* in_backward: nothing is updated when the loss is not finite; of one rank alone */
    enum tape_part part; /* TAPE_LOOP: what follows the global norm is left out, for pass_part drops it */
};
enum plim_status pass_update(struct tape *tape, const struct update_options *options, struct plim_error *err);

/* Of several ranks each has a piece of:
 *
 *     ZERO_NONE       nothing of what is kept from step to step
 *     ZERO_STATE      moments and masters (ZeRO 1)
 *     ZERO_GRADS      and gradients (ZeRO 2)
 *     ZERO_PARAMS     and parameters (ZeRO 3), gathered around the ops that read them
 *     ZERO_NODE       the same, but pieces are of the ranks of a node: every node has a whole model, and nodes sum
 *                     their gradients before the update (hybrid sharding)
 *
 * The order of summation is not the stage's: gradients are summed over ranks in every micro-batch and accumulate in
 * pieces, or (whole_grads) accumulate whole and are summed once, at every stage alike. So the first four give the same bits at
 * the same number of ranks and micro-batch; nodes are summed one by one first. Small tensors (TENSOR_NEAR) stay whole and are summed once. */
enum zero { ZERO_NONE, ZERO_STATE, ZERO_GRADS, ZERO_PARAMS, ZERO_NODE, ZERO_COUNT };

struct shard_options {
    int ranks, rank;
    enum zero zero;
    int node_ranks;      /* of a node, for ZERO_NODE: divides ranks */
    bool whole_grads;    /* gradients are summed once, before the update, and whole until then */
    int64_t whole_below; /* parameters with fewer elements stay whole at every stage */
    int64_t
        reuse; /* a parameter stays whole from forward to backward where no more elements of others are read between */
};
enum plim_status pass_shard(struct tape *tape, const struct shard_options *options, struct plim_error *err);

struct offload_options {
    enum tier state_tier; /* where moments and masters live; TIER_DEVICE: they stay */
    enum tier grad_tier;  /* where gradients wait between micro-batches and for the update */
    enum tier param_tier; /* where parameters live while no op reads them */
    int64_t slice_bytes;  /* a parameter is updated in slices with at most so many offloaded bytes */
    bool beside;          /* of a disk: slices are read ahead and written behind other ops (offload_near.c) */
    int state_share; /* of OFFLOAD_SHARES parts of the state, so many leave (0: all); the last parameters' first */
    int param_share; /* likewise of the parameters */
    int host_share; /* of OFFLOAD_SHARES slices of adamw and sgd with state in host memory, so many the CPU updates */
    /* Below the host's memory: of OFFLOAD_SHARES parts of the state and, beyond them, of as many of the parameters, so many
     * are on disk, of those that leave the device. */
    int disk_share;
};
#define OFFLOAD_SHARES 16

enum plim_status pass_offload(struct tape *tape, const struct offload_options *options,
                              struct plim_error *err);

/* Activations of so many first layers that backward reads are offloaded to host memory meanwhile; for devices with
 * their own. `pace`: copying a layer's activations takes as long as computing so many layers, at most. */
enum plim_status pass_offload_activations(struct tape *tape, int layers, double pace, struct plim_error *err);

/* For devices that copy beside computing: fetches so many computing ops earlier, as far as the tape allows, and buffers
 * held for so many more behind a store, so that what comes next does not wait for their bytes. The update part's fetches
 * are early already, and offloaded activations have holds of their own. Likewise for exchanges between ranks that run
 * beside computing: gathers of the loop come earlier, and what an exchange reads is held longer. */
struct prefetch_options {
    int loop_lead, loop_lag, update_lag;
    int gather_lead, exchange_lag, exchange_update_lag;
    int64_t most_ahead,
        most_live; /* elements gathered before they are read, and whole at once; 0: no limit */
};
enum plim_status pass_prefetch(struct tape *tape, const struct prefetch_options *options,
                               struct plim_error *err);

/* For devices with their own memory, after all that orders copies: what is on disk comes and goes through stages in host
 * memory, of at most so many bytes each unless a row has more. */
enum plim_status pass_stage(struct tape *tape, int64_t most, struct plim_error *err);

#endif
