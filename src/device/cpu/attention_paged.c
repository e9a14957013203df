/* attention_paged.c - keys and values into blocks, and attention of rows of tokens over them (tape/op.h).
 *
 * A line is one query head of one token; lines of one row and kv head read the same keys. An item of work is up to
 * ITEM_LINES of them over all their keys, tile by tile (paged.h), or, where there are too few items for the team, over
 * one piece of PIECE keys, whose results are joined in a second loop.
 *
 * Invariants
 *  1. A line has a result of its own for every PIECE keys, and these are joined in the order of the keys, whether one
 *     worker makes them all or many do: bits do not depend on the team or on other lines.
 *  2. Keys behind the last one that a line of the item sees are not read as values: what is left there by others, even
 *     what is no number, changes nothing.
 */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/paged.h"
#include "tensor/kv8.h"
#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    ITEM_LINES = 64,
    PIECE = 512,
    LEAST_ITEMS = 4, /* for each worker; below, keys are cut into pieces */
};
#define TOP_START (-1e30f)

struct paged {
    const struct paged_rows *rows;
    enum dtype type; /* of queries and results, and of the pool unless it is coded */
    bool coded;      /* the pool is in 8 bits */
    bool e4m3;       /* its codes are e4m3 numbers */
    size_t chunk;    /* bytes of a block's keys or values of one head */
    int64_t tokens, heads, kv_heads, group, d, d_rounded, planes, layer;
    int64_t nrows, reach; /* rows, blocks of one */
    int64_t window;
    float scale, cap;
    const void *q, *pool;
    void *o;
    const int32_t *row, *blocks; /* [nrows][3], [nrows][reach] */
    int64_t item_tokens;         /* of a row, in one item */
    int64_t pieces;              /* of a row's keys; 1: an item has all of them */
    char *scratch;
    size_t worker_bytes;
    float *parts; /* [tokens][heads][pieces][d_rounded + 2], where there are pieces */
};

static int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

/* ---- shapes ---- */

static struct paged shape_of(const struct tensor *const *desc, const struct op *op, int threads)
{
    const struct tensor *q = desc[ATTN_PAGED_Q], *pool = desc[ATTN_PAGED_POOL],
                        *blocks = desc[ATTN_PAGED_BLOCKS];
    struct paged a = {.rows = paged_rows(),
                      .type = q->type,
                      .tokens = q->dim[0] * q->dim[1],
                      .heads = q->dim[2],
                      .kv_heads = pool->dim[2],
                      .group = q->dim[2] / pool->dim[2],
                      .d = q->dim[3],
                      .d_rounded = up(q->dim[3], PAGED_STEP),
                      .planes = pool->dim[1],
                      .layer = op->layer > 0 ? op->layer : 0,
                      .nrows = blocks->dim[0],
                      .reach = blocks->dim[1],
                      .window = op->attr.window,
                      .scale = op->attr.scale,
                      .cap = op->attr.cap,
                      .coded = pool->type == DT_U8,
                      .e4m3 = op->attr.e4m3,
                      .chunk = (size_t)pool->dim[3] * dtype_size(pool->type)};
    assert(pool->dim[3] == (a.coded ? kv8_bytes(KV_BLOCK, a.d) : KV_BLOCK * a.d) &&
           2 * a.layer + 1 < a.planes);
    a.item_tokens = a.group < ITEM_LINES ? ITEM_LINES / a.group : 1;
    bool few = a.tokens * a.kv_heads <= (int64_t)threads * LEAST_ITEMS && threads > 1;
    a.pieces = few ? (a.reach * KV_BLOCK + PIECE - 1) / PIECE : 1;
    return a;
}

/* A worker's arrays. */
struct room {
    float *q, *acc, *total, *top, *sum, *total_top, *total_sum, *k, *v;
    size_t bytes;
};

static float *take(struct room *r, char *base, int64_t floats)
{
    float *at = base ? (float *)(void *)(base + r->bytes) : NULL;
    r->bytes += (size_t)up(floats * 4, 64);
    return at;
}

static struct room room_of(const struct paged *a, char *base)
{
    struct room r = {0};
    int64_t lines = a->item_tokens * a->group;
    r.q = take(&r, base, lines * a->d_rounded);
    r.acc = take(&r, base, lines * a->d_rounded);
    r.total = take(&r, base, lines * a->d_rounded);
    r.top = take(&r, base, lines), r.sum = take(&r, base, lines);
    r.total_top = take(&r, base, lines), r.total_sum = take(&r, base, lines);
    r.k = take(&r, base, PAGED_TILE * a->d);
    r.v = take(&r, base, PAGED_TILE * a->d_rounded);
    return r;
}

static int64_t part_floats(const struct paged *a) { return a->d_rounded + 2; }

static size_t parts_bytes(const struct paged *a)
{
    return a->pieces > 1 ? (size_t)up(a->tokens * a->heads * a->pieces * part_floats(a) * 4, 64) : 0;
}

static size_t cpu_attn_paged_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    struct paged a = shape_of(desc, op, threads);
    return parts_bytes(&a) + (size_t)threads * room_of(&a, NULL).bytes;
}

/* ---- one item ---- */

/* Lines of tokens [token, token + lines / group) of a row. */
struct item {
    int64_t row, kv, token, lines;
    int64_t position;  /* of the first token */
    int64_t from, end; /* keys */
};

static const void *block_at(const struct paged *a, const struct item *it, int64_t key, int plane)
{
    int64_t block = a->blocks[it->row * a->reach + key / KV_BLOCK];
    int64_t index = (block * a->planes + 2 * a->layer + plane) * a->kv_heads + it->kv;
    return (const char *)a->pool + (size_t)index * a->chunk;
}

/* Keys that line `i` sees, from `first` to `last`. */
static void sight(const struct paged *a, const struct item *it, int64_t i, int64_t *first, int64_t *last)
{
    *last = it->position + i / a->group;
    *first = a->window && *last - a->window + 1 > 0 ? *last - a->window + 1 : 0;
}

/* e4m3 numbers; of keys and of values. */
static void widen_e4m3(const struct paged *a, const uint8_t *codes, bool values, float *to)
{
    const float *scale = (const float *)(const void *)(codes + KV_BLOCK * a->d);
    for (int64_t i = 0; i < KV_BLOCK * a->d; i++) {
        int64_t at = values ? i / a->d : i % KV_BLOCK;
        to[values ? at * a->d_rounded + i % a->d : i] = e4m3_to_f32(codes[i]) * scale[at];
    }
}

static void widen_coded(const struct paged *a, const struct paged_tile *t, int b, float *k, float *v)
{
    const char *keys = t->k[b], *values = t->v[b];
    size_t codes = (size_t)(KV_BLOCK * a->d);
    if (a->e4m3) {
        widen_e4m3(a, (const uint8_t *)keys, false, k), widen_e4m3(a, (const uint8_t *)values, true, v);
        return;
    }
    a->rows->widen_keys(k, (const int8_t *)keys, (const float *)(const void *)(keys + codes), a->d);
    a->rows->widen_values(v, a->d_rounded, (const int8_t *)values,
                          (const float *)(const void *)(values + codes), a->d);
}

/* The tile's blocks: where they lie or, for many lines and for heads that are no whole steps, widened once. */
static void find_blocks(const struct paged *a, const struct item *it, int64_t key, struct room *r,
                        struct paged_tile *t)
{
    bool widen = a->coded || (a->type != DT_F32 && it->lines > PAGED_LINES) || a->d != a->d_rounded;
    t->type = widen ? DT_F32 : a->type;
    t->v_stride = a->d_rounded;
    for (int b = 0; b * KV_BLOCK < t->keys; b++) {
        t->k[b] = block_at(a, it, key + b * KV_BLOCK, 0), t->v[b] = block_at(a, it, key + b * KV_BLOCK, 1);
        if (!widen) continue;
        float *k = r->k + b * KV_BLOCK * a->d, *v = r->v + b * KV_BLOCK * a->d_rounded;
        if (a->coded) widen_coded(a, t, b, k, v);
        if (!a->coded) dtype_convert(k, DT_F32, t->k[b], a->type, KV_BLOCK * a->d);
        for (int i = 0; i < KV_BLOCK && !a->coded; i++)
            dtype_convert(v + i * a->d_rounded, DT_F32, element(t->v[b], a->type, i * a->d), a->type, a->d);
        t->k[b] = k, t->v[b] = v;
    }
}

/* Lines [line, line + t->lines) meet the tile at `key`. */
static void meet(const struct paged *a, const struct item *it, int64_t line, int64_t key, struct room *r,
                 struct paged_tile *t)
{
    float p[PAGED_LINES * PAGED_TILE], fade[PAGED_LINES];
    int64_t first, last, low, unused;
    sight(a, it, line, &low, &unused), sight(a, it, line + t->lines - 1, &first, &last);
    if (last < key || low >= key + PAGED_TILE) return;
    t->q = r->q + line * a->d_rounded, t->acc = r->acc + line * a->d_rounded, t->p = p;
    a->rows->scores(t);
    for (int i = 0; i < t->lines; i++) {
        sight(a, it, line + i, &first, &last);
        struct paged_soft soft = {.p = p + i * PAGED_TILE,
                                  .first = (int)(first > key ? first - key : 0),
                                  .last = (int)lesser(last - key, PAGED_TILE),
                                  .scale = a->scale,
                                  .cap = a->cap,
                                  .top = &r->top[line + i],
                                  .sum = &r->sum[line + i]};
        fade[i] = a->rows->soften(&soft);
    }
    a->rows->mix(t, fade);
}

/* Keys [from, end) of the item, which lie in one piece. */
static void walk(const struct paged *a, const struct item *it, int64_t from, int64_t end, struct room *r)
{
    int64_t first, unused;
    memset(r->acc, 0, (size_t)(it->lines * a->d_rounded) * 4);
    for (int64_t i = 0; i < it->lines; i++) r->top[i] = TOP_START, r->sum[i] = 0;
    sight(a, it, 0, &first, &unused);
    if (first > from) from = first / PAGED_TILE * PAGED_TILE;
    for (int64_t key = from; key < end; key += PAGED_TILE) {
        struct paged_tile t = {.q_stride = a->d_rounded, .d = a->d, .d_rounded = a->d_rounded};
        t.keys = (int)lesser(PAGED_TILE, end - key);
        find_blocks(a, it, key, r, &t);
        for (int64_t line = 0; line < it->lines; line += PAGED_LINES) {
            t.lines = (int)lesser(PAGED_LINES, it->lines - line);
            meet(a, it, line, key, r, &t);
        }
    }
}

/* Partial result of a line over the keys so far. */
struct result {
    float *acc, *top, *sum;
};

/* A further result joins `so_far`, whose keys come before. One piece of code for both callers: a compiler that fuses
 * multiplications with additions must do so in both alike. */
__attribute__((noinline)) static void join(const struct paged *a, struct result so_far, const float *acc,
                                           float top, float sum)
{
    float scale2 = (a->cap > 0 ? 1 : a->scale) * 1.44269504f;
    if (sum == 0) return;
    if (*so_far.sum == 0) {
        memcpy(so_far.acc, acc, (size_t)a->d_rounded * 4);
        *so_far.top = top, *so_far.sum = sum;
        return;
    }
    float best = top > *so_far.top ? top : *so_far.top;
    float old = exp2f((*so_far.top - best) * scale2), new = exp2f((top - best) * scale2);
    for (int64_t j = 0; j < a->d_rounded; j++) so_far.acc[j] = new *acc[j] + old *so_far.acc[j];
    *so_far.sum = new *sum + old **so_far.sum, *so_far.top = best;
}

/* Element where a line's query and output begin. */
static int64_t line_at(const struct paged *a, const struct item *it, int64_t i)
{
    int64_t token = a->row[it->row * 3] + it->token + i / a->group;
    return (token * a->heads + it->kv * a->group + i % a->group) * a->d;
}

static void put(const struct paged *a, int64_t at, float *acc, float sum)
{
    float by = sum > 0 ? 1 / sum : sum; /* what is no number stays none */
    for (int64_t j = 0; j < a->d; j++) acc[j] *= by;
    dtype_convert(element(a->o, a->type, at), a->type, acc, DT_F32, a->d);
}

static float *part_of(const struct paged *a, const struct item *it, int64_t i, int64_t piece)
{
    int64_t line = line_at(a, it, i) / a->d;
    return a->parts + (line * a->pieces + piece) * part_floats(a);
}

static void keep_parts(const struct paged *a, const struct item *it, int64_t piece, const struct room *r)
{
    for (int64_t i = 0; i < it->lines; i++) {
        float *part = part_of(a, it, i, piece);
        memcpy(part, r->acc + i * a->d_rounded, (size_t)a->d_rounded * 4);
        part[a->d_rounded] = r->top[i], part[a->d_rounded + 1] = r->sum[i];
    }
}

static void run_item(const struct paged *a, const struct item *it, int64_t only, struct room *r)
{
    for (int64_t i = 0; i < it->lines; i++) {
        dtype_convert(r->q + i * a->d_rounded, DT_F32, element(a->q, a->type, line_at(a, it, i)), a->type,
                      a->d);
        r->total_sum[i] = 0;
    }
    for (int64_t piece = it->from / PIECE; piece * PIECE < it->end; piece++) {
        if (only >= 0 && piece != only) continue;
        walk(a, it, piece * PIECE, lesser((piece + 1) * PIECE, it->end), r);
        if (only >= 0) keep_parts(a, it, piece, r);
        for (int64_t i = 0; i < it->lines && only < 0; i++) {
            struct result total = {r->total + i * a->d_rounded, &r->total_top[i], &r->total_sum[i]};
            join(a, total, r->acc + i * a->d_rounded, r->top[i], r->sum[i]);
        }
    }
    for (int64_t i = 0; i < it->lines && only < 0; i++)
        put(a, line_at(a, it, i), r->total + i * a->d_rounded, r->total_sum[i]);
}

/* ---- sharing the work ---- */

static int64_t row_items(const struct paged *a, int64_t row)
{
    return (a->row[row * 3 + 1] + a->item_tokens - 1) / a->item_tokens;
}

static int64_t count_items(const struct paged *a)
{
    int64_t n = 0;
    for (int64_t row = 0; row < a->nrows; row++) n += row_items(a, row);
    return n * a->kv_heads;
}

/* Item `index` of all, kv heads fastest; the last tokens of a row, which see most, first. */
static struct item item_at(const struct paged *a, int64_t index)
{
    struct item it = {.kv = index % a->kv_heads};
    int64_t left = index / a->kv_heads, items;
    while (left >= (items = row_items(a, it.row))) left -= items, it.row++;
    const int32_t *row = a->row + it.row * 3;
    it.token = (items - 1 - left) * a->item_tokens;
    it.lines = lesser(a->item_tokens, row[1] - it.token) * a->group;
    it.position = row[2] + it.token;
    it.end = it.position + it.lines / a->group;
    sight(a, &it, 0, &it.from, &(int64_t){0});
    return it;
}

static void items_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct paged *a = arg;
    struct room r = room_of(a, a->scratch + (size_t)worker * a->worker_bytes);
    for (int64_t i = begin; i < end; i++) {
        struct item it = item_at(a, i / a->pieces);
        run_item(a, &it, a->pieces > 1 ? i % a->pieces : -1, &r);
    }
}

static void join_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct paged *a = arg;
    struct room r = room_of(a, a->scratch + (size_t)worker * a->worker_bytes);
    for (int64_t index = begin; index < end; index++) {
        struct item it = item_at(a, index);
        for (int64_t i = 0; i < it.lines; i++) {
            struct result total = {r.total, r.total_top, r.total_sum};
            *total.sum = 0;
            for (int64_t piece = it.from / PIECE; piece * PIECE < it.end; piece++) {
                const float *part = part_of(a, &it, i, piece);
                join(a, total, part, part[a->d_rounded], part[a->d_rounded + 1]);
            }
            put(a, line_at(a, &it, i), r.total, *total.sum);
        }
    }
}

void cpu_attn_paged(const struct kernel_call *call)
{
    struct paged a = shape_of(call->desc, call->op, threads_count(call->team));
    a.q = call->in[ATTN_PAGED_Q], a.pool = call->in[ATTN_PAGED_POOL], a.o = call->out[ATTN_PAGED_O];
    a.row = call->in[ATTN_PAGED_ROWS], a.blocks = call->in[ATTN_PAGED_BLOCKS];
    a.parts = call->work;
    a.scratch = (char *)call->work + parts_bytes(&a);
    a.worker_bytes = room_of(&a, NULL).bytes;
    memset(a.o, 0, (size_t)tensor_bytes(call_out(call, ATTN_PAGED_O)));
    int64_t items = count_items(&a);
    threads_each(call->team, items * a.pieces, 1, items_body, &a);
    if (a.pieces > 1) threads_each(call->team, items, 1, join_body, &a);
}

/* ---- storing ---- */

/* A block's keys, or values, of head h in this op's layer. */
static char *chunk_at(const struct kernel_call *call, int64_t slot, bool value, int64_t h)
{
    const struct tensor *pool = call_in(call, KV_PUT_POOL);
    int64_t layer = call->op->layer > 0 ? call->op->layer : 0;
    int64_t plane = slot / KV_BLOCK * pool->dim[1] + 2 * layer + value;
    return out_at(call, KV_PUT_NEW_POOL, (plane * pool->dim[2] + h) * pool->dim[3]);
}

static void turn_in(char *to, const char *from, int64_t d, size_t size)
{
    for (int64_t j = 0; j < d; j++) {
        if (size == 4)
            memcpy(to + j * KV_BLOCK * 4, from + j * 4, 4);
        else
            memcpy(to + j * KV_BLOCK * 2, from + j * 2, 2);
    }
}

static void put_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    const struct tensor *k = call_in(call, KV_PUT_K);
    const int32_t *slots = call->in[KV_PUT_SLOTS];
    int64_t heads = k->dim[2], d = k->dim[3];
    size_t size = dtype_size(k->type), head = (size_t)d * size;
    for (int64_t n = begin; n < end; n++) {
        if (slots[n] < 0) continue;
        size_t at = (size_t)(slots[n] % KV_BLOCK);
        for (int64_t h = 0; h < heads; h++) {
            int64_t from = (n * heads + h) * d;
            turn_in(chunk_at(call, slots[n], false, h) + at * size, in_at(call, KV_PUT_K, from), d, size);
            memcpy(chunk_at(call, slots[n], true, h) + at * head, in_at(call, KV_PUT_V, from), head);
        }
    }
}

void cpu_attn_paged8(const struct kernel_call *call) { cpu_attn_paged(call); }

static void put_all(const struct kernel_call *call, threads_body *body)
{
    const struct tensor *k = call_in(call, KV_PUT_K), *pool = call_in(call, KV_PUT_POOL);
    if (call->out[KV_PUT_NEW_POOL] != call->in[KV_PUT_POOL])
        memcpy(call->out[KV_PUT_NEW_POOL], call->in[KV_PUT_POOL], (size_t)tensor_bytes(pool));
    call_each(call, k->dim[0] * k->dim[1], row_grain(2 * k->dim[2] * k->dim[3]), body);
}

void cpu_kv_put(const struct kernel_call *call) { put_all(call, put_body); }

/* ---- storing in 8 bits ---- */

/* One position of one head: its codes, `step` apart, and its scale. */
static void put_coded(int8_t *to, int64_t step, float *scale, const float *x, int64_t d, bool e4m3)
{
    float most = kv8_most(x, d), inverse = e4m3 ? kv8_e4m3_inverse(most) : kv8_inverse(most);
    *scale = e4m3 ? kv8_e4m3_scale(most) : kv8_scale(most);
    for (int64_t j = 0; j < d; j++)
        to[j * step] = e4m3 ? (int8_t)kv8_e4m3_code(x[j], inverse) : kv8_code(x[j], inverse);
}

static void put8_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    const struct tensor *k = call_in(call, KV_PUT_K);
    const int32_t *slots = call->in[KV_PUT_SLOTS];
    int64_t heads = k->dim[2], d = k->dim[3];
    float x[KV8_MOST];
    assert(d <= KV8_MOST);
    for (int64_t n = begin; n < end; n++) {
        if (slots[n] < 0) continue;
        int64_t at = slots[n] % KV_BLOCK;
        for (int64_t i = 0; i < 2 * heads; i++) {
            int64_t value = i / heads, h = i % heads;
            char *to = chunk_at(call, slots[n], value, h);
            float *scale = (float *)(void *)(to + KV_BLOCK * d) + at;
            dtype_convert(x, DT_F32, in_at(call, value ? KV_PUT_V : KV_PUT_K, (n * heads + h) * d), k->type,
                          d);
            if (value)
                put_coded((int8_t *)to + at * d, 1, scale, x, d, call->op->attr.e4m3);
            else
                put_coded((int8_t *)to + at, KV_BLOCK, scale, x, d, call->op->attr.e4m3);
        }
    }
}

void cpu_kv_put8(const struct kernel_call *call) { put_all(call, put8_body); }

CPU_KERNEL(kv_put, NULL);
CPU_KERNEL(attn_paged, cpu_attn_paged_workspace);
CPU_KERNEL(kv_put8, NULL);
CPU_KERNEL(attn_paged8, cpu_attn_paged_workspace);
