/* gemm_amx_f16.c - fp16 products on AMX: an fp16 is the sum of two bf16, and the four products of the parts are its.
 *
 * An fp16 has 11 bits: the upper 8 are one bf16, the rest is another, exactly. So products are exact, as they are in fp32,
 * sums are fp32's, and a quarter of bf16's rate is four times fp32's. Infinities come out as NaN.
 *
 * Panels are those of gemm_amx_split.c with two parts. Of B the smaller part comes first, and of A for each of them: the
 * order that gemm_few_amx_f16.c keeps, too. */
#include "device/cpu/gemm_amx.h"

#if defined(__x86_64__)

#define F16_CODE AMX_PARTS_CODE
#define INLINE   AMX_INLINE

enum { PARTS = AMX_F16_PARTS };

/* ---- products ---- */

F16_CODE INLINE void load_b(const uint16_t *b)
{
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + AMX_GROUP / 2, 64);
}

F16_CODE INLINE void add_products(bool lower)
{
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (lower) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

F16_CODE INLINE void add_group(const uint16_t *a, const uint16_t *b, bool lower)
{
    for (int part = PARTS - 1; part >= 0; part--) { /* of B */
        load_b(b + part * AMX_GROUP);
        amx_load_a(a + AMX_GROUP, lower);
        add_products(lower);
        amx_load_a(a, lower);
        add_products(lower);
    }
}

F16_CODE static void run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                         bool accumulate)
{
    amx_run(add_group, PARTS * AMX_GROUP, a, b, k, c, ldc, rows, accumulate);
}

/* ---- packing ---- */

/* A block is the parts of 16 lines over 32 k, by line (x[line] = its 32 k) or by pair (x[pair] = two k of 16 lines). */
struct block {
    __m512i x[AMX_HALF][PARTS];
};

/* A side of a product as it lies: element (line, k) is src[line * ls + k * ks], one of the strides is 1. */
struct lines {
    const uint16_t *src;
    int64_t ls, ks, count, k;
};

F16_CODE INLINE void block_by_line(struct block *to, const struct lines *in, int64_t line, int64_t k)
{
    __mmask32 here = in->k - k < AMX_KG ? (1u << (in->k - k)) - 1 : ~0u;
    for (int64_t l = 0; l < AMX_HALF; l++) {
        const uint16_t *from = in->src + amx_least(line + l, in->count - 1) * in->ls + k;
        _mm_prefetch((const char *)(from + 4 * AMX_KG), _MM_HINT_T0);
        amx_split_f16(_mm512_maskz_loadu_epi16(here, from), to->x[l]);
    }
}

F16_CODE INLINE __m512 sixteen(const struct lines *in, int64_t line, int64_t k)
{
    int64_t left = in->count - line;
    if (k >= in->k) return _mm512_setzero_ps();
    __mmask16 here = (__mmask16)(left < AMX_HALF ? (1u << left) - 1 : 0xffff);
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(here, in->src + line + k * in->ks));
}

/* Two bf16 in an fp32's upper halves side by side. */
F16_CODE INLINE __m512i pair(__m512 even, __m512 odd)
{
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even), 16), _mm512_castps_si512(odd));
}

F16_CODE INLINE void block_by_pair(struct block *to, const struct lines *in, int64_t line, int64_t k)
{
    for (int i = 0; i < AMX_HALF; i++) {
        __m512 even = sixteen(in, line, k + 2 * i), odd = sixteen(in, line, k + 2 * i + 1);
        __m512 even0 = amx_upper_f16(even), odd0 = amx_upper_f16(odd);
        to->x[i][0] = pair(even0, odd0);
        to->x[i][1] = pair(_mm512_sub_ps(even, even0), _mm512_sub_ps(odd, odd0));
    }
}

/* Parts are AMX_GROUP numbers apart. */
F16_CODE INLINE void store_block(uint16_t *dst, const struct block *from, bool turned)
{
    for (int p = 0; p < PARTS; p++, dst += AMX_GROUP) {
        __m512i one[AMX_HALF];
        for (int l = 0; l < AMX_HALF; l++) one[l] = from->x[l][p];
        if (turned) amx_turn(one);
        for (int l = 0; l < AMX_HALF; l++) _mm512_storeu_si512(dst + l * AMX_KG, one[l]);
    }
}

/* A's tiles are by line, B's by pair. */
F16_CODE INLINE void pack(uint16_t *panels, int64_t stride, const struct lines *in, bool by_line)
{
    for (int64_t l = 0; l < in->count; l += AMX_HALF) {
        uint16_t *dst = panels + l / AMX_SIDE * stride + l % AMX_SIDE * AMX_KG;
        for (int64_t i = 0; i < in->k; i += AMX_KG, dst += PARTS * AMX_GROUP) {
            struct block block;
            if (in->ks == 1)
                block_by_line(&block, in, l, i);
            else
                block_by_pair(&block, in, l, i);
            store_block(dst, &block, (in->ks == 1) != by_line);
        }
    }
}

F16_CODE static void pack_a(void *panels, int64_t stride, const void *src, int64_t ls, int64_t ks,
                            int64_t lines, int64_t k)
{
    pack(panels, stride, &(struct lines){src, ls, ks, lines, k}, true);
}

F16_CODE static void pack_b(void *panels, int64_t stride, const void *src, int64_t ls, int64_t ks,
                            int64_t lines, int64_t k)
{
    pack(panels, stride, &(struct lines){src, ls, ks, lines, k}, false);
}

const struct gemm_kernel gemm_amx_f16 = {
    .name = "amx tdpbf16ps 32x32, fp16 in two parts",
    .mr = AMX_SIDE,
    .nr = AMX_SIDE,
    .kg = AMX_KG,
    .parts = PARTS,
    .type = DT_F16,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .run = run,
};

#endif
