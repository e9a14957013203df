/* linear_q.h - products with weights in blocks: what linear_q.c and the kernels of each level share.
 *
 * Rows of x are rounded to 8 bits in blocks of 32 along k; whole numbers are then multiplied and added, which is exact
 * in any order. What is left for floats is one chain per element of y, over the blocks of k in their order:
 *
 *     y = fma(float(sum of codes of w times codes of x), fl(scale of w * scale of x), y)        of each part with a scale
 *     y = fma(-minimum of w, fl(scale of x * sum of codes of x), y)                             where w has minima
 *
 * So every level has the same bits, however many rows there are, and a level is chosen for its speed alone.
 *
 * A panel (tensor/panels.h) of any type is first made into codes of 8 bits and scales of 32 (struct panel8), in the cache,
 * and then multiplied with all rows: types differ in how they unpack, levels in how they multiply.
 */
#ifndef PLIM_DEVICE_CPU_LINEAR_Q_H
#define PLIM_DEVICE_CPU_LINEAR_Q_H

#include "device/cpu/cpu_features.h"
#include "tensor/dtype.h"
#include "tensor/panels.h"

enum {
    X8_BLOCK = 32,    /* elements of x with one scale */
    X8_SIDE = 8,      /* rows of x that may lie side by side */
    PANEL8_ROWS = 64, /* of x that are multiplied at once, at most */
    PANEL8_FEW = 8,   /* rows for which a panel need not be unpacked */
    PANEL8_GROUP = 8, /* a block's codes of a panel: 8 x [16 lines][4 of k] */
};

/* Per-block data of x apart from its codes. */
struct x8_block {
    float scale;
    float total;     /* scale times the sum of its codes */
    int32_t lift[2]; /* -128 times the sum of the codes of each half: for products with codes + 128 */
};

/* Rows of x, `k` codes and k / 32 blocks each, as the level's quantise has laid them. */
struct x8 {
    const int8_t *codes;
    const struct x8_block *blocks;
    int64_t k, rows;
    int skip; /* rows before the first that share its place: below the level's `side` */
};

/* A panel whose block b of 32 has its codes at codes + b * step. */
struct panel8 {
    const int8_t *codes;
    int64_t step;
    const float *scale; /* [k / 32][parts][16] */
    const float *least; /* [k / 32][16]; NULL: there are none */
    int parts;          /* 1; 2: both halves of a block of 32 have their own scale */
    bool arranged;      /* by the level, in its own order */
};

/* One panel's work: rows of y [rows][16]. Two panels': [2][PANEL8_ROWS][16]. */
typedef void panel8_multiply(const struct panel8 *w, const struct x8 *x, float *out);

/* One row of k elements, of those whose codes and blocks begin there. */
typedef void x8_quantise(const void *x, enum dtype type, int64_t k, int64_t row, int8_t *codes,
                         struct x8_block *blocks);

/* The panel at `panel`; scratch: panel8_bytes(k), 64-byte aligned. */
typedef void panel8_unpack(const unsigned char *panel, int64_t k, void *scratch, struct panel8 *out);

/* An unpacked panel in an order that is faster for several rows; scratch is that of unpacking. */
typedef void panel8_arrange(int64_t k, void *scratch, struct panel8 *w);

/* y[16] of `type` = value + extra, of which n are written. */
typedef void y16_put(void *y, enum dtype type, const float *value, const float *extra, int n);

/* PANEL8_FEW rows at most, of a panel as it lies in memory: rows of y [rows][16]. */
typedef void panel_few(const unsigned char *panel, const struct x8 *x, float *out);

struct linear_q_level {
    const char *name;
    int side; /* rows of x whose codes lie side by side: 1, or X8_SIDE at most */
    x8_quantise *quantise;
    panel8_unpack *unpack[BLOCK_Q6_K + 1]; /* by number of the type */
    panel8_multiply *multiply;
    y16_put *put;
    panel_few *few[BLOCK_Q6_K + 1]; /* by number; NULL: unpack it */
    panel8_arrange *arrange;        /* NULL: unpacked panels are as they should be */
    /* w[2]: part of k of x meets both panels while it is in the cache; NULL: one after the other. */
    panel8_multiply *multiply_two;
};

/* Scales and minima may be there twice. */
static inline int64_t panel8_bytes(int64_t k)
{
    return (k * (PANEL_LINES + (int64_t)(6 * PANEL_LINES * sizeof(float)) / X8_BLOCK) + 127) / 64 * 64;
}

/* A panel for the level's multiply with so many rows. */
static inline void panel8_ready(const struct linear_q_level *level, int type, const unsigned char *panel,
                                int64_t k, int64_t rows, void *scratch, struct panel8 *w)
{
    level->unpack[type](panel, k, scratch, w);
    if (level->arrange && rows > 1) level->arrange(k, scratch, w);
}

/* Codes and blocks of rows, the last with room for those beside it. */
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

/* `rows` rows of those from codes and blocks on. */
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

/* The one for this machine. */
const struct linear_q_level *linear_q_level(void);

#endif
