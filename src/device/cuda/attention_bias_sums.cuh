/* attention_bias_sums.cuh - the gradient of attention's bias by distance, gathered where dS stands in registers.
 *
 * A queries pass calls bias_add for every tile of dS that a warp makes and bias_finish once, when its block is done. A warp
 * has shared memory of its own: a line of sums by offset (key - query), and a piece in which a tile stands askew, so that
 * what belongs to one offset stands in one column.
 *
 *     line    [-left - margin .. right + margin]    left, right: from here on outwards all offsets are of one bucket
 *
 * A tile is added by offset where it meets (-left, right). It is narrower than the margin, so every lane has an entry of
 * its own, and no offset is clamped. A tile that lies beyond is one sum, which the line's first or last entry takes.
 *
 * Every sum has a fixed order: pieces of a tile, rows of a piece, tiles of a walk, warps, offsets of a bucket.
 */
#pragma once

#include "device/cuda/attention.cuh"

/* For tiles of 16 high by 8 wide. Pieces of 8 by 8 on one diagonal of the tile are a band; they are added up in registers. */
template <int high, int wide> struct bias_room {
    enum {
        BANDS = wide + 2 * high - 1,
        OFFSETS = 8 * BANDS + 7,                  /* of a tile */
        PITCH = (OFFSETS - 9 + 15) / 16 * 16 + 9, /* with bias_lane: a warp's stores go to different banks */
        ASKEW = 8 * PITCH + 1,
        MARGIN = OFFSETS - 1,
    };
};

/* The offsets [-left, right] that need entries. */
static __host__ __device__ __forceinline__ int bias_left(const struct bias_buckets &b)
{
    return b.begins[b.side - 1];
}

static __host__ __device__ __forceinline__ int bias_right(const struct bias_buckets &b)
{
    return !b.two_sided ? 0 : b.side > 1 ? b.begins[b.side - 1] : 1;
}

template <int high, int wide>
static __host__ __device__ __forceinline__ int bias_entries(const struct attn &a)
{
    return bias_left(a.by_distance) + bias_right(a.by_distance) + 1 + 2 * bias_room<high, wide>::MARGIN;
}

/* Shared memory of a warp, in floats. */
template <int high, int wide> static __host__ __device__ __forceinline__ int bias_floats(const struct attn &a)
{
    return bias_room<high, wide>::ASKEW + bias_entries<high, wide>(a);
}

/* The beginning of row `row` of a band in the piece that stands askew. */
template <int high, int wide> ON_GPU int bias_lane(int row)
{
    return row * bias_room<high, wide>::PITCH + row / 4;
}

/* The warp's sums are none; by its lanes. */
template <int high, int wide> ON_GPU void bias_clear(const struct attn &a, float *room)
{
    for (int i = threadIdx.x % 32; i < bias_floats<high, wide>(a); i += 32) room[i] = 0;
    __syncwarp();
}

/* Adds a warp's tile of dS. offset: key - query of the tile's first row and column. */
template <int high, int wide>
ON_GPU void bias_add(const struct attn &a, float *room, const float (&ds)[high][wide][4], int offset)
{
    typedef struct bias_room<high, wide> shape;
    const int lane = threadIdx.x % 32, least = offset - (16 * high - 1), most = offset + 8 * wide - 1;
    const int left = bias_left(a.by_distance), right = bias_right(a.by_distance);
    float *line = room + shape::ASKEW;
    if (most <= -left || least >= right) {
        float all = 0;
#pragma unroll
        for (int m = 0; m < high; m++)
#pragma unroll
            for (int n = 0; n < wide; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) all += ds[m][n][i];
        for (int step = 1; step < 32; step *= 2) all += __shfl_xor_sync(0xffffffffu, all, step);
        if (lane == 0) line[most <= -left ? 0 : bias_entries<high, wide>(a) - 1] += all;
        __syncwarp();
        return;
    }
    float *to = room + bias_lane<high, wide>(lane / 4) + 7 - lane / 4 + lane % 4 * 2;
#pragma unroll
    for (int band = 0; band < shape::BANDS; band++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum = 0;
#pragma unroll
            for (int half = 0; half < 2 * high; half++) {
                const int n = band + half - (2 * high - 1);
                if (n >= 0 && n < wide) sum += ds[half / 2][n][half % 2 * 2 + i];
            }
            to[8 * band + i] = sum;
        }
    }
    __syncwarp();
    line += least + left + shape::MARGIN;
#pragma unroll
    for (int x = lane; x < shape::OFFSETS; x += 32) {
        float sum = 0;
#pragma unroll
        for (int row = 0; row < 8; row++) sum += room[bias_lane<high, wide>(row) + x];
        line[x] += sum;
    }
    __syncwarp();
}

/* Entries [x, y] of a line that belong to a bucket. */
template <int high, int wide> ON_GPU int2 bias_entries_of(const struct attn &a, int bucket)
{
    const struct bias_buckets &b = a.by_distance;
    const int zero = bias_left(b) + bias_room<high, wide>::MARGIN, end = bias_entries<high, wide>(a) - 1;
    const bool after = bucket >= b.side;
    const int i = after ? bucket - b.side : bucket;
    const int from = b.begins[i], to = i + 1 < b.side ? b.begins[i + 1] - 1 : INT_MAX / 2;
    if (after) return make_int2(zero + max(from, 1), min(zero + to, end));
    return make_int2(max(zero - to, 0), i == 0 && !b.two_sided ? end : zero - from);
}

/* Leaves the block's sums by bucket in to[buckets]. rooms: those of its warps, one after the other. Holds barriers. */
template <int high, int wide, int threads>
ON_GPU void bias_finish(const struct attn &a, float *rooms, float *to)
{
    const int count = bias_floats<high, wide>(a), entries = bias_entries<high, wide>(a);
    float *line = rooms + bias_room<high, wide>::ASKEW;
    __syncthreads();
    for (int x = threadIdx.x; x < entries; x += threads) {
        float sum = line[x];
        for (int warp = 1; warp < threads / 32; warp++) sum += line[warp * count + x];
        line[x] = sum;
    }
    __syncthreads();
    for (int first = 0; first < a.buckets; first += threads / 4) { /* four lanes to a bucket */
        const int bucket = first + (int)threadIdx.x / 4;
        float sum = 0;
        if (bucket < a.buckets) {
            const int2 of = bias_entries_of<high, wide>(a, bucket);
            for (int x = of.x + (int)threadIdx.x % 4; x <= of.y; x += 4) sum += line[x];
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (threadIdx.x % 4 == 0 && bucket < a.buckets) to[bucket] = sum;
    }
}

/* Where tile `tile` of the queries of head h of row b leaves its sums. */
ON_GPU float *bias_sums_at(const struct attn &a, int b, int h, int tile)
{
    return a.bucket_sums + (((int64_t)b * a.heads + h) * a.bias_tiles + tile) * a.buckets;
}
