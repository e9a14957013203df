/* paged.h - the arithmetic of attention over blocks, for one instruction set at a time (paged_rows.inc).
 *
 * Lines are queries of one kv head, widened to fp32; keys come in tiles of PAGED_TILE positions, which begin at multiples of
 * it. For each line of a tile:
 *
 *     scores    sum over d = 0, 1, .. of q[d] k[d], one multiply-add after the other
 *     soften    scores to probabilities, with the running maximum and sum of the line
 *     mix       acc = acc * fade + sum over keys, in their order, of p v
 *
 * Invariant: a line's numbers come from the same operations in the same order, whatever other lines are processed with it (1
 * to PAGED_LINES at once). Keys that it does not see change nothing.
 */
#pragma once

#include "tensor/dtype.h"
#include <stdint.h>

enum {
    PAGED_TILE = 64, /* keys: four blocks */
    PAGED_LINES = 4,
    PAGED_STEP = 16, /* elements of a head that mix processes at once */
};

/* Data shared by the lines of a tile; line i of an array with a stride begins at i * stride. */
struct paged_tile {
    const float *q;                 /* [lines][d], q_stride apart */
    const void *k[PAGED_TILE / 16]; /* [d][16] of a block each */
    const void *v[PAGED_TILE / 16]; /* [16][v_stride] likewise */
    enum dtype type;                /* of k and v */
    /* d_rounded: d rounded up to PAGED_STEP, the width of v and acc */
    int64_t q_stride, v_stride, d, d_rounded;
    int lines, keys; /* keys: those that some line sees, counted from the tile's first */
    float *p;        /* [lines][PAGED_TILE] */
    float *acc;      /* [lines][d_rounded] */
};

/* One line of scores: those outside [first, last] are hidden. */
struct paged_soft {
    float *p; /* [PAGED_TILE] in and out */
    int first, last;
    float scale, cap; /* of products; 0: no cap */
    float *top, *sum; /* of the line so far; top refers to arguments of exp2(scale2 x) */
};

struct paged_rows {
    void (*scores)(const struct paged_tile *t);
    float (*soften)(const struct paged_soft *s); /* returns the factor for acc */
    void (*mix)(const struct paged_tile *t, const float *fade);
    /* A block in 8 bits (tensor/kv8.h) as fp32: keys [d][16], values [16][stride]. */
    void (*widen_keys)(float *to, const int8_t *codes, const float *scale, int64_t d);
    void (*widen_values)(float *to, int64_t stride, const int8_t *codes, const float *scale, int64_t d);
};

const struct paged_rows *paged_rows(void);

extern const struct paged_rows paged_rows_baseline;
#if defined(__x86_64__)
extern const struct paged_rows paged_rows_avx2, paged_rows_avx512;
#endif
