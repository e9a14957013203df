/* attention_forward.h - one attention forward: how its work is divided, and how partial results are combined.
 *
 * The rows of a kv head are its (time, query head) pairs, time first: row r is position r / group, query head
 * kv * group + r % group. So the query heads that read the same keys share every packed block of them.
 *
 * An item is a block of rows of one kv head of one batch row. If few queries see a long cache, it is also one of several
 * pieces of the keys. Pieces produce unnormalised partial results, which are combined in the order of the keys.
 */
#pragma once

#include "device/cpu/attention_score.h"

struct forward {
    struct attn a;
    struct attn_score score;
    const void *q, *k, *v;
    void *o;
    float *lse;

    int64_t rows;       /* of a kv head: time * group */
    int64_t block_rows; /* of an item */
    int64_t blocks;     /* of a kv head */
    int64_t piece_keys; /* keys of a piece, a multiple of the key block */
    int64_t pieces;
    bool single; /* few rows: attention_single.c */

    float *parts; /* [batch][kv_heads][pieces][rows][size + 2]: sums, top, sum */
    char *work;   /* of worker 0 */
    size_t lines_bytes, parts_bytes, worker_bytes;
};

struct forward_item {
    int64_t b, kv;      /* batch row, kv head */
    int64_t row, lines; /* its rows */
    int64_t piece;
    int64_t key, end; /* its keys are in [key, end) */
};

/* Writes one row's result: sums [size] over its keys relative to `top` (overwritten), and the sum of
 * exponentials. */
void forward_finish(const struct forward *f, const struct forward_item *item, int64_t row, float *sums,
                    float top, float sum);

/* Computes an item of a forward with few rows, using this scratch. */
void forward_single(const struct forward *f, const struct forward_item *item, char *scratch);
size_t forward_single_bytes(const struct attn *a);
