/* kernels.h - every kernel of the CUDA backend; cuda_device.c puts them into the table by op kind.
 *
 * What each computes is said in tape/op.h. A launcher reads the call, launches on queue->stream and returns
 * cudaError_t as an int (0: launched). Here is what all of them keep:
 *  1. Nothing is allocated and nothing waits: a launcher may run while a graph is being captured. Everything a
 *     kernel reads of the host comes as launch arguments. call->work holds what cuda_workspace says.
 *  2. Sums have a fixed order: the same operands give the same bits on every run (no float atomics).
 *  3. Outputs may take over the bytes of the inputs that op_shares(kind, slot) names; norm_bwd also writes dx
 *     over dy, glu_bwd its results over any of its inputs, elementwise ops over either operand.
 *  4. Any sizes work; sizes that allow it (pointers are 256-byte aligned at a tensor's start, rows a multiple of
 *     16 bytes) take the vectorised path.
 *  5. x-type is f32, bf16 or f16; arithmetic is f32, rounded once. One exception: where linear, linear_dx and
 *     linear_dw add to something narrow, cuBLASLt may round the product to that type first.
 */
#ifndef PLIM_DEVICE_CUDA_KERNELS_H
#define PLIM_DEVICE_CUDA_KERNELS_H

#include "device/cuda/cuda_workspace.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

struct cuda_queue {
    struct CUstream_st *stream; /* a cudaStream_t */
    int sms;                    /* multiprocessors */
    int capability;             /* 90 for 9.0 */
    bool warpgroups;            /* the code that was loaded multiplies by warpgroups */
    size_t shared_most;         /* dynamic shared memory a block may ask for */
    bool follows;               /* the next kernel may begin beside the one queued before (overlap.cuh) */
};

typedef int cuda_launch(const struct cuda_queue *queue, const struct kernel_call *call);
/* Ops of a group (tape/group.h), at most TAPE_GROUP_MOST: the same bits as one by one. */
typedef int cuda_launch_many(const struct cuda_queue *queue, const struct kernel_call *calls, int count);

/* embed.cu */
cuda_launch cuda_embed, cuda_embed_bwd;
/* quantised.cu; linear_q is cuda_matmul.h's */
cuda_launch cuda_embed_q;
/* norm.cu */
cuda_launch cuda_norm, cuda_norm_bwd;
/* rope.cu */
cuda_launch cuda_rope_table, cuda_rope, cuda_split3, cuda_join3;
/* Both ops as one launch, where cuda_split3_puts says so. */
bool cuda_split3_puts(const struct kernel_call *split, const struct kernel_call *put);
int cuda_split3_put(const struct cuda_queue *queue, const struct kernel_call *split,
                    const struct kernel_call *put);
/* elementwise.cu */
cuda_launch cuda_glu, cuda_glu_bwd, cuda_act, cuda_act_bwd, cuda_add, cuda_kv_append, cuda_copy;
/* attention_paged.cu */
cuda_launch cuda_kv_put, cuda_attn_paged;
/* sample.cu */
cuda_launch cuda_sample;
/* attention_paged8.cu */
cuda_launch cuda_kv_put8, cuda_attn_paged8;
/* row_gate.cu */
cuda_launch cuda_row_gate, cuda_row_gate_bwd;
/* dropout.cu */
cuda_launch cuda_dropout;
/* pool.cu */
cuda_launch cuda_pool, cuda_pool_bwd;
/* route.cu */
cuda_launch cuda_route, cuda_route_bwd, cuda_router_loss;
/* experts.cu */
cuda_launch cuda_dispatch, cuda_combine, cuda_combine_dw;
/* expert_linear.cu: any sizes and types; expert_linear_hopper.cu: what warpgroups can, see expert_linear.cuh */
cuda_launch cuda_expert_linear, cuda_expert_linear_dx, cuda_expert_linear_dw;
/* xent.cu */
cuda_launch cuda_xent;
/* optimizer.cu */
cuda_launch cuda_sumsq, cuda_clip, cuda_adamw, cuda_sgd;
cuda_launch_many cuda_sumsq_many, cuda_adamw_many;
/* optimizer8.cu */
cuda_launch cuda_adamw8;
/* adafactor.cu */
cuda_launch cuda_factor_stat, cuda_adafactor;
/* column_sum.cu: the bias gradient of linear_dw: db[M] (+)= sum over rows of dy[rows,M] */
int cuda_column_sum(const struct cuda_queue *queue, const void *dy, enum dtype dy_type, int64_t rows,
                    int64_t width, void *db, enum dtype db_type, bool accumulate, void *work);
/* fill.cu: `at` is a multiple of 16 */
int cuda_fill_noise(const struct cuda_queue *queue, void *at, size_t bytes);
/* exchange.cu: what struct device_parts says, on queue->stream */
int cuda_add_parts(const struct cuda_queue *queue, const void *parts, int ranks, int64_t count,
                   enum dtype type, void *out, bool add);
/* attention.cu: any card, any head size, every mask, KV cache */
cuda_launch cuda_attn, cuda_attn_bwd;
/* Does the code loaded for the current card multiply by warpgroups? */
bool cuda_attn_has_warpgroups(void);

#ifdef __cplusplus
}
#endif

#endif
