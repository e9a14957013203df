/* offload.h - shared by the files of pass_offload: how an update is cut into slices, and who emits them.
 * pass_offload_activations uses its copy between tiers. */
#pragma once

#include "tape/pass.h"

static inline bool is_offloaded(const struct tape *tape, int id)
{
    return id >= 0 && tape->tensors[id].tier != TIER_DEVICE;
}

/* Flags of the near copy of an offloaded tensor. */
static inline unsigned offload_near_flags(const struct tensor *far)
{
    return far->tier == TIER_DISK ? TENSOR_OF_DISK : 0;
}

/* Part of an operand, in its own outermost dimension. */
struct part {
    int64_t first, rows;
};

/* The part of operand `slot` that belongs to rows [first, first + rows) of the parameter. */
struct part offload_part(const struct tape *tape, const struct op *op, int slot, int64_t first, int64_t rows);

/* That part as a tensor: the operand itself if it is whole, else a view. */
int offload_view(struct tape *tape, const struct op *op, int slot, struct part part);

/* True if this operand is cut with the parameter's rows (unlike scalars). */
bool offload_is_cut(const struct op *op, int slot);

/* Rows per slice: as many as slice_bytes allow, at least one, in multiples that may not be divided. 0: no
 * operand is offloaded, so nothing is cut. */
int64_t offload_rows(const struct tape *tape, const struct op *op, int64_t slice_bytes);

/* The first element of a row in the parameter. */
int64_t offload_first(const struct tape *tape, const struct op *op, int64_t row);

/* A copy between tiers, `like` the op it serves. */
void offload_move(struct tape *tape, const struct op *like, int kind, int from, int to);

/* --- offload_near.c: the device fetches state, updates, stores ------------------------------------------------ */

/* One slice of one update: the op on near operands, and the offloaded ones. */
struct near_slice {
    struct op op;
    int near[OP_MAX_IN], far[OP_MAX_IN]; /* by input slot; -1: not moved */
};

/* Slices that are fetched but not yet computed: one of the current update, and the first of the next; and a
 * hold for the slice that is being stored. */
struct near_updates {
    bool behind; /* slices are stored while the next one is computed */
    struct near_slice waiting, ahead;
    bool has_waiting, has_ahead;
    struct op hold;
    int nheld; /* operands of the hold; 0: nothing is being stored */
};

/* Emits rows [first, first + rows) of the parameter. */
void near_update(struct near_updates *n, struct tape *tape, const struct op *op, int64_t first, int64_t rows);
/* Fetches the first slice of the next update from here on; other ops come before that update. */
void near_ahead(struct near_updates *n, struct tape *tape, const struct op *op, int64_t rows);
/* Emits the rest of the current update. */
void near_finish(struct near_updates *n, struct tape *tape);
/* Emits the hold of the slice being stored. */
void near_settle(struct near_updates *n, struct tape *tape);

/* --- offload_host.c: the CPU updates where the state is ------------------------------------------------------- */

#define HOST_STAGES  4 /* slices in progress: one comes down, one is computed, two wait to go up */
#define HOST_RETURNS (HOST_STAGES - 2)
#define HOST_COPIES  3 /* scalars, of this step and the one before, and clip */

struct host_updates {
    bool early; /* updates inside forward: weights have copies on the host, and slices no stages */
    int stage[HOST_STAGES];
    int next;
    int copied[HOST_COPIES], copy[HOST_COPIES], ncopies; /* small operands, and their copies on the host */
    /* Weights that are computed but not yet copied back: returns [returned, nreturns). */
    struct host_return {
        const struct op *like; /* points to the ops before the pass */
        int from, to;
        enum pair_half half;
    } * returns;
    int returned, nreturns, cap;
    /* Updates before the norm, by their gradient (offload_pairs.c). */
    struct host_pair {
        int grad;
        struct op ops[2]; /* from home, from away */
    } * pairs;
    int npairs, pair_cap;
};

/* True if the CPU can do this update. Its state, if any, must be in host memory. */
bool host_can_update(const struct tape *tape, const struct op *op);

/* Creates the stages, large enough for the largest slice of these ops. */
void host_begin(struct host_updates *h, struct tape *tape, const struct op *ops, int nops,
                int64_t slice_bytes);
void host_update(struct host_updates *h, struct tape *tape, const struct op *op, int64_t first, int64_t rows);
/* Emits the copies of weights that `op` reads. */
void host_return(struct host_updates *h, struct tape *tape, const struct op *op);
/* Emits the copies of all remaining weights. */
void host_finish(struct host_updates *h, struct tape *tape);
void host_release(struct host_updates *h);
/* Rows [first, first + rows) of an update as an op of the host; *near: the rows of the parameter that it changes a copy of, or -1. */
struct op host_op(struct host_updates *h, struct tape *tape, const struct op *op, int64_t first, int64_t rows,
                  int *near);
/* Where a small operand is on the host; it comes down when it is first asked for. */
int host_copy_of(struct host_updates *h, struct tape *tape, const struct op *op, int id);
/* A weight returns to the device before it is read. */
void host_return_later(struct host_updates *h, struct tape *tape, const struct host_return *r);
/* True if the host's part of this update needs nothing from the device but a clip value and scalars: it may run at any time before
 * the parameter is read. */
bool host_is_early(const struct host_updates *h, const struct tape *tape, const struct op *op);

/* --- offload_pairs.c: the host updates before the norm is known ----------------------------------------------- */

/* True if an early update can be made before the norm: the device has the parameter. */
bool pair_can_update(const struct tape *tape, const struct op *op);
/* Emits what ends the update of the step before, and remembers the update itself. */
void pair_update(struct host_updates *h, struct tape *tape, const struct op *op, int64_t first, int64_t rows);
/* Emits the updates with this gradient, which is on the host for good. */
void pair_begin(struct host_updates *h, struct tape *tape, int grad);
