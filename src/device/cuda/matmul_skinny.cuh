/* matmul_skinny.cuh - what the kernels of matmul_skinny.cu and matmul_skinny_dw.cu share. */
#pragma once

#include "device/cuda/attention_ptx.cuh"
#include "device/cuda/matmul_skinny.h"
#include "device/cuda/overlap.cuh"

enum {
    SKINNY_WARPS = 8,
    SKINNY_THREADS = 32 * SKINNY_WARPS,
    SKINNY_LEAST = 128, /* rows */
    SKINNY_MOST = 48,   /* columns of a narrow result or operand: three of rank 16 */
    SKINNY_SUMS = 64,   /* terms of short sums */
    SKINNY_HALF = 32,   /* columns of which each lane of four has a packet */
    SKINNY_STEP = 64,   /* columns that a warp takes at once */
};

template <class T> struct skinny_type;
template <> struct skinny_type<bf16> {
    using type = type_bf16;
};
template <> struct skinny_type<f16> {
    using type = type_f16;
};

/* 16 bytes, zeros unless `have`. */
template <class T> ON_GPU uint4 skinny_piece(const T *at, bool have)
{
    return have ? *reinterpret_cast<const uint4 *>(at) : make_uint4(0, 0, 0, 0);
}

/* Columns 8 q .. 8 q + 7 of 32 in lane q of four are the operands of two products: the order of a sum's terms is free. `low` and `high` are rows
 * g and g + 8, `line` has the same columns of the small matrix. */
template <class type>
ON_GPU void skinny_multiply(float (&sum)[4], const uint4 &low, const uint4 &high, const uint4 &line)
{
    const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
    type::multiply(sum, first, line.x, line.y);
    type::multiply(sum, second, line.z, line.w);
}

/* Where row k of 32 lies, in 16 bytes for each, so that a turned load gives every lane `line` of skinny_multiply: matrix j has the rows that
 * are words j of the lanes. */
ON_GPU int skinny_place(int k) { return k % 8 / 2 * 8 + k / 8 * 2 + k % 2; }

ON_GPU uint4 skinny_turned(const uint4 *places)
{
    uint32_t r[4];
    load_matrices_turned(r, shared_address(places + threadIdx.x % 32));
    return make_uint4(r[0], r[1], r[2], r[3]);
}

/* Rows [at, at + STEP) of s[K,M] as `line` of skinny_multiply, by halves of STEP and by 8 columns. room: of this warp. */
template <class T, int TILES>
ON_GPU void skinny_turn(const T *s, int64_t at, int64_t k, int64_t m, uint4 (*room)[TILES][SKINNY_HALF],
                        uint4 (&w)[SKINNY_STEP / SKINNY_HALF][TILES])
{
    const int lane = threadIdx.x % 32;
    uint4 mine[SKINNY_STEP * TILES / 32];
#pragma unroll
    for (int i = 0; i < SKINNY_STEP * TILES / 32; i++) {
        int piece = i * 32 + lane, row = piece / TILES, t = piece % TILES;
        mine[i] = skinny_piece(s + (at + row) * m + 8 * t, at + row < k && 8 * t < m);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < SKINNY_STEP * TILES / 32; i++) {
        int piece = i * 32 + lane, row = piece / TILES, t = piece % TILES;
        room[row / SKINNY_HALF][t][skinny_place(row % SKINNY_HALF)] = mine[i];
    }
    __syncwarp();
#pragma unroll
    for (int h = 0; h < SKINNY_STEP / SKINNY_HALF; h++)
#pragma unroll
        for (int t = 0; t < TILES; t++) w[h][t] = skinny_turned(room[h][t]);
}

/* Where results of rows go: struct skinny_product. */
template <class T> struct skinny_results {
    T *y, *scaled;
    const T *from;
    T *again;
    float scale;
};

template <class T> static inline skinny_results<T> skinny_results_of(const struct skinny_product *p)
{
    return {(T *)p->d, (T *)p->scaled, (const T *)p->from, (T *)p->again, p->scale};
}

template <int N, class T>
ON_GPU void skinny_put(const skinny_results<T> &r, int64_t at, const float (&sum)[N])
{
    float v[N];
    const packet<T, N> rounded = pack<T>(sum);
    if (r.y) store(r.y + at, rounded);
    if (r.scaled) {
        unpack(rounded, v);
#pragma unroll
        for (int k = 0; k < N; k++) v[k] *= r.scale;
        save(r.scaled + at, v);
    }
    if (r.again) {
        load(r.from + at, v);
#pragma unroll
        for (int k = 0; k < N; k++) v[k] *= r.scale;
        save(r.again + at, v);
    }
}

/* matmul_skinny_dw.cu */
bool skinny_dw_suits(const struct skinny_product *p);
int skinny_dw(const struct cuda_queue *queue, const struct skinny_product *p);
