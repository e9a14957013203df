/* attention_paged_fresh_shared.cuh - the step's own keys and values (attention_paged_fresh.cuh) in shared memory, where blocks of the pool were
 * copied to (attention_paged_copies.cuh). K is a kind of attention_paged_decode.cuh; if it is not FRESH, nothing here does anything. */
#pragma once

#include "device/cuda/attention_paged_copies.cuh"
#include "device/cuda/attention_paged_fresh.cuh"

namespace
{

/* The token's joint row as a warp needs it beside queries, loaded with them. A lane has two pairs of the key's elements, from `lane` on and
 * 32 apart, four elements of the value, and the angles of its elements of queries. */
template <class K> struct joint_row {
    uint16_t x[2], y[2];
    struct angle by[2], of_queries[4][4];
    uint2 value;

    __device__ __forceinline__ void load_pairs(const struct paged &a, int token, int kv)
    {
        const int lane = threadIdx.x % 32;
        const uint16_t *from = joint_head(a, token, a.heads + kv);
        value = *(const uint2 *)(joint_head(a, token, a.heads + a.kv_heads + kv) + lane * 4);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            x[i] = from[lane + 32 * i], y[i] = from[lane + 32 * i + 64];
            by[i] = angle_at(a, token, lane + 32 * i);
        }
    }
    __device__ __forceinline__ void load(const struct paged &a, const struct work &w)
    {
        if (!K::FRESH) return;
        load_pairs(a, w.it.token, w.kv);
#pragma unroll
        for (int s = 0; s < 4; s++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                of_queries[s][i] = angle_at(a, w.it.token, s * 16 + K::CODEC::element(threadIdx.x % 4, i));
    }
};

/* Position `at` of the chunk's keys, and the token's place in the pool. */
template <class K>
ON_GPU void put_key(const struct paged &a, const struct joint_row<K> &own, int token, int kv,
                    const struct room &r, int at)
{
    const int lane = threadIdx.x % 32;
    uint16_t *to = key_place(a, token, kv, K::CODEC::BYTES);
    uint16_t *tile = (uint16_t *)(r.keys + at / KV_BLOCK * r.key_step) + at % KV_BLOCK;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t x = own.x[i], y = own.y[i];
        turn_words<typename K::type>(x, y, own.by[i], own.by[i]);
        const int first = (lane + 32 * i) * KV_BLOCK, second = first + 64 * KV_BLOCK;
        tile[first] = (uint16_t)x, tile[second] = (uint16_t)y;
        if (to) to[first] = (uint16_t)x, to[second] = (uint16_t)y;
    }
}

template <class K>
ON_GPU void put_value(const struct paged &a, const struct joint_row<K> &own, int token, int kv,
                      const struct room &r, int at)
{
    const int d = threadIdx.x % 32 * 4;
    uint16_t *to = value_place(a, token, kv, K::CODEC::BYTES);
    *(uint2 *)(r.values + at / KV_BLOCK * r.value_step + (at % KV_BLOCK * K::SETS * 64 + d) * 2) = own.value;
    if (to) *(uint2 *)(to + d) = own.value;
}

/* The step's own keys of the chunk, or its values, over what the pool had in their place. By whole warps. */
template <class K>
ON_GPU void put_own(const struct paged &a, const struct item &it, const struct chunk &c,
                    const struct joint_row<K> &own, const struct room &r, bool values)
{
    if constexpr (K::FRESH) {
        const struct own_keys keys = own_keys_of(it, c.key, CHUNK);
        for (int position = keys.from; position < keys.until; position++) {
            struct joint_row<K> row = own;
            const int token = token_at(it, position), at = position - c.key;
            if (token != it.token) row.load_pairs(a, token, c.kv);
            if (values)
                put_value<K>(a, row, token, c.kv, r, at);
            else
                put_key<K>(a, row, token, c.kv, r, at);
        }
        if (keys.from < keys.until) publish_to_copies();
        __syncwarp();
    }
}

} // namespace
