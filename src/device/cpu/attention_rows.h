/* attention_rows.h - the arithmetic of attention that is not a matrix product, on panels.
 *
 * A panel belongs to `width` queries (the columns nr of the matrix kernel in use): row k holds one value of each query for
 * key k, side by side. A matrix kernel produces this layout when K times Q' is written with leading dimension nr. For kg = 1
 * it is already the packed form of the right operand of V' P' (see gemm_kernel.h): scores become probabilities in place and
 * are multiplied without being moved. With a larger kg the probabilities are rounded to bf16 and written to a second, packed
 * panel.
 *
 * Rows are processed in groups of four; panels have room for the last group.
 *
 *     const struct attn_rows *rows = attn_rows_for(kernel);     NULL: no such kernel; use gemm_plain_f32
 */
#pragma once

#include "device/cpu/gemm_kernel.h"

/* A running maximum before the first score: finite, so that differences are never NaN. */
#define ATTN_TOP_START -1e30f

/* The keys each query of the panel sees, as rows of the panel, both ends included, except those in its
 * hole. */
struct attn_mask {
    const int32_t *first, *last;     /* [width] */
    const int32_t *hole, *hole_last; /* [width]; NULL: no query has a hole */
};

/* Turns products q.k into scores: x = scale * product, cap tanh(x / cap), plus a bias. */
struct attn_modify {
    float *score; /* [rows][width] */
    float *slope; /* [rows][width] out: d score / d x; NULL: not wanted */
    int width, from, end;
    float scale, cap;         /* cap 0: none */
    const float *const *bias; /* [width]: the bias of query q and row k is bias[q][-k]. NULL: none */
};

/* Dropout factors of probabilities: 0 or `scale` (tape/dropout.h). */
struct attn_drop {
    float *keep; /* [rows][width] out, up to the next multiple of 4 rows */
    int width, from, end;
    const uint32_t *line; /* [width] */
    uint32_t key;         /* of row 0 */
    uint32_t below;
    float scale;
};

struct attn_softmax {
    float *score;     /* [rows][width] in; probabilities relative to `top` out when kg is 1 */
    uint16_t *packed; /* probabilities, packed, when kg > 1 */
    int width;
    int from, end; /* rows to work on; `from` a multiple of 4. Probability is 0 in [end, next multiple) */
    float scale;   /* factor of scores; the base of the exponential is 2 */
    struct attn_mask mask; /* first NULL: every query sees all of [from, end) */
    float *top, *sum;      /* [width] running maximum of raw scores and sum of exponentials, updated */
    float *fade;           /* [width] out: factor for earlier sums */
    const float *keep;     /* [rows][width]: factor of probabilities, not of their sum. NULL: 1 */
};

struct attn_grad {
    const float *score; /* [rows][width] */
    float *dp;          /* [rows][width] in; out: dS when kg is 1 */
    uint16_t *packed;   /* dS, packed, when kg > 1 */
    int width;
    int from, end; /* multiples of width */
    float scale;   /* as above */
    struct attn_mask mask;
    const float *lse, *delta; /* [width]: log2 of the sum of exponentials, row sums of dO * O */
    /* P and dS of these queries in the packed form whose lines are keys: panels of `width` keys, `panel_step`
     * elements apart, already advanced to the first query of this panel. fp32 when kg is 1, else bf16. NULL:
     * not wanted. */
    void *p_turned, *ds_turned;
    int64_t panel_step;
    /* [rows][width], NULL: 1. P and dp are multiplied with keep, dS with slope. */
    const float *keep, *slope;
    float *raw; /* [rows][width] out: dS before the slope; NULL: not wanted */
};

/* Functions for a single query, whose elements are contiguous. */
struct attn_single_rows {
    /* dst[r][i] = src[r][i] as fp32 for i < n, zeroes up to a multiple of 8; rows ld and stride apart. */
    void (*widen)(float *dst, int64_t ld, const void *src, int64_t stride, enum dtype type, int64_t n,
                  int rows);
    /* out[i] = sum over j < d of q[j] * k[i*ld + j]; d a multiple of 8, n of 4. */
    void (*dots)(float *out, const float *q, const void *k, enum dtype type, int64_t ld, int64_t d, int n);
    /* Softmax of one query: turns scores x[n] into probabilities relative to *top, n a multiple of 4. Updates
     * *top and *sum; returns the factor for earlier sums. */
    float (*weigh)(float *x, float scale, int n, float *top, float *sum);
    /* o[j] = o[j] * fade + sum over i < n of p[i] * v[i*ld + j], j < d; d a multiple of 8. */
    void (*mix)(float *o, float fade, const float *p, const void *v, enum dtype type, int64_t ld, int64_t d,
                int n);
};

struct attn_rows {
    /* Returns true when some fade is not 1. */
    bool (*softmax)(const struct attn_softmax *);
    /* P = 2^(scale * score - lse), dS = P * (dp - delta); both 0 where masked. */
    void (*grad)(const struct attn_grad *);
    void (*modify)(const struct attn_modify *);
    void (*drop)(const struct attn_drop *);
    /* to[q][-k] += x[k][q] for rows [from, end), whole registers at a time where lanes are adjacent. */
    void (*scatter)(float *const *to, const float *x, int width, int from, int end);
    /* x[rows][width] *= by[width] */
    void (*fade)(float *x, int64_t rows, int width, const float *by);
    /* dst[line][i] = src[i][line] * by[line], i < n, line < width; ld >= n rounded up to 4 */
    void (*turn)(float *dst, int64_t ld, const float *src, int64_t n, int width, const float *by);
    const struct attn_single_rows *single;
};

const struct attn_rows *attn_rows_for(const struct gemm_kernel *kernel);
