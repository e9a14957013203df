/* gemm_amx.c - the bf16 micro-kernel for AMX: see gemm_amx.h.
 *
 * Threads set their tile registers up once, at their first product, and nobody else may set them otherwise; the system was
 * asked for permission by cpu_features.c.
 */
#include "device/cpu/gemm_amx.h"

#if defined(__x86_64__)

#define AMX_CODE GEMM_AMX_CODE
#define INLINE   AMX_INLINE

/* ---- products ---- */

/* Sixteen rows of 64 bytes in each of the eight registers, in the form the instruction reads. Constant: gcc believes that it
 * reads the first 8 bytes alone, and would leave out stores to the others. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes = {1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

AMX_CODE void gemm_amx_set_up_thread(void)
{
    static _Thread_local bool ready;
    if (ready) return;
    _tile_loadconfig(&tile_shapes);
    ready = true;
}

AMX_CODE void gemm_amx_set_up_again(void) { _tile_loadconfig(&tile_shapes); }

AMX_CODE INLINE void add_group(const uint16_t *a, const uint16_t *b, bool lower)
{
    amx_load_a(a, lower);
    amx_add_products(b, lower);
}

AMX_CODE static void run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                         bool accumulate)
{
    amx_run(add_group, AMX_GROUP, a, b, k, c, ldc, rows, accumulate);
}

/* ---- rounding, sixteen at a time ---- */

typedef float floats __attribute__((vector_size(64)));
typedef uint32_t words __attribute__((vector_size(64)));
typedef uint16_t halves __attribute__((vector_size(32)));

AMX_CODE INLINE floats load(const float *from)
{
    floats x;
    memcpy(&x, from, sizeof x);
    return x;
}

AMX_CODE INLINE floats widen(const uint16_t *from)
{
    halves x;
    memcpy(&x, from, sizeof x);
    return (floats)(__builtin_convertvector(x, words) << 16);
}

/* f32_to_bf16 of each. */
AMX_CODE INLINE void store_rounded(uint16_t *to, floats x)
{
    words bits = (words)x, nan = (words)((bits & 0x7fffffffu) > 0x7f800000u);
    words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, quiet = (bits >> 16) | 0x40;
    halves out = __builtin_convertvector((nan & quiet) | (~nan & rounded), halves);
    memcpy(to, &out, sizeof out);
}

AMX_CODE static void round_tile(uint16_t *c, int64_t ldc, const float *tile, int rows, int cols)
{
    for (int m = 0; m < rows; m++, c += ldc, tile += AMX_SIDE) {
        int n = 0;
        for (; n + AMX_HALF <= cols; n += AMX_HALF) store_rounded(c + n, load(tile + n));
        for (; n < cols; n++) c[n] = f32_to_bf16(tile[n]);
    }
}

AMX_CODE static void run_round(const void *a, const void *b, int64_t k, const float *sums,
                               const uint16_t *add, const float *bias, uint16_t *c, int64_t ldc)
{
    _Alignas(64) float tile[AMX_SIDE * AMX_SIDE];
    const floats none = {0};
    amx_multiply(add_group, AMX_GROUP, a, b, k, tile, AMX_SIDE, AMX_SIDE);
    for (int64_t m = 0; m < AMX_SIDE; m++) {
        for (int n = 0; n < AMX_SIDE; n += AMX_HALF) {
            floats x = load(tile + m * AMX_SIDE + n), extra = bias ? load(bias + n) : none;
            if (sums) x = load(sums + m * AMX_SIDE + n) + x;
            if (add) extra = widen(add + m * ldc + n) + extra;
            if (add || bias) x += extra;
            store_rounded(c + m * ldc + n, x);
        }
    }
}

/* ---- packing ---- */

/* k contiguous: a line's 32 k are one row of its group. */
static void pack_a_along_k(uint16_t *dst, const uint16_t *src, int64_t ls, int64_t lines, int64_t k)
{
    for (int64_t l = 0; l < lines; l++, src += ls, dst += AMX_KG) {
        int64_t i = 0;
        for (; i + AMX_KG <= k; i += AMX_KG) memcpy(dst + i * AMX_SIDE, src + i, AMX_KG * sizeof *dst);
        if (i == k) continue;
        memset(dst + i * AMX_SIDE, 0, AMX_KG * sizeof *dst);
        memcpy(dst + i * AMX_SIDE, src + i, (size_t)(k - i) * sizeof *dst);
    }
}

INLINE __m128i load_8(const uint16_t *from) { return _mm_loadu_si128((const __m128i *)(const void *)from); }

INLINE void store_8(uint16_t *to, __m128i x) { _mm_storeu_si128((__m128i *)(void *)to, x); }

/* dst[line][k] = src[k][line] for 8 lines and 8 k. */
INLINE void turn_8x8(uint16_t *dst, const uint16_t *src, int64_t ks)
{
    __m128i pair[8], four[8];
    for (int i = 0; i < 4; i++) { /* k and k + 1 side by side: lines 0 to 3, 4 to 7 */
        __m128i x = load_8(src + 2 * i * ks), y = load_8(src + (2 * i + 1) * ks);
        pair[i] = _mm_unpacklo_epi16(x, y), pair[i + 4] = _mm_unpackhi_epi16(x, y);
    }
    for (int i = 0; i < 8; i += 2) { /* k to k + 3: two lines each */
        four[i] = _mm_unpacklo_epi32(pair[i], pair[i + 1]),
        four[i + 1] = _mm_unpackhi_epi32(pair[i], pair[i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        __m128i x = four[i], y = four[i + 2], z = four[i + 4], w = four[i + 6];
        store_8(dst + (2 * i) * AMX_KG, _mm_unpacklo_epi64(x, y));
        store_8(dst + (2 * i + 1) * AMX_KG, _mm_unpackhi_epi64(x, y));
        store_8(dst + (2 * i + 4) * AMX_KG, _mm_unpacklo_epi64(z, w));
        store_8(dst + (2 * i + 5) * AMX_KG, _mm_unpackhi_epi64(z, w));
    }
}

/* Lines contiguous, a whole panel. */
static void pack_a_along_lines(uint16_t *dst, const uint16_t *src, int64_t ks, int64_t k)
{
    int64_t whole = k / AMX_KG * AMX_KG;
    for (int64_t i = 0; i < whole; i += 8) {
        uint16_t *to = dst + i / AMX_KG * AMX_GROUP + i % AMX_KG;
        for (int l = 0; l < AMX_SIDE; l += 8) turn_8x8(to + l * AMX_KG, src + i * ks + l, ks);
    }
    gemm_pack_bf16_plain(dst + whole * AMX_SIDE, 0, AMX_SIDE, AMX_KG, src + whole * ks, 1, ks, AMX_SIDE,
                         k - whole);
}

static void pack_a(void *panels, int64_t stride, const void *src, int64_t ls, int64_t ks, int64_t lines,
                   int64_t k)
{
    uint16_t *dst = panels;
    const uint16_t *from = src;
    for (int64_t l = 0; l < lines; l += AMX_SIDE, dst += stride, from += AMX_SIDE * ls) {
        int64_t here = amx_least(AMX_SIDE, lines - l);
        if (ks == 1) {
            pack_a_along_k(dst, from, ls, here, k);
        } else if (ls == 1 && here == AMX_SIDE) {
            pack_a_along_lines(dst, from, ks, k);
        } else {
            gemm_pack_bf16_plain(dst, stride, AMX_SIDE, AMX_KG, from, ls, ks, here, k);
        }
    }
}

static void pack_b(void *panels, int64_t stride, const void *src, int64_t ls, int64_t ks, int64_t lines,
                   int64_t k)
{
    gemm_x86_bf16_pack_32(panels, stride, src, ls, ks, lines, k);
    int64_t packed = (k + 1) / 2 * 2, padded = (k + AMX_KG - 1) / AMX_KG * AMX_KG;
    if (packed == padded) return;
    uint16_t *pad = (uint16_t *)panels + packed * AMX_SIDE;
    for (int64_t l = 0; l < lines; l += AMX_SIDE, pad += stride) {
        memset(pad, 0, (size_t)((padded - packed) * AMX_SIDE) * sizeof *pad);
    }
}

const struct gemm_kernel gemm_amx_bf16 = {
    .name = "amx tdpbf16ps 32x32",
    .mr = AMX_SIDE,
    .nr = AMX_SIDE,
    .kg = AMX_KG,
    .type = DT_BF16,
    .pack_a = {[DT_BF16] = pack_a},
    .pack_b = {[DT_BF16] = pack_b},
    .run = run,
    .round = round_tile,
    .run_round = run_round,
};

#endif
