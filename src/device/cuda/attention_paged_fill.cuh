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

/* Which block of the pool has block lane % BLOCKS of step i; 0 where there is none. */
template <class cut>
ON_GPU int look_up(const struct paged &a, const struct lines &t, const struct span_of_keys &k, int i)
{
    const int key = k.first + i * cut::STEP + threadIdx.x % cut::STEP_BLOCKS * KV_BLOCK;
    return key <= k.last ? a.blocks[(int64_t)t.row * a.reach + key / KV_BLOCK] : 0;
}

/* --- 16 bits ------------------------------------------------------------------------------------------------ */

/* Starts copying the keys from `key` on. mine: of look_up. WHOLE: all keys of the step are there, and heads are as wide as tiles. */
template <class cut, int width, bool WHOLE>
ON_GPU void copy_keys(const struct paged &a, const struct lines &t, uint32_t to, int mine, int key, int last)
{
    const int thread = threadIdx.x % WG_THREADS, d = thread / 2; /* two pieces to an element of 16 keys */
    const uint16_t *from = (const uint16_t *)a.pool + paged_at(a, 0, t.kv) + thread * 8;
    to += d * 128;
#pragma unroll
    for (int b = 0; b < cut::STEP_BLOCKS; b++) {
        const bool block = WHOLE || key + b * KV_BLOCK <= last;
        const uint16_t *at = from + __shfl_sync(0xffffffffu, mine, b) * a.block;
        const uint32_t piece = to + b / 4 * (width * 128) + ((b % 4 * 2 + thread % 2) ^ d % 8) * 16;
#pragma unroll
        for (int n = 0; n < width / 64; n++) {
            const bool have = block && (WHOLE || d + n * 64 < a.size);
            copy16(piece + n * 64 * 128, have ? at + n * 64 * KV_BLOCK : (const uint16_t *)a.pool, have);
        }
    }
}

/* Likewise their values. */
template <class cut, int width, bool WHOLE>
ON_GPU void copy_values(const struct paged &a, const struct lines &t, uint32_t to, int mine, int key,
                        int last)
{
    const int pieces = width / 8, thread = threadIdx.x % WG_THREADS, r = thread / pieces, p = thread % pieces;
    const int size = WHOLE ? width : a.size, rows = WG_THREADS / pieces; /* rows at once: a multiple of 8 */
    const uint16_t *from =
        (const uint16_t *)a.pool + paged_at(a, 0, t.kv) + a.plane + (p * 8 < size ? r * size + p * 8 : 0);
    to += p / 8 * (cut::STEP * 128) + r * 128 + ((p ^ r) % 8) * 16;
#pragma unroll
    for (int b = 0; b < cut::STEP_BLOCKS; b++) {
        const uint16_t *at = from + __shfl_sync(0xffffffffu, mine, b) * a.block;
#pragma unroll
        for (int n = 0; n < KV_BLOCK; n += rows) {
            const bool have = WHOLE || (key + b * KV_BLOCK + n + r <= last && p * 8 < size);
            copy16(to + (b * KV_BLOCK + n) * 128, have ? at + n * size : (const uint16_t *)a.pool, have);
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
    int before = 0, mine = look_up<cut>(a, t, k, 0);
    for (int i = 0; i <= k.steps; i++) {
        const int next = look_up<cut>(a, t, k, i + 1), key = k.first + i * cut::STEP;
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
        BLOCKS_EACH = WG_THREADS / width,      /* of keys, that all threads have pieces of at a time */
        ROWS_EACH = WG_THREADS / (width / 16), /* likewise keys whose values */
        SCALES = cut::STEP / 32,               /* of a lane */
    };
    static_assert(ROUND % AHEAD == 0, "a piece always has the same place");
    const struct paged &a;
    const struct span_of_keys k;
    const char *heads; /* the head's place in block 0 */
    char *own;         /* scales of the tile that the warp works on */
    char *codes;       /* the thread's first piece */
    int thread, lane, d, row, e;

    /* pool: of tiles. */
    __device__ __forceinline__ code_stream(const struct paged &call, const struct lines &t, char *pool)
        : a(call), k(keys_of<cut::STEP>(call, t)), heads((const char *)call.pool + paged_at(call, 0, t.kv))
    {
        find_places(pool);
    }
    /* What a thread has of tiles; found again for each of them, because registers are short. */
    __device__ __forceinline__ void find_places(char *pool)
    {
        thread = thread_again() % WG_THREADS, lane = thread % 32, d = thread % width;
        own = pool + cut::OWN_AT + thread / 32 * (cut::STEP * 4);
        codes = pool + cut::CODES_AT + thread * 16;
        /* Eight neighbours have four pieces of each of two rows, and write to different banks. */
        const int at = thread % (width / 8);
        row = thread / (width / 8) * 2 + at / 4 % 2;
        e = at % 4 + 4 * ((at / 8 + at / 4) % (width / 64));
    }
    __device__ __forceinline__ int key_of(int step) const { return k.first + step * cut::STEP; }

    /* Starts to copy piece n of a tile to place `to`. number: of look_up for the step. */
    __device__ __forceinline__ void load_keys(int n, int step, int number, int to) const
    {
        const int b = n * BLOCKS_EACH + thread / width;
        const char *at = heads + __shfl_sync(0xffffffffu, number, b) * a.block + d * KV_BLOCK;
        const bool have = key_of(step) + b * KV_BLOCK <= k.last && d < a.size;
        copy16(place(to), have ? at : heads, have);
    }
    __device__ __forceinline__ void load_values(int n, int step, int number, int to) const
    {
        const int r = n * ROWS_EACH + row;
        const char *at = heads + a.plane + __shfl_sync(0xffffffffu, number, r / KV_BLOCK) * a.block +
                         r % KV_BLOCK * a.size + e * 16;
        const bool have = step >= 0 && key_of(step) + r <= k.last && e * 16 < a.size;
        copy16(place(to), have ? at : heads, have);
    }
    __device__ __forceinline__ uint32_t place(int i) const
    {
        return shared_address(codes) + i % AHEAD * (WG_THREADS * 16);
    }
    /* The oldest piece under way. */
    __device__ __forceinline__ uint4 arrived(int i) const
    {
        copy_wait<AHEAD - 1>();
        return *(const uint4 *)(codes + i % AHEAD * (WG_THREADS * 16));
    }

    /* Scales of a step's keys [SCALES lane, ...); plane: 0, or that of values. */
    __device__ __forceinline__ void load_scales(float (&s)[SCALES], int64_t plane, int step, int number) const
    {
        const int first = lane * SCALES, missing = k.last - key_of(step) - first;
        const char *at = heads + plane +
                         __shfl_sync(0xffffffffu, number, first / KV_BLOCK) * a.block +
                         KV_BLOCK * a.size + first % KV_BLOCK * KV8_SCALE;
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

    __device__ __forceinline__ void widen_keys(int n, const uint4 &x, char *tile) const
    {
        const int b = n * BLOCKS_EACH + thread / width;
        uint4 low = numbers8<CODES>(make_uint2(x.x, x.y)), high = numbers8<CODES>(make_uint2(x.z, x.w));
        if constexpr (keys_have_scales<CODES>::value) {
            const uint4 *by = (const uint4 *)(own + b * KV_BLOCK * 2);
            low = times8(low, by[0]), high = times8(high, by[1]);
        }
        char *to = tile + b / 4 * (width * 128) + d * 128;
        *(uint4 *)(to + ((b % 4 * 2) ^ d % 8) * 16) = low;
        *(uint4 *)(to + ((b % 4 * 2 + 1) ^ d % 8) * 16) = high;
    }
    __device__ __forceinline__ void widen_values(int n, const uint4 &x, char *tile) const
    {
        const int r = n * ROWS_EACH + row;
        uint4 low, high;
        if constexpr (keys_have_scales<CODES>::value) {
            const uint32_t one = *(const uint16_t *)(own + r * 2), two = one * 0x10001u;
            const uint4 by = make_uint4(two, two, two, two);
            low = times8(numbers8<CODES>(make_uint2(x.x, x.y)), by);
            high = times8(numbers8<CODES>(make_uint2(x.z, x.w)), by);
        } else {
            const float by = *(const float *)(own + r * 4);
            low = numbers8<CODES>(make_uint2(x.x, x.y), by);
            high = numbers8<CODES>(make_uint2(x.z, x.w), by);
        }
        char *to = tile + e / 4 * (cut::STEP * 128) + r * 128;
        *(uint4 *)(to + ((e % 4 * 2) ^ r % 8) * 16) = low;
        *(uint4 *)(to + ((e % 4 * 2 + 1) ^ r % 8) * 16) = high;
    }
};

template <class cut, int width, class CODES>
ON_GPU void fill_codes(const struct paged &a, const struct lines &t, struct ring<cut> &to)
{
    typedef code_stream<cut, width, CODES> stream;
    stream in(a, t, to.pool);
    float scales[stream::SCALES]; /* of the next tile */
    /* Blocks of steps i - 1, i and i + 1. */
    int before = 0, mine = look_up<cut>(a, t, in.k, 0), next = look_up<cut>(a, t, in.k, 1);
    /* Piece j of round i, or of the next one. */
    auto load = [&](int j, int i) {
        const int n = j % stream::PIECES;
        if (j < stream::PIECES)
            in.load_keys(n, i, mine, j);
        else if (j < stream::ROUND)
            in.load_values(n, i - 1, before, j);
        else if (j < stream::ROUND + stream::PIECES)
            in.load_keys(n, i + 1, next, j);
        else
            in.load_values(n, i, mine, j);
        copy_commit();
    };
    in.load_scales(scales, 0, 0, mine);
#pragma unroll
    for (int j = 0; j < stream::AHEAD; j++) load(j, 0);
    for (int i = 0; i <= in.k.steps; i++) {
        const int behind = look_up<cut>(a, t, in.k, i + 2);
        const bool keys = i < in.k.steps, values = i > 0;
        if (keys) {
            to.await_empty();
            in.share(scales);
            if (!keys_have_scales<CODES>::value && in.thread < 32)
#pragma unroll
                for (int n = 0; n < stream::SCALES; n++)
                    to.scales()[in.lane * stream::SCALES + n] = scales[n];
        }
        in.find_places(to.pool);
        if (values) in.load_scales(scales, a.plane, i - 1, before);
#pragma unroll
        for (int j = 0; j < stream::PIECES; j++) {
            const uint4 x = in.arrived(j);
            if (keys) in.widen_keys(j, x, to.tile());
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
        for (int j = stream::PIECES; j < stream::ROUND; j++) {
            const uint4 x = in.arrived(j);
            if (values) in.widen_values(j - stream::PIECES, x, to.tile());
            load(j + stream::AHEAD, i);
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
