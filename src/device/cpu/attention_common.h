/* attention_common.h - shared by attention forward and backward: the shape, the keys a query sees, panels.
 *
 * Queries are processed in panels of kernel->nr lines, keys in blocks; the product K Q' of a key block and a panel is a tall
 * fp32 array [keys][nr] (attention_rows.h). A query's keys form one interval; a block-sparse mask leaves a hole in it. So a
 * panel and a block share one interval of rows, and a block needs masks only if the interval ends inside it or there is a
 * hole. A query that sees nothing has an interval that ends before it begins.
 *
 * Invariants
 *  1. Panels begin at multiples of nr and key blocks at multiples of their size for every worker: the order of additions
 *     depends only on the shape.
 *  2. Rows of a block outside attn_cut's interval are neither read nor written.
 */
#pragma once

#include "device/cpu/attention_rows.h"
#include "device/device.h"
#include <assert.h>

struct attn {
    int64_t batch, time, heads, size, keys, kv_heads;
    int64_t group; /* query heads of one kv head */
    enum dtype type;
    bool cached;
    enum mask_kind mask;
    int64_t window; /* 0: none */
    int64_t sparse_block, local_blocks, global_blocks;
    const int32_t *pos, *lengths; /* [batch][time], [batch]; NULL: none */
    float scale;                  /* factor of products q.k */
    float cap;                    /* 0: none */
    bool biased;
    bool modified;           /* products become scores before the softmax sees them (attention_score.h) */
    float top_scale, scale2; /* factor for the softmax; the same for exponentials to base 2 */
    float dropout;           /* probability */
    int64_t block;           /* queries or keys of a block in the backward pass, a multiple of nr */
    const struct gemm_kernel *kernel;
    const struct attn_rows *rows;
};

enum {
    ATTN_MAX_SIZE = 256, /* maximum head size */
    ATTN_BLOCK = 192,    /* maximum rows of a block: a multiple of every nr */
};

static inline int64_t attn_least(int64_t x, int64_t y) { return x < y ? x : y; }

static inline int64_t attn_most(int64_t x, int64_t y) { return x > y ? x : y; }

static inline int64_t attn_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

/* Shape of an attn or attn_bwd op from its q and k; the caller adds pos and lengths. */
static inline struct attn attn_of(const struct tensor *qd, const struct tensor *kd, const struct op *op,
                                  bool biased)
{
    const struct op_attr *attr = &op->attr;
    bool modified = biased || attr->cap > 0;
    assert(qd->dim[3] <= ATTN_MAX_SIZE && qd->dim[2] % kd->dim[2] == 0);
    struct attn a = {.batch = qd->dim[0],
                     .time = qd->dim[1],
                     .heads = qd->dim[2],
                     .size = qd->dim[3],
                     .keys = kd->dim[1],
                     .kv_heads = kd->dim[2],
                     .group = qd->dim[2] / kd->dim[2],
                     .type = qd->type,
                     .cached = attr->cached,
                     .mask = attr->mask,
                     .window = attr->mask == MASK_CAUSAL ? attr->window : 0,
                     .sparse_block = attr->sparse_block,
                     .local_blocks = attr->local_blocks,
                     .global_blocks = attr->global_blocks,
                     .scale = attr->scale,
                     .cap = attr->cap,
                     .biased = biased,
                     .modified = modified,
                     .top_scale = modified ? 1 : attr->scale,
                     .scale2 = (modified ? 1 : attr->scale) * 1.44269504f,
                     .dropout = attr->dropout};
    const struct gemm_kernel *kernels[] = {gemm_kernel_at(cpu_level(), a.type),
                                           gemm_kernel_at(cpu_level(), DT_F32), &gemm_plain_f32};
    for (int i = 0; !a.rows && i < 3; i++) {
        a.kernel = kernels[i];
        a.rows = ATTN_BLOCK % a.kernel->nr ? NULL : attn_rows_for(a.kernel);
    }
    a.block = attn_least(ATTN_BLOCK, attn_up(attn_most(a.time, a.keys), a.kernel->nr));
    return a;
}

/* Element `index` of x, which has the op's type. */
static inline void *attn_at(const struct attn *a, const void *x, int64_t index)
{
    return (char *)(uintptr_t)x + index * (int64_t)dtype_size(a->type);
}

/* First element of query head h at (b,t), and of kv head n at key s. */
static inline int64_t attn_query(const struct attn *a, int64_t b, int64_t t, int64_t h)
{
    return ((b * a->time + t) * a->heads + h) * a->size;
}

static inline int64_t attn_key(const struct attn *a, int64_t b, int64_t s, int64_t n)
{
    return ((b * a->keys + s) * a->kv_heads + n) * a->size;
}

/* The keys of one query, both ends included; first > last: none. Keys in the hole are hidden; hole >
 * hole_last: no hole. */
struct attn_sight {
    int32_t first, last, hole, hole_last;
    int32_t query; /* its position among the keys */
};

static inline struct attn_sight attn_causal_sight(const struct attn *a, int64_t b, int64_t t)
{
    int64_t pos = a->pos[b * a->time + t], last = attn_least(a->cached ? pos : t, a->keys - 1);
    int64_t begin = attn_most(a->cached ? 0 : t - pos, 0);
    int64_t first = attn_most(begin, a->window ? last - a->window + 1 : 0);
    struct attn_sight s = {(int32_t)first, (int32_t)last, 0, -1, (int32_t)(a->cached ? pos : t)};
    if (a->mask != MASK_BLOCKS) return s;
    int64_t near = ((last - begin) / a->sparse_block - a->local_blocks + 1) * a->sparse_block;
    int64_t known = a->global_blocks * a->sparse_block;
    if (near > known) s.hole = (int32_t)(begin + known), s.hole_last = (int32_t)(begin + near - 1);
    return s;
}

static inline struct attn_sight attn_sight(const struct attn *a, int64_t b, int64_t t)
{
    bool causal = a->mask == MASK_CAUSAL || a->mask == MASK_BLOCKS;
    struct attn_sight s = {0, (int32_t)(a->keys - 1), 0, -1, (int32_t)t};
    if (causal) s = attn_causal_sight(a, b, t);
    if (!a->lengths) return s;
    int32_t length = a->lengths[b];
    if (length < 1 || (a->mask != MASK_CROSS && s.query >= length)) s.first = INT32_MAX, s.last = -1;
    s.last = s.last < length ? s.last : length - 1;
    return s;
}

/* The keys of a panel's queries. */
struct attn_panel {
    int32_t first[GEMM_MAX_NR], last[GEMM_MAX_NR];
    int32_t hole[GEMM_MAX_NR], hole_last[GEMM_MAX_NR];
    int32_t query[GEMM_MAX_NR];
    int32_t low, high;              /* all keys are in [low, high] */
    int32_t first_most, last_least; /* every query sees [first_most, last_least], except for holes */
    int32_t hole_low, hole_high;    /* range of all holes */
    int32_t hole_most, hole_least;  /* no query sees any of these */
};

static inline void attn_panel_add(struct attn_panel *p, int line, struct attn_sight s)
{
    bool hole = s.hole <= s.hole_last;
    p->first[line] = s.first, p->last[line] = s.last;
    p->hole[line] = s.hole, p->hole_last[line] = s.hole_last;
    p->query[line] = s.query;
    p->low = s.first < p->low ? s.first : p->low;
    p->high = s.last > p->high ? s.last : p->high;
    p->first_most = s.first > p->first_most ? s.first : p->first_most;
    p->last_least = s.last < p->last_least ? s.last : p->last_least;
    if (hole && s.hole < p->hole_low) p->hole_low = s.hole;
    if (hole && s.hole_last > p->hole_high) p->hole_high = s.hole_last;
    p->hole_most = !hole ? INT32_MAX : s.hole > p->hole_most ? s.hole : p->hole_most;
    p->hole_least = !hole ? -1 : s.hole_last < p->hole_least ? s.hole_last : p->hole_least;
}

/* The panel whose lines are rows [row, row + lines) in (time, group) order of batch row b, with `group` rows
 * per position. Missing lines repeat the last one. */
static inline void attn_see(const struct attn *a, int64_t b, int64_t row, int64_t lines, int64_t group,
                            struct attn_panel *p)
{
    p->low = p->last_least = p->hole_low = p->hole_least = INT32_MAX;
    p->high = p->first_most = p->hole_high = p->hole_most = -1;
    for (int line = 0; line < a->kernel->nr; line++)
        attn_panel_add(p, line, attn_sight(a, b, (row + attn_least(line, lines - 1)) / group));
}

/* Visible rows [from, end) of a panel for the key block [key, key + count); `from` is a multiple of step. */
struct attn_cut {
    int from, end; /* from >= end: nothing */
    bool masked;   /* some query does not see all of it */
};

static inline struct attn_cut attn_cut(const struct attn_panel *p, int64_t key, int64_t count, int step)
{
    int64_t from = attn_most(p->low - key, 0) / step * step, end = attn_least(p->high + 1 - key, count);
    bool hidden = p->hole_most <= key + from && p->hole_least >= key + end - 1;
    if (from >= end || hidden) return (struct attn_cut){0, 0, false};
    bool masked = p->first_most > key + from || p->last_least < key + end - 1;
    bool holed = p->hole_low < key + end && p->hole_high >= key + from;
    return (struct attn_cut){(int)from, (int)end, masked || holed};
}

/* A mask in rows of the block at `key`; room is [4 * GEMM_MAX_NR]. */
static inline struct attn_mask attn_mask(const struct attn *a, const struct attn_panel *p, int64_t key,
                                         int32_t *room)
{
    bool holes = p->hole_high >= 0;
    for (int line = 0; line < a->kernel->nr; line++) {
        room[line] = p->first[line] - (int32_t)key;
        room[GEMM_MAX_NR + line] = p->last[line] - (int32_t)key;
        if (!holes) continue;
        room[2 * GEMM_MAX_NR + line] = p->hole[line] - (int32_t)key;
        room[3 * GEMM_MAX_NR + line] = p->hole_last[line] - (int32_t)key;
    }
    return (struct attn_mask){room, room + GEMM_MAX_NR, holes ? room + 2 * GEMM_MAX_NR : NULL,
                              holes ? room + 3 * GEMM_MAX_NR : NULL};
}

/* Bytes of `lines` packed lines over k, plus what a kernel may read beyond them, in whole cache lines. */
static inline size_t attn_packed(const struct attn *a, int width, int64_t lines, int64_t k)
{
    int64_t elements = attn_up(lines, width) / width * gemm_panel(a->kernel, width, k);
    return (size_t)attn_up(elements * (int64_t)dtype_size(a->kernel->type) + GEMM_SLACK, 64);
}

/* Element `index` of a packed block. */
static inline void *attn_packed_at(const struct attn *a, const void *block, int64_t index)
{
    return (char *)(uintptr_t)block + index * (int64_t)dtype_size(a->kernel->type);
}

/* out[keys][nr] = keys [from, end) packed as lines over size, times one panel of queries. Whole tiles of mr
 * rows are written. */
static inline void attn_products(const struct attn *a, float *out, const void *keys, const void *queries,
                                 int from, int end)
{
    int mr = a->kernel->mr, nr = a->kernel->nr;
    int64_t panel = gemm_panel(a->kernel, mr, a->size);
    for (int m = from / mr * mr; m < end; m += mr) {
        const void *lines = attn_packed_at(a, keys, m / mr * panel);
        a->kernel->run(lines, queries, a->size, out + m * nr, nr, mr, false);
    }
}

/* out[size][nr] += X' W: X is packed with the elements of a head as lines, over `count` keys or queries, of
 * which [from, from + n) meet the packed panel `weights`. */
static inline void attn_collect(const struct attn *a, float *out, const void *x, int64_t count, int64_t from,
                                const void *weights, int64_t n)
{
    int64_t mr = a->kernel->mr, nr = a->kernel->nr, panel = gemm_panel(a->kernel, (int)mr, count);
    for (int64_t m = 0; m < a->size; m += mr) {
        const void *lines = attn_packed_at(a, x, m / mr * panel + from * mr);
        a->kernel->run(lines, weights, n, out + m * nr, nr, (int)attn_least(mr, a->size - m), true);
    }
}

/* Reserves bytes in a worker's scratch: returns the offset, moves the end. */
static inline size_t attn_room(size_t *end, size_t bytes)
{
    size_t at = *end;
    *end += (size_t)attn_up((int64_t)bytes, 64);
    return at;
}
