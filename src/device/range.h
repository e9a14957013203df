/* range.h - a range of a plan's ops for a backend: what to compute, and where the operands are.
 *
 *     struct device_range range = {&plan.tape, &plan.layout, 0, tape.loop_end, .first = true};
 *     dev->ops->compile(dev, &range, &program, &err);                        // the whole range
 *     device_run_ops(dev, &range, i, i + 1);                                 // or op by op
 *
 * An operand is a tensor of the tape; its bytes are [layout.offset, + size) of its tier's memory. A backend with
 * addresses gets calls with pointers, made here (device_call). A backend without addresses reads tape and layout
 * itself in `compile`; it still has a table of kernels that says which ops it supports.
 */
#pragma once

#include "device/kernel.h"
#include "plan/layout.h"

struct device;

struct device_range {
    const struct tape *tape;
    const struct layout *layout;
    int begin, end; /* ops */
    bool first;     /* first micro-batch of a window: overwrites what later ones add to */
    bool pending;   /* only the updates that the loop begins with (pass_update.c, inside forward) */
    bool priming;   /* only stores that fill the host's copies of weights */
    bool away;      /* which half of the host's pairs is valid (enum pair_half) */
    bool timed;     /* its ops are timed (device_ops.time_op) */
    /* Queues an exchange between ranks; called for each such op. NULL: the range has none. */
    enum plim_status (*collect)(const struct device_range *range, int op);
    void *arg; /* collect's */
};

/* True if this op adds to its outputs instead of overwriting them. */
static inline bool device_accumulates(const struct device_range *range, const struct op *op)
{
    return op->accumulate == ACC_ADD || (op->accumulate == ACC_AFTER_FIRST && !range->first);
}

/* True for an op that does not run: a fetch in the first micro-batch, which overwrites the tensor; an update inside the loop in
 * later micro-batches; in a pending range all ops but updates of the step before; in a priming range all stores but those that
 * prime, which run in no other; ops for the other half of the host's pairs. */
static inline bool device_skips(const struct device_range *range, const struct op *op)
{
    if (op->attr.primes != range->priming) return true;
    if (op->attr.half != HALF_ANY && (op->attr.half == HALF_AWAY) != range->away) return true;
    if (op->part != PART_UPDATE || op->attr.guesses ? range->pending : !range->first) return true;
    return op->kind == OP_FETCH && op->accumulate == ACC_AFTER_FIRST && range->first;
}

/* The address of a tensor in the arena or in the host tier. */
void *device_address(struct device *dev, const struct device_range *range, int tensor);

/* The op with its operands resolved. */
struct kernel_call device_call(struct device *dev, const struct device_range *range, int op);

/* Passes ops [begin, end) to the device's run or run_host or, if there are several, to run_many: a group
 * (tape/group.h) or a fused run (plan/fuse.h). */
void device_run_ops(struct device *dev, const struct device_range *range, int begin, int end);

/* Runs the op's copy between the arena and the host tier, unless device_skips. */
void device_move(struct device *dev, const struct device_range *range, const struct op *op);

/* Passes a whole range to the device, with groups and fused runs, in order. For backends that record a
 * program. No op of the range touches the disk. */
enum plim_status device_give(struct device *dev, const struct device_range *range);
