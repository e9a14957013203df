/* linear_q_amx.c - products with weights in blocks with tiles of 8 bits. See linear_q.h.
 *
 * A block's codes of a panel, 8 x [16 lines][4 of k], are what tdpbssd wants as its second operand, and 16 rows of x its
 * first: one instruction multiplies 16 rows, 16 lines and 32 of k. Each such tile of whole numbers goes through memory to
 * the vector registers where it meets its scales, which takes longer than the product. Rows that do not fill a tile, and
 * types with two scales in a block, go the way of VNNI. */
#include "device/cpu/linear_q.h"

#if defined(__x86_64__)
#include "device/cpu/gemm_x86.h"
#include "device/cpu/vec_base.h"
#include <immintrin.h>

VEC_PUSH("amx-tile,amx-int8,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")

#define LINEAR_Q_VNNI
#include "device/cpu/linear_q_vnni.h"

enum { SIDE = 16 };

/* Tiles 0 and 1: sums, 2 and 3: rows of x, 4 and 5: codes of a panel. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} shapes = {1, .row_bytes = {64, 64, 32, 32, 64, 64}, .rows = {16, 16, 16, 16, 8, 8}};

/* Block b of 16 rows: y += its sums, scaled. */
VEC_FN void add_tile(const int32_t *sums, const struct panel8 *w, const struct x8_block *q, int64_t blocks,
                     int64_t b, __m512 *y)
{
    __m512 scale = _mm512_loadu_ps(w->scale + b * PANEL_LINES);
    for (int r = 0; r < SIDE; r++) {
        __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + r * SIDE));
        y[r] = _mm512_fmadd_ps(sum, _mm512_mul_ps(scale, _mm512_set1_ps(q[r * blocks + b].scale)), y[r]);
    }
}

VEC_FN void take_minima(const struct panel8 *w, const struct x8_block *q, int64_t blocks, int64_t b,
                        __m512 *y)
{
    __m512 least = _mm512_loadu_ps(w->least + b * PANEL_LINES);
    for (int r = 0; r < SIDE; r++)
        y[r] = _mm512_fnmadd_ps(least, _mm512_set1_ps(q[r * blocks + b].total), y[r]);
}

/* 16 rows of x. The tile of block b + 1 is under way while that of block b meets its scales. */
VEC_FN void multiply_tile(const struct panel8 *w, const int8_t *x, const struct x8_block *q, int64_t k,
                          bool least, float *out)
{
    _Alignas(64) int32_t sums[2][SIDE * SIDE];
    int64_t blocks = k / X8_BLOCK;
    __m512 y[SIDE];
    for (int r = 0; r < SIDE; r++) y[r] = _mm512_setzero_ps();
    _tile_loadd(4, w->codes, 64);
    _tile_loadd(2, x, (size_t)k);
    _tile_zero(0);
    _tile_dpbssd(0, 2, 4);
    _tile_stored(0, sums[0], 64);
    for (int64_t b = 0; b < blocks; b++) {
        if (b + 1 < blocks) {
            _tile_loadd(5, w->codes + (b + 1) * w->step, 64);
            _tile_loadd(3, x + (b + 1) * X8_BLOCK, (size_t)k);
            _tile_zero(1);
            _tile_dpbssd(1, 3, 5);
            _tile_stored(1, sums[(b + 1) % 2], 64);
        }
        __asm__ volatile("" ::: "memory"); /* gcc does not know that tile stores write memory */
        add_tile(sums[b % 2], w, q, blocks, b, y);
        if (least) take_minima(w, q, blocks, b, y);
    }
    for (int r = 0; r < SIDE; r++) _mm512_storeu_ps(out + r * PANEL_LINES, y[r]);
}

static void multiply_panel(const struct panel8 *w, const struct x8 *x, float *out)
{
    int64_t r = 0, blocks = x->k / X8_BLOCK;
    if (w->parts == 1 && x->rows >= SIDE) {
        _tile_loadconfig(&shapes);
        __asm__ volatile("" ::: "memory"); /* what tiles are loaded from is written */
        for (; r + SIDE <= x->rows; r += SIDE)
            if (w->least)
                multiply_tile(w, x->codes + r * x->k, x->blocks + r * blocks, x->k, true, out + r * SIDE);
            else
                multiply_tile(w, x->codes + r * x->k, x->blocks + r * blocks, x->k, false, out + r * SIDE);
        gemm_amx_set_up_again();
    }
    struct x8 rest = {x->codes + r * x->k, x->blocks + r * blocks, x->k, x->rows - r, 0};
    if (rest.rows) multiply_vnni(w, &rest, out + r * PANEL_LINES);
}

/* Codes that are used where they lie, half a cache line off, go to scratch: all rows meet them there. */
static void line_up(int64_t k, void *scratch, struct panel8 *w)
{
    if (w->step == CODES) return;
    for (int64_t b = 0; b < k / X8_BLOCK; b++)
        memcpy((int8_t *)scratch + b * CODES, w->codes + b * w->step, CODES);
    w->codes = scratch, w->step = CODES;
}

VEC_POP

const struct linear_q_level linear_q_amx =
    LINEAR_Q_TABLE("amx tdpbssd", 1, quantise_row, LINEAR_Q_FEW, line_up, NULL);
#endif
