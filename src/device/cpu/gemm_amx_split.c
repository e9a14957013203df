/* gemm_amx_split.c - fp32 products on AMX: each fp32 is the sum of three bf16, and six products of the parts are fp32's.
 *
 * x = x0 + x1 + x2 with x0 = bf16(x), x1 = bf16(x - x0), x2 = bf16(x - x0 - x1): 24 bits, exactly but for the smallest numbers.
 * Of the nine products of two such sums the three smallest, 2^-24 of the largest and less, are left out. Sums are fp32's. So
 * the result is as exact as an fp32 kernel's, at six times the work of bf16 and still less than half of fp32's time.
 * Infinities come out as NaN, and parts below 2^-126 as zero.
 *
 * Panels are those of gemm_amx.c, three in turn for each group of 32 k: parts 0, 1, 2.
 */
#include "device/cpu/gemm_x86.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define SPLIT_CODE __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define INLINE     static inline __attribute__((always_inline))

enum {
    SIDE = 32, /* lines of a panel, on both sides */
    KG = 32,
    HALF = 16, /* lines of a tile register */
    GROUP = SIDE * KG,
    PARTS = 3,
};

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- products ---- */

SPLIT_CODE INLINE void load_a(const uint16_t *a, bool lower)
{
    _tile_loadd(4, a, 64);
    if (lower) _tile_loadd(5, a + HALF * KG, 64);
}

SPLIT_CODE INLINE void add_products(const uint16_t *b, bool lower)
{
    _tile_loadd(6, b, 128);
    _tile_loadd(7, b + 2 * HALF, 128);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (lower) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

/* Tiles 0 and 1 are the upper 16 rows of C, 2 and 3 the lower ones. The smallest products come first. */
SPLIT_CODE INLINE void multiply_tiles(const uint16_t *a, const uint16_t *b, int64_t k, bool lower)
{
    _tile_zero(0);
    _tile_zero(1);
    if (lower) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t i = 0; i < k; i += KG, a += PARTS * GROUP, b += PARTS * GROUP) {
        load_a(a + 2 * GROUP, lower);
        add_products(b, lower);
        load_a(a + GROUP, lower);
        add_products(b + GROUP, lower);
        add_products(b, lower);
        load_a(a, lower);
        add_products(b + 2 * GROUP, lower);
        add_products(b + GROUP, lower);
        add_products(b, lower);
    }
}

/* c[rows rounded up to 16][32] = A.B */
SPLIT_CODE INLINE void multiply(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows)
{
    size_t step = (size_t)ldc * sizeof *c;
    gemm_amx_set_up_thread();
    __asm__ volatile("" ::: "memory"); /* panels are written: gcc does not know that tile loads read memory */
    if (rows <= HALF) {
        multiply_tiles(a, b, k, false);
    } else {
        multiply_tiles(a, b, k, true);
        _tile_stored(2, c + HALF * ldc, step);
        _tile_stored(3, c + HALF * ldc + HALF, step);
    }
    _tile_stored(0, c, step);
    _tile_stored(1, c + HALF, step);
}

SPLIT_CODE static void run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                           bool accumulate)
{
    if (!accumulate && rows % HALF == 0) {
        multiply(a, b, k, c, ldc, rows);
        return;
    }
    _Alignas(64) float tile[SIDE * SIDE];
    multiply(a, b, k, tile, SIDE, rows);
    for (int r = 0; r < rows; r++, c += ldc) {
        const float *from = tile + r * SIDE;
        if (accumulate) {
            for (int n = 0; n < SIDE; n++) c[n] += from[n];
        } else {
            memcpy(c, from, SIDE * sizeof *c);
        }
    }
}

/* ---- packing ---- */

SPLIT_CODE INLINE __m512 widen(__m256i x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/* The parts of 32 numbers, each part's 32 side by side. */
SPLIT_CODE INLINE void split(const float *x, __m512i part[PARTS])
{
    __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + HALF);
    for (int p = 0; p < PARTS; p++) {
        part[p] = (__m512i)_mm512_cvtne2ps_pbh(high, low);
        low = _mm512_sub_ps(low, widen(_mm512_castsi512_si256(part[p])));
        high = _mm512_sub_ps(high, widen(_mm512_extracti64x4_epi64(part[p], 1)));
    }
}

/* Numbers [i, i + 32) of a line, zeros behind k. */
SPLIT_CODE INLINE const float *group_of(const float *line, int64_t ks, int64_t i, int64_t k, float *copy)
{
    if (ks == 1 && i + KG <= k) return line + i;
    for (int64_t j = 0; j < KG; j++) copy[j] = i + j < k ? line[(i + j) * ks] : 0;
    return copy;
}

SPLIT_CODE static void pack_a(void *panels, int64_t stride, const void *src, int64_t ls, int64_t ks,
                              int64_t lines, int64_t k)
{
    float copy[KG];
    for (int64_t l = 0; l < lines; l++) {
        const float *line = (const float *)src + l * ls;
        uint16_t *dst = (uint16_t *)panels + l / SIDE * 2 * stride + l % SIDE * KG;
        for (int64_t i = 0; i < k; i += KG, dst += PARTS * GROUP) {
            __m512i part[PARTS];
            split(group_of(line, ks, i, k, copy), part);
            for (int p = 0; p < PARTS; p++) _mm512_storeu_si512(dst + p * GROUP, part[p]);
        }
    }
}

/* One group of 32 k of a panel: pairs of k, and in them columns. */
SPLIT_CODE static void pack_b_group(uint32_t *dst, const float *src, int64_t ls, int64_t ks, int64_t lines,
                                    int64_t i, int64_t k)
{
    _Alignas(64) uint32_t turned[PARTS][SIDE][HALF];
    float copy[KG];
    for (int64_t l = 0; l < SIDE; l++) {
        __m512i part[PARTS];
        split(group_of(src + least(l, lines - 1) * ls, ks, i, k, copy), part);
        for (int p = 0; p < PARTS; p++) _mm512_store_si512(turned[p][l], part[p]);
    }
    const __m512i lanes = _mm512_mullo_epi32(
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi32(HALF));
    for (int p = 0; p < PARTS; p++)
        for (int pair = 0; pair < HALF; pair++, dst += SIDE) {
            _mm512_storeu_si512(dst, _mm512_i32gather_epi32(lanes, turned[p][0] + pair, 4));
            _mm512_storeu_si512(dst + HALF, _mm512_i32gather_epi32(lanes, turned[p][HALF] + pair, 4));
        }
}

static void pack_b(void *panels, int64_t stride, const void *src, int64_t ls, int64_t ks, int64_t lines,
                   int64_t k)
{
    for (int64_t l = 0; l < lines; l += SIDE) {
        uint32_t *dst = (uint32_t *)panels + l / SIDE * stride;
        for (int64_t i = 0; i < k; i += KG, dst += PARTS * GROUP / 2)
            pack_b_group(dst, (const float *)src + l * ls, ls, ks, least(SIDE, lines - l), i, k);
    }
}

const struct gemm_kernel gemm_amx_split = {
    .name = "amx tdpbf16ps 32x32, fp32 in three parts",
    .mr = SIDE,
    .nr = SIDE,
    .kg = KG,
    .halves = PARTS,
    .type = DT_F32,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .run = run,
};

#endif
