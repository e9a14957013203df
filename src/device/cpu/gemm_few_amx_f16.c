/* gemm_few_amx_f16.c - few rows of fp16 with tiles: see gemm_few.h.
 *
 * As gemm_few_amx.c: lines of B are the first operand and A, packed in pairs of k, is the second. Lines are taken into their
 * two bf16 parts on the way (gemm_amx.h), and the four products of the parts are added in the order of gemm_amx_f16.c. */
#include "device/cpu/gemm_amx.h"
#include "device/cpu/gemm_few.h"

#if defined(__x86_64__)

#define F16_CODE AMX_PARTS_CODE

enum {
    PARTS = AMX_F16_PARTS,
    SIDE = AMX_HALF, /* lines of a tile, and rows */
    STEP = AMX_KG,   /* of k */
    TILES = 4,
    LINES = TILES * SIDE,
    TILE = SIDE * STEP, /* numbers of a tile */
    AHEAD = 128,        /* bytes of a line that are fetched before they are split */
};

/* Per step of k both parts of A: [k / 2][row][k % 2]; rows that are missing are zero. */
F16_CODE static void pack(void *dst, const void *src, enum dtype type, int64_t rs, int rows, int64_t k)
{
    uint16_t *to = dst;
    (void)type;
    for (int64_t i = 0; i < k; i += STEP) {
        __m512i part[SIDE][PARTS], one[SIDE];
        __mmask32 here = k - i < STEP ? (1u << (k - i)) - 1 : ~0u;
        for (int r = 0; r < rows; r++)
            amx_split_f16(_mm512_maskz_loadu_epi16(here, (const uint16_t *)src + r * rs + i), part[r]);
        for (int p = 0; p < PARTS; p++, to += TILE) {
            for (int r = 0; r < SIDE; r++) one[r] = r < rows ? part[r][p] : _mm512_setzero_si512();
            amx_turn(one);
            for (int r = 0; r < SIDE; r++) _mm512_storeu_si512(to + r * STEP, one[r]);
        }
    }
}

/* split[part] = a step of k of `lines` lines of a tile. */
F16_CODE FEW_INLINE void split_lines(uint16_t *split, const uint16_t *b, int64_t step, int lines)
{
    for (int l = 0; l < lines; l++, b += step, split += STEP) {
        __m512i part[PARTS];
        _mm_prefetch((const char *)b + AHEAD, _MM_HINT_T0);
        amx_split_f16(_mm512_loadu_si512(b), part);
        for (int p = 0; p < PARTS; p++) _mm512_store_si512(split + p * TILE, part[p]);
    }
}

F16_CODE FEW_INLINE void load_a(const uint16_t *a)
{
    __asm__ volatile("" ::: "memory"); /* gcc does not know that tile loads read memory */
    _tile_loadd(6, a, 64);
    _tile_loadd(7, a + TILE, 64);
}

/* sums += a part of B's lines by both of A, the smaller one first. Registers are literals. */
#define MULTIPLY(sum, b, part)                                                                               \
    do {                                                                                                     \
        _tile_loadd(b, part, 64);                                                                            \
        _tile_dpbf16ps(sum, b, 7);                                                                           \
        _tile_dpbf16ps(sum, b, 6);                                                                           \
    } while (0)

/* sums[row][line] = tile[line][row] */
static void put(const float *tile, const struct gemm_few_block *p, int line)
{
    for (int r = 0; r < p->rows; r++)
        for (int l = 0; l < SIDE; l++) p->sums[r * p->width + line + l] = tile[l * SIDE + r];
}

/* A tile's part is multiplied while half of the tile's lines of the next step are split: either alone would leave the
 * other's units idle. A sum's turn comes again after the other three's. */
#define SPLIT_AND_MULTIPLY(i, b, part)                                                                       \
    split_lines(split[1 - now][i] + (part)*TILE / 2, next + (2 * (i) + (part)) * SIDE / 2 * p->step,         \
                p->step, SIDE / 2);                                                                          \
    MULTIPLY(i, b, split[now][i] + (part)*TILE);

/* 64 lines at once, k in whole steps. */
F16_CODE static void along_whole(const struct gemm_few_block *p)
{
    const uint16_t *a = p->a, *b = p->b;
    _Alignas(64) float tile[TILES][SIDE * SIDE];
    _Alignas(64) uint16_t split[2][TILES][PARTS * TILE];
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int i = 0; i < TILES; i++) split_lines(split[0][i], b + i * SIDE * p->step, p->step, SIDE);
    for (int64_t k = 0, now = 0; k < p->k; k += STEP, a += PARTS * TILE, now = 1 - now) {
        const uint16_t *next = b + (k + STEP < p->k ? k + STEP : k);
        load_a(a);
        SPLIT_AND_MULTIPLY(0, 4, 1)
        SPLIT_AND_MULTIPLY(1, 5, 1)
        SPLIT_AND_MULTIPLY(2, 4, 1)
        SPLIT_AND_MULTIPLY(3, 5, 1)
        SPLIT_AND_MULTIPLY(0, 4, 0)
        SPLIT_AND_MULTIPLY(1, 5, 0)
        SPLIT_AND_MULTIPLY(2, 4, 0)
        SPLIT_AND_MULTIPLY(3, 5, 0)
    }
    _tile_stored(0, tile[0], 64);
    _tile_stored(1, tile[1], 64);
    _tile_stored(2, tile[2], 64);
    _tile_stored(3, tile[3], 64);
    for (int i = 0; i < TILES; i++) put(tile[i], p, i * SIDE);
}

/* Any lines and any k, a tile at a time; what does not fill it goes through a copy. */
F16_CODE static void along_edge(const struct gemm_few_block *p)
{
    for (int line = 0; line < p->cols; line += SIDE) {
        const uint16_t *a = p->a, *b = (const uint16_t *)p->b + line * p->step;
        int lines = p->cols - line < SIDE ? p->cols - line : SIDE;
        _Alignas(64) float tile[SIDE * SIDE];
        _Alignas(64) uint16_t split[PARTS * TILE], copy[TILE];
        _tile_zero(0);
        for (int64_t k = 0; k < p->k; k += STEP, a += PARTS * TILE, b += STEP) {
            int64_t here = p->k - k < STEP ? p->k - k : STEP;
            bool whole = lines == SIDE && here == STEP;
            if (!whole) few_copy_lines((char *)copy, 64, SIDE, (const char *)b, 2 * p->step, lines, 2 * here);
            split_lines(split, whole ? b : copy, whole ? p->step : STEP, SIDE);
            load_a(a);
            MULTIPLY(0, 4, split + TILE);
            MULTIPLY(0, 4, split);
        }
        _tile_stored(0, tile, 64);
        put(tile, p, line);
    }
}

static void along(const struct gemm_few_block *p)
{
    gemm_amx_set_up_thread();
    if (p->cols == LINES && p->k % STEP == 0)
        along_whole(p);
    else
        along_edge(p);
}

const struct gemm_few gemm_few_amx_f16 = {
    "amx tdpbf16ps, fp16 in two parts", SIDE, LINES, 4, pack, along, NULL};

#endif
