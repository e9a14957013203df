/* quantised_rows.cuh - rows of x rounded to 8 bits in blocks of 32 (tape/op.h), as the tensor cores want them.
 *
 * Rows lie in tiles of R = 8; a single row in shared memory is a tile of R = 1. [K / 256][rows / R] tiles of R * CUDA_Q_RECORD bytes,
 * each the eight blocks of its rows, so that what a warp loads at once is contiguous:
 *
 *     [8][R][32] codes    of a block's eight words, 0 and 4, 1 and 5, ... are neighbours: a lane's two operands
 *     [8][R] scales       x = scale * code
 *     [8][R] sums         of a block's codes, for types with minima
 *
 * A row may be made on the way, of a norm's or a gated unit's operands (enum few_source); it is rounded to its type first, so
 * bits do not depend on it. Every thread handles 8 of k, four neighbours a block. */
#pragma once

#include "device/cuda/quantised.h"
#include "device/cuda/vec.cuh"

enum { ROW_THREADS = 256, ROW_WARPS = ROW_THREADS / 32 };

enum { RECORD = CUDA_Q_RECORD, RECORD_SCALES = 256, RECORD_SUMS = 288 };

struct rounded_rows {
    char *at;
    int rows, tile; /* whole tiles; rows of a tile */
};

/* Four whole numbers as bytes; those out of range are cut. */
ON_GPU uint32_t four_bytes(int a, int b, int c, int d)
{
    uint32_t upper, all;
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(upper) : "r"(d), "r"(c));
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(all) : "r"(b), "r"(a), "r"(upper));
    return all;
}

/* Elements [c, c + 8) of row r to their place. All lanes of a warp call it; `have`: the row has these elements. */
ON_GPU void put_codes(const rounded_rows &to, int r, int c, bool have, const float (&v)[8])
{
    float most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) most = fmaxf(most, fabsf(v[i]));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const float d = most * (1.0f / 127.0f), inverse = most > 0 ? __fdividef(127.0f, most) : 0;
    int q[8];
#pragma unroll
    for (int i = 0; i < 8; i++) q[i] = __float2int_rn(v[i] * inverse);
    const uint32_t first = four_bytes(q[0], q[1], q[2], q[3]), second = four_bytes(q[4], q[5], q[6], q[7]);
    int sum = __dp4a((int)first, 0x01010101, __dp4a((int)second, 0x01010101, 0));
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (!have) return;
    const int block = c % CUDA_Q_CHUNK / 32, word = c % 32 / 4, place = word % 4 * 2 + word / 4;
    const int in = r & (to.tile - 1), at = block * to.tile + in;
    char *tile = to.at + ((int64_t)(c / CUDA_Q_CHUNK) * to.rows + r - in) * RECORD;
    uint32_t *codes = reinterpret_cast<uint32_t *>(tile + at * 32) + place;
    codes[0] = first, codes[2] = second;
    if (word) return;
    reinterpret_cast<float *>(tile + to.tile * RECORD_SCALES)[at] = d;
    reinterpret_cast<float *>(tile + to.tile * RECORD_SUMS)[at] = (float)sum;
}

/* Columns [begin, begin + 8 packets) of a row. */
struct row_range {
    int row, begin, packets;
};

/* A thread's part of x's operands: 8 of x or of the norm's or gated unit's first operand, 8 of the other. */
template <class T> struct two_packets {
    packet<T, 8> x, y;
};

/* Packets of a thread are ROW_THREADS apart; where there are none it reads the last. */
template <class T> ON_GPU two_packets<T> fetch_packets(const cuda_q_product &q, const row_range &range, int i)
{
    const int64_t c = range.begin + min(i, range.packets - 1) * 8, at = range.row * q.k + c;
    two_packets<T> p;
    p.x = fetch<T, 8>((const T *)(q.source == FEW_PLAIN ? q.x : q.a) + at);
    if (q.source == FEW_GLU) p.y = fetch<T, 8>((const T *)q.b + at);
    if (q.source == FEW_NORM) p.y = fetch<T, 8>((const T *)q.b + c);
    return p;
}

/* 1 / the root of a row's mean square, in the order of norms of few rows (matmul_few.cu). */
template <class T> ON_GPU float rstd_of(const cuda_q_product &q, const row_range &range, float *partial)
{
    float square = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < range.packets; i += ROW_THREADS) {
        float v[8];
        load((const T *)q.a + range.row * q.k + i * 8, v);
#pragma unroll
        for (int j = 0; j < 8; j++) square = fmaf(v[j], v[j], square);
    }
    return 1.0f / sqrtf(block_sum<ROW_THREADS>(square, partial) / (float)q.k + q.eps);
}

/* Eight elements of x from those of its operands, rounded to its type. `to`: where a norm's result is left; NULL: nowhere. */
template <class T>
ON_GPU void make8(const cuda_q_product &q, few_source source, const two_packets<T> &p, float rstd, T *to,
                  float (&v)[8])
{
    float u[8];
    unpack(p.x, v);
    if (source == FEW_PLAIN) return;
    unpack(p.y, u);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = source == FEW_NORM ? v[i] * rstd * (q.plus_one ? u[i] + 1.0f : u[i])
                                  : divide_for<T>(v[i] * u[i], 1.0f + exp_for<T>(-v[i]));
    const packet<T, 8> made = pack<T>(v);
    unpack(made, v);
    if (to) store(to, made);
}

/* A range of x by a block of threads, as row `place` of the records. partial: [ROW_WARPS], for norms; writes: this block leaves
 * a norm's results in memory too. Code that runs once is read from memory: it is small rather than unrolled. */
template <class T>
ON_GPU void make_row(const cuda_q_product &q, const row_range &range, const rounded_rows &to, int place,
                     float *partial, bool writes)
{
    const bool keeps = q.source == FEW_NORM && writes;
    two_packets<T> now, next = fetch_packets<T>(q, range, threadIdx.x),
                        later = fetch_packets<T>(q, range, threadIdx.x + ROW_THREADS);
    const float rstd = q.source == FEW_NORM ? rstd_of<T>(q, range, partial) : 0;
    if (keeps && threadIdx.x == 0 && q.stat) q.stat[range.row] = rstd;
#pragma unroll 1
    for (int first = 0; first < range.packets; first += ROW_THREADS) {
        const int i = first + threadIdx.x, c = range.begin + min(i, range.packets - 1) * 8;
        const bool have = i < range.packets;
        float v[8];
        now = next, next = later;
        later = fetch_packets<T>(q, range, i + 2 * ROW_THREADS);
        make8(q, q.source, now, rstd, keeps && have ? (T *)q.x + range.row * q.k + c : NULL, v);
        put_codes(to, place, c, have, v);
    }
}
