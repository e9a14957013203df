/* gemm_amx.c - the bf16 micro-kernel for AMX: a 32x32 tile of C in four tile registers.
 *
 * tdpbf16ps multiplies 16 lines of A over 32 k by 16 columns of B over the same k. It wants A's lines whole (32 k side by
 * side) and B's k in pairs, so the two sides are packed differently within a group of 32 k:
 *
 *     A   [k / 32][line][k % 32]          the rule of gemm_kernel.h with kg 32
 *     B   [k / 2][column][k % 2]          the rule with kg 2, k rounded up to 32 with zeros
 *
 * What follows a product (adding to C, rounding) goes through a tile in memory that stays in the first-level cache. The rows
 * of C it ends in are asked for while the product is made: they are far away, and one after the other they would be waited for.
 *
 * Threads set their tile registers up once, at their first product (a child of fork inherits the shapes with the flag);
 * nothing else in the process may change the shapes. The kernel was asked for permission by cpu_features.c.
 */
#include "device/cpu/gemm_x86.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AMX_CODE __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,prfchw")))
#define INLINE   static inline __attribute__((always_inline))

enum {
    SIDE = 32, /* lines of a panel, on both sides */
    KG = 32,
    HALF = 16, /* lines of a tile register */
    GROUP = SIDE * KG,
};

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- products ---- */

/* Sixteen rows of 64 bytes in each of the eight registers, in the form the instruction reads. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes = {1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

AMX_CODE INLINE void set_up_thread(void)
{
    static _Thread_local bool ready;
    if (ready) return;
    _tile_loadconfig(&tile_shapes);
    ready = true;
}

/* Where a product goes in the end. */
struct goal {
    const char *row; /* the first that was not asked for */
    int64_t step;    /* bytes from row to row */
    int reach;       /* bytes from a row's first cache line into its last */
};

INLINE void ask_for_row(struct goal *goal)
{
    __builtin_prefetch(goal->row, 1);
    __builtin_prefetch(goal->row + goal->reach, 1);
    goal->row += goal->step;
}

/* Tiles 0 and 1 are the upper 16 rows of C, 2 and 3 the lower ones. */
AMX_CODE INLINE void multiply_upper(const uint16_t *a, const uint16_t *b, int64_t k)
{
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t i = 0; i < k; i += KG, a += GROUP, b += GROUP) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 128);
        _tile_loadd(7, b + 2 * HALF, 128);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
}

/* Two rows of the goal with each group: all of them in a full block of k. */
AMX_CODE INLINE void multiply_whole(const uint16_t *a, const uint16_t *b, int64_t k, struct goal goal)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < k; i += KG, a += GROUP, b += GROUP) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 128);
        _tile_loadd(7, b + 2 * HALF, 128);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + HALF * KG, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        ask_for_row(&goal);
        ask_for_row(&goal);
    }
}

/* c[rows rounded up to 16][32] = A.B */
AMX_CODE INLINE void multiply(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                              struct goal goal)
{
    size_t step = (size_t)ldc * sizeof *c;
    set_up_thread();
    __asm__ volatile("" ::: "memory"); /* gcc's tile loads do not say that they read memory */
    if (rows <= HALF) {
        multiply_upper(a, b, k);
    } else {
        multiply_whole(a, b, k, goal);
        _tile_stored(2, c + HALF * ldc, step);
        _tile_stored(3, c + HALF * ldc + HALF, step);
    }
    _tile_stored(0, c, step);
    _tile_stored(1, c + HALF, step);
}

AMX_CODE static void run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                         bool accumulate)
{
    struct goal goal = {(const char *)c, ldc * (int64_t)sizeof *c, 64};
    if (!accumulate && rows % HALF == 0) {
        multiply(a, b, k, c, ldc, rows, goal);
        return;
    }
    _Alignas(64) float tile[SIDE * SIDE];
    multiply(a, b, k, tile, SIDE, rows, goal);
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
    struct goal goal = {(const char *)c, ldc * (int64_t)sizeof *c, 62};
    multiply(a, b, k, tile, SIDE, SIDE, goal);
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

/* ---- packing ----
 *
 * A source that must be turned is read a whole cache line at a time and each line once: rows of a matrix are often a
 * multiple of 4096 bytes apart, so that lines of more than twelve rows do not stay in the first-level cache together, and
 * the processor does not foresee the next row. Hence all the asking ahead.
 */

typedef uint16_t shorts __attribute__((vector_size(64)));

enum { AHEAD = 4 * KG }; /* elements, where k is contiguous */

AMX_CODE INLINE words load_words(const uint16_t *from)
{
    words x;
    memcpy(&x, from, sizeof x);
    return x;
}

AMX_CODE INLINE void store_words(uint16_t *to, words x) { memcpy(to, &x, sizeof x); }

/* Of each quarter of x and y: its first two cells, its last two, side by side. */
#define FIRST(x, y) __builtin_shufflevector(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define LAST(x, y)  __builtin_shufflevector(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define FIRST_PAIR(x, y)                                                                                     \
    __builtin_shufflevector(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define LAST_PAIR(x, y)                                                                                      \
    __builtin_shufflevector(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
/* Quarters 0 and 2, 1 and 3 of x, then of y. */
#define EVEN(x, y) __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
#define ODD(x, y)  __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31)
/* The same for 16 bits: the first four of each quarter, the last four. */
#define FIRST_16(x, y)                                                                                       \
    __builtin_shufflevector(x, y, 0, 32, 1, 33, 2, 34, 3, 35, 8, 40, 9, 41, 10, 42, 11, 43, 16, 48, 17, 49,  \
                            18, 50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59)
#define LAST_16(x, y)                                                                                        \
    __builtin_shufflevector(x, y, 4, 36, 5, 37, 6, 38, 7, 39, 12, 44, 13, 45, 14, 46, 15, 47, 20, 52, 21,    \
                            53, 22, 54, 23, 55, 28, 60, 29, 61, 30, 62, 31, 63)

/* x[i][j] = x[j][i] for 16x16 cells: inside quarters, then the quarters. */
AMX_CODE INLINE void turn(words x[HALF])
{
    for (int i = 0; i < HALF; i += 4) {
        words a = FIRST(x[i], x[i + 1]), b = LAST(x[i], x[i + 1]);
        words c = FIRST(x[i + 2], x[i + 3]), d = LAST(x[i + 2], x[i + 3]);
        x[i] = FIRST_PAIR(a, c), x[i + 1] = LAST_PAIR(a, c);
        x[i + 2] = FIRST_PAIR(b, d), x[i + 3] = LAST_PAIR(b, d);
    }
    for (int i = 0; i < 4; i++) {
        words a = EVEN(x[i], x[i + 4]), b = ODD(x[i], x[i + 4]);
        words c = EVEN(x[i + 8], x[i + 12]), d = ODD(x[i + 8], x[i + 12]);
        x[i] = EVEN(a, c), x[i + 4] = EVEN(b, d), x[i + 8] = ODD(a, c), x[i + 12] = ODD(b, d);
    }
}

/* k contiguous: a line's 32 k are one row of its group. */
AMX_CODE static void pack_a_along_k(uint16_t *dst, const uint16_t *src, int64_t ls, int64_t lines, int64_t k)
{
    for (int64_t l = 0; l < lines; l++, src += ls, dst += KG) {
        int64_t i = 0;
        for (; i + KG <= k; i += KG) {
            __builtin_prefetch(src + ls + i);
            store_words(dst + i * SIDE, load_words(src + i));
        }
        if (i == k) continue;
        memset(dst + i * SIDE, 0, KG * sizeof *dst);
        memcpy(dst + i * SIDE, src + i, (size_t)(k - i) * sizeof *dst);
    }
}

/* Lines contiguous: one group of a whole panel. Pairs of k become cells, four lines of each eight in `low`. Not to be
 * inlined: compilers would keep all its addresses from call to call, in memory. */
AMX_CODE static __attribute__((noinline)) void turn_lines(uint16_t *dst, const uint16_t *src, int64_t ks)
{
    words low[HALF], high[HALF];
    const uint16_t *next = src + KG * ks;
    for (int i = 0; i < HALF; i++, src += 2 * ks, next += 2 * ks) {
        shorts x = (shorts)load_words(src), y = (shorts)load_words(src + ks);
        __builtin_prefetch(next);
        __builtin_prefetch(next + ks);
        low[i] = (words)FIRST_16(x, y), high[i] = (words)LAST_16(x, y);
    }
    turn(low);
    turn(high);
    for (int i = 0; i < HALF; i++) {
        uint16_t *to = dst + (i / 4 * 8 + i % 4) * KG;
        store_words(to, low[i]);
        store_words(to + 4 * KG, high[i]);
    }
}

/* Whole panels, side by side, so that what lies together in the source is read together. */
AMX_CODE static void pack_a_along_lines(uint16_t *dst, int64_t stride, const uint16_t *src, int64_t ks,
                                        int64_t panels, int64_t k)
{
    int64_t whole = k / KG * KG;
    for (int64_t i = 0; i < whole; i += KG) {
        for (int64_t p = 0; p < panels; p++) {
            turn_lines(dst + p * stride + i * SIDE, src + i * ks + p * SIDE, ks);
        }
    }
    gemm_pack_bf16_plain(dst + whole * SIDE, stride, SIDE, KG, src + whole * ks, 1, ks, panels * SIDE,
                         k - whole);
}

static void pack_a(void *panels, int64_t stride, const void *src, int64_t ls, int64_t ks, int64_t lines,
                   int64_t k)
{
    uint16_t *dst = panels;
    const uint16_t *from = src;
    if (ks == 1) {
        for (int64_t l = 0; l < lines; l += SIDE, dst += stride, from += SIDE * ls) {
            pack_a_along_k(dst, from, ls, least(SIDE, lines - l), k);
        }
        return;
    }
    int64_t whole = ls == 1 ? lines / SIDE : 0;
    pack_a_along_lines(dst, stride, from, ks, whole, k);
    gemm_pack_bf16_plain(dst + whole * stride, stride, SIDE, KG, from + whole * SIDE, ls, ks,
                         lines - whole * SIDE, k);
}

/* k contiguous: the whole groups of one panel. Missing lines are copies of the last one. */
AMX_CODE static void pack_b_along_k(uint16_t *dst, const uint16_t *src, int64_t ls, int64_t lines, int64_t k)
{
    const uint16_t *line[SIDE];
    for (int l = 0; l < SIDE; l++) line[l] = src + least(l, lines - 1) * ls;
    for (int64_t i = 0; i + KG <= k; i += KG, dst += GROUP) {
        for (int first = 0; first < SIDE; first += HALF) {
            words x[HALF];
            for (int l = 0; l < HALF; l++) {
                x[l] = load_words(line[first + l] + i);
                __builtin_prefetch(line[first + l] + i + AHEAD);
            }
            turn(x);
            for (int j = 0; j < HALF; j++) store_words(dst + 2 * (j * SIDE + first), x[j]);
        }
    }
}

static void pack_b(void *panels, int64_t stride, const void *src, int64_t ls, int64_t ks, int64_t lines,
                   int64_t k)
{
    uint16_t *dst = panels;
    const uint16_t *from = src;
    int64_t done = 0;
    if (ks == 1) {
        done = k / KG * KG;
        for (int64_t l = 0; l < lines; l += SIDE) {
            pack_b_along_k(dst + l / SIDE * stride, from + l * ls, ls, least(SIDE, lines - l), k);
        }
    }
    gemm_x86_bf16_pack_32(dst + done * SIDE, stride, from + done * ks, ls, ks, lines, k - done);
    int64_t packed = (k + 1) / 2 * 2, padded = (k + KG - 1) / KG * KG;
    if (packed == padded) return;
    uint16_t *pad = dst + packed * SIDE;
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
