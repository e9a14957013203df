/* tile.h - the matrix-multiply micro-kernels, for kernels that multiply small blocks they hold in cache
 * (attention): pack a block of A, pack a block of B, multiply the two packed blocks into an fp32 block of C.
 *
 *     enum dtype t = DT_BF16;                               // what the arithmetic is done in: F32, BF16 (or
 * F16) void *qp = scratch, *kp = scratch + tile_a_bytes(t, 64, d);             // 64-byte aligned
 *     tile_pack_a(t, qp, q, DT_BF16, q_row, 1, 64, d);      // Q[64,d]    A(m,k) = q[m*q_row + k]
 *     tile_pack_b(t, kp, k, DT_BF16, 1, k_row, d, 128);     // K[128,d]^T B(k,n) = k[n*k_row + k]
 *     tile_multiply(t, s, 128, qp, kp, 64, 128, d, false);  // S[64,128] = Q K^T, fp32, row-major
 *     ... softmax in place in s ...
 *     tile_pack_a(t, pp, s, DT_F32, 128, 1, 64, 128);       // fp32 probabilities, rounded while packing
 *     tile_pack_b(t, vp, v, DT_BF16, v_row, 1, 128, d);     // V[128,d]   B(k,n) = v[k*v_row + n]
 *     tile_multiply(t, o, d, pp, vp, 64, d, 128, true);     // O[64,d] += P V
 *
 * Any sizes are correct; they are meant for blocks up to 128 x 128 x 256 or so. Packing is fast when one of
 * the two strides is 1. A packed block can be used any number of times. Everything is pure and thread-safe.
 *
 * `type` is the arithmetic, `src_type` (F32, BF16, F16) what the source holds. BF16 arithmetic rounds an fp32
 * source to nearest even; on a machine without bf16 instructions, and for F16, the block is packed as fp32
 * and multiplied in fp32. Accumulation is always fp32, over the whole of k in increasing order: an element of
 * C depends on its row of A, its column of B and k alone, not on the block around it.
 */
#ifndef PLIM_DEVICE_CPU_TILE_H
#define PLIM_DEVICE_CPU_TILE_H

#include "tensor/dtype.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows and columns of the C block one micro-kernel call makes. Block sizes that are multiples waste nothing.
 */
int tile_rows(enum dtype type);
int tile_cols(enum dtype type);

/* Bytes of a packed block, a multiple of 64 (with a little slack: kernels load ahead). */
size_t tile_a_bytes(enum dtype type, int64_t rows, int64_t k);
size_t tile_b_bytes(enum dtype type, int64_t k, int64_t cols);

/* dst = packed A[rows,k], A(m,k) = src[m*rs + k*cs]. dst 64-byte aligned. */
void tile_pack_a(enum dtype type, void *dst, const void *src, enum dtype src_type, int64_t rs, int64_t cs,
                 int64_t rows, int64_t k);

/* dst = packed B[k,cols], B(k,n) = src[k*rs + n*cs]. */
void tile_pack_b(enum dtype type, void *dst, const void *src, enum dtype src_type, int64_t rs, int64_t cs,
                 int64_t k, int64_t cols);

/* C[rows,cols] = A.B, or C += A.B (the product is formed in full, then added once). c row-major, stride ldc.
 */
void tile_multiply(enum dtype type, float *c, int64_t ldc, const void *a, const void *b, int64_t rows,
                   int64_t cols, int64_t k, bool accumulate);

#endif
