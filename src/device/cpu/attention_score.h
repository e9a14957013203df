/* attention_score.h - steps between the product q.k and the softmax, and between the softmax and v: soft-cap, bias by
 * distance, dropout; and the gradient of the bias. op.h has the formulas.
 *
 * The bias of a pair depends only on the distance from key to query. So the op's table [R,H] is first expanded into a line
 * per head, indexed by query - key + keys - 1; a panel's row of adjacent queries reads the line contiguously. The gradient is
 * collected in the same way: each block of queries of a head has its own line, to which its key blocks add in order, and the
 * lines are summed in the order of rows, blocks and distances.
 *
 *     size_t bytes = attn_lines_bytes(&a);                    // 0 without a bias
 *     attn_lines_fill(&a, lines, call, bias_slot);
 *     attn_score_panel(&a, &score, &panel, &lanes, key, cut, scores, slope);
 */
#pragma once

#include "device/cpu/attention_common.h"
#include "tape/dropout.h"

struct attn_score {
    const float *lines; /* [heads][span] */
    struct dropout drop;
};

/* Identifies a panel's lines: line i is row `row` + i in (time, group) order of batch row b, the last one
 * repeated; its head is `head` + row % group. */
struct attn_lanes {
    int64_t b, head, row, lines, group;
};

/* Elements of a head's line. */
static inline int64_t attn_span(const struct attn *a) { return attn_most(a->time, a->keys) + a->keys; }

size_t attn_lines_bytes(const struct attn *a);
void attn_lines_fill(const struct attn *a, float *lines, const struct kernel_call *call, int bias_slot);

/* Turns the products of a panel and the keys from `key` on into scores, in rows [cut.from, cut.end); slope as
 * in attn_modify. */
void attn_score_panel(const struct attn *a, const struct attn_score *s, const struct attn_panel *p,
                      const struct attn_lanes *lanes, int64_t key, struct attn_cut cut, float *scores,
                      float *slope);

/* Computes the dropout factors of the same rows' probabilities. */
void attn_keep_panel(const struct attn *a, const struct attn_score *s, const struct attn_panel *p,
                     const struct attn_lanes *lanes, int64_t key, struct attn_cut cut, float *keep);

/* Length of the line of a block of queries for the bias's gradient; indexed by query - first of the block -
 * key + keys - 1. */
static inline int64_t attn_grad_span(const struct attn *a) { return a->block + a->keys; }
/* Bytes of all lines, [batch][heads][blocks][span]; 0 without a bias. */
size_t attn_grad_lines_bytes(const struct attn *a);
static inline float *attn_grad_line(const struct attn *a, float *lines, int64_t b, int64_t h, int64_t block)
{
    int64_t blocks = (a->time + a->block - 1) / a->block;
    return lines + ((b * a->heads + h) * blocks + block) * attn_grad_span(a);
}

/* Adds rows [cut.from, cut.end) of a panel's dS, whose block of queries begins with query `first`, to the
 * block's line. */
void attn_grad_panel(const struct attn *a, const struct attn_panel *p, int64_t first, int64_t key,
                     struct attn_cut cut, const float *ds, float *line);

/* dbias (+)= all lines. */
void attn_grad_lines_add(const struct attn *a, const float *lines, const struct kernel_call *call);
