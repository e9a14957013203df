/* gemm_avx2.c - the fp32 micro-kernel for AVX2 and FMA: a 6x16 tile of C in twelve registers, two for a row
 * of B, one for the element of A that multiplies it. Fewer rows take smaller kernels with the same sums. */
#include "device/cpu/gemm_x86.h"

#if defined(__x86_64__)
#include "device/cpu/vec_base.h"
#include <immintrin.h>

#define AVX2_CODE __attribute__((target("avx2,fma")))
#define INLINE    static inline __attribute__((always_inline))

enum { MR = 6, NR = 16 };

AVX2_CODE INLINE void put(float *c, __m256 x, bool accumulate)
{
    _mm256_storeu_ps(c, accumulate ? _mm256_add_ps(_mm256_loadu_ps(c), x) : x);
}

/* Written out row by row, so that every sum is a register. `rows` is a constant in every caller. */
#define EACH_ROW(op) op(0) op(1) op(2) op(3) op(4) op(5)
#define ZERO(r)      s[2 * r] = s[2 * r + 1] = _mm256_setzero_ps();
#define FETCH(r)                                                                                             \
    if (r < rows) _mm_prefetch((const char *)(c + r * ldc), _MM_HINT_T0);
#define STEP(r)                                                                                              \
    if (r < rows) {                                                                                          \
        __m256 ar = _mm256_broadcast_ss(a + r);                                                              \
        s[2 * r] = _mm256_fmadd_ps(ar, b0, s[2 * r]);                                                        \
        s[2 * r + 1] = _mm256_fmadd_ps(ar, b1, s[2 * r + 1]);                                                \
    }
#define PUT(r)                                                                                               \
    if (r < rows) {                                                                                          \
        put(c + r * ldc, s[2 * r], accumulate);                                                              \
        put(c + r * ldc + 8, s[2 * r + 1], accumulate);                                                      \
    }

AVX2_CODE INLINE void multiply(const float *a, const float *b, int64_t k, float *c, int64_t ldc, int rows,
                               bool accumulate)
{
    __m256 s[2 * MR];
    EACH_ROW(ZERO)
    EACH_ROW(FETCH)
    VEC_UNROLL(4)
    for (int64_t i = 0; i < k; i++, a += MR, b += NR) {
        __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
        EACH_ROW(STEP)
    }
    EACH_ROW(PUT)
}

#define MULTIPLY(rows)                                                                                       \
    AVX2_CODE static void multiply_##rows(const float *a, const float *b, int64_t k, float *c, int64_t ldc,  \
                                          bool accumulate)                                                   \
    {                                                                                                        \
        multiply(a, b, k, c, ldc, rows, accumulate);                                                         \
    }
MULTIPLY(1)
MULTIPLY(2)
MULTIPLY(3)
MULTIPLY(4)
MULTIPLY(5)
MULTIPLY(6)

static void run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows, bool accumulate)
{
    static void (*const by_rows[])(const float *, const float *, int64_t, float *, int64_t, bool) = {
        multiply_1, multiply_2, multiply_3, multiply_4, multiply_5, multiply_6,
    };
    by_rows[rows - 1](a, b, k, c, ldc, accumulate);
}

/* The plain rule, compiled for these instructions. */
AVX2_CODE static void round_tile(uint16_t *c, int64_t ldc, const float *tile, int rows, int cols)
{
    for (int m = 0; m < rows; m++, c += ldc, tile += NR) {
        for (int n = 0; n < cols; n++) c[n] = f32_to_bf16(tile[n]);
    }
}

const struct gemm_kernel gemm_avx2_f32 = {
    .name = "avx2 fma 6x16",
    .mr = MR,
    .nr = NR,
    .kg = 1,
    .type = DT_F32,
    .own_bytes = 192 << 10, /* with a panel of B it fits a second-level cache of 256 KiB */
    .pack_a = {[DT_F32] = gemm_x86_f32_pack_6},
    .pack_b = {[DT_F32] = gemm_x86_f32_pack_16},
    .run = run,
    .round = round_tile,
};

#endif
