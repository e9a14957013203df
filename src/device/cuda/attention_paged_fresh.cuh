/* attention_paged_fresh.cuh - the step's own keys and values before they are in their blocks: split3, kv_put and attn_paged as one launch.
 *
 * A token that is written waits for one short kernel after the other, so one less is worth more than work that is done twice. Each block of
 * threads splits and turns what it needs of the joint rows: the queries of its lines, and the keys and values of the row's tokens up to its
 * own. It puts these into the pool, too. Blocks that need the same ones put the same bytes there, and none reads them back: what the pool has
 * in their place is loaded with the older keys, before the joint rows exist, and then written over where the tensor cores take it from.
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
