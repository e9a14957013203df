/* attention_standard.c - see attention_standard.h.
 *
 * A worker has a kv head of a batch row to itself, so dk and dv are summed over the heads that read it in their order, and
 * results do not depend on the number of threads. */
#include "device/cpu/attention_standard.h"
#include "device/cpu/attention_score.h"

#include <math.h>

struct standard {
    struct attn a;
    struct attn_score score;
    const void *q, *k, *v, *o, *d_o;
    void *out, *dq, *dk, *dv;
    float *lse;
    float *p, *ds;     /* [batch][heads][time][keys] */
    float *grad_lines; /* of the bias */
    char *work;        /* of worker 0: one head of each operand as fp32 */
    bool backward;
};

/* Operands of one head, [time][size] and [keys][size]. */
struct head {
    float *q, *k, *v, *o, *d_o, *dq, *dk, *dv;
};

static size_t head_bytes(const struct attn *a, bool backward)
{
    int64_t rows = backward ? 4 * a->time + 4 * a->keys : 2 * a->time + 2 * a->keys;
    return (size_t)attn_up(rows * a->size * 4, 64);
}

static struct head head_at(const struct standard *s, int worker)
{
    int64_t queries = s->a.time * s->a.size, keys = s->a.keys * s->a.size;
    float *at = (float *)(void *)(s->work + (size_t)worker * head_bytes(&s->a, s->backward));
    struct head h = {.q = at, .o = at + queries, .k = at + 2 * queries, .v = at + 2 * queries + keys};
    at += 2 * queries + 2 * keys;
    h.d_o = at, h.dq = at + queries, h.dk = at + 2 * queries, h.dv = at + 2 * queries + keys;
    return h;
}

static size_t scores_bytes(const struct attn *a)
{
    return (size_t)attn_up(a->batch * a->heads * a->time * a->keys * 4, 64);
}

/* Rows of head `head` of `heads`, to or from fp32. */
static void move_head(const struct attn *a, void *x, int64_t b, int64_t rows, int64_t head, int64_t heads,
                      float *f, bool read)
{
    for (int64_t r = 0; r < rows; r++) {
        void *at = attn_at(a, x, ((b * rows + r) * heads + head) * a->size);
        if (read)
            dtype_convert(f + r * a->size, DT_F32, at, a->type, a->size);
        else
            dtype_convert(at, a->type, f + r * a->size, DT_F32, a->size);
    }
}

static float dot(const float *x, const float *y, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

static void add_scaled(float *y, const float *x, float by, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] += x[i] * by;
}

static bool sees(const struct attn_sight *s, int64_t key)
{
    return key >= s->first && key <= s->last && !(key >= s->hole && key <= s->hole_last);
}

/* A query of head h: its scores, -infinity where a key is hidden. slope: NULL or d score / d (scale q.k). */
static void score_row(const struct standard *s, const struct head *x, int64_t b, int64_t h, int64_t t,
                      float *row, float *slope)
{
    const struct attn *a = &s->a;
    struct attn_sight sight = attn_sight(a, b, t);
    const float *bias = a->biased ? s->score.lines + h * attn_span(a) + sight.query + a->keys - 1 : NULL;
    for (int64_t key = 0; key < a->keys; key++) {
        float y = a->scale * dot(x->q + t * a->size, x->k + key * a->size, a->size);
        float bend = a->cap > 0 ? tanhf(y / a->cap) : 0;
        if (slope) slope[key] = 1 - bend * bend;
        y = (a->cap > 0 ? a->cap * bend : y) + (bias ? bias[-key] : 0);
        row[key] = sees(&sight, key) ? y : -INFINITY;
    }
}

/* Dropout factor of the probability at (h, t, key). */
static float keep_of(const struct standard *s, int64_t b, int64_t h, int64_t t, int64_t key)
{
    const struct dropout *d = &s->score.drop;
    if (!d->below) return 1;
    uint32_t line = dropout_line(dropout_row(d, b), h, attn_sight(&s->a, b, t).query);
    return dropout_keeps(d, line, (uint64_t)key) ? d->scale : 0;
}

static float *scores_at(const struct standard *s, float *all, int64_t b, int64_t h, int64_t t)
{
    return all + ((b * s->a.heads + h) * s->a.time + t) * s->a.keys;
}

static void attend(const struct standard *s, const struct head *x, int64_t b, int64_t h, int64_t t)
{
    const struct attn *a = &s->a;
    float *row = scores_at(s, s->p, b, h, t), *o = x->o + t * a->size, top = -INFINITY, sum = 0;
    score_row(s, x, b, h, t, row, NULL);
    for (int64_t key = 0; key < a->keys; key++) top = row[key] > top || isnan(row[key]) ? row[key] : top;
    for (int64_t key = 0; key < a->keys && top != -INFINITY; key++) sum += row[key] = expf(row[key] - top);
    memset(o, 0, (size_t)a->size * 4);
    s->lse[(b * a->heads + h) * a->time + t] = sum == 0 ? 0 : top + logf(sum);
    for (int64_t key = 0; key < a->keys && sum != 0; key++)
        if (row[key] != 0)
            add_scaled(o, x->v + key * a->size, row[key] / sum * keep_of(s, b, h, t, key), a->size);
}

static void attend_bwd(const struct standard *s, const struct head *x, int64_t b, int64_t h, int64_t t)
{
    const struct attn *a = &s->a;
    float *row = scores_at(s, s->p, b, h, t), *slope = scores_at(s, s->ds, b, h, t);
    const float *d_o = x->d_o + t * a->size;
    float delta = dot(d_o, x->o + t * a->size, a->size), lse = s->lse[(b * a->heads + h) * a->time + t];
    float *line = a->biased ? attn_grad_line(a, s->grad_lines, b, h, t / a->block) : NULL;
    score_row(s, x, b, h, t, row, slope);
    for (int64_t key = 0; key < a->keys; key++) {
        if (row[key] == -INFINITY) continue;
        float p = expf(row[key] - lse), keep = keep_of(s, b, h, t, key);
        float raw = p * (keep * dot(d_o, x->v + key * a->size, a->size) - delta),
              ds = raw * slope[key] * a->scale;
        if (line) line[t % a->block + a->keys - 1 - key] += raw;
        add_scaled(x->dq + t * a->size, x->k + key * a->size, ds, a->size);
        add_scaled(x->dk + key * a->size, x->q + t * a->size, ds, a->size);
        add_scaled(x->dv + key * a->size, d_o, p * keep, a->size);
    }
}

/* ---- the ops --------------------------------------------------------------------------------- */

static void run_heads(void *arg, int64_t begin, int64_t end, int worker)
{
    struct standard *s = arg;
    const struct attn *a = &s->a;
    struct head x = head_at(s, worker);
    for (int64_t i = begin; i < end; i++) {
        int64_t b = i / a->kv_heads, kv = i % a->kv_heads;
        move_head(a, (void *)(uintptr_t)s->k, b, a->keys, kv, a->kv_heads, x.k, true);
        move_head(a, (void *)(uintptr_t)s->v, b, a->keys, kv, a->kv_heads, x.v, true);
        if (s->backward) memset(x.dk, 0, (size_t)(2 * a->keys * a->size) * 4);
        for (int64_t h = kv * a->group; h < (kv + 1) * a->group; h++) {
            move_head(a, (void *)(uintptr_t)s->q, b, a->time, h, a->heads, x.q, true);
            if (s->backward) {
                move_head(a, (void *)(uintptr_t)s->o, b, a->time, h, a->heads, x.o, true);
                move_head(a, (void *)(uintptr_t)s->d_o, b, a->time, h, a->heads, x.d_o, true);
                memset(x.dq, 0, (size_t)(a->time * a->size) * 4);
            }
            for (int64_t t = 0; t < a->time; t++) (s->backward ? attend_bwd : attend)(s, &x, b, h, t);
            move_head(a, s->backward ? s->dq : s->out, b, a->time, h, a->heads, s->backward ? x.dq : x.o,
                      false);
        }
        if (!s->backward) continue;
        move_head(a, s->dk, b, a->keys, kv, a->kv_heads, x.dk, false);
        move_head(a, s->dv, b, a->keys, kv, a->kv_heads, x.dv, false);
    }
}

size_t attn_standard_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    struct attn a = attn_of(desc[ATTN_Q], desc[ATTN_K], op, desc[ATTN_BIAS] != NULL);
    return attn_lines_bytes(&a) + scores_bytes(&a) + (size_t)threads * head_bytes(&a, false);
}

void attn_standard(const struct kernel_call *call)
{
    struct standard s = {
        .a = attn_of(call_in(call, ATTN_Q), call_in(call, ATTN_K), call->op, call->in[ATTN_BIAS] != NULL),
        .score = {.lines = call->work, .drop = dropout_of(&call->op->attr, call->in[ATTN_SCALARS])},
        .q = call->in[ATTN_Q],
        .k = call->in[ATTN_K],
        .v = call->in[ATTN_V],
        .out = call->out[ATTN_O],
        .lse = call->out[ATTN_LSE]};
    s.a.pos = call->in[ATTN_POS], s.a.lengths = call->in[ATTN_LENGTHS];
    s.p = (float *)(void *)((char *)call->work + attn_lines_bytes(&s.a));
    s.work = (char *)s.p + scores_bytes(&s.a);
    attn_lines_fill(&s.a, call->work, call, ATTN_BIAS);
    threads_each(call->team, s.a.batch * s.a.kv_heads, 1, run_heads, &s);
}

size_t attn_standard_bwd_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    struct attn a = attn_of(desc[ATTN_BWD_Q], desc[ATTN_BWD_K], op, desc[ATTN_BWD_BIAS] != NULL);
    return attn_lines_bytes(&a) + attn_grad_lines_bytes(&a) + 2 * scores_bytes(&a) +
           (size_t)threads * head_bytes(&a, true);
}

void attn_standard_bwd(const struct kernel_call *call)
{
    struct standard s = {
        .a = attn_of(call_in(call, ATTN_BWD_Q), call_in(call, ATTN_BWD_K), call->op,
                     call->in[ATTN_BWD_BIAS] != NULL),
        .score = {.lines = call->work, .drop = dropout_of(&call->op->attr, call->in[ATTN_BWD_SCALARS])},
        .q = call->in[ATTN_BWD_Q],
        .k = call->in[ATTN_BWD_K],
        .v = call->in[ATTN_BWD_V],
        .o = call->in[ATTN_BWD_O],
        .d_o = call->in[ATTN_BWD_DO],
        .lse = call->in[ATTN_BWD_LSE],
        .dq = call->out[ATTN_BWD_DQ],
        .dk = call->out[ATTN_BWD_DK],
        .dv = call->out[ATTN_BWD_DV],
        .backward = true};
    s.a.pos = call->in[ATTN_BWD_POS], s.a.lengths = call->in[ATTN_BWD_LENGTHS];
    char *grads = (char *)call->work + attn_lines_bytes(&s.a), *scores = grads + attn_grad_lines_bytes(&s.a);
    s.grad_lines = (float *)(void *)grads;
    s.p = (float *)(void *)scores, s.ds = (float *)(void *)(scores + scores_bytes(&s.a));
    s.work = scores + 2 * scores_bytes(&s.a);
    memset(grads, 0, attn_grad_lines_bytes(&s.a));
    attn_lines_fill(&s.a, call->work, call, ATTN_BWD_BIAS);
    threads_each(call->team, s.a.batch * s.a.kv_heads, 1, run_heads, &s);
    attn_grad_lines_add(&s.a, s.grad_lines, call);
}
