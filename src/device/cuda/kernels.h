/* kernels.h - every kernel of the CUDA backend, by the list of ops; cuda_device.c has the table.
 *
 * tape/op.h defines what each computes. A launcher reads the call, launches on queue->stream and returns cudaError_t as an
 * int (0: launched). Rules for all of them:
 *  1. They allocate nothing and do not wait: a launcher may run while a graph is being captured. Everything a kernel reads
 *     from the host is a launch argument. call->work has the bytes that cuda_workspace gives.
 *  2. Sums have a fixed order: the same operands give the same bits on every run (no float atomics).
 *  3. Outputs may take over the bytes of the inputs that op_shares(kind, slot) names; norm_bwd also writes dx
 *     over dy, glu_bwd its results over any of its inputs, elementwise ops over either operand.
 *  4. Any sizes work; sizes that allow it (pointers are 256-byte aligned at a tensor's start, rows a multiple of
 *     16 bytes) take the vectorised path.
 *  5. x-type is f32, bf16 or f16; arithmetic is f32, rounded once. One exception: if linear, linear_dx and linear_dw add to
 *     a narrow tensor, cuBLASLt may round the product to that type first.
 */
#pragma once

#include "device/cuda/cuda_workspace.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ON_GPU static __device__ __forceinline__ /* a function of kernels */

struct CUevent_st;
struct CUstream_st;
struct cuda_matmul;
struct cuda_attention;

struct cuda_queue {
    struct CUstream_st *stream;         /* a cudaStream_t */
    int sms;                            /* multiprocessors */
    int capability;                     /* 90 for 9.0 */
    bool warpgroups;                    /* the loaded code uses warpgroups */
    size_t shared_most;                 /* maximum dynamic shared memory of a block */
    bool follows;                       /* the next kernel may overlap the one queued before (overlap.cuh) */
    struct CUstream_st *side;           /* for what runs beside a product (cuda_fuse.c) */
    struct CUevent_st *forked, *joined; /* where it leaves the stream and comes back */
    struct cuda_matmul *matmul;         /* for linear and its gradients */
    struct cuda_attention *attention;   /* for attn and attn_bwd */
};

typedef int cuda_launch(const struct cuda_queue *queue, const struct kernel_call *call);
/* Runs the ops of a group (tape/group.h), at most TAPE_GROUP_MOST, with the same bits as one by one. */
typedef int cuda_launch_many(const struct cuda_queue *queue, const struct kernel_call *calls, int count);

/* cuda_<name> of every op that has a kernel here. */
#define CUDA_KERNEL(name) cuda_launch cuda_##name;
#define CUDA_CPU_ONLY(name)
#define CUDA_COPY(name)
#define CUDA_NONE(name)
#define CUDA_DECLARE(kind, name, kernels) CUDA_##kernels(name)
OP_KINDS(CUDA_DECLARE)
#undef CUDA_DECLARE
cuda_launch cuda_copy; /* fetch and store within the device */

cuda_launch_many cuda_sumsq_many, cuda_adamw_many;
/* split3 and kv_put as one launch, if cuda_split3_puts allows it. */
bool cuda_split3_puts(const struct kernel_call *split, const struct kernel_call *put);
int cuda_split3_put(const struct cuda_queue *queue, const struct kernel_call *split,
                    const struct kernel_call *put);
/* Both and the attn_paged that reads their results as one launch, if cuda_split3_attends allows it. */
bool cuda_split3_attends(const struct kernel_call *split, const struct kernel_call *put,
                         const struct kernel_call *attn);
int cuda_split3_attend(const struct cuda_queue *queue, const struct kernel_call *split,
                       const struct kernel_call *put, const struct kernel_call *attn);
/* adapter_linear and the gated unit whose `up` it makes as one launch, if cuda_adapter_gates allows it. */
bool cuda_adapter_gates(const struct kernel_call *product, const struct kernel_call *glu);
int cuda_adapter_gated(const struct cuda_queue *queue, const struct kernel_call *product,
                       const struct kernel_call *glu);
/* column_sum.cu: the bias gradient of linear_dw: db[M] (+)= sum over rows of dy[rows,M] */
int cuda_column_sum(const struct cuda_queue *queue, const void *dy, enum dtype dy_type, int64_t rows,
                    int64_t width, void *db, enum dtype db_type, bool accumulate, void *work);
/* fill.cu: `at` is a multiple of 16 */
int cuda_fill_noise(const struct cuda_queue *queue, void *at, size_t bytes);
/* exchange.cu: executes a struct device_parts on queue->stream */
int cuda_add_parts(const struct cuda_queue *queue, const void *parts, int ranks, int64_t count,
                   enum dtype type, void *out, bool add);
/* attention.cu: any card, any head size, every mask, KV cache; attn and attn_bwd choose between them and cuDNN's. */
cuda_launch cuda_attn_ours, cuda_attn_bwd_ours;
/* True if the code loaded for the current card uses warpgroups. */
bool cuda_attn_has_warpgroups(void);

#ifdef __cplusplus
}
#endif
