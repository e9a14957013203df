/* attention_single.c - attention forward for a handful of queries: decoding.
 *
 * Nothing is packed: every key and value is read once, and each of the few rows meets it while it is in the
 * first-level cache. The time goes into reading the cache of keys and values, which is as it should be.
 */
#include "device/cpu/attention_forward.h"

#include <math.h>

enum { KEYS = 64 };

struct single {
    const struct forward *f;
    const struct forward_item *item;
    int64_t ld; /* of widened rows: size rounded up to 8 */
    struct attn_panel panel;
    float *queries, *sums, *block, *weights; /* [rows][ld] [rows][ld] [KEYS][ld] [rows][KEYS] */
    float top[GEMM_MAX_NR], sum[GEMM_MAX_NR], fade[GEMM_MAX_NR];
};

size_t forward_single_bytes(const struct attn *a)
{
    int64_t rows = a->time * a->group, ld = attn_up(a->size, 8);
    return (size_t)attn_up((2 * rows * ld + KEYS * ld + rows * KEYS) * 4, 64);
}

/* Rows of keys or values to be multiplied. */
struct rows {
    const void *x;
    enum dtype type;
    int64_t ld;
};

/* Keys [key, key + count) of x. Whole registers are multiplied where they lie, unless several rows would
 * widen them again and again; else they are copied as fp32, with rows of zeroes to a multiple of four. */
static struct rows rows_of(const struct single *s, const void *x, int64_t key, int count)
{
    const struct attn *a = &s->f->a;
    int64_t stride = a->kv_heads * a->size;
    const void *src = attn_at(a, x, attn_key(a, s->item->b, key, s->item->kv));
    bool cheap = a->type == DT_F32 || s->f->rows == 1;
    if (cheap && a->size % 8 == 0 && count % 4 == 0) return (struct rows){src, a->type, stride};
    a->rows->single->widen(s->block, s->ld, src, stride, a->type, a->size, count);
    memset(s->block + count * s->ld, 0, (size_t)((4 - count % 4) % 4 * s->ld) * 4);
    return (struct rows){s->block, DT_F32, s->ld};
}

/* Products of row r become scores, its weights are dropped: attention_score.h for one row. */
static void modify(const struct single *s, int64_t r, int64_t key, int count, float *w)
{
    const struct attn *a = &s->f->a;
    int64_t head = s->item->kv * a->group + r % a->group;
    const float *bias = s->f->score.lines + head * attn_span(a) + s->panel.query[r] + a->keys - 1 - key;
    for (int i = 0; i < count; i++) {
        float x = w[i] * a->scale;
        w[i] = (a->cap > 0 ? a->cap * tanhf(x / a->cap) : x) + (a->biased ? bias[-i] : 0);
    }
}

static void drop(const struct single *s, int64_t r, int64_t key, int count, float *w)
{
    const struct attn *a = &s->f->a;
    const struct dropout *d = &s->f->score.drop;
    uint32_t line =
        dropout_line(dropout_row(d, s->item->b), s->item->kv * a->group + r % a->group, s->panel.query[r]);
    for (int i = 0; i < count; i++) w[i] *= dropout_keeps(d, line, (uint64_t)(key + i)) ? d->scale : 0;
}

/* Scores of row r, turned into weights; the row's maximum and sum move on. */
static void weigh(struct single *s, int64_t r, int64_t key, int count)
{
    const struct attn *a = &s->f->a;
    float *w = s->weights + r * KEYS;
    int64_t first = s->panel.first[r] - key, end = attn_least(s->panel.last[r] + 1 - key, count);
    int padded = (int)attn_up(count, 4);
    if (a->modified) modify(s, r, key, count, w);
    for (int64_t i = 0; i < attn_least(first, padded); i++) w[i] = -INFINITY;
    for (int64_t i = attn_most(end, 0); i < padded; i++) w[i] = -INFINITY;
    for (int64_t i = attn_most(s->panel.hole[r] - key, 0); i < count && i <= s->panel.hole_last[r] - key; i++)
        w[i] = -INFINITY;
    s->fade[r] = a->rows->single->weigh(w, a->scale2, padded, &s->top[r], &s->sum[r]);
    if (s->f->score.drop.below) drop(s, r, key, count, w);
}

static void meet(struct single *s, int64_t key, int count)
{
    const struct attn *a = &s->f->a;
    struct rows keys = rows_of(s, s->f->k, key, count);
    for (int64_t r = 0; r < s->f->rows; r++) {
        const float *q = s->queries + r * s->ld;
        a->rows->single->dots(s->weights + r * KEYS, q, keys.x, keys.type, keys.ld, s->ld,
                              (int)attn_up(count, 4));
        weigh(s, r, key, count);
    }
    struct rows values = rows_of(s, s->f->v, key, count);
    for (int64_t r = 0; r < s->f->rows; r++) {
        const float *w = s->weights + r * KEYS;
        a->rows->single->mix(s->sums + r * s->ld, s->fade[r], w, values.x, values.type, values.ld, s->ld,
                             count);
    }
}

void forward_single(const struct forward *f, const struct forward_item *item, char *scratch)
{
    const struct attn *a = &f->a;
    struct single s = {.f = f, .item = item, .ld = attn_up(a->size, 8)};
    s.queries = (float *)(void *)scratch;
    s.sums = s.queries + f->rows * s.ld;
    s.block = s.sums + f->rows * s.ld;
    s.weights = s.block + KEYS * s.ld;
    attn_see(a, item->b, 0, f->rows, a->group, &s.panel);
    memset(s.sums, 0, (size_t)(f->rows * s.ld) * 4);
    for (int64_t r = 0; r < f->rows; r++) {
        int64_t h = item->kv * a->group + r % a->group;
        const void *src = attn_at(a, f->q, attn_query(a, item->b, r / a->group, h));
        a->rows->single->widen(s.queries + r * s.ld, s.ld, src, 0, a->type, a->size, 1);
        s.top[r] = ATTN_TOP_START;
    }
    int64_t key = attn_most(item->key, s.panel.low), end = attn_least(item->end, s.panel.high + 1);
    for (; key < end; key += KEYS) meet(&s, key, (int)attn_least(KEYS, end - key));
    for (int64_t r = 0; r < f->rows; r++) forward_finish(f, item, r, s.sums + r * s.ld, s.top[r], s.sum[r]);
}
