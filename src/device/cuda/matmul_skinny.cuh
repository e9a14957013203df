/* matmul_skinny.cuh - what the kernels of matmul_skinny.cu and matmul_skinny_dw.cu share. */
#pragma once

#include "device/cuda/attention_ptx.cuh"
#include "device/cuda/matmul_skinny.h"
#include "device/cuda/overlap.cuh"

enum {
    SKINNY_WARPS = 8,
    SKINNY_THREADS = 32 * SKINNY_WARPS,
    SKINNY_LEAST = 128, /* rows */
    SKINNY_MOST = 32,   /* columns of a narrow result or operand */
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

/* matmul_skinny_dw.cu */
bool skinny_dw_suits(const struct skinny_product *p);
int skinny_dw(const struct cuda_queue *queue, const struct skinny_product *p);
