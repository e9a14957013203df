/* attention.cuh - what the attention kernels share: the call as they get it, the keys a query sees, the parts.
 *
 * attention.cu reads the call, chooses a way and launches one of
 *
 *     attention_forward.cu           tensor cores, tiles of 128 queries
 *     attention_hopper.cu            the same by warpgroups, on capability 9.0
 *     attention_decode.cu            tensor cores, few queries over a long cache: keys are split over blocks
 *     attention_prepare.cu           what the backward passes need of every query
 *     attention_backward.cu          tensor cores, one pass for dK and dV, one for dQ
 *     attention_hopper_backward.cu   the same by warpgroups
 *     attention_plain.cu, attention_plain_backward.cu   f32 arithmetic, every type and head size, every mask
 *     attention_bias.cu              the bias by distance, spread before and its gradient folded after; queries passes gather that
 *                                    (attention_bias_sums.cuh), or else attention_plain_backward.cu
 *
 * Invariants
 *  1. A query's keys are one interval [first, last]; of a query that sees nothing it is [keys, -1]. A block of queries
 *     and a block of keys that share nothing never meet; they need masks only where an interval ends inside. Under a
 *     block-sparse mask the interval has a hole, which the plain kernels alone know.
 *  2. Every sum runs inside one thread or over lanes and pieces in a fixed order: no atomics.
 *  3. Keys outside the union of a block's intervals are read as zeros: what a cache holds there is not touched.
 *  4. Every kernel takes one argument, struct attn.
 */
#pragma once

#include "device/cuda/kernels.h"

#include "device/cuda/random.cuh"
#include "tape/bias_bucket.h"

#include <cuda_runtime.h>
#include <limits.h>

#define ATTN_LOG2E 1.44269504088896340736f

enum { ATTN_MAX_SIZE = 256 }; /* of a head; the sizes that scratch depends on are in cuda_workspace.h */

/* All keys of some queries lie in [low, high]; each of them sees [first_most, last_least]. */
struct attn_span {
    int low, high, first_most, last_least;
};

struct attn {
    const void *q, *k, *v;  /* [B,T,H,D] [B,S,K,D] [B,S,K,D] */
    const int32_t *pos;     /* [B,T] */
    const int32_t *lengths; /* [B] or NULL */
    void *o;                /* [B,T,H,D]; read by the backward passes */
    float *lse;             /* [B,H,T]; likewise */
    const void *grad;       /* d o */
    void *dq, *dk, *dv;
    int batch, time, keys, heads, kv_heads, group, size;
    enum mask_kind mask;
    int window; /* 0: none */
    int sparse_block, local_blocks, global_blocks;
    int cached, standard; /* standard: plain arithmetic is asked for */
    enum dtype type;
    float scale;             /* of products q.k */
    float top_scale, scale2; /* of what the softmax sees; the same for exponentials to base 2 */
    /* attention_score.cuh: scores are modified by cap or bias, probabilities dropped. */
    int modified;
    float cap;
    const float *lines; /* [heads][span] or NULL */
    int span, buckets;
    struct bias_buckets by_distance;
    struct drop drop;
    int stages;  /* buffers a kernel has for the rows that stream through it: 1 or 2 */
    int section; /* heads that share the second-level cache */
    int splits;  /* pieces the keys are cut into */
    /* Workspace. Forward: partial outputs [B,K,splits,rows,D], their (maximum, sum) [..,2]. */
    float *part, *part_stat;
    /* Backward, with padded = T rounded up to ATTN_PAD: log-sum-exp to base 2 and sum(d o * o) [B,H,padded],
     * (first, last) [B,padded], spans [B,padded/ATTN_GRAIN]. Padding has an infinite lse2: no probability. */
    int padded;
    float *lse2, *delta;
    uint32_t *drop_lines; /* [B,H,padded], where numbers are dropped */
    float *bucket_sums; /* [B,H,bias_tiles,buckets]: of the bias's gradient; NULL where nobody asks for it */
    int bias_tiles;     /* of queries, whose sums a pass leaves; 0: it leaves none */
    int2 *range;
    int4 *spans;
};

/* The ways. Each launches and returns cudaError_t as an int. */
extern "C" {
int cuda_attn_forward(const struct cuda_queue *queue, struct attn *a);
int cuda_attn_hopper(const struct cuda_queue *queue, struct attn *a);
int cuda_attn_decode(const struct cuda_queue *queue, struct attn *a);
int cuda_attn_prepare(const struct cuda_queue *queue, struct attn *a);
int cuda_attn_backward(const struct cuda_queue *queue, struct attn *a);
int cuda_attn_hopper_backward(const struct cuda_queue *queue, struct attn *a);
int cuda_attn_plain(const struct cuda_queue *queue, struct attn *a);
int cuda_attn_plain_backward(const struct cuda_queue *queue, struct attn *a);
/* With a bias and without a cache, soft-cap and dropout. */
int cuda_attn_hopper_biased(const struct cuda_queue *queue, struct attn *a);
int cuda_attn_hopper_backward_biased(const struct cuda_queue *queue, struct attn *a);
/* With scores modified or probabilities dropped. */
int cuda_attn_forward_more(const struct cuda_queue *queue, struct attn *a);
int cuda_attn_backward_more(const struct cuda_queue *queue, struct attn *a);
/* The bias: lines before any pass; after the backward ones the sums of its gradient, where these left none, then
 * dbias (+)= their sum. */
int cuda_attn_spread(const struct cuda_queue *queue, struct attn *a, const void *bias);
int cuda_attn_bias_sums(const struct cuda_queue *queue, struct attn *a);
int cuda_attn_fold(const struct cuda_queue *queue, struct attn *a, void *grad, enum dtype type,
                   bool accumulate);
}

typedef void attn_kernel(const struct attn a);

static inline int attn_launch(attn_kernel *kernel, int64_t blocks, int threads, size_t shared,
                              const struct cuda_queue *queue, struct attn *a)
{
    cudaError_t status =
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (status != cudaSuccess) return (int)status;
    kernel<<<(unsigned)blocks, (unsigned)threads, shared, (cudaStream_t)queue->stream>>>(*a);
    return (int)cudaGetLastError();
}

/* Heads whose rows of `tensors` tensors fit well into the second-level cache. */
static inline int attn_section(const struct attn *a, int64_t rows, int heads, int tensors)
{
    int64_t bytes = rows * a->size * tensors * (int64_t)dtype_size(a->type), fit = (16 << 20) / bytes;
    return fit < 1 ? 1 : fit > heads ? heads : (int)fit;
}

/* ---- on the device ----------------------------------------------------------------------------- */

ON_GPU int64_t attn_query_at(const struct attn &a, int b, int t, int h)
{
    return (((int64_t)b * a.time + t) * a.heads + h) * a.size;
}

ON_GPU int64_t attn_key_at(const struct attn &a, int b, int s, int n)
{
    return (((int64_t)b * a.keys + s) * a.kv_heads + n) * a.size;
}

/* (first, last) of query t under a causal mask. */
ON_GPU int2 attn_causal(const struct attn &a, int b, int t)
{
    int pos = a.pos[(int64_t)b * a.time + t], last = min(a.cached ? pos : t, a.keys - 1);
    int first = a.cached ? 0 : t - pos;
    if (a.window) first = max(first, last - a.window + 1);
    return make_int2(max(first, 0), last);
}

/* (first, last) of query t. */
ON_GPU int2 attn_visible(const struct attn &a, int b, int t)
{
    bool causal = a.mask == MASK_CAUSAL || a.mask == MASK_BLOCKS;
    int2 see = causal ? attn_causal(a, b, t) : make_int2(0, a.keys - 1);
    if (!a.lengths) return see;
    int length = a.lengths[b], own = a.cached ? a.pos[(int64_t)b * a.time + t] : t;
    if (length < 1 || (a.mask != MASK_CROSS && own >= length)) return make_int2(a.keys, -1);
    return make_int2(see.x, min(see.y, length - 1));
}

/* Keys that a block-sparse mask hides inside the interval; empty where x > y. */
ON_GPU int2 attn_hole(const struct attn &a, int b, int t)
{
    if (a.mask != MASK_BLOCKS) return make_int2(0, -1);
    int2 see = attn_causal(a, b, t);
    int near = ((see.y - see.x) / a.sparse_block - a.local_blocks + 1) * a.sparse_block;
    int known = a.global_blocks * a.sparse_block;
    return near > known ? make_int2(see.x + known, see.x + near - 1) : make_int2(0, -1);
}

ON_GPU struct attn_span attn_no_span(void)
{
    struct attn_span none = {INT_MAX, -1, -1, INT_MAX};
    return none;
}

ON_GPU struct attn_span attn_join(struct attn_span x, struct attn_span y)
{
    x.low = min(x.low, y.low), x.high = max(x.high, y.high);
    x.first_most = max(x.first_most, y.first_most), x.last_least = min(x.last_least, y.last_least);
    return x;
}

/* The span of the ranges that the lanes of a warp hold. */
ON_GPU struct attn_span attn_warp_span(int2 range, bool have)
{
    const unsigned all = 0xffffffffu;
    struct attn_span s;
    s.low = __reduce_min_sync(all, have ? range.x : INT_MAX);
    s.high = __reduce_max_sync(all, have ? range.y : -1);
    s.first_most = __reduce_max_sync(all, have ? range.x : -1);
    s.last_least = __reduce_min_sync(all, have ? range.y : INT_MAX);
    return s;
}

/* A span as it is stored. */
ON_GPU struct attn_span attn_unpack(int4 s)
{
    struct attn_span span = {s.x, s.y, s.z, s.w};
    return span;
}

/* Prepared span `grain` of row b; there are padded / ATTN_GRAIN of them. */
ON_GPU struct attn_span attn_span_at(const struct attn &a, int b, int grain)
{
    return attn_unpack(a.spans[(int64_t)b * (a.padded / ATTN_GRAIN) + grain]);
}

ON_GPU bool attn_meets(struct attn_span s, int key, int count)
{
    return s.low < key + count && s.high >= key;
}

ON_GPU bool attn_needs_mask(struct attn_span s, int key, int count)
{
    return s.first_most > key || s.last_least < key + count - 1;
}

/* First and last grain of queries of row b that meet keys [key, key + count); empty when first > last. All lanes
 * of the warp take part. */
ON_GPU int2 attn_grains(const struct attn &a, int b, int key, int count)
{
    int first = INT_MAX, last = -1;
    for (int i = threadIdx.x % 32; i < a.padded / ATTN_GRAIN; i += 32) {
        if (attn_meets(attn_span_at(a, b, i), key, count)) first = min(first, i), last = i;
    }
    return make_int2(__reduce_min_sync(0xffffffffu, first), __reduce_max_sync(0xffffffffu, last));
}

/* Which block of rows of which head a thread block has. Heads go by sections, so that what streams past stays in
 * the second-level cache; inside a section the dearest blocks of all heads go first. */
struct attn_place {
    int head, tile;
};

ON_GPU struct attn_place attn_place_at(int block, int heads, int tiles, int section, bool last_first)
{
    int part = block / (section * tiles), rest = block % (section * tiles);
    int have = min(section, heads - part * section), tile = rest / have;
    struct attn_place p = {part * section + rest % have, last_first ? tiles - 1 - tile : tile};
    return p;
}

ON_GPU struct attn_place attn_place_of(int heads, int tiles, int section, bool last_first)
{
    return attn_place_at(blockIdx.x, heads, tiles, section, last_first);
}
