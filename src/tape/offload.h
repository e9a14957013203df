/* offload.h - what the files of pass_offload share: how an update is cut into slices, and who emits them. Of it pass_offload_activations
 * takes the copy between tiers. */
#ifndef PLIM_TAPE_OFFLOAD_H
#define PLIM_TAPE_OFFLOAD_H

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

/* That part as a tensor: the operand itself when it is all of it, else a view. */
int offload_view(struct tape *tape, const struct op *op, int slot, struct part part);

/* Does this operand go along with the parameter's rows (unlike scalars)? */
bool offload_is_cut(const struct op *op, int slot);

/* Rows of a slice: as many as slice_bytes allow, at least one, in multiples of what may not be parted. 0: none of the
 * operands is offloaded, there is nothing to cut. */
int64_t offload_rows(const struct tape *tape, const struct op *op, int64_t slice_bytes);

/* Element of the parameter with which a row begins. */
int64_t offload_first(const struct tape *tape, const struct op *op, int64_t row);

/* A copy between tiers, `like` the op it serves. */
void offload_move(struct tape *tape, const struct op *like, int kind, int from, int to);

/* --- offload_near.c: the device fetches state, updates, stores ------------------------------------------------ */

/* One slice of one update: the op on near operands, and the offloaded ones. */
struct near_slice {
    struct op op;
    int near[OP_MAX_IN], far[OP_MAX_IN]; /* by input slot; -1: not moved */
};

/* Slices that are fetched but not yet computed: one of the present update, and the next one's first; and a hold of the slice that is
 * being stored. */
struct near_updates {
    bool behind; /* slices are stored while the next one is computed */
    struct near_slice waiting, ahead;
    bool has_waiting, has_ahead;
    struct op hold;
    int nheld; /* operands of it; 0: nothing is being stored */
};

/* Rows [first, first + rows) of the parameter. */
void near_update(struct near_updates *n, struct tape *tape, const struct op *op, int64_t first, int64_t rows);
/* The first slice of the update that comes next, with other ops before it, is fetched from here on. */
void near_ahead(struct near_updates *n, struct tape *tape, const struct op *op, int64_t rows);
/* Emits what is left of the present update. */
void near_finish(struct near_updates *n, struct tape *tape);
/* Emits the hold of the slice being stored. */
void near_settle(struct near_updates *n, struct tape *tape);

/* --- offload_host.c: the CPU updates where the state is ------------------------------------------------------- */

#define HOST_STAGES  4 /* slices under way: one comes down, one is computed, two wait to go up */
#define HOST_RETURNS (HOST_STAGES - 2)
#define HOST_COPIES  2 /* scalars and clip */

struct host_updates {
    int stage[HOST_STAGES];
    int next;
    int copied[HOST_COPIES], copy[HOST_COPIES], ncopies; /* small operands and where they are on the host */
    /* Weights that are computed but not on their way back. */
    struct {
        const struct op *like; /* of the ops before the pass */
        int from, to;
    } returns[HOST_RETURNS];
    int nreturns;
};

/* Can the CPU do this update? Its state, if it has any, must be in host memory. */
bool host_can_update(const struct tape *tape, const struct op *op);

/* Makes the stages, as large as the largest slice of these ops needs them. */
void host_begin(struct host_updates *h, struct tape *tape, const struct op *ops, int nops,
                int64_t slice_bytes);
void host_update(struct host_updates *h, struct tape *tape, const struct op *op, int64_t first, int64_t rows);
/* Emits the copies of all remaining weights. */
void host_finish(struct host_updates *h, struct tape *tape);

#endif
