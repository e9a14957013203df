/* attention_bwd_block.h - the backward pass for one block of queries and one block of keys.
 *
 * A query side holds up to a.block queries of one head, a key side as many keys of one kv head. Both are packed for their
 * products, and both have fp32 gradients in panels [size][nr] (the transposed form that matrix kernels produce). A side
 * without gradients takes part but collects none.
 *
 *     query_side_see(w, &query, b, h, i);
 *     query_side_pack(w, &query, true);  key_side_pack(w, &key, b, kv, j);
 *     attn_bwd_meet(&meeting, &query, &key);              // query.dq, key.dk and key.dv grow
 *     gradient_put(&meeting, query.dq, ...);              // rounded once, into the tensor
 *
 * A meeting adds each product to the gradients once, so their value depends only on the order of meetings: keys in
 * increasing order for a query block; heads, then queries, in increasing order for a key block.
 */
#pragma once

#include "device/cpu/attention_score.h"

enum { ATTN_BLOCK_PANELS = ATTN_BLOCK / 4 };

/* One attention backward in flight. */
struct backward {
    struct attn a;
    const void *d_o, *q, *k, *v, *o;
    const float *lse;
    struct attn_score score;
    void *dq, *dk, *dv;
    float *delta;      /* [batch][heads][time]: row sums of dO * O */
    float *grad_lines; /* for the bias (attention_score.h) */
};

struct query_side {
    int64_t b, h, first, count;
    int64_t low, high;                        /* its keys are in [low, high] */
    int64_t hole_most, hole_least;            /* none of its queries sees these */
    void *q, *d_o;                            /* lines are queries, over size */
    void *q_turned, *do_turned;               /* lines are elements of a head, over queries */
    float *dq;                                /* panels [size][nr], or NULL */
    float *line;                              /* for the bias's gradient, or NULL */
    float lse[ATTN_BLOCK], delta[ATTN_BLOCK]; /* lse to base 2 */
    struct attn_panel panels[ATTN_BLOCK_PANELS];
};

struct key_side {
    int64_t b, kv, first, count;
    void *k, *v;    /* lines are keys, over size */
    void *k_turned; /* lines are elements of a head, over keys */
    float *dk, *dv; /* panels [size][nr], or NULL */
};

/* Scratch for one meeting: scores and their gradients, as panels and transposed. */
struct meeting {
    const struct backward *w;
    float *scores, *dp;
    float *slope, *keep, *raw; /* for attention_score.h, like scores; NULL: unused */
    void *packed, *p_turned, *ds_turned;
    float *rows; /* [nr][size rounded up to 4], for gradient_put */
};

/* Bytes of a side's packed blocks, of a block's gradient, and of a meeting. */
size_t query_side_bytes(const struct attn *a);
size_t key_side_bytes(const struct attn *a);
size_t block_gradient_bytes(const struct attn *a);
size_t meeting_bytes(const struct attn *a);

/* Assign that memory. */
void query_side_place(const struct attn *a, struct query_side *s, char *at);
void key_side_place(const struct attn *a, struct key_side *s, char *at);
struct meeting meeting_place(const struct backward *w, char *at);

/* query_side_see finds the keys that block `block` of head h sees. Packing is needed only if it meets a key
 * side. `for_keys`: key sides will collect gradients from it. */
void query_side_see(const struct backward *w, struct query_side *s, int64_t b, int64_t h, int64_t block);
void query_side_pack(const struct backward *w, struct query_side *s, bool for_keys);
void key_side_pack(const struct backward *w, struct key_side *s, int64_t b, int64_t kv, int64_t block);

/* True if some query may see some key. */
static inline bool sides_meet(const struct query_side *qs, const struct key_side *ks)
{
    bool hidden = qs->hole_most <= ks->first && qs->hole_least >= ks->first + ks->count - 1;
    return qs->high >= ks->first && qs->low < ks->first + ks->count && !hidden;
}

void attn_bwd_meet(const struct meeting *m, const struct query_side *qs, const struct key_side *ks);

/* Writes gradients of `count` rows from panels to rows `stride` elements apart, at element `index` of x. */
void gradient_put(const struct meeting *m, const float *panels, int64_t count, float scale, void *x,
                  int64_t index, int64_t stride);
