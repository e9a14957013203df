/* attention_paged_fresh.cuh - the step's own keys and values before they are in their blocks: split3, kv_put and attn_paged as one launch.
 *
 * Generating a token is a chain of short kernels, and one kernel less saves more than doing some work twice costs. A block of threads splits
 * and rotates what it needs of the joint rows: the queries of its lines, and the keys and values of its row up to its own token. It also
 * writes these keys and values to the pool. Several blocks may write the same ones; they write the same bytes. No block reads them back:
 * each puts them where the tensor cores read older keys, over the stale bytes that were loaded from the pool before the joint rows existed.
 *
 * Bits are those of the three ops: the same arithmetic, rounded as often. kv_put's slots are those of the rows' positions in their blocks.
 *
 * For few tokens (FUSE_FEW_ROWS) of 16 bits, each of which may be a row, with whole heads of 64 or 128 turned. */
#pragma once

#include "device/cuda/attention_paged_lines.cuh"
#include "device/cuda/rotation.cuh"

namespace
{

/* Head `head` of a token's joint row: queries, then keys, then values. */
ON_GPU const uint16_t *joint_head(const struct paged &a, int token, int head)
{
    return (const uint16_t *)a.joint + ((int64_t)token * (a.heads + 2 * a.kv_heads) + head) * a.size;
}

struct angle {
    float c, s;
};

ON_GPU struct angle angle_at(const struct paged &a, int token, int d)
{
    const float *of_token = a.table + (int64_t)token * a.size;
    return {of_token[d], of_token[a.size / 2 + d]};
}

/* Pairs of words: the low halves by one angle, the high ones by another. */
template <class type>
ON_GPU void turn_words(uint32_t &x, uint32_t &y, const struct angle &low, const struct angle &high)
{
    float x1 = type::low(x), x2 = type::high(x), y1 = type::low(y), y2 = type::high(y);
    turn_pair(x1, y1, low.c, low.s), turn_pair(x2, y2, high.c, high.s);
    x = type::pack(x1, x2), y = type::pack(y1, y2);
}

/* Which positions of [key, key + count) are the step's own, up to the token's. */
struct own_keys {
    int from, until;
};

ON_GPU struct own_keys own_keys_of(const struct item &it, int key, int count)
{
    return {max(it.context, key), min(it.position + 1, key + count)};
}

ON_GPU int token_at(const struct item &it, int position) { return it.token - (it.position - position); }

/* Where a token's key of head `kv` goes; NULL: nowhere. Its elements are KV_BLOCK apart. Distances in the pool are elements / `unit`. */
ON_GPU uint16_t *key_place(const struct paged &a, int token, int kv, int unit)
{
    const int slot = a.slots[token];
    return slot < 0 ? NULL : (uint16_t *)a.pool + paged_at(a, slot / KV_BLOCK, kv) / unit + slot % KV_BLOCK;
}

ON_GPU uint16_t *value_place(const struct paged &a, int token, int kv, int unit)
{
    const int slot = a.slots[token];
    return slot < 0 ? NULL
                    : (uint16_t *)a.pool + (paged_at(a, slot / KV_BLOCK, kv) + a.plane) / unit +
                          slot % KV_BLOCK * a.size;
}

} // namespace
