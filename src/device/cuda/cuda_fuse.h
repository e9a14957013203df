/* cuda_fuse.h - neighbouring ops of few rows that become one launch: a norm or a gated unit with the linear that reads it,
 * two linears of the same rows, and the split of queries, keys and values with what puts keys and values into blocks.
 *
 *     if (!cuda_fuse_add(&fuse, call)) {                  // does not go with what is held
 *         cuda_fuse_launch(&fuse, queue);                 // that first
 *         if (!cuda_fuse_add(&fuse, call)) run it alone;
 *     }
 *     if (cuda_fuse_full(&fuse)) cuda_fuse_launch(&fuse, queue);
 *
 * Invariants
 *  1. Everything an op writes is written, but for what op.attr.read_once says only the next op reads.
 *  2. No launch writes what another block of it may still read: operands that overlap are not fused.
 *  3. A held op is launched before anything that comes behind it: the caller sees to it.
 *
 * A call that is held refers to its tape until it is launched. Which ops go together depends on shapes, addresses and the
 * order of the tape alone. */
#ifndef PLIM_DEVICE_CUDA_CUDA_FUSE_H
#define PLIM_DEVICE_CUDA_CUDA_FUSE_H

#include "device/cuda/kernels.h"

struct cuda_fuse {
    struct kernel_call source, linear[2], split, put;
    bool has_source, has_split, has_put;
    int linears;
};

/* False: the op is not taken. */
bool cuda_fuse_add(struct cuda_fuse *f, const struct kernel_call *call);
static inline bool cuda_fuse_empty(const struct cuda_fuse *f)
{
    return !f->has_source && !f->linears && !f->has_split;
}
static inline bool cuda_fuse_full(const struct cuda_fuse *f) { return f->linears == 2 || f->has_put; }
/* What is held, if anything; cudaError_t as an int. Nothing is held afterwards. */
int cuda_fuse_launch(struct cuda_fuse *f, const struct cuda_queue *queue);

#endif
