/* gemm_amx.c - the bf16 micro-kernel for AMX: a 32x32 tile of C in four tile registers.
 *
 * tdpbf16ps multiplies 16 lines of A over 32 k by 16 columns of B over the same k. It wants A's lines whole (32 k side by
 * side) and B's k in pairs, so the two sides are packed differently within a group of 32 k:
 *
 *     A   [k / 32][line][k % 32]          the rule of gemm_kernel.h with kg 32
 *     B   [k / 2][column][k % 2]          the rule with kg 2, k rounded up to 32 with zeros
 *
 * What follows a product (adding to C, rounding) goes through a tile in memory that stays in the first-level cache.
 * Threads set their tile registers up once, at their first product, and nobody else may set them otherwise; the system was
 * asked for permission by cpu_features.c.
 */
#include "device/cpu/gemm_x86.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AMX_CODE GEMM_AMX_CODE
#define INLINE   static inline __attribute__((always_inline))

enum {
    SIDE = 32, /* lines of a panel, on both sides */
    KG = 32,
    HALF = 16, /* lines of a tile register */
    GROUP = SIDE * KG,
};

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

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

/* Tiles 0 and 1 are the upper 16 rows of C, 2 and 3 the lower ones. `lower` is a constant in every caller. */
AMX_CODE INLINE void multiply_tiles(const uint16_t *a, const uint16_t *b, int64_t k, bool lower)
{
    _tile_zero(0);
    _tile_zero(1);
    if (lower) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t i = 0; i < k; i += KG, a += GROUP, b += GROUP) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 128);
        _tile_loadd(7, b + 2 * HALF, 128);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (lower) {
            _tile_loadd(5, a + HALF * KG, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
}

/* c[rows rounded up to 16][32] = A.B */
AMX_CODE INLINE void multiply(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows)
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

AMX_CODE static void run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
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
    for (int m = 0; m < rows; m++, c += ldc, tile += SIDE) {
        int n = 0;
        for (; n + HALF <= cols; n += HALF) store_rounded(c + n, load(tile + n));
        for (; n < cols; n++) c[n] = f32_to_bf16(tile[n]);
    }
}

AMX_CODE static void run_round(const void *a, const void *b, int64_t k, const float *sums,
                               const uint16_t *add, const float *bias, uint16_t *c, int64_t ldc)
{
    _Alignas(64) float tile[SIDE * SIDE];
    const floats none = {0};
    multiply(a, b, k, tile, SIDE, SIDE);
    for (int64_t m = 0; m < SIDE; m++) {
        for (int n = 0; n < SIDE; n += HALF) {
            floats x = load(tile + m * SIDE + n), extra = bias ? load(bias + n) : none;
            if (sums) x = load(sums + m * SIDE + n) + x;
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
    for (int64_t l = 0; l < lines; l++, src += ls, dst += KG) {
        int64_t i = 0;
        for (; i + KG <= k; i += KG) memcpy(dst + i * SIDE, src + i, KG * sizeof *dst);
        if (i == k) continue;
        memset(dst + i * SIDE, 0, KG * sizeof *dst);
        memcpy(dst + i * SIDE, src + i, (size_t)(k - i) * sizeof *dst);
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
        store_8(dst + (2 * i) * KG, _mm_unpacklo_epi64(x, y));
        store_8(dst + (2 * i + 1) * KG, _mm_unpackhi_epi64(x, y));
        store_8(dst + (2 * i + 4) * KG, _mm_unpacklo_epi64(z, w));
        store_8(dst + (2 * i + 5) * KG, _mm_unpackhi_epi64(z, w));
    }
}

/* Lines contiguous, a whole panel. */
static void pack_a_along_lines(uint16_t *dst, const uint16_t *src, int64_t ks, int64_t k)
{
    int64_t whole = k / KG * KG;
    for (int64_t i = 0; i < whole; i += 8) {
        uint16_t *to = dst + i / KG * GROUP + i % KG;
        for (int l = 0; l < SIDE; l += 8) turn_8x8(to + l * KG, src + i * ks + l, ks);
    }
    gemm_pack_bf16_plain(dst + whole * SIDE, 0, SIDE, KG, src + whole * ks, 1, ks, SIDE, k - whole);
}

static void pack_a(void *panels, int64_t stride, const void *src, int64_t ls, int64_t ks, int64_t lines,
                   int64_t k)
{
    uint16_t *dst = panels;
    const uint16_t *from = src;
    for (int64_t l = 0; l < lines; l += SIDE, dst += stride, from += SIDE * ls) {
        int64_t here = least(SIDE, lines - l);
        if (ks == 1) {
            pack_a_along_k(dst, from, ls, here, k);
        } else if (ls == 1 && here == SIDE) {
            pack_a_along_lines(dst, from, ks, k);
        } else {
            gemm_pack_bf16_plain(dst, stride, SIDE, KG, from, ls, ks, here, k);
        }
    }
}

static void pack_b(void *panels, int64_t stride, const void *src, int64_t ls, int64_t ks, int64_t lines,
                   int64_t k)
{
    gemm_x86_bf16_pack_32(panels, stride, src, ls, ks, lines, k);
    int64_t packed = (k + 1) / 2 * 2, padded = (k + KG - 1) / KG * KG;
    if (packed == padded) return;
    uint16_t *pad = (uint16_t *)panels + packed * SIDE;
    for (int64_t l = 0; l < lines; l += SIDE, pad += stride) {
        memset(pad, 0, (size_t)((padded - packed) * SIDE) * sizeof *pad);
    }
}

const struct gemm_kernel gemm_amx_bf16 = {
    .name = "amx tdpbf16ps 32x32",
    .mr = SIDE,
    .nr = SIDE,
    .kg = KG,
    .type = DT_BF16,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .run = run,
    .round = round_tile,
    .run_round = run_round,
};

#endif
