/* gemm_few_neon_f16.c - few rows of fp16 on AArch64 by fmlal: see gemm_few.h.
 *
 * fmlal multiplies fp16 and adds to fp32 with one rounding: the bits of fmla on widened operands, without widening them,
 * which a Neoverse V1 does four times slower than it multiplies. A is packed [eight rows][k][row], so that one vector holds what a
 * step needs of 1, 2, 4 or 8 rows; where they are missing they are zeros.
 *
 * One row keeps four groups of lines in registers, loads the next step before it multiplies this one, and prefetches one cache
 * line ahead: its few chains of sums would let the loads wait. It also asks for the next tile's lines, which follow each other in memory, from
 * end to end: the processor itself sees sixteen streams of a few KiB too late. More rows turn a piece of all lines, a cache line of each, into
 * a buffer, and multiply it from there with as many chains as the latency of fmlal takes. Stores that follow each other
 * matter there: scattered over the buffer they took three times as long.
 *
 * Where k ends within a piece, zeros are multiplied. They change nothing: a sum that starts at +0 never becomes -0, since
 * products of fp16 are too large to vanish in fp32. */
#include "device/cpu/gemm_few_neon.h"

#if defined(__aarch64__)

#if defined(__clang__)
#define FMLAL_CODE __attribute__((target("fp16fml")))
#else
#define FMLAL_CODE __attribute__((target("arch=armv8.2-a+fp16fml")))
#endif

enum {
    PIECE = 32, /* of k: a cache line */
    STEPS = PIECE / STEP,
    HELD = GROUPS * STEPS * 4,
    MOST_ROWS = 2 * ROWS,
};

/* Rows that are multiplied at once. */
static int padded(int rows) { return rows <= 2 ? rows : rows <= 4 ? 4 : ROWS; }

static void pack_f16(void *dst, const void *src, enum dtype type, int64_t rs, int rows, int64_t k)
{
    const uint16_t *from = src;
    uint16_t *to = dst;
    int wide = padded(rows);
    (void)type;
    for (int r = 0; r < rows; r += ROWS, to += ROWS * GEMM_KC, from += ROWS * rs) {
        int here = rows - r < ROWS ? rows - r : ROWS;
        memset(to, 0, (size_t)((k + PIECE - 1) / PIECE * PIECE * wide) * sizeof *to);
        for (int j = 0; j < here; j++)
            for (int64_t i = 0; i < k; i++) to[i * wide + j] = from[j * rs + i];
    }
}

/* ---- assembly, because the compiler runs out of registers or hoists what must wait ---- */

/* clang-format off */
#define FM(half, sum, w, lane) "fmlal" half " v" #sum ".4s, v" #w ".4h, v0.h[" #lane "]\n"
#define LOAD_A                 "ldr q0, [%[a]], #16\n"
#define LOAD_W(w, at)          "ldr q" #w ", [%[held], #" #at "]\n"
#define SUMS(op, x, y, at)     op " q" #x ", q" #y ", [%[sums], #" #at "]\n"
/* clang-format on */

/* ---- one row ---- */

/* v4..v19 are the lines of the next step, v20..v23 the sums, v24..v27 one group of this step, turned. */
/* clang-format off */
#define GROUP_ADDRESS(g, by)   "add %[b" #g "], %[b" #g "], " by "\n"
#define LOAD_LINES(g, p, q, r, s)                                                                            \
    "ldr q" #p ", [%[b" #g "]]\n"        "ldr q" #q ", [%[b" #g "], %[s1]]\n"                                \
    "ldr q" #r ", [%[b" #g "], %[s2]]\n" "ldr q" #s ", [%[b" #g "], %[s3]]\n"
#define TURN(op, size, to, x, y) #op " v" #to "." #size ", v" #x "." #size ", v" #y "." #size "\n"
#define TURN_LINES(p, q, r, s)                                                                               \
    TURN(trn1, 8h, 28, p, q)   TURN(trn2, 8h, 29, p, q)   TURN(trn1, 8h, 30, r, s)   TURN(trn2, 8h, 31, r, s)   \
    TURN(trn1, 4s, 24, 28, 30) TURN(trn1, 4s, 25, 29, 31) TURN(trn2, 4s, 26, 28, 30) TURN(trn2, 4s, 27, 29, 31)
#define EIGHT_K(sum)                                                                                         \
    FM("", sum, 24, 0)  FM("", sum, 25, 1)  FM("", sum, 26, 2)  FM("", sum, 27, 3)                           \
    FM("2", sum, 24, 4) FM("2", sum, 25, 5) FM("2", sum, 26, 6) FM("2", sum, 27, 7)
#define PREFETCH_LINES(g)                                                                                    \
    "add %[later], %[b" #g "], #64\n" "prfm pldl1keep, [%[later]]\n" "prfm pldl1keep, [%[later], %[s1]]\n"   \
    "prfm pldl1keep, [%[later], %[s2]]\n" "prfm pldl1keep, [%[later], %[s3]]\n"
#define STEP_OF_GROUP(g, sum, p, q, r, s, by)                                                                \
    TURN_LINES(p, q, r, s) GROUP_ADDRESS(g, by) LOAD_LINES(g, p, q, r, s) EIGHT_K(sum)
#define PREFETCH_NEXT                                                                                        \
    "prfm pldl2keep, [%[ahead]]\n"       "prfm pldl2keep, [%[ahead], #64]\n"                                 \
    "prfm pldl2keep, [%[ahead], #128]\n" "prfm pldl2keep, [%[ahead], #192]\n" "add %[ahead], %[ahead], #256\n"
#define STEP_OF_ROW(g, by)                                                                                   \
    PREFETCH_LINES(g) PREFETCH_NEXT LOAD_A                                                                                 \
    STEP_OF_GROUP(0, 20, 4, 5, 6, 7, by)     STEP_OF_GROUP(1, 21, 8, 9, 10, 11, by)                          \
    STEP_OF_GROUP(2, 22, 12, 13, 14, 15, by) STEP_OF_GROUP(3, 23, 16, 17, 18, 19, by)

/* The last step loads itself once more. */
FMLAL_CODE static void one_along(struct lines from, int64_t k, const uint16_t *a, float *sums)
{
    int64_t step = from.step, by;
    const char *ahead = from.ahead, *b0 = from.b, *b1 = b0 + GROUP * step, *b2 = b1 + GROUP * step,
               *b3 = b2 + GROUP * step, *later;
    __asm__ volatile(SUMS("ldp", 20, 21, 0) SUMS("ldp", 22, 23, 32)
        LOAD_LINES(0, 4, 5, 6, 7) LOAD_LINES(1, 8, 9, 10, 11) LOAD_LINES(2, 12, 13, 14, 15) LOAD_LINES(3, 16, 17, 18, 19)
        "1:\n"
        "subs %[k], %[k], #32\n" "mov %[by], #16\n" "csel %[by], xzr, %[by], eq\n"
        STEP_OF_ROW(0, "#16") STEP_OF_ROW(1, "#16") STEP_OF_ROW(2, "#16") STEP_OF_ROW(3, "%[by]")
        "cbnz %[k], 1b\n"
        SUMS("stp", 20, 21, 0) SUMS("stp", 22, 23, 32)
        : [a] "+r"(a), [k] "+r"(k), [b0] "+r"(b0), [b1] "+r"(b1), [b2] "+r"(b2), [b3] "+r"(b3), [by] "=&r"(by),
          [later] "=&r"(later), [ahead] "+r"(ahead)
        : [sums] "r"(sums), [s1] "r"(step), [s2] "r"(2 * step), [s3] "r"(3 * step)
        : "memory", "cc", "v0", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17",
          "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
}
/* clang-format on */

/* ---- more rows ---- */

/* A piece of all lines, group by group, STEP by STEP. */
FMLAL_CODE FEW_INLINE void turn_piece(uint16x8_t held[HELD], const char *b, int64_t step)
{
    uint16x8_t r[4];
    for (int g = 0; g < GROUPS; g++, b += GROUP * step)
        for (int j = 0; j < STEPS; j++, held += 4) {
            few_load_16(r, b + 2 * STEP * j, step);
            few_turn_16(held, r);
        }
}

/* v16..v31 are the sums, v1..v4 one k of up to four groups, v0 the rows of A. Offsets: a group of the piece is 256 bytes, a
 * row of sums 64. */
/* clang-format off */
#define SUMS_2(op) SUMS(op, 16, 18, 0)  SUMS(op, 20, 22, 32) SUMS(op, 17, 19, 64) SUMS(op, 21, 23, 96)
#define K_2(half, at, p, q)                                                                                  \
    LOAD_W(1, at) LOAD_W(2, at + 256) LOAD_W(3, at + 512) LOAD_W(4, at + 768)                                \
    FM(half, 16, 1, p) FM(half, 17, 1, q) FM(half, 18, 2, p) FM(half, 19, 2, q)                              \
    FM(half, 20, 3, p) FM(half, 21, 3, q) FM(half, 22, 4, p) FM(half, 23, 4, q)
#define HALF_2(half) LOAD_A K_2(half, 0, 0, 1) K_2(half, 16, 2, 3) K_2(half, 32, 4, 5) K_2(half, 48, 6, 7)

#define SUMS_4(op)                                                                                           \
    SUMS(op, 16, 20, 0)   SUMS(op, 24, 28, 32)  SUMS(op, 17, 21, 64)  SUMS(op, 25, 29, 96)                   \
    SUMS(op, 18, 22, 128) SUMS(op, 26, 30, 160) SUMS(op, 19, 23, 192) SUMS(op, 27, 31, 224)
#define K_4(half, at, p, q, r, s)                                                                            \
    LOAD_W(1, at) LOAD_W(2, at + 256) LOAD_W(3, at + 512) LOAD_W(4, at + 768)                                \
    FM(half, 16, 1, p) FM(half, 17, 1, q) FM(half, 18, 1, r) FM(half, 19, 1, s)                              \
    FM(half, 20, 2, p) FM(half, 21, 2, q) FM(half, 22, 2, r) FM(half, 23, 2, s)                              \
    FM(half, 24, 3, p) FM(half, 25, 3, q) FM(half, 26, 3, r) FM(half, 27, 3, s)                              \
    FM(half, 28, 4, p) FM(half, 29, 4, q) FM(half, 30, 4, r) FM(half, 31, 4, s)
#define TWO_K_4(half, at, next) LOAD_A K_4(half, at, 0, 1, 2, 3) K_4(half, next, 4, 5, 6, 7)
#define HALF_4(half)            TWO_K_4(half, 0, 16) TWO_K_4(half, 32, 48)

#define SUMS_8(op)                                                                                           \
    SUMS(op, 16, 24, 0)   SUMS(op, 17, 25, 64)  SUMS(op, 18, 26, 128) SUMS(op, 19, 27, 192)                  \
    SUMS(op, 20, 28, 256) SUMS(op, 21, 29, 320) SUMS(op, 22, 30, 384) SUMS(op, 23, 31, 448)
#define K_8(half, at)                                                                                        \
    LOAD_A LOAD_W(1, at) LOAD_W(2, at + 256)                                                                 \
    FM(half, 16, 1, 0) FM(half, 17, 1, 1) FM(half, 18, 1, 2) FM(half, 19, 1, 3)                              \
    FM(half, 20, 1, 4) FM(half, 21, 1, 5) FM(half, 22, 1, 6) FM(half, 23, 1, 7)                              \
    FM(half, 24, 2, 0) FM(half, 25, 2, 1) FM(half, 26, 2, 2) FM(half, 27, 2, 3)                              \
    FM(half, 28, 2, 4) FM(half, 29, 2, 5) FM(half, 30, 2, 6) FM(half, 31, 2, 7)
#define HALF_8(half) K_8(half, 0) K_8(half, 16) K_8(half, 32) K_8(half, 48)

/* `rows` rows of A by `groups` groups of lines of a piece. */
#define ROWS_ALONG(rows, groups)                                                                             \
    FMLAL_CODE FEW_INLINE void multiply_##rows(const uint16x8_t *held, const uint16_t *a, float *sums)       \
    {                                                                                                        \
        int64_t n = STEPS;                                                                                   \
        __asm__ volatile(SUMS_##rows("ldp") ".p2align 5\n1:\n" HALF_##rows("") HALF_##rows("2")              \
            "add %[held], %[held], #64\nsubs %[n], %[n], #1\nb.ne 1b\n" SUMS_##rows("stp")                   \
            : [held] "+r"(held), [a] "+r"(a), [n] "+r"(n)                                                    \
            : [sums] "r"(sums)                                                                               \
            : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v16", "v17", "v18", "v19", "v20", "v21", "v22", \
              "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");                                \
    }                                                                                                        \
    FMLAL_CODE static void rows_along_##rows(struct lines from, int64_t k, const uint16_t *a, float *sums)   \
    {                                                                                                        \
        _Alignas(64) uint16x8_t held[HELD];                                                                  \
        for (int64_t i = 0; i < k; i += PIECE) {                                                             \
            turn_piece(held, from.b + 2 * i, from.step);                                                     \
            for (int g = 0; g < GROUPS; g += groups)                                                         \
                multiply_##rows(held + g * STEPS * 4, a + i * rows, sums + g * GROUP);                       \
        }                                                                                                    \
    }
/* clang-format on */
ROWS_ALONG(2, 4)
ROWS_ALONG(4, 4)
ROWS_ALONG(8, 2)

/* sums += A.B, k is whole pieces; by padded rows. */
typedef void pieces_along(struct lines from, int64_t k, const uint16_t *a, float *sums);
static pieces_along *const kernels[ROWS + 1] = {
    [1] = one_along, [2] = rows_along_2, [4] = rows_along_4, [8] = rows_along_8};

static void along_f16(const struct gemm_few_block *p)
{
    struct copied copy;
    struct lines from = find_lines(p, 2, false, &copy);
    const uint16_t *a = p->a;
    float *sums = p->sums;
    _Alignas(64) char rest[LINES * PIECE * 2];
    int64_t whole = p->k / PIECE * PIECE;
    int wide = padded(p->rows);
    if (whole < p->k)
        few_copy_lines(rest, PIECE * 2, LINES, from.b + 2 * whole, from.step, LINES, 2 * (p->k - whole));
    for (int r = 0; r < p->rows; r += ROWS, a += ROWS * GEMM_KC, sums += ROWS * LINES) {
        memset(sums, 0, (size_t)(wide * LINES) * sizeof *sums);
        if (whole) kernels[wide](from, whole, a, sums);
        if (whole < p->k) kernels[wide]((struct lines){rest, PIECE * 2, rest}, PIECE, a + whole * wide, sums);
    }
}

/* ---- across columns: a vector is eight columns of one k ---- */

/* sum += lower or upper ("2") half of w by a lane of x. */
#define FMLAL(half, sum, w, x, lane)                                                                         \
    __asm__("fmlal" half " %0.4s, %1.4h, %2.h[" #lane "]" : "+w"(sum) : "w"(w), "x"(x))

#define ROW_ACROSS(r)                                                                                        \
    FMLAL("", s[r][0], w, x, r);                                                                             \
    FMLAL("2", s[r][1], w, x, r);

/* Eight rows, of which `rows` are there. */
FMLAL_CODE FEW_INLINE void eight_across(const char *b, int64_t step, int deep, const uint16_t *a, float *sums,
                                        int64_t width, int rows)
{
    float32x4_t s[ROWS][2];
    for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < 2; h++) s[r][h] = vld1q_f32(sums + (r < rows ? r : 0) * width + 4 * h);
    for (int i = 0; i < deep; i++) {
        uint16x8_t w = vld1q_u16((const uint16_t *)(const void *)(b + i * step)), x = vld1q_u16(a + i * ROWS);
        ROW_ACROSS(0)
        ROW_ACROSS(1) ROW_ACROSS(2) ROW_ACROSS(3) ROW_ACROSS(4) ROW_ACROSS(5) ROW_ACROSS(6) ROW_ACROSS(7)
    }
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < 2; h++) vst1q_f32(sums + r * width + 4 * h, s[r][h]);
}

FMLAL_CODE FEW_INLINE void few_across(const char *b, int64_t step, int deep, const uint16_t *a, float *sums,
                                      int64_t width, int rows, int wide)
{
    uint16x8_t w[STEP];
    for (int i = 0; i < deep; i++) w[i] = vld1q_u16((const uint16_t *)(const void *)(b + i * step));
    for (int r = 0; r < rows; r++) {
        float *at = sums + r * width;
        float32x4_t s = vld1q_f32(at), t = vld1q_f32(at + 4);
        for (int i = 0; i < deep; i++) {
            uint16x8_t x = vld1q_dup_u16(a + i * wide + r);
            FMLAL("", s, w[i], x, 0);
            FMLAL("2", t, w[i], x, 0);
        }
        vst1q_f32(at, s), vst1q_f32(at + 4, t);
    }
}

FMLAL_CODE FEW_INLINE void step_across(const char *b, int64_t step, int deep, const uint16_t *a, float *sums,
                                       int64_t width, int rows, int wide)
{
    if (wide < ROWS) {
        few_across(b, step, deep, a, sums, width, rows, wide);
        return;
    }
    int r = 0;
    for (; r + ROWS <= rows; r += ROWS)
        eight_across(b, step, deep, a + r * GEMM_KC, sums + r * width, width, ROWS);
    if (r < rows) eight_across(b, step, deep, a + r * GEMM_KC, sums + r * width, width, rows - r);
}

FMLAL_CODE static void across_f16(const struct gemm_few_block *p)
{
    const uint16_t *a = p->a;
    int64_t step = p->step * 2, whole = p->cols / STEP * STEP, left = p->cols - whole;
    int wide = padded(p->rows);
    memset(p->sums, 0, (size_t)(p->rows * p->width) * sizeof *p->sums);
    for (int64_t k = 0; k < p->k; k += STEP, a += STEP * wide) {
        const char *b = (const char *)p->b + k * step;
        int deep = (int)(p->k - k < STEP ? p->k - k : STEP);
        for (int64_t n = 0; n < whole; n += STEP) {
            for (int i = 0; i < STEP && n % PIECE == 0; i++)
                __builtin_prefetch(b + (STEP + i) * step + n * 2, 0, 3);
            if (deep == STEP)
                step_across(b + n * 2, step, STEP, a, p->sums + n, p->width, p->rows, wide);
            else
                step_across(b + n * 2, step, deep, a, p->sums + n, p->width, p->rows, wide);
        }
        if (!left) continue;
        _Alignas(16) char copy[STEP * STEP * 2];
        few_copy_lines(copy, STEP * 2, deep, b + whole * 2, step, deep, left * 2);
        step_across(copy, STEP * 2, deep, a, p->sums + whole, p->width, p->rows, wide);
    }
}

const struct gemm_few gemm_few_fmlal = {"neon fmlal", MOST_ROWS, LINES, 2, pack_f16, along_f16, across_f16};

#endif
