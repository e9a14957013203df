/* gemm_amx_split.c - fp32 products on AMX: each fp32 is the sum of three bf16, and six products of the parts are fp32's.
 *
 * x = x0 + x1 + x2 with x0 = bf16(x), x1 = bf16(x - x0), x2 = bf16(x - x0 - x1): 24 bits, exactly but for the smallest numbers.
 * Of the nine products of two such sums the three smallest, 2^-24 of the largest and less, are left out. Sums are fp32's. So
 * the result is as exact as an fp32 kernel's, at six times the work of bf16 and still less than half of fp32's time.
 * Infinities come out as NaN, and parts below 2^-126 as zero.
 *
 * Panels are those of gemm_amx.h, three in turn for each group of 32 k: parts 0, 1, 2.
 */
#include "device/cpu/gemm_amx.h"

#if defined(__x86_64__)

#define SPLIT_CODE __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define INLINE     AMX_INLINE

enum {
    PARTS = 3,
};

/* ---- products ---- */

/* The smallest products come first. */
SPLIT_CODE INLINE void add_group(const uint16_t *a, const uint16_t *b, bool lower)
{
    amx_load_a(a + 2 * AMX_GROUP, lower);
    amx_add_products(b, lower);
    amx_load_a(a + AMX_GROUP, lower);
    amx_add_products(b + AMX_GROUP, lower);
    amx_add_products(b, lower);
    amx_load_a(a, lower);
    amx_add_products(b + 2 * AMX_GROUP, lower);
    amx_add_products(b + AMX_GROUP, lower);
    amx_add_products(b, lower);
}

SPLIT_CODE static void run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                           bool accumulate)
{
    amx_run(add_group, PARTS * AMX_GROUP, a, b, k, c, ldc, rows, accumulate);
}

/* ---- packing ---- */

SPLIT_CODE INLINE __m512 widen(__m256i x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/* The parts of 32 numbers, each part's 32 side by side. */
SPLIT_CODE INLINE void split(const float *x, __m512i part[PARTS])
{
    __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + AMX_HALF);
    for (int p = 0; p < PARTS; p++) {
        part[p] = (__m512i)_mm512_cvtne2ps_pbh(high, low);
        low = _mm512_sub_ps(low, widen(_mm512_castsi512_si256(part[p])));
        high = _mm512_sub_ps(high, widen(_mm512_extracti64x4_epi64(part[p], 1)));
    }
}

/* Numbers [i, i + 32) of a line, zeros behind k. */
SPLIT_CODE INLINE const float *group_of(const float *line, int64_t ks, int64_t i, int64_t k, float *copy)
{
    if (ks == 1 && i + AMX_KG <= k) return line + i;
    for (int64_t j = 0; j < AMX_KG; j++) copy[j] = i + j < k ? line[(i + j) * ks] : 0;
    return copy;
}

SPLIT_CODE static void pack_a(void *panels, int64_t stride, const void *src, int64_t ls, int64_t ks,
                              int64_t lines, int64_t k)
{
    float copy[AMX_KG];
    for (int64_t l = 0; l < lines; l++) {
        const float *line = (const float *)src + l * ls;
        uint16_t *dst = (uint16_t *)panels + l / AMX_SIDE * 2 * stride + l % AMX_SIDE * AMX_KG;
        for (int64_t i = 0; i < k; i += AMX_KG, dst += PARTS * AMX_GROUP) {
            __m512i part[PARTS];
            split(group_of(line, ks, i, k, copy), part);
            for (int p = 0; p < PARTS; p++) _mm512_storeu_si512(dst + p * AMX_GROUP, part[p]);
        }
    }
}

/* One group of 32 k of a panel: pairs of k, and in them columns. */
SPLIT_CODE static void pack_b_group(uint32_t *dst, const float *src, int64_t ls, int64_t ks, int64_t lines,
                                    int64_t i, int64_t k)
{
    _Alignas(64) uint32_t turned[PARTS][AMX_SIDE][AMX_HALF];
    float copy[AMX_KG];
    for (int64_t l = 0; l < AMX_SIDE; l++) {
        __m512i part[PARTS];
        split(group_of(src + amx_least(l, lines - 1) * ls, ks, i, k, copy), part);
        for (int p = 0; p < PARTS; p++) _mm512_store_si512(turned[p][l], part[p]);
    }
    const __m512i lanes = _mm512_mullo_epi32(
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi32(AMX_HALF));
    for (int p = 0; p < PARTS; p++)
        for (int pair = 0; pair < AMX_HALF; pair++, dst += AMX_SIDE) {
            _mm512_storeu_si512(dst, _mm512_i32gather_epi32(lanes, turned[p][0] + pair, 4));
            _mm512_storeu_si512(dst + AMX_HALF, _mm512_i32gather_epi32(lanes, turned[p][AMX_HALF] + pair, 4));
        }
}

static void pack_b(void *panels, int64_t stride, const void *src, int64_t ls, int64_t ks, int64_t lines,
                   int64_t k)
{
    for (int64_t l = 0; l < lines; l += AMX_SIDE) {
        uint32_t *dst = (uint32_t *)panels + l / AMX_SIDE * stride;
        for (int64_t i = 0; i < k; i += AMX_KG, dst += PARTS * AMX_GROUP / 2)
            pack_b_group(dst, (const float *)src + l * ls, ls, ks, amx_least(AMX_SIDE, lines - l), i, k);
    }
}

const struct gemm_kernel gemm_amx_split = {
    .name = "amx tdpbf16ps 32x32, fp32 in three parts",
    .mr = AMX_SIDE,
    .nr = AMX_SIDE,
    .kg = AMX_KG,
    .halves = PARTS,
    .type = DT_F32,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .run = run,
};

#endif
