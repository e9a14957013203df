/* attention_bwd.c - attention backward: dQ, dK, dV from dO, with P recomputed from the saved log-sum-exp.
 *
 * Blocks of queries meet blocks of keys (attention_bwd_block.h). There are two ways through all pairs:
 *
 *  together  one worker has a kv head of a batch row to itself. Head by head, a key block stays packed while
 * all query blocks pass by; dQ of the whole head waits in scratch. Five products per pair. apart     for more
 * threads than kv heads: one loop over key blocks makes dK and dV, a second over query blocks makes dQ. Seven
 * products per pair, and any number of threads finds work.
 *
 * Both ways add the same products in the same order (the invariant in attention_bwd_block.h), so they give
 * the same bits, and the number of threads may choose.
 */
#include "device/cpu/attention_bwd_block.h"
#include "device/cpu/attention_standard.h"
#include "device/cpu/kernels.h"

/* How the work is cut, and what lies where in a worker's scratch. */
struct cut {
    bool together;
    int64_t query_blocks, key_blocks;
    int64_t dq_room, dkv_room; /* gradients of that many blocks */
    size_t delta_bytes, lines_bytes, grad_lines_bytes, worker_bytes;
};

struct pass {
    struct backward w;
    struct cut cut;
    char *work; /* of worker 0 */
};

/* A worker's scratch. */
struct worker {
    struct meeting meeting;
    struct query_side query;
    struct key_side key;
    float *dq, *dk, *dv;
};

/* Together, some threads may have nothing to do in the last round; apart costs 7/5 of the work. */
static struct cut cut_of(const struct attn *a, int threads)
{
    int64_t items = a->batch * a->kv_heads, rounds = (items + threads - 1) / threads;
    struct cut c = {.query_blocks = (a->time + a->block - 1) / a->block,
                    .key_blocks = (a->keys + a->block - 1) / a->block};
    c.together = 7 * items >= 5 * rounds * threads;
    c.dq_room = c.together ? c.query_blocks : 1;
    c.dkv_room = c.together && a->group > 1 ? c.key_blocks : 1;
    c.delta_bytes = (size_t)attn_up(a->batch * a->heads * a->time * 4, 64);
    c.lines_bytes = attn_lines_bytes(a);
    c.grad_lines_bytes = attn_grad_lines_bytes(a);
    c.worker_bytes = (size_t)(c.dq_room + 2 * c.dkv_room) * block_gradient_bytes(a) + meeting_bytes(a) +
                     query_side_bytes(a) + key_side_bytes(a);
    return c;
}

static struct worker worker_at(const struct pass *pass, int worker)
{
    const struct attn *a = &pass->w.a;
    char *at = pass->work + (size_t)worker * pass->cut.worker_bytes;
    size_t block = block_gradient_bytes(a);
    struct worker s = {.meeting = meeting_place(&pass->w, at)};
    at += meeting_bytes(a);
    query_side_place(a, &s.query, at), at += query_side_bytes(a);
    key_side_place(a, &s.key, at), at += key_side_bytes(a);
    s.dq = (float *)(void *)at, at += (size_t)pass->cut.dq_room * block;
    s.dk = (float *)(void *)at, at += (size_t)pass->cut.dkv_room * block;
    s.dv = (float *)(void *)at;
    return s;
}

/* Pack a block of keys; its gradients are the worker's `room`-th, cleared when fresh. */
static void take_keys(struct worker *s, int64_t b, int64_t kv, int64_t block, int64_t room, bool fresh)
{
    const struct attn *a = &s->meeting.w->a;
    s->key.dk = s->dk + room * a->block * a->size;
    s->key.dv = s->dv + room * a->block * a->size;
    if (fresh) memset(s->key.dk, 0, block_gradient_bytes(a)), memset(s->key.dv, 0, block_gradient_bytes(a));
    key_side_pack(s->meeting.w, &s->key, b, kv, block);
}

static void put_keys(const struct worker *s)
{
    const struct backward *w = s->meeting.w;
    const struct key_side *k = &s->key;
    int64_t at = attn_key(&w->a, k->b, k->first, k->kv), stride = w->a.kv_heads * w->a.size;
    gradient_put(&s->meeting, k->dk, k->count, w->a.scale, w->dk, at, stride);
    gradient_put(&s->meeting, k->dv, k->count, 1, w->dv, at, stride);
}

static void put_queries(const struct worker *s, int64_t b, int64_t h, int64_t block, const float *dq)
{
    const struct backward *w = s->meeting.w;
    int64_t first = block * w->a.block, count = attn_least(w->a.block, w->a.time - first);
    int64_t at = attn_query(&w->a, b, first, h);
    gradient_put(&s->meeting, dq, count, w->a.scale, w->dq, at, w->a.heads * w->a.size);
}

/* Where the pass that makes dq gathers the bias's gradient. */
static float *line_of(const struct backward *w, int64_t b, int64_t h, int64_t block)
{
    return w->a.biased ? attn_grad_line(&w->a, w->grad_lines, b, h, block) : NULL;
}

/* All query blocks of head h pass by the key block that is packed; dq: of the whole head, or NULL. */
static void pass_by(struct worker *s, int64_t b, int64_t h, float *dq, int64_t query_blocks)
{
    const struct backward *w = s->meeting.w;
    for (int64_t i = 0; i < query_blocks; i++) {
        query_side_see(w, &s->query, b, h, i);
        if (!sides_meet(&s->query, &s->key)) continue;
        s->query.dq = dq ? dq + i * w->a.block * w->a.size : NULL;
        s->query.line = dq ? line_of(w, b, h, i) : NULL;
        query_side_pack(w, &s->query, true);
        attn_bwd_meet(&s->meeting, &s->query, &s->key);
    }
}

/* ---- together -------------------------------------------------------------------------------- */

static void one_head(const struct pass *pass, struct worker *s, int64_t b, int64_t kv, int64_t g)
{
    const struct attn *a = &pass->w.a;
    const struct cut *c = &pass->cut;
    int64_t h = kv * a->group + g;
    memset(s->dq, 0, (size_t)c->query_blocks * block_gradient_bytes(a));
    for (int64_t j = 0; j < c->key_blocks; j++) {
        take_keys(s, b, kv, j, a->group > 1 ? j : 0, g == 0);
        pass_by(s, b, h, s->dq, c->query_blocks);
        if (g == a->group - 1) put_keys(s);
    }
    for (int64_t i = 0; i < c->query_blocks; i++) put_queries(s, b, h, i, s->dq + i * a->block * a->size);
}

static void run_together(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct pass *pass = arg;
    const struct attn *a = &pass->w.a;
    struct worker s = worker_at(pass, worker);
    for (int64_t i = begin; i < end; i++)
        for (int64_t g = 0; g < a->group; g++) one_head(pass, &s, i / a->kv_heads, i % a->kv_heads, g);
}

/* ---- apart ----------------------------------------------------------------------------------- */

static void run_keys(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct pass *pass = arg;
    const struct attn *a = &pass->w.a;
    const struct cut *c = &pass->cut;
    struct worker s = worker_at(pass, worker);
    for (int64_t i = begin; i < end; i++) {
        int64_t head = i / c->key_blocks, b = head / a->kv_heads, kv = head % a->kv_heads;
        take_keys(&s, b, kv, i % c->key_blocks, 0, true);
        for (int64_t g = 0; g < a->group; g++) pass_by(&s, b, kv * a->group + g, NULL, c->query_blocks);
        put_keys(&s);
    }
}

/* Later query blocks see more keys: they go first. */
static void run_queries(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct pass *pass = arg;
    const struct attn *a = &pass->w.a;
    const struct cut *c = &pass->cut;
    struct worker s = worker_at(pass, worker);
    s.query.dq = s.dq;
    for (int64_t i = begin; i < end; i++) {
        int64_t head = i / c->query_blocks, b = head / a->heads, h = head % a->heads;
        int64_t block = c->query_blocks - 1 - i % c->query_blocks;
        memset(s.dq, 0, block_gradient_bytes(a));
        query_side_see(&pass->w, &s.query, b, h, block);
        query_side_pack(&pass->w, &s.query, false);
        s.query.line = line_of(&pass->w, b, h, block);
        for (int64_t j = s.query.low / a->block; j * a->block <= s.query.high; j++) {
            key_side_pack(&pass->w, &s.key, b, h / a->group, j);
            attn_bwd_meet(&s.meeting, &s.query, &s.key);
        }
        put_queries(&s, b, h, block, s.dq);
    }
}

/* ---- the op ---------------------------------------------------------------------------------- */

/* Row sums of dO * O, rows in the order of (batch, time). */
static void run_delta(void *arg, int64_t begin, int64_t end, int)
{
    const struct pass *pass = arg;
    const struct backward *w = &pass->w;
    const struct attn *a = &w->a;
    _Alignas(64) float d_o[ATTN_MAX_SIZE], o[ATTN_MAX_SIZE], sum[4];
    for (int64_t i = begin; i < end; i++) {
        int64_t b = i / a->time, t = i % a->time;
        for (int64_t h = 0; h < a->heads; h++) {
            int64_t at = attn_query(a, b, t, h);
            a->rows->single->widen(d_o, 0, attn_at(a, w->d_o, at), 0, a->type, a->size, 1);
            a->rows->single->widen(o, 0, attn_at(a, w->o, at), 0, a->type, a->size, 1);
            a->rows->single->dots(sum, d_o, o, DT_F32, 0, attn_up(a->size, 8), 4);
            w->delta[(b * a->heads + h) * a->time + t] = sum[0];
        }
    }
}

size_t cpu_attn_bwd_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    if (op->attr.standard) return attn_standard_bwd_workspace(desc, op, threads);
    struct attn a = attn_of(desc[ATTN_BWD_Q], desc[ATTN_BWD_K], op, desc[ATTN_BWD_BIAS] != NULL);
    struct cut c = cut_of(&a, threads);
    return c.delta_bytes + c.lines_bytes + c.grad_lines_bytes + (size_t)threads * c.worker_bytes;
}

/* Places the buffers that precede the workers' scratch. */
static void place(struct pass *pass, const struct kernel_call *call)
{
    char *lines = (char *)call->work + pass->cut.delta_bytes, *grads = lines + pass->cut.lines_bytes;
    pass->w.score.lines = (float *)(void *)lines;
    pass->w.grad_lines = (float *)(void *)grads;
    pass->work = grads + pass->cut.grad_lines_bytes;
    memset(grads, 0, pass->cut.grad_lines_bytes);
    attn_lines_fill(&pass->w.a, (float *)(void *)lines, call, ATTN_BWD_BIAS);
}

void cpu_attn_bwd(const struct kernel_call *call)
{
    if (call->op->attr.standard) {
        attn_standard_bwd(call);
        return;
    }
    struct pass pass = {.w = {.a = attn_of(call_in(call, ATTN_BWD_Q), call_in(call, ATTN_BWD_K), call->op,
                                           call->in[ATTN_BWD_BIAS] != NULL),
                              .score = {.drop = dropout_of(&call->op->attr, call->in[ATTN_BWD_SCALARS])},
                              .d_o = call->in[ATTN_BWD_DO],
                              .q = call->in[ATTN_BWD_Q],
                              .k = call->in[ATTN_BWD_K],
                              .v = call->in[ATTN_BWD_V],
                              .o = call->in[ATTN_BWD_O],
                              .lse = call->in[ATTN_BWD_LSE],
                              .dq = call->out[ATTN_BWD_DQ],
                              .dk = call->out[ATTN_BWD_DK],
                              .dv = call->out[ATTN_BWD_DV],
                              .delta = call->work}};
    pass.w.a.pos = call->in[ATTN_BWD_POS], pass.w.a.lengths = call->in[ATTN_BWD_LENGTHS];
    const struct attn *a = &pass.w.a;
    pass.cut = cut_of(a, threads_count(call->team));
    place(&pass, call);
    threads_each(call->team, a->batch * a->time, 16, run_delta, &pass);
    if (pass.cut.together) {
        threads_each(call->team, a->batch * a->kv_heads, 1, run_together, &pass);
    } else {
        threads_each(call->team, a->batch * a->kv_heads * pass.cut.key_blocks, 1, run_keys, &pass);
        threads_each(call->team, a->batch * a->heads * pass.cut.query_blocks, 1, run_queries, &pass);
    }
    attn_grad_lines_add(a, pass.w.grad_lines, call);
}

CPU_KERNEL(attn_bwd, cpu_attn_bwd_workspace);
