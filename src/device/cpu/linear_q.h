/* linear_q.h - products with weights in quantised blocks; shared by linear_q.c and the kernels of each level.
 *
 * Rows of x are rounded to 8 bits in blocks of 32 along k; integers are then multiplied and added, which is exact in any
 * order. The float part is one chain per element of y, over the blocks of k in order:
 *
 *     y = fma(float(sum of codes of w times codes of x), fl(scale of w * scale of x), y)        for each part with a scale
 *     y = fma(-minimum of w, fl(scale of x * sum of codes of x), y)                             if w has minima
 *
 * So every level gives the same bits for any number of rows, and a level is chosen only for its speed.
 *
 * A panel (tensor/panels.h) of any type is first expanded to 8-bit codes and 32-bit scales (struct panel8), in the cache, and
 * then multiplied with all rows: types differ in how they unpack, levels in how they multiply.
 */
#pragma once

#include "device/cpu/cpu_features.h"
#include "tensor/dtype.h"
#include "tensor/panels.h"

enum {
    X8_BLOCK = 32,    /* elements of x with one scale */
    X8_SIDE = 8,      /* rows of x that may be interleaved */
    PANEL8_ROWS = 64, /* maximum rows of x multiplied at once */
    PANEL8_FEW = 8,   /* up to this many rows a panel need not be unpacked */
    PANEL8_GROUP = 8, /* a block's codes of a panel: 8 x [16 lines][4 of k] */
};

/* Per-block data of x apart from its codes. */
struct x8_block {
    float scale;
    float total; /* scale times the sum of its codes */
    /* -128 times the sum of the codes of each half: for products with codes + 128. AVX2: quantise_with_lifts. */
    int32_t lift[2];
};

/* Rows of x, with `k` codes and k / 32 blocks each, as laid out by the level's quantise. */
struct x8 {
    const int8_t *codes;
    const struct x8_block *blocks;
    int64_t k, rows;
    int skip; /* rows before the first in its interleaved group: below the level's `side` */
};

/* A panel whose block b of 32 has its codes at codes + b * step. */
struct panel8 {
    const int8_t *codes;
    int64_t step;
    const float *scale; /* [k / 32][parts][16] */
    const float *least; /* [k / 32][16]; NULL: no minima */
    int parts;          /* 1; 2: the halves of a block of 32 have separate scales */
    bool arranged;      /* in the level's own order */
    int form;           /* of the codes, as the level's unpack left them; 0: signed bytes */
};

/* Multiplies one panel: rows of y [rows][16]. Two panels: [2][PANEL8_ROWS][16]. */
typedef void panel8_multiply(const struct panel8 *w, const struct x8 *x, float *out);

/* Quantises one row of k elements; codes and blocks are those of the first row. */
typedef void x8_quantise(const void *x, enum dtype type, int64_t k, int64_t row, int8_t *codes,
                         struct x8_block *blocks);

/* Unpacks the panel at `panel`; scratch: panel8_bytes(k), 64-byte aligned. */
typedef void panel8_unpack(const unsigned char *panel, int64_t k, void *scratch, struct panel8 *out);

/* Reorders an unpacked panel for several rows; scratch is that of unpacking. */
typedef void panel8_arrange(int64_t k, void *scratch, struct panel8 *w);

/* y[16] of `type` = value + extra; writes the first n. */
typedef void y16_put(void *y, enum dtype type, const float *value, const float *extra, int n);

/* Multiplies at most PANEL8_FEW rows by a panel in place: rows of y [rows][16]. */
typedef void panel_few(const unsigned char *panel, const struct x8 *x, float *out);

struct linear_q_level {
    const char *name;
    int side; /* rows of x with interleaved codes: 1, or at most X8_SIDE */
    x8_quantise *quantise;
    panel8_unpack *unpack[BLOCK_Q6_K + 1]; /* by number of the type */
    panel8_multiply *multiply;
    y16_put *put;
    panel_few *few[BLOCK_Q6_K + 1]; /* by number; NULL: must be unpacked */
    panel8_arrange *arrange;        /* NULL: unpacked panels need no reordering */
    /* w[2]: multiplies part of k of x with both panels while it is in the cache; NULL: one after the
     * other. */
    panel8_multiply *multiply_two;
};

/* Room for scales and minima twice. */
static inline int64_t panel8_bytes(int64_t k)
{
    return (k * (PANEL_LINES + (int64_t)(6 * PANEL_LINES * sizeof(float)) / X8_BLOCK) + 127) / 64 * 64;
}

/* Prepares a panel for the level's multiply with this many rows. */
static inline void panel8_ready(const struct linear_q_level *level, int type, const unsigned char *panel,
                                int64_t k, int64_t rows, void *scratch, struct panel8 *w)
{
    level->unpack[type](panel, k, scratch, w);
    if (level->arrange && rows > 1) level->arrange(k, scratch, w);
}

/* Bytes of codes and blocks of rows; the last has room for interleaved ones. */
static inline int64_t x8_codes_bytes(int64_t rows, int64_t k)
{
    return ((rows + X8_SIDE - 1) / X8_SIDE * X8_SIDE * k + 63) / 64 * 64;
}

static inline int64_t x8_blocks_bytes(int64_t rows, int64_t k)
{
    return ((rows + X8_SIDE - 1) / X8_SIDE * X8_SIDE * (k / X8_BLOCK) * (int64_t)sizeof(struct x8_block) +
            63) /
           64 * 64;
}

/* The rows that begin at codes and blocks. */
static inline struct x8 x8_rows(const struct linear_q_level *level, const int8_t *codes,
                                const struct x8_block *blocks, int64_t k, int64_t row, int64_t rows)
{
    int64_t start = row / level->side * level->side;
    return (struct x8){codes + start * k, blocks + start * (k / X8_BLOCK), k, rows, (int)(row - start)};
}

extern const struct linear_q_level linear_q_plain;
#if defined(__x86_64__)
extern const struct linear_q_level linear_q_avx2, linear_q_vnni, linear_q_amx;
#endif
#if defined(__aarch64__)
extern const struct linear_q_level linear_q_dotprod, linear_q_i8mm;
#endif

/* The level of this machine. */
const struct linear_q_level *linear_q_level(void);
