/* attention_common.h - what attention forward and backward share: the shape, the keys a query sees, panels.
 *
 * Queries are taken in panels of kernel->nr lines, keys in blocks; the product K Q' of a key block and a
 * panel is a tall fp32 array [keys][nr] (attention_rows.h). A query's keys are one interval, so a panel and a
 * block share one interval of rows, and a block needs masks only where the interval ends inside it.
 *
 * Invariants
 *  1. Panels begin at multiples of nr and key blocks at multiples of their size, whoever works on them: which
 *     numbers are added in which order follows from the shape alone.
 *  2. Rows of a block outside attn_cut's interval are neither read nor written.
 */
#ifndef PLIM_DEVICE_CPU_ATTENTION_COMMON_H
#define PLIM_DEVICE_CPU_ATTENTION_COMMON_H

#include "device/cpu/attention_rows.h"
#include "device/device.h"
#include <assert.h>

struct attn {
    int64_t batch, time, heads, size, keys, kv_heads;
    int64_t group; /* query heads of one kv head */
    enum dtype type;
    bool cached;
    int64_t window;      /* 0: none */
    float scale, scale2; /* of scores; the same for exponentials to base 2 */
    int64_t block;       /* queries or keys of a block in the backward pass, a multiple of nr */
    const struct gemm_kernel *kernel;
    const struct attn_rows *rows;
};

enum {
    ATTN_MAX_SIZE = 256, /* of a head */
    ATTN_BLOCK = 192,    /* rows of a block at most: a multiple of every nr */
};

static inline int64_t attn_least(int64_t x, int64_t y) { return x < y ? x : y; }

static inline int64_t attn_most(int64_t x, int64_t y) { return x > y ? x : y; }

static inline int64_t attn_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

/* Shape of an attn or attn_bwd op from its q and k. */
static inline struct attn attn_of(const struct tensor *qd, const struct tensor *kd, const struct op *op)
{
    assert(qd->dim[3] <= ATTN_MAX_SIZE && qd->dim[2] % kd->dim[2] == 0);
    struct attn a = {.batch = qd->dim[0],
                     .time = qd->dim[1],
                     .heads = qd->dim[2],
                     .size = qd->dim[3],
                     .keys = kd->dim[1],
                     .kv_heads = kd->dim[2],
                     .group = qd->dim[2] / kd->dim[2],
                     .type = qd->type,
                     .cached = op->attr.cached,
                     .window = op->attr.window,
                     .scale = op->attr.scale,
                     .scale2 = op->attr.scale * 1.44269504f};
    const struct gemm_kernel *kernels[] = {gemm_kernel_at(cpu_level(), a.type),
                                           gemm_kernel_at(cpu_level(), DT_F32), &gemm_plain_f32};
    for (int i = 0; !a.rows && i < 3; i++) {
        a.kernel = kernels[i];
        a.rows = ATTN_BLOCK % a.kernel->nr ? NULL : attn_rows_for(a.kernel);
    }
    a.block = attn_least(ATTN_BLOCK, attn_up(attn_most(a.time, a.keys), a.kernel->nr));
    return a;
}

/* Element `index` of x, which is of the op's type. */
static inline void *attn_at(const struct attn *a, const void *x, int64_t index)
{
    return (char *)(uintptr_t)x + index * (a->type == DT_F32 ? 4 : 2);
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

/* The keys of a panel's queries, both ends included. */
struct attn_panel {
    int32_t first[GEMM_MAX_NR], last[GEMM_MAX_NR];
    int32_t low, high;              /* all of them lie in [low, high] */
    int32_t first_most, last_least; /* every query sees [first_most, last_least] */
};

/* The panel whose lines are rows [row, row + lines) of (time, group) order, `group` rows to a position; lines
 * that are missing see what the last one sees. */
static inline void attn_see(const struct attn *a, const int32_t *pos, int64_t row, int64_t lines,
                            int64_t group, struct attn_panel *p)
{
    for (int line = 0; line < a->kernel->nr; line++) {
        int64_t t = (row + attn_least(line, lines - 1)) / group;
        int64_t last = attn_least(a->cached ? pos[t] : t, a->keys - 1);
        int64_t first = attn_most(a->cached ? 0 : t - pos[t], a->window ? last - a->window + 1 : 0);
        p->first[line] = (int32_t)attn_most(first, 0);
        p->last[line] = (int32_t)last;
        p->low = line ? (int32_t)attn_least(p->low, p->first[line]) : p->first[0];
        p->high = line ? (int32_t)attn_most(p->high, last) : p->last[0];
        p->first_most = line ? (int32_t)attn_most(p->first_most, p->first[line]) : p->first[0];
        p->last_least = line ? (int32_t)attn_least(p->last_least, last) : p->last[0];
    }
}

/* What a panel sees of the key block [key, key + count): rows [from, end), `from` a multiple of step. */
struct attn_cut {
    int from, end; /* from >= end: nothing */
    bool masked;   /* some query does not see all of it */
};

static inline struct attn_cut attn_cut(const struct attn_panel *p, int64_t key, int64_t count, int step)
{
    int64_t from = attn_most(p->low - key, 0) / step * step, end = attn_least(p->high + 1 - key, count);
    bool masked = p->first_most > key + from || p->last_least < key + end - 1;
    return (struct attn_cut){(int)from, (int)end, masked};
}

/* A mask in rows of the block at `key`; room is [2 * GEMM_MAX_NR]. */
static inline struct attn_mask attn_mask(const struct attn *a, const struct attn_panel *p, int64_t key,
                                         int32_t *room)
{
    for (int line = 0; line < a->kernel->nr; line++) {
        room[line] = p->first[line] - (int32_t)key;
        room[GEMM_MAX_NR + line] = p->last[line] - (int32_t)key;
    }
    return (struct attn_mask){room, room + GEMM_MAX_NR};
}

/* Bytes of `lines` packed lines over k, and what a kernel may read behind them, in whole cache lines. */
static inline size_t attn_packed(const struct attn *a, int width, int64_t lines, int64_t k)
{
    int64_t elements = attn_up(lines, width) / width * gemm_panel(a->kernel, width, k);
    return (size_t)attn_up(elements * (int64_t)dtype_size(a->kernel->type) + GEMM_SLACK, 64);
}

/* Element `index` of a packed block. */
static inline void *attn_packed_at(const struct attn *a, const void *block, int64_t index)
{
    return (char *)(uintptr_t)block + index * (a->kernel->type == DT_F32 ? 4 : 2);
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

#endif
