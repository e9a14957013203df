/* attention_bwd.c - attention backward: dQ, dK, dV from dO, with P recomputed from the saved log-sum-exp.
 *
 * Blocks of queries meet blocks of keys (attention_bwd_block.h). There are two ways through all pairs:
 *
 *  together  one worker has a kv head of a batch row to itself. Head by head, a span of key blocks stays packed
 *            while all query blocks pass by; dQ of the whole head waits in scratch. Five products per pair.
 *  apart     for more threads than kv heads: one loop over spans of keys makes dK and dV, a second over spans of
 *            queries makes dQ. Seven products per pair, and any number of threads finds work.
 *
 * Both ways add the same products in the same order (the invariant in attention_bwd_block.h), so they give
 * the same bits, and the number of threads may choose.
 */
#include "device/cpu/attention_bwd_block.h"
#include "device/cpu/kernels.h"

enum { MOST_SPAN = 1 };

/* How the work is cut, and what lies where in a worker's scratch. */
struct cut {
    bool together;
    int64_t query_blocks, key_blocks;
    int64_t span;             /* blocks of the side that stays packed */
    int64_t dq_room, dkv_room; /* gradients of that many blocks */
    size_t delta_bytes, worker_bytes;
};

struct pass {
    struct backward w;
    struct cut cut;
    char *work; /* of worker 0 */
};

/* A worker's scratch. */
struct worker {
    struct meeting meeting;
    struct query_side queries[MOST_SPAN];
    struct key_side keys[MOST_SPAN];
    float *dq, *dk, *dv;
};

static int64_t blocks_of(int64_t n)
{
    return (n + ATTN_BLOCK - 1) / ATTN_BLOCK;
}

static struct cut cut_of(const struct attn *a, int threads)
{
    int64_t items = a->batch * a->kv_heads, rounds = (items + threads - 1) / threads;
    struct cut c = {.query_blocks = blocks_of(a->time), .key_blocks = blocks_of(a->keys)};
    int64_t blocks = attn_most(c.query_blocks, c.key_blocks);
    /* A span fits the second-level cache. */
    c.span = attn_least(attn_most(256 / a->size, 1), attn_least(MOST_SPAN, blocks));
    c.together = 7 * items >= 5 * rounds * threads;
    while (!c.together && c.span > 1 && items * blocks < 3 * threads * c.span) c.span /= 2;
    c.dq_room = c.together ? c.query_blocks : c.span;
    c.dkv_room = c.together && a->group > 1 ? c.key_blocks : c.span;
    c.delta_bytes = (size_t)attn_up(a->batch * a->heads * a->time * 4, 64);
    c.worker_bytes = (size_t)(c.dq_room + 2 * c.dkv_room) * block_gradient_bytes(a) + meeting_bytes(a);
    size_t queries = query_side_bytes(a), keys = key_side_bytes(a), more = queries > keys ? queries : keys;
    c.worker_bytes += c.together ? queries + (size_t)c.span * keys : queries + keys + (size_t)(c.span - 1) * more;
    return c;
}

/* `nq` query sides and `nk` key sides in worker's scratch. */
static struct worker worker_at(const struct pass *pass, int worker, int64_t nq, int64_t nk)
{
    const struct attn *a = &pass->w.a;
    char *at = pass->work + (size_t)worker * pass->cut.worker_bytes;
    size_t block = block_gradient_bytes(a);
    struct worker s = {.meeting = meeting_place(&pass->w, at)};
    at += meeting_bytes(a);
    s.dq = (float *)(void *)at, at += (size_t)pass->cut.dq_room * block;
    s.dk = (float *)(void *)at, at += (size_t)pass->cut.dkv_room * block;
    s.dv = (float *)(void *)at, at += (size_t)pass->cut.dkv_room * block;
    for (int64_t i = 0; i < nq; i++, at += query_side_bytes(a)) query_side_place(a, &s.queries[i], at);
    for (int64_t i = 0; i < nk; i++, at += key_side_bytes(a)) key_side_place(a, &s.keys[i], at);
    return s;
}

/* Keys [block, block + n) of a kv head, collecting into rooms from `room` on. */
static void take_keys(struct worker *s, int64_t b, int64_t kv, int64_t block, int64_t n, int64_t room,
                      bool fresh, bool wants_turned)
{
    const struct attn *a = &s->meeting.w->a;
    size_t bytes = block_gradient_bytes(a);
    for (int64_t i = 0; i < n; i++) {
        struct key_side *k = &s->keys[i];
        k->wants_turned = wants_turned;
        k->dk = s->dk + (room + i) * ATTN_BLOCK * a->size;
        k->dv = s->dv + (room + i) * ATTN_BLOCK * a->size;
        if (fresh) memset(k->dk, 0, bytes), memset(k->dv, 0, bytes);
        key_side_pack(s->meeting.w, k, b, kv, block + i);
    }
}

static void put_keys(const struct worker *s, int64_t n)
{
    const struct backward *w = s->meeting.w;
    for (int64_t i = 0; i < n; i++) {
        const struct key_side *k = &s->keys[i];
        int64_t at = attn_key(&w->a, k->b, k->first, k->kv), stride = w->a.kv_heads * w->a.size;
        gradient_put(&s->meeting, k->dk, k->count, w->a.scale, w->dk, at, stride);
        gradient_put(&s->meeting, k->dv, k->count, 1, w->dv, at, stride);
    }
}

static void put_queries(const struct worker *s, const struct query_side *q, const float *dq)
{
    const struct backward *w = s->meeting.w;
    int64_t at = attn_query(&w->a, q->b, q->first, q->h);
    gradient_put(&s->meeting, dq, q->count, w->a.scale, w->dq, at, w->a.heads * w->a.size);
}

/* All query blocks of head h pass by the n key blocks that are packed; dq: of the whole head, or NULL. */
static void pass_by(struct worker *s, int64_t b, int64_t h, int64_t n, float *dq, int64_t query_blocks)
{
    const struct backward *w = s->meeting.w;
    struct query_side *q = &s->queries[0];
    int64_t first = s->keys[0].first, end = s->keys[n - 1].first + s->keys[n - 1].count;
    q->wants_turned = true;
    for (int64_t i = 0; i < query_blocks; i++) {
        query_side_see(w, q, b, h, i);
        if (q->high < first || q->low >= end) continue;
        query_side_pack(w, q);
        q->dq = dq ? dq + i * ATTN_BLOCK * w->a.size : NULL;
        for (int64_t k = 0; k < n; k++) attn_bwd_meet(&s->meeting, q, &s->keys[k]);
    }
}

/* ---- together -------------------------------------------------------------------------------------------- */

static void one_head(const struct pass *pass, struct worker *s, int64_t b, int64_t kv, int64_t g)
{
    const struct attn *a = &pass->w.a;
    const struct cut *c = &pass->cut;
    int64_t h = kv * a->group + g;
    memset(s->dq, 0, (size_t)c->query_blocks * block_gradient_bytes(a));
    for (int64_t block = 0; block < c->key_blocks; block += c->span) {
        int64_t n = attn_least(c->span, c->key_blocks - block);
        take_keys(s, b, kv, block, n, a->group > 1 ? block : 0, g == 0, true);
        pass_by(s, b, h, n, s->dq, c->query_blocks);
        if (g == a->group - 1) put_keys(s, n);
    }
    for (int64_t i = 0; i < c->query_blocks; i++) {
        struct query_side q = {.b = b, .h = h, .first = i * ATTN_BLOCK};
        q.count = attn_least(ATTN_BLOCK, a->time - q.first);
        put_queries(s, &q, s->dq + i * ATTN_BLOCK * a->size);
    }
}

static void run_together(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct pass *pass = arg;
    const struct attn *a = &pass->w.a;
    struct worker s = worker_at(pass, worker, 1, pass->cut.span);
    for (int64_t i = begin; i < end; i++)
        for (int64_t g = 0; g < a->group; g++) one_head(pass, &s, i / a->kv_heads, i % a->kv_heads, g);
}

/* ---- apart ----------------------------------------------------------------------------------------------- */

static int64_t spans_of(int64_t blocks, const struct cut *c)
{
    return (blocks + c->span - 1) / c->span;
}

static void run_keys(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct pass *pass = arg;
    const struct attn *a = &pass->w.a;
    const struct cut *c = &pass->cut;
    struct worker s = worker_at(pass, worker, 1, c->span);
    int64_t spans = spans_of(c->key_blocks, c);
    for (int64_t i = begin; i < end; i++) {
        int64_t head = i / spans, b = head / a->kv_heads, kv = head % a->kv_heads, block = i % spans * c->span;
        int64_t n = attn_least(c->span, c->key_blocks - block);
        take_keys(&s, b, kv, block, n, 0, true, false);
        for (int64_t g = 0; g < a->group; g++) pass_by(&s, b, kv * a->group + g, n, NULL, c->query_blocks);
        put_keys(&s, n);
    }
}

/* The n query blocks from `block` on against every key block they see. */
static void one_span(const struct pass *pass, struct worker *s, int64_t b, int64_t h, int64_t block, int64_t n)
{
    const struct attn *a = &pass->w.a;
    int64_t low = a->keys, high = -1;
    for (int64_t i = 0; i < n; i++) {
        struct query_side *q = &s->queries[i];
        q->wants_turned = false;
        q->dq = s->dq + i * ATTN_BLOCK * a->size;
        memset(q->dq, 0, block_gradient_bytes(a));
        query_side_see(&pass->w, q, b, h, block + i);
        query_side_pack(&pass->w, q);
        low = attn_least(low, q->low);
        high = attn_most(high, q->high);
    }
    struct key_side *k = &s->keys[0];
    k->wants_turned = true;
    for (int64_t j = low / ATTN_BLOCK; j <= high / ATTN_BLOCK; j++) {
        key_side_pack(&pass->w, k, b, h / a->group, j);
        for (int64_t i = 0; i < n; i++) attn_bwd_meet(&s->meeting, &s->queries[i], k);
    }
    for (int64_t i = 0; i < n; i++) put_queries(s, &s->queries[i], s->queries[i].dq);
}

static void run_queries(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct pass *pass = arg;
    const struct cut *c = &pass->cut;
    struct worker s = worker_at(pass, worker, c->span, 1);
    int64_t spans = spans_of(c->query_blocks, c);
    for (int64_t i = begin; i < end; i++) {
        int64_t head = i / spans, block = (spans - 1 - i % spans) * c->span; /* later queries see more keys */
        int64_t n = attn_least(c->span, c->query_blocks - block);
        one_span(pass, &s, head / pass->w.a.heads, head % pass->w.a.heads, block, n);
    }
}

/* ---- the op ---------------------------------------------------------------------------------------------- */

/* Row sums of dO * O, in the order of (batch, time). */
static void run_delta(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct pass *pass = arg;
    const struct backward *w = &pass->w;
    const struct attn *a = &w->a;
    int64_t padded = attn_up(a->size, 8);
    _Alignas(64) float d_o[ATTN_MAX_SIZE], o[4 * ATTN_MAX_SIZE] = {0}, sum[4];
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t b = i / a->time, t = i % a->time;
        for (int64_t h = 0; h < a->heads; h++) {
            int64_t at = attn_query(a, b, t, h);
            a->rows->widen(d_o, attn_at(a, w->d_o, at), a->type, a->size);
            a->rows->widen(o, attn_at(a, w->o, at), a->type, a->size);
            a->rows->dots(sum, d_o, o, 0, padded, 4);
            w->delta[(b * a->heads + h) * a->time + t] = sum[0];
        }
    }
}

size_t cpu_attn_bwd_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    struct attn a = attn_of(desc, op, 1);
    struct cut c = cut_of(&a, threads);
    return c.delta_bytes + (size_t)threads * c.worker_bytes;
}

void cpu_attn_bwd(const struct kernel_call *call)
{
    struct pass pass = {.w = {.a = attn_of(call->desc, call->op, 1),
                              .d_o = call->in[0],
                              .q = call->in[1],
                              .k = call->in[2],
                              .v = call->in[3],
                              .o = call->in[4],
                              .lse = call->in[5],
                              .pos = call->in[6],
                              .dq = call->out[0],
                              .dk = call->out[1],
                              .dv = call->out[2],
                              .delta = call->work}};
    const struct attn *a = &pass.w.a;
    pass.cut = cut_of(a, threads_count(call->team));
    pass.work = (char *)call->work + pass.cut.delta_bytes;
    threads_each(call->team, a->batch * a->time, 16, run_delta, &pass);
    if (pass.cut.together) {
        threads_each(call->team, a->batch * a->kv_heads, 1, run_together, &pass);
        return;
    }
    int64_t keys = spans_of(pass.cut.key_blocks, &pass.cut), queries = spans_of(pass.cut.query_blocks, &pass.cut);
    threads_each(call->team, a->batch * a->kv_heads * keys, 1, run_keys, &pass);
    threads_each(call->team, a->batch * a->heads * queries, 1, run_queries, &pass);
}
