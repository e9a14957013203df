/* attention_paged.cuh - what the kernels of attention over blocks share. cuda_attn_paged (attention_paged.cu) chooses:
 *
 *     attention_paged_decode.cu   tensor cores, tokens that are alone in their row: blocks go to shared memory as they are
 *     attention_paged_registers.cu the same for few tokens with small heads of 16 bits: keys go straight to registers
 *     attention_paged_prompt.cu   tensor cores, rows of several tokens: tiles of queries, blocks through shared memory
 *     attention_paged_hopper.cu   the same by warpgroups, on capability 9.0
 *     attention_paged.cu          f32 arithmetic, every type and size of heads
 *     attention_paged8_*.cu       the first two over pools in 8 bits, and attention_paged8.cu for every size of heads
 *     attention_paged_fresh.cuh   what the first two also do where few tokens are written: split the heads and keep keys and values
 *
 * Where a step has as many rows as tokens the first kernel takes them all, also those of longer rows; else it takes rows of
 * one token and the second one the others. Which kernel a token meets, and in which order its keys are summed, depends on
 * its own row and on the shape alone.
 */
#pragma once

#include "device/cuda/vec.cuh"

struct paged {
    const void *q, *pool;
    void *o;
    const int32_t *rows, *blocks; /* [R,3], [R,M] */
    float *parts;                 /* [items,H,splits,D+2]; pieces of keys that are work of their own */
    int tokens, heads, kv_heads, group, size, nrows, reach, splits;
    int64_t chunk;        /* elements of a head's keys in a block */
    int64_t plane, block; /* elements of one layer's keys or values; of a block of all layers */
    int64_t layer;        /* element with which the layer's keys begin */
    int window;
    float scale, cap, scale2; /* of products; scale2: of what the softmax sees, to base 2 */
    enum dtype type;
    bool e4m3; /* of a pool in 8 bits: codes are e4m3 numbers */
    /* Heads that were not split yet (attention_paged_fresh.cuh); joint NULL: q is there, and the pool has all keys. */
    const void *joint;    /* [tokens, heads + 2 kv_heads, size] */
    const float *table;   /* [tokens, size]: cosines, then sines */
    const int32_t *slots; /* [tokens] */
};

/* Operands of a call; scratch and splits are those of the tensor cores' ways. */
struct paged cuda_paged_of(const struct kernel_call *call);

/* The ways. Each launches and returns cudaError_t as an int. */
int cuda_paged_decode(const struct cuda_queue *queue, const struct paged *a);
int cuda_paged_registers(const struct cuda_queue *queue, const struct paged *a);
int cuda_paged_prompt(const struct cuda_queue *queue, const struct paged *a);
int cuda_paged8_decode(const struct cuda_queue *queue, const struct paged *a);
int cuda_paged8_prompt(const struct cuda_queue *queue, const struct paged *a);
/* Rows of several tokens by warpgroups; coded: the pool is in 8 bits. */
bool cuda_paged_by_warpgroups(const struct cuda_queue *queue, const struct paged *a, bool coded);
int cuda_paged_prompt_hopper(const struct cuda_queue *queue, const struct paged *a, bool coded);

/* ---- on the device ----------------------------------------------------------------------------- */

/* The first element of a block's keys of a head; its values are a.plane behind. */
ON_GPU int64_t paged_at(const struct paged &a, int block, int kv)
{
    return block * a.block + a.layer + kv * a.chunk;
}

/* Results of parts of a line's keys are joined in order: what those so far, with (top, sum), are multiplied with, and those of a further
 * part with (more_top, more). A part without keys has the sum 0. */
struct paged_shares {
    float old, more;
};

ON_GPU struct paged_shares paged_shares_of(float top, float sum, float more_top, float more, float scale2)
{
    const float best = fmaxf(top, more_top);
    return {sum == 0 ? 0 : exp2f((top - best) * scale2), more == 0 ? 0 : exp2f((more_top - best) * scale2)};
}

ON_GPU float paged_joined(float x, float y, struct paged_shares by)
{
    return __fmaf_rn(by.more, y, __fmul_rn(by.old, x));
}

ON_GPU float paged_joined_top(float top, float sum, float more_top, float more)
{
    return more == 0 ? top : sum == 0 ? more_top : fmaxf(top, more_top);
}

/* The score of a product. */
ON_GPU float paged_score(const struct paged &a, float x)
{
    return a.cap > 0 ? a.cap * tanhf(x * (a.scale / a.cap)) : x;
}
