/* gemm_amx_split.c - fp32 products on AMX: see gemm.h for what two parts mean.
 *
 * Of two parts of A and two of B three products are made, at three times the work of bf16.
 *
 * Panels are those of gemm_amx.h, two in turn for each group of 32 k: parts 0 and 1. B's have 16 columns to a tile, and the
 * two tiles of a part behind each other.
 */
#include "device/cpu/gemm_amx.h"

#if defined(__x86_64__)

#define SPLIT_CODE __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define INLINE     AMX_INLINE

enum {
    PARTS = 2,
    AHEAD = 4, /* lines of A that are fetched before they are packed */
};

/* ---- products ---- */

SPLIT_CODE INLINE void load_b(const uint16_t *b)
{
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + AMX_GROUP / 2, 64);
}

SPLIT_CODE INLINE void add_products(bool lower)
{
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (lower) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

/* From one product to the next one side stays where it is: loads are what this loop waits for. */
SPLIT_CODE INLINE void add_group(const uint16_t *a, const uint16_t *b, bool lower)
{
    amx_load_a(a, lower);
    load_b(b + AMX_GROUP);
    add_products(lower);
    load_b(b);
    add_products(lower);
    amx_load_a(a + AMX_GROUP, lower);
    add_products(lower);
}

SPLIT_CODE static void run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                           bool accumulate)
{
    amx_run(add_group, PARTS * AMX_GROUP, a, b, k, c, ldc, rows, accumulate);
}

/* ---- products onto something ---- */

/* Lines of the caches that come with each group of k, so that no group waits for all of them. */
struct ahead {
    const float *c; /* rows ldc apart, two lines each */
    int64_t ldc, rows;
    const char *next, *end;
    int64_t step;
};

SPLIT_CODE INLINE void look_ahead(struct ahead *at)
{
    enum { ROWS = 4 };
    for (int r = 0; r < ROWS && at->rows > 0; r++, at->rows--, at->c += at->ldc) {
        _mm_prefetch((const char *)at->c, _MM_HINT_T0);
        _mm_prefetch((const char *)(at->c + AMX_HALF), _MM_HINT_T0);
    }
    for (int64_t i = 0; i < at->step && at->next < at->end; i += 64, at->next += 64)
        _mm_prefetch(at->next, _MM_HINT_T1);
}

SPLIT_CODE INLINE void add_all(const uint16_t *a, const uint16_t *b, int64_t k, float *tile, bool lower,
                               struct ahead *at)
{
    const int64_t step = PARTS * AMX_GROUP, row = AMX_SIDE * sizeof *tile;
    gemm_amx_set_up_thread();
    __asm__ volatile("" ::: "memory"); /* panels are written: gcc does not know that tile loads read memory */
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < k; i += AMX_KG, a += step, b += step) {
        look_ahead(at);
        add_group(a, b, lower);
    }
    _tile_stored(0, tile, row);
    _tile_stored(1, tile + AMX_HALF, row);
    if (!lower) return;
    _tile_stored(2, tile + AMX_HALF * AMX_SIDE, row);
    _tile_stored(3, tile + AMX_HALF * AMX_SIDE + AMX_HALF, row);
}

/* Sixteen columns of a row. */
SPLIT_CODE INLINE void put(float *c, const float *tile, const float *add, const float *bias)
{
    __m512 x = _mm512_load_ps(tile), start;
    if (add) {
        start = _mm512_loadu_ps(add);
        if (bias) start = _mm512_add_ps(start, _mm512_loadu_ps(bias));
        x = _mm512_add_ps(start, x);
    } else if (bias) {
        x = _mm512_add_ps(_mm512_loadu_ps(bias), x);
    }
    _mm512_storeu_ps(c, x);
}

SPLIT_CODE static void run_onto(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                                const struct gemm_onto *onto)
{
    _Alignas(64) float tile[AMX_SIDE * AMX_SIDE];
    const float *add = onto->add, *bias = onto->bias;
    int64_t groups = k / AMX_KG + 1;
    struct ahead at = {add ? add : c, ldc, rows, onto->next, onto->next + onto->bytes, onto->bytes / groups};
    if (rows > AMX_HALF)
        add_all(a, b, k, tile, true, &at);
    else
        add_all(a, b, k, tile, false, &at);
    for (int r = 0; r < rows; r++, c += ldc, add += add ? ldc : 0)
        for (int half = 0; half < AMX_SIDE; half += AMX_HALF)
            put(c + half, tile + r * AMX_SIDE + half, add ? add + half : NULL, bias ? bias + half : NULL);
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
        const float *ahead = line + amx_least(AHEAD, lines - 1 - l) * ls;
        for (int64_t i = 0; i < k; i += AMX_KG, dst += PARTS * AMX_GROUP) {
            __m512i part[PARTS];
            _mm_prefetch((const char *)(ahead + i), _MM_HINT_T0);
            _mm_prefetch((const char *)(ahead + i + AMX_HALF), _MM_HINT_T0);
            split(group_of(line, ks, i, k, copy), part);
            for (int p = 0; p < PARTS; p++) _mm512_storeu_si512(dst + p * AMX_GROUP, part[p]);
        }
    }
}

/* Rows of 16 cells become columns: cells of pairs, then pairs of those, then quarters of registers change places. */
SPLIT_CODE INLINE void turn(__m512i x[AMX_HALF])
{
    __m512i y[AMX_HALF];
    for (int i = 0; i < AMX_HALF; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < AMX_HALF; i += 4)
        for (int j = 0; j < 2; j++) {
            x[i + 2 * j] = _mm512_unpacklo_epi64(y[i + j], y[i + j + 2]);
            x[i + 2 * j + 1] = _mm512_unpackhi_epi64(y[i + j], y[i + j + 2]);
        }
    for (int i = 0; i < 4; i++) {
        y[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
        y[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
        y[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
        y[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
        x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
    }
}

/* 16 columns of a group of 32 k: of each part, which are AMX_GROUP numbers apart, pairs of k and in them columns. */
SPLIT_CODE static void pack_columns(uint16_t *dst, const float *src, int64_t ls, int64_t ks, int64_t lines,
                                    int64_t i, int64_t k)
{
    __m512i part[AMX_HALF][PARTS], one[AMX_HALF];
    float copy[AMX_KG];
    for (int64_t l = 0; l < AMX_HALF; l++) {
        const float *line = src + amx_least(l, lines - 1) * ls;
        _mm_prefetch((const char *)(line + (i + 2 * AMX_KG) * ks), _MM_HINT_T0);
        _mm_prefetch((const char *)(line + (i + 2 * AMX_KG) * ks + AMX_HALF), _MM_HINT_T0);
        split(group_of(line, ks, i, k, copy), part[l]);
    }
    for (int p = 0; p < PARTS; p++, dst += AMX_GROUP) {
        for (int l = 0; l < AMX_HALF; l++) one[l] = part[l][p];
        turn(one);
        for (int l = 0; l < AMX_HALF; l++) _mm512_storeu_si512(dst + l * AMX_KG, one[l]);
    }
}

/* A group of k of a part is two tiles, one behind the other. */
static void pack_b(void *panels, int64_t stride, const void *src, int64_t ls, int64_t ks, int64_t lines,
                   int64_t k)
{
    for (int64_t l = 0; l < lines; l += AMX_HALF) {
        uint16_t *dst = (uint16_t *)panels + l / AMX_SIDE * 2 * stride + l % AMX_SIDE * AMX_KG;
        for (int64_t i = 0; i < k; i += AMX_KG, dst += PARTS * AMX_GROUP)
            pack_columns(dst, (const float *)src + l * ls, ls, ks, lines - l, i, k);
    }
}

const struct gemm_kernel gemm_amx_split = {
    .name = "amx tdpbf16ps 32x32, fp32 in two parts",
    .mr = AMX_SIDE,
    .nr = AMX_SIDE,
    .kg = AMX_KG,
    .parts = PARTS,
    .own_bytes = 384 << 10,
    .type = DT_F32,
    .pack_a = {[DT_F32] = pack_a},
    .pack_b = {[DT_F32] = pack_b},
    .run = run,
    .run_onto = run_onto,
};

#endif
