/* gemm_avx512.c - micro-kernels for AVX-512: fp32 fma and bf16 vdpbf16ps, both with a 14x32 tile of C.
 *
 * The tile takes 28 registers, two hold a row of B, and A is broadcast from memory 32 bits at a time: one
 * fp32, or the two bf16 of one step of k. vdpbf16ps sums the two products of a step into the accumulator, so
 * the two kernels differ in the instruction alone. Fewer rows take smaller kernels with the same sums.
 */
#include "device/cpu/gemm_x86.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define F32_CODE  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define BF16_CODE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define INLINE    static inline __attribute__((always_inline))

enum { MR = 14, NR = 32 };

F32_CODE INLINE void put(float *c, __m512 x, bool accumulate)
{
    _mm512_storeu_ps(c, accumulate ? _mm512_add_ps(_mm512_loadu_ps(c), x) : x);
}

/* Written out row by row, so that every sum is a register. `rows` is a constant in every caller. */
#define EACH_ROW(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11) op(12) op(13)
#define BEGIN(r)                                                                                             \
    s[2 * r] = s[2 * r + 1] = _mm512_setzero_ps();                                                           \
    if (r < rows) {                                                                                          \
        _mm_prefetch((const char *)(c + r * ldc), _MM_HINT_T0);                                              \
        _mm_prefetch((const char *)(c + r * ldc + 16), _MM_HINT_T0);                                         \
    }
#define F32_STEP(r)                                                                                          \
    if (r < rows) {                                                                                          \
        __m512 ar = _mm512_set1_ps(a[r]);                                                                    \
        s[2 * r] = _mm512_fmadd_ps(ar, b0, s[2 * r]);                                                        \
        s[2 * r + 1] = _mm512_fmadd_ps(ar, b1, s[2 * r + 1]);                                                \
    }
#define BF16_STEP(r)                                                                                         \
    if (r < rows) {                                                                                          \
        int32_t two;                                                                                         \
        memcpy(&two, a + 2 * r, sizeof two);                                                                 \
        __m512bh ar = (__m512bh)_mm512_set1_epi32(two);                                                      \
        s[2 * r] = _mm512_dpbf16_ps(s[2 * r], ar, b0);                                                       \
        s[2 * r + 1] = _mm512_dpbf16_ps(s[2 * r + 1], ar, b1);                                               \
    }
#define PUT(r)                                                                                               \
    if (r < rows) {                                                                                          \
        put(c + r * ldc, s[2 * r], accumulate);                                                              \
        put(c + r * ldc + 16, s[2 * r + 1], accumulate);                                                     \
    }

F32_CODE INLINE void f32_multiply(const float *a, const float *b, int64_t k, float *c, int64_t ldc, int rows,
                                  bool accumulate)
{
    __m512 s[2 * MR];
    EACH_ROW(BEGIN)
    for (int64_t i = 0; i < k; i++, a += MR, b += NR) {
        __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
        EACH_ROW(F32_STEP)
    }
    EACH_ROW(PUT)
}

/* Two k to a step. */
BF16_CODE INLINE void bf16_multiply(const uint16_t *a, const uint16_t *b, int64_t k, float *c, int64_t ldc,
                                    int rows, bool accumulate)
{
    __m512 s[2 * MR];
    EACH_ROW(BEGIN)
    for (int64_t i = 0; i < k; i += 2, a += 2 * MR, b += 2 * NR) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + 32);
        EACH_ROW(BF16_STEP)
    }
    EACH_ROW(PUT)
}

/* Kernels of 1, 2, 4, 8 and 14 rows; what lies between goes through a tile beside C. */
typedef void few_rows(const void *a, const void *b, int64_t k, float *c, int64_t ldc, bool accumulate);
#define ROWS(code, kind, rows)                                                                               \
    code static void kind##_##rows(const void *a, const void *b, int64_t k, float *c, int64_t ldc,           \
                                   bool accumulate)                                                          \
    {                                                                                                        \
        kind##_multiply(a, b, k, c, ldc, rows, accumulate);                                                  \
    }
ROWS(F32_CODE, f32, 1)
ROWS(F32_CODE, f32, 2)
ROWS(F32_CODE, f32, 4)
ROWS(F32_CODE, f32, 8)
ROWS(F32_CODE, f32, 14)
ROWS(BF16_CODE, bf16, 1)
ROWS(BF16_CODE, bf16, 2)
ROWS(BF16_CODE, bf16, 4)
ROWS(BF16_CODE, bf16, 8)
ROWS(BF16_CODE, bf16, 14)

enum { SIZES = 5 };
static const int sizes[SIZES] = {1, 2, 4, 8, MR};

static void run_by_size(few_rows *const kernels[SIZES], const void *a, const void *b, int64_t k, float *c,
                        int64_t ldc, int rows, bool accumulate)
{
    int i = 0;
    while (sizes[i] < rows) i++;
    if (sizes[i] == rows) {
        kernels[i](a, b, k, c, ldc, accumulate);
        return;
    }
    _Alignas(64) float tile[MR * NR];
    kernels[i](a, b, k, tile, NR, false);
    for (int r = 0; r < rows; r++, c += ldc) {
        for (int n = 0; n < NR; n++) c[n] = accumulate ? c[n] + tile[r * NR + n] : tile[r * NR + n];
    }
}

static void f32_run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows, bool accumulate)
{
    static few_rows *const kernels[SIZES] = {f32_1, f32_2, f32_4, f32_8, f32_14};
    run_by_size(kernels, a, b, k, c, ldc, rows, accumulate);
}

static void bf16_run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                     bool accumulate)
{
    static few_rows *const kernels[SIZES] = {bf16_1, bf16_2, bf16_4, bf16_8, bf16_14};
    run_by_size(kernels, a, b, k, c, ldc, rows, accumulate);
}

/* The plain rule, compiled for these instructions. */
F32_CODE static void round_tile(uint16_t *c, int64_t ldc, const float *tile, int rows, int cols)
{
    for (int m = 0; m < rows; m++, c += ldc, tile += NR) {
        for (int n = 0; n < cols; n++) c[n] = f32_to_bf16(tile[n]);
    }
}

const struct gemm_kernel gemm_avx512_f32 = {
    .name = "avx512 fma 14x32",
    .mr = MR,
    .nr = NR,
    .kg = 1,
    .type = DT_F32,
    .own_bytes = 384 << 10,
    .shared_a_bytes = 4608 << 10, /* 512 rows of 2,048: packed, B stays in the worker's own cache */
    .pack_a = {gemm_avx512_f32_pack_14, gemm_avx512_bf16_pack_14, gemm_avx512_f16_pack_14},
    .pack_b = {gemm_avx512_f32_pack_32, gemm_avx512_bf16_pack_32, gemm_avx512_f16_pack_32},
    .run = f32_run,
    .round = round_tile,
};

const struct gemm_kernel gemm_avx512_bf16 = {
    .name = "avx512 vdpbf16ps 14x32",
    .mr = MR,
    .nr = NR,
    .kg = 2,
    .type = DT_BF16,
    .pack_a = {[DT_BF16] = gemm_x86_bf16_pack_14},
    .pack_b = {[DT_BF16] = gemm_x86_bf16_pack_32},
    .run = bf16_run,
    .round = round_tile,
};

#endif
