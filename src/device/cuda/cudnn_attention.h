/* cudnn_attention.h - causal attention and its gradient through cuDNN 9's fused kernels.
 *
 * Computes the ops attn and attn_bwd of tape/op.h for rows that are not packed and have no cache: query t sees keys
 * [max(0, t - window + 1), t]. cuDNN is loaded at run time; if it is missing or refuses a shape, the caller uses its own
 * kernels. _prepare builds plans (milliseconds to seconds: cuDNN may compile) and keeps them per shape until _close. So a
 * step only enqueues: _forward and _backward allocate nothing on the device, do not wait, and may be captured into a CUDA
 * graph.
 *
 *     struct cudnn_attention *attention;
 *     if (cudnn_attention_open(stream, &attention, &err) != PLIM_OK) attention = NULL; // do without
 *     struct attention_shape shape = {.batch = 4, .time = 2048, .heads = 32, .kv_heads = 8, .head_size = 64,
 *                                     .type = DT_BF16, .scale = 0.125f};
 *     if (attention && cudnn_attention_prepare(attention, &shape, ATTENTION_FORWARD, &bytes, &err) == PLIM_OK)
 *         status = cudnn_attention_forward(attention, &shape, &(struct attention_forward){q, k, v, o, lse}, work, &err);
 *     cudnn_attention_close(attention);
 *
 * Tensors are contiguous: q, o and their gradients [B,T,H,D], k, v and theirs [B,T,K,D], lse [B,H,T] f32 (natural
 * logarithm). Pointers are 16-byte aligned, the workspace 256-byte. Not thread-safe: one object per stream.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/status.h"
#include "tensor/dtype.h"

struct cudnn_attention;

struct attention_shape {
    int64_t batch, time, heads, kv_heads, head_size;
    int64_t window;  /* keys a query sees; 0 or >= time: all earlier ones */
    enum dtype type; /* DT_BF16 or DT_F16 */
    float scale;
};

enum attention_pass { ATTENTION_FORWARD, ATTENTION_BACKWARD };

struct attention_forward {
    const void *q, *k, *v;
    void *o, *lse;
};

struct attention_backward {
    const void *d_o, *q, *k, *v, *o, *lse;
    void *dq, *dk, *dv;
};

/* stream: a cudaStream_t of the current device. PLIM_UNSUPPORTED: no cuDNN 9, or one before 9.6. */
enum plim_status cudnn_attention_open(void *stream, struct cudnn_attention **out, struct plim_error *err);
void cudnn_attention_close(struct cudnn_attention *attention); /* NULL is fine */

/* 91900 for cuDNN 9.19.0. */
size_t cudnn_attention_version(const struct cudnn_attention *attention);

/* A quick answer from known rules; only _prepare is certain. */
bool cudnn_attention_supports(const struct cudnn_attention *attention, const struct attention_shape *shape);

/* Builds and keeps the plan of one pass; repeated calls for the same shape only return the bytes.
 * PLIM_UNSUPPORTED: cuDNN has no engine (the text quotes it). PLIM_NO_MEMORY: no room for another plan. */
enum plim_status cudnn_attention_prepare(struct cudnn_attention *attention,
                                         const struct attention_shape *shape, enum attention_pass pass,
                                         size_t *workspace, struct plim_error *err);

/* The engine number of a prepared plan, for reports; -1: unknown. */
int64_t cudnn_attention_engine(const struct cudnn_attention *attention, const struct attention_shape *shape,
                               enum attention_pass pass, bool *nondeterministic);

/* Enqueues. The pass must have been prepared for this shape (else PLIM_BUG); work has the required bytes. */
enum plim_status cudnn_attention_forward(struct cudnn_attention *attention,
                                         const struct attention_shape *shape,
                                         const struct attention_forward *io, void *work,
                                         struct plim_error *err);
enum plim_status cudnn_attention_backward(struct cudnn_attention *attention,
                                          const struct attention_shape *shape,
                                          const struct attention_backward *io, void *work,
                                          struct plim_error *err);
