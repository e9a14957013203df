/* kernel.h - one op with its operands resolved, as passed to a backend's kernel. Also valid in CUDA C++. */
#pragma once

#include "tape/op.h"

struct threads;

struct kernel_call {
    const struct op *op;
    const struct tensor *desc[OP_MAX_IN + OP_MAX_OUT]; /* of in[0..], then of out[0..]; NULL: no operand */
    void *in[OP_MAX_IN];
    void *out[OP_MAX_OUT];
    bool accumulate; /* add to outputs marked acc instead of overwriting them */
    bool passed;     /* first of a fused run: nobody else reads its first result, which need not be written */
    void *work;      /* workspace() bytes, 64-byte aligned (256 on a GPU) */
    struct threads *team; /* CPU only */
    void *backend;        /* other backends' state, set by run */
};

typedef void kernel_run(const struct kernel_call *call);
typedef size_t kernel_workspace(const struct tensor *const *desc, const struct op *op, int threads);

struct kernel {
    kernel_run *run;
    kernel_workspace *workspace; /* NULL: needs none */
};

/* Access to a call: descriptors, and the size of the last dimension. */
static inline const struct tensor *call_in(const struct kernel_call *call, int slot)
{
    return call->desc[slot];
}

static inline const struct tensor *call_out(const struct kernel_call *call, int slot)
{
    return call->desc[OP_MAX_IN + slot];
}

static inline int64_t last_dim(const struct tensor *t) { return t->dim[t->ndim - 1]; }
