/* attention_single.c - attention forward for a handful of queries: decoding.
 *
 * Nothing is packed: every key and value is read once, and each of the few rows meets it while it is in the
 * first-level cache. Keys and values that are not fp32 rows of whole registers are widened block by block. The
 * time goes into reading the cache, which is as it should be.
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

/* Keys [key, key + count) of x as fp32 rows, their distance in *ld; counts are rounded up to 4 with zeroes. */
static const float *rows_of(const struct single *s, const void *x, int64_t key, int count, int64_t *ld)
{
    const struct attn *a = &s->f->a;
    int64_t stride = a->kv_heads * a->size;
    const void *src = attn_at(a, x, attn_key(a, s->item->b, key, s->item->kv));
    *ld = stride;
    if (a->type == DT_F32 && a->size % 8 == 0 && count % 4 == 0) return src;
    *ld = s->ld;
    for (int i = 0; i < count; i++) a->rows->widen(s->block + i * s->ld, attn_at(a, src, i * stride), a->type, a->size);
    memset(s->block + count * s->ld, 0, (size_t)((4 - count % 4) % 4 * s->ld) * 4);
    return s->block;
}

/* Scores of row r, turned into weights; the row's maximum and sum move on. */
static void weigh(struct single *s, int64_t r, int64_t key, int count)
{
    const struct attn *a = &s->f->a;
    float *w = s->weights + r * KEYS, top = s->top[r];
    int64_t first = s->panel.first[r] - key, last = s->panel.last[r] - key;
    int padded = (int)attn_up(count, 4);
    for (int i = 0; i < padded; i++) {
        if (i < first || i > last || i >= count) w[i] = -INFINITY;
        top = w[i] > top ? w[i] : top;
    }
    s->fade[r] = exp2f((s->top[r] - top) * a->scale2);
    s->sum[r] = s->sum[r] * s->fade[r] + a->rows->exponentials(w, a->scale2, top * a->scale2, padded);
    s->top[r] = top;
}

static void meet(struct single *s, int64_t key, int count)
{
    const struct attn *a = &s->f->a;
    int64_t ld;
    const float *keys = rows_of(s, s->f->k, key, count, &ld);
    for (int64_t r = 0; r < s->f->rows; r++) {
        float *w = s->weights + r * KEYS;
        a->rows->dots(w, s->queries + r * s->ld, keys, ld, s->ld, (int)attn_up(count, 4));
        weigh(s, r, key, count);
    }
    const float *values = rows_of(s, s->f->v, key, count, &ld);
    for (int64_t r = 0; r < s->f->rows; r++)
        a->rows->mix(s->sums + r * s->ld, s->fade[r], s->weights + r * KEYS, values, ld, s->ld, count);
}

void forward_single(const struct forward *f, const struct forward_item *item, char *scratch)
{
    const struct attn *a = &f->a;
    struct single s = {.f = f, .item = item, .ld = attn_up(a->size, 8)};
    s.queries = (float *)(void *)scratch;
    s.sums = s.queries + f->rows * s.ld;
    s.block = s.sums + f->rows * s.ld;
    s.weights = s.block + KEYS * s.ld;
    attn_see(a, f->pos + item->b * a->time, 0, f->rows, a->group, &s.panel);
    memset(s.sums, 0, (size_t)(f->rows * s.ld) * 4);
    for (int64_t r = 0; r < f->rows; r++) {
        int64_t h = item->kv * a->group + r % a->group;
        const void *src = attn_at(a, f->q, attn_query(a, item->b, r / a->group, h));
        a->rows->widen(s.queries + r * s.ld, src, a->type, a->size);
        s.top[r] = ATTN_TOP_START;
    }
    int64_t key = attn_most(item->key, s.panel.low), end = attn_least(item->end, s.panel.high + 1);
    for (; key < end; key += KEYS) meet(&s, key, (int)attn_least(KEYS, end - key));
    for (int64_t r = 0; r < f->rows; r++) forward_finish(f, item, r, s.sums + r * s.ld, s.top[r], s.sum[r]);
}
