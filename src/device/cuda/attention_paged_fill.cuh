/* attention_paged_fill.cuh - the warpgroup that fills tiles for attention_paged_hopper.cu: copies of 16-bit blocks, and codes made fp16.
 *
 * A tile of keys is as keys lie in their blocks: for every 64 keys of the step [width][64]. A tile of values is, for every 64 elements,
 * [STEP][64]. Rows are 128 bytes, swizzled (attention_wgmma.cuh). What is behind the last key, or the head's size, is zero, and no
 * block there is read; keys behind the last one in its own block are whatever the block holds, and masked.
 */
#pragma once

#include "device/cuda/attention_paged_ring.cuh"
extern "C" {
#include "tensor/kv8.h"
}

namespace
{

/* Where block lane % STEP_BLOCKS of step i begins in the pool, in units; 0 where there is none. A head's keys in a block are a multiple of
 * a unit wherever warpgroups are used, and 32 bits of them are more than a card has. */
enum { UNIT = 64 }; /* bytes */

template <class cut>
ON_GPU uint32_t look_up(const struct paged &a, const struct lines &t, const struct span_of_keys &k, int i)
{
    const int key = k.first + i * cut::STEP + threadIdx.x % cut::STEP_BLOCKS * KV_BLOCK;
    const uint32_t block = (uint32_t)(a.block / (UNIT / cut::ELEMENT));
    return key <= k.last ? a.blocks[(int64_t)t.row * a.reach + key / KV_BLOCK] * block : 0;
}

/* `from`, which is in block 0, in block b of look_up's step. */
template <class T> ON_GPU const T *in_block(const T *from, uint32_t step, int b)
{
    return (const T *)((const char *)from + (uint64_t)__shfl_sync(0xffffffffu, step, b) * UNIT);
}

/* --- 16 bits ------------------------------------------------------------------------------------------------ */

/* Starts copying the keys from `key` on. mine: of look_up. WHOLE: all keys of the step are there, and heads are as wide as tiles. */
template <class cut, int width, bool WHOLE>
ON_GPU void copy_keys(const struct paged &a, const struct lines &t, uint32_t to, uint32_t mine, int key,
                      int last)
{
    const int thread = threadIdx.x % WG_THREADS, d = thread / 2; /* two pieces to an element of 16 keys */
    const uint16_t *from = (const uint16_t *)a.pool + paged_at(a, 0, t.kv) + thread * 8;
    to += d * 128;
#pragma unroll
    for (int b = 0; b < cut::STEP_BLOCKS; b++) {
        const bool block = WHOLE || key + b * KV_BLOCK <= last;
        const uint16_t *at = in_block(from, mine, b);
        const uint32_t piece = to + b / 4 * (width * 128) + ((b % 4 * 2 + thread % 2) ^ d % 8) * 16;
#pragma unroll
        for (int n = 0; n < width / 64; n++) {
            const bool have = block && (WHOLE || d + n * 64 < a.size);
            copy16(piece + n * 64 * 128, at + n * 64 * KV_BLOCK, have);
        }
    }
}

/* Likewise their values. */
template <class cut, int width, bool WHOLE>
ON_GPU void copy_values(const struct paged &a, const struct lines &t, uint32_t to, uint32_t mine, int key,
                        int last)
{
    const int pieces = width / 8, thread = threadIdx.x % WG_THREADS, r = thread / pieces, p = thread % pieces;
    const int size = WHOLE ? width : a.size, rows = WG_THREADS / pieces; /* rows at once: a multiple of 8 */
    const uint16_t *from =
        (const uint16_t *)a.pool + paged_at(a, 0, t.kv) + a.plane + (p * 8 < size ? r * size + p * 8 : 0);
    to += p / 8 * (cut::STEP * 128) + r * 128 + ((p ^ r) % 8) * 16;
#pragma unroll
    for (int b = 0; b < cut::STEP_BLOCKS; b++) {
        const uint16_t *at = in_block(from, mine, b);
#pragma unroll
        for (int n = 0; n < KV_BLOCK; n += rows) {
            const bool have = WHOLE || (key + b * KV_BLOCK + n + r <= last && p * 8 < size);
            copy16(to + (b * KV_BLOCK + n) * 128, at + n * size, have);
        }
    }
}

/* Tiles are announced when the copies of LAG later ones are under way. */
template <class cut, int width>
ON_GPU void fill_copies(const struct paged &a, const struct lines &t, struct ring<cut> &to)
{
    enum { LAG = cut::SLOTS / 3 };
    static_assert(LAG <= cut::SLOTS - 2, "what is not announced must not keep others from releasing");
    const struct span_of_keys k = keys_of<cut::STEP>(a, t);
    struct ring<cut> oldest = to;
    int open = 0; /* tiles not announced */
    auto began = [&] {
        copy_commit();
        to.move_on();
        if (++open <= LAG) return;
        copy_wait<LAG>();
        oldest.announce(), oldest.move_on(), open--;
    };
    uint32_t before = 0, mine = look_up<cut>(a, t, k, 0);
    for (int i = 0; i <= k.steps; i++) {
        const uint32_t next = look_up<cut>(a, t, k, i + 1);
        const int key = k.first + i * cut::STEP;
        const bool wide = a.size == width;
        if (i < k.steps) {
            to.await_empty();
            if (wide && key + cut::STEP - 1 <= k.last)
                copy_keys<cut, width, true>(a, t, to.tile_address(), mine, key, k.last);
            else
                copy_keys<cut, width, false>(a, t, to.tile_address(), mine, key, k.last);
            began();
        }
        if (i > 0) {
            to.await_empty();
            if (wide && key - 1 <= k.last)
                copy_values<cut, width, true>(a, t, to.tile_address(), before, key - cut::STEP, k.last);
            else
                copy_values<cut, width, false>(a, t, to.tile_address(), before, key - cut::STEP, k.last);
            began();
        }
        before = mine, mine = next;
    }
    copy_wait<0>();
    for (; open > 0; open--) oldest.announce(), oldest.move_on();
}

/* --- 8 bits ------------------------------------------------------------------------------------------------- */

/* Scales of keys that are powers of two are multiplied into the tile, which rounds nothing; others are applied to scores. */
template <class CODES> struct keys_have_scales {
    static constexpr bool value = false;
};
template <> struct keys_have_scales<codes_e4m3> {
    static constexpr bool value = true;
};

ON_GPU uint4 times8(const uint4 &x, const uint4 &by)
{
    return make_uint4(type_f16::times(x.x, by.x), type_f16::times(x.y, by.y), type_f16::times(x.z, by.z),
                      type_f16::times(x.w, by.w));
}

/* Codes of one row on their way to tiles. A piece is sixteen codes of a thread: sixteen keys of an element, or sixteen elements of a key.
 * A thread copies its pieces to a place of its own in shared memory, AHEAD pieces before it widens them, and so waits for nobody. */
template <class cut, int width, class CODES> struct code_stream {
    enum {
        PIECES = cut::STEP * width / 16 / WG_THREADS, /* of a tile, for each thread */
        ROUND = 2 * PIECES,                           /* keys of a step and values of the one before */
        AHEAD = cut::AHEAD,
        GROUP = AHEAD / 2,                     /* pieces that are waited for at a time */
        BLOCKS_EACH = WG_THREADS / width,      /* of keys, that all threads have pieces of at a time */
        ROWS_EACH = WG_THREADS / (width / 16), /* likewise keys whose values */
        SCALES = cut::STEP / 32,               /* of a lane */
    };
    static_assert(ROUND % AHEAD == 0, "a piece always has the same place");
    static_assert(PIECES % GROUP == 0 && ROWS_EACH % 8 == 0, "as pieces are counted and swizzled");
    const struct paged &a;
    const struct span_of_keys k;
    const char *heads;     /* the head's place in block 0 */
    char *own;             /* scales of the tile that the warp works on */
    char *codes;           /* the thread's first piece */
    int lane, d, b;        /* of keys: the element, and which block of BLOCKS_EACH */
    int row, e;            /* of values: which key of ROWS_EACH, and sixteenth of its elements */
    uint32_t keys, values; /* where its first pieces lie in tiles */

    /* pool: of tiles. */
    __device__ __forceinline__ code_stream(const struct paged &call, const struct lines &t, char *pool)
        : a(call), k(keys_of<cut::STEP>(call, t)), heads((const char *)call.pool + paged_at(call, 0, t.kv))
    {
        find_places(pool);
    }
    /* Where a thread's pieces lie. Found again for each tile, because registers are short. */
    __device__ __forceinline__ void find_places(char *pool)
    {
        const unsigned thread = (unsigned)thread_again() % WG_THREADS, at = thread % (width / 8);
        lane = thread % 32, d = thread % width, b = thread / width;
        own = pool + cut::OWN_AT + thread / 32 * (cut::STEP * 4);
        codes = pool + cut::CODES_AT + thread * 16;
        /* Eight neighbours have four pieces of each of two rows, and write to different banks. */
        row = thread / (width / 8) * 2 + at / 4 % 2;
        e = at % 4 + 4 * ((at / 8 + at / 4) % (width / 64));
        keys = d * 128 + ((b * 2) ^ d % 8) * 16;
        values = e / 4 * (cut::STEP * 128) + row * 128 + ((e % 4 * 2) ^ row % 8) * 16;
    }
    __device__ __forceinline__ int key_of(int step) const { return k.first + step * cut::STEP; }
    __device__ __forceinline__ char *place(int i) const { return codes + i % AHEAD * (WG_THREADS * 16); }

    /* Starts to copy piece n of a tile to place `to`. blocks: of look_up for the step, which may be the one before the first: then what
     * is copied is not used. */
    __device__ __forceinline__ void load_keys(int n, int step, uint32_t blocks, int to) const
    {
        const int i = n * BLOCKS_EACH + b;
        const bool have = i * KV_BLOCK <= k.last - key_of(step) && d < a.size;
        copy16(shared_address(place(to)), in_block(heads + d * KV_BLOCK, blocks, i), have);
    }
    __device__ __forceinline__ void load_values(int n, int step, uint32_t blocks, int to) const
    {
        const int r = n * ROWS_EACH + row;
        const char *from = heads + a.plane + row % KV_BLOCK * a.size + e * 16;
        const bool have = r <= k.last - key_of(step) && e * 16 < a.size;
        copy16(shared_address(place(to)), in_block(from, blocks, n * ROWS_EACH / KV_BLOCK + row / KV_BLOCK),
               have);
    }
    /* Scales of a step's keys [SCALES lane, ...); plane: 0, or that of values. */
    __device__ __forceinline__ void load_scales(float (&s)[SCALES], int64_t plane, int step,
                                                uint32_t blocks) const
    {
        const int first = lane * SCALES, missing = k.last - key_of(step) - first;
        const char *at = in_block(heads + plane + KV_BLOCK * a.size + first % KV_BLOCK * KV8_SCALE, blocks,
                                  first / KV_BLOCK);
#pragma unroll
        for (int i = 0; i < SCALES; i += 2) {
            const float2 two = i <= missing ? *(const float2 *)(at + i * KV8_SCALE) : make_float2(0, 0);
            s[i] = two.x, s[i + 1] = i + 1 <= missing ? two.y : 0;
        }
    }

    /* To where all lanes of the warp find them, as fp16 where numbers are multiplied as such. */
    __device__ __forceinline__ void share(const float (&s)[SCALES]) const
    {
#pragma unroll
        for (int i = 0; i < SCALES; i += 2) {
            const int at = lane * SCALES + i;
            if constexpr (keys_have_scales<CODES>::value)
                *(uint32_t *)(own + at * 2) = type_f16::pack(s[i], s[i + 1]);
            else
                *(float2 *)(own + at * 4) = make_float2(s[i], s[i + 1]);
        }
        __syncwarp();
    }

    /* Piece n of a tile, from place `from`; a row's pieces are 16 bytes apart, exchanged by the row. */
    __device__ __forceinline__ void widen_keys(int n, int from, char *tile) const
    {
        const uint4 x = *(const uint4 *)place(from);
        uint4 low = numbers8<CODES>(make_uint2(x.x, x.y)), high = numbers8<CODES>(make_uint2(x.z, x.w));
        if constexpr (keys_have_scales<CODES>::value) {
            const uint4 *by = (const uint4 *)(own + (n * BLOCKS_EACH + b) * KV_BLOCK * 2);
            const uint4 by_low = by[0], by_high = by[1];
            low = times8(low, by_low), high = times8(high, by_high);
        }
        const uint32_t at = keys ^ n * BLOCKS_EACH % 4 * 32;
        tile += n * BLOCKS_EACH / 4 * (width * 128);
        *(uint4 *)(tile + at) = low;
        *(uint4 *)(tile + (at ^ 16)) = high;
    }
    __device__ __forceinline__ void widen_values(int n, int from, char *tile) const
    {
        const uint4 x = *(const uint4 *)place(from);
        const uint2 first = make_uint2(x.x, x.y), second = make_uint2(x.z, x.w);
        const int r = n * ROWS_EACH + row;
        uint4 low, high;
        if constexpr (keys_have_scales<CODES>::value) {
            const uint32_t two = *(const uint16_t *)(own + r * 2) * 0x10001u;
            const uint4 by = make_uint4(two, two, two, two);
            low = times8(numbers8<CODES>(first), by), high = times8(numbers8<CODES>(second), by);
        } else {
            const float by = *(const float *)(own + r * 4);
            low = numbers8<CODES>(first, by), high = numbers8<CODES>(second, by);
        }
        tile += n * ROWS_EACH * 128;
        *(uint4 *)(tile + values) = low;
        *(uint4 *)(tile + (values ^ 16)) = high;
    }
};

template <class cut, int width, class CODES>
ON_GPU void fill_codes(const struct paged &a, const struct lines &t, struct ring<cut> &to)
{
    typedef code_stream<cut, width, CODES> stream;
    stream in(a, t, to.pool);
    float scales[stream::SCALES]; /* of the next tile */
    /* Blocks of steps i - 1, i and i + 1. */
    uint32_t before = 0, mine = look_up<cut>(a, t, in.k, 0), next = look_up<cut>(a, t, in.k, 1);
    /* Pieces from j on of round i, or of the next one. */
    auto load = [&](int from, int i) {
#pragma unroll
        for (int j = from; j < from + stream::GROUP; j++) {
            const int n = j % stream::PIECES;
            if (j < stream::PIECES)
                in.load_keys(n, i, mine, j);
            else if (j < stream::ROUND)
                in.load_values(n, i - 1, before, j);
            else if (j < stream::ROUND + stream::PIECES)
                in.load_keys(n, i + 1, next, j);
            else
                in.load_values(n, i, mine, j);
        }
        copy_commit();
    };
    in.load_scales(scales, 0, 0, mine);
    load(0, 0), load(stream::GROUP, 0);
    for (int i = 0; i <= in.k.steps; i++) {
        const uint32_t behind = look_up<cut>(a, t, in.k, i + 2);
        const bool keys = i<in.k.steps, values = i> 0;
        if (keys) {
            to.await_empty();
            in.share(scales);
            if (!keys_have_scales<CODES>::value && threadIdx.x % WG_THREADS < 32)
#pragma unroll
                for (int n = 0; n < stream::SCALES; n++)
                    to.scales()[in.lane * stream::SCALES + n] = scales[n];
        }
        in.find_places(to.pool);
        if (values) in.load_scales(scales, a.plane, i - 1, before);
#pragma unroll
        for (int j = 0; j < stream::PIECES; j += stream::GROUP) {
            copy_wait<1>();
            if (keys)
#pragma unroll
                for (int n = j; n < j + stream::GROUP; n++) in.widen_keys(n, n, to.tile());
            load(j + stream::AHEAD, i);
        }
        if (keys) to.announce(), to.move_on();
        if (values) {
            to.await_empty();
            in.share(scales);
        }
        in.find_places(to.pool);
        in.load_scales(scales, 0, i + 1, next);
#pragma unroll
        for (int j = 0; j < stream::PIECES; j += stream::GROUP) {
            copy_wait<1>();
            if (values)
#pragma unroll
                for (int n = j; n < j + stream::GROUP; n++) in.widen_values(n, stream::PIECES + n, to.tile());
            load(stream::PIECES + j + stream::AHEAD, i);
        }
        if (values) to.announce(), to.move_on();
        before = mine, mine = next, next = behind;
    }
    copy_wait<0>();
}

template <class cut, int width, class CODES>
ON_GPU void fill_tiles(const struct paged &a, const struct lines &t, struct ring<cut> &to)
{
    if constexpr (is_coded<CODES>::value)
        fill_codes<cut, width, CODES>(a, t, to);
    else
        fill_copies<cut, width>(a, t, to);
}

} // namespace
