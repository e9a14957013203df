/* reference_attn.c - attention and its gradient, one pair of query and key at a time.
 *
 * The forward makes two passes over the keys a query sees (log-sum-exp, then the weighted sum); the backward takes
 * the log-sum-exp and the output as it is given them, as every kernel does.
 */
#include "reference/reference_ops.h"

#include <math.h>

struct attn {
    int64_t batch, time, heads, size, keys, kv_heads, buckets;
    const double *q, *k, *v, *bias, *scalars;
    const int32_t *pos, *lengths;
    const struct op_attr *attr;
};

/* Input slots of either op. */
struct attn_slots {
    int q, k, v, pos, lengths, bias, scalars;
};

static const struct attn_slots forward = {ATTN_Q,       ATTN_K,    ATTN_V,      ATTN_POS,
                                          ATTN_LENGTHS, ATTN_BIAS, ATTN_SCALARS},
                               backward = {ATTN_BWD_Q,       ATTN_BWD_K,    ATTN_BWD_V,      ATTN_BWD_POS,
                                           ATTN_BWD_LENGTHS, ATTN_BWD_BIAS, ATTN_BWD_SCALARS};

static struct attn attn_of(const struct ref_call *call, struct attn_slots at)
{
    const struct tensor *qd = ref_in(call, at.q), *kd = ref_in(call, at.k), *bias = ref_in(call, at.bias);
    return (struct attn){.batch = qd->dim[0],
                         .time = qd->dim[1],
                         .heads = qd->dim[2],
                         .size = qd->dim[3],
                         .keys = kd->dim[1],
                         .kv_heads = kd->dim[2],
                         .buckets = bias ? bias->dim[0] : 0,
                         .q = call->in[at.q].f,
                         .k = call->in[at.k].f,
                         .v = call->in[at.v].f,
                         .bias = call->in[at.bias].f,
                         .scalars = call->in[at.scalars].f,
                         .pos = call->in[at.pos].i,
                         .lengths = call->in[at.lengths].i,
                         .attr = &call->op->attr};
}

/* A query of one head. */
struct query {
    int64_t b, t, h;
    int64_t own; /* where it stands among the keys */
    int64_t at;  /* its vector */
    int64_t stat;
};

static struct query query_of(const struct attn *a, int64_t b, int64_t t, int64_t h)
{
    return (struct query){.b = b,
                          .t = t,
                          .h = h,
                          .own = a->attr->cached ? a->pos[b * a->time + t] : t,
                          .at = ((b * a->time + t) * a->heads + h) * a->size,
                          .stat = (b * a->heads + h) * a->time + t};
}

/* The vector of key s for the query's head. */
static int64_t key_at(const struct attn *a, const struct query *q, int64_t s)
{
    return ((q->b * a->keys + s) * a->kv_heads + q->h / (a->heads / a->kv_heads)) * a->size;
}

/* Whether the query sees key s: op.h, word by word. */
static bool sees(const struct attn *a, const struct query *q, int64_t s)
{
    const struct op_attr *attr = a->attr;
    if (a->lengths && s >= a->lengths[q->b]) return false;
    if (attr->mask == MASK_CROSS) return true;
    if (a->lengths && q->own >= a->lengths[q->b]) return false;
    if (attr->mask == MASK_FULL) return true;
    int64_t pos = a->pos[q->b * a->time + q->t], begin = q->own - pos; /* of the sample */
    if (s > q->own || s < begin) return false;
    if (attr->mask == MASK_CAUSAL) return !attr->window || s > q->own - attr->window;
    int64_t mine = pos / attr->sparse_block, theirs = (s - begin) / attr->sparse_block;
    return mine - theirs < attr->local_blocks || theirs < attr->global_blocks;
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* T5's bucket of key - query, by its formula. */
static int64_t bucket(const struct attn *a, int64_t offset)
{
    int64_t side = a->attr->two_sided ? a->buckets / 2 : a->buckets, exact = side / 2;
    int64_t upper = a->attr->two_sided && offset > 0 ? side : 0;
    double distance = offset < 0 ? (double)-offset : a->attr->two_sided ? (double)offset : 0;
    if (distance < (double)exact) return upper + (int64_t)distance;
    double steps = log(distance / (double)exact) / log((double)a->attr->bias_reach / (double)exact);
    int64_t far = exact + (int64_t)floor(steps * (double)(side - exact) + 1e-9);
    return upper + (far < side - 1 ? far : side - 1);
}

/* Where the bias of a pair is. */
static int64_t bias_at(const struct attn *a, const struct query *q, int64_t s)
{
    return bucket(a, s - q->own) * a->heads + q->h;
}

/* Score and, when asked, its slope: d score / d (scale q.k). */
static double score(const struct attn *a, const struct query *q, int64_t s, double *slope)
{
    double x = (double)a->attr->scale * dot(a->q + q->at, a->k + key_at(a, q, s), a->size);
    double cap = (double)a->attr->cap, y = cap > 0 ? cap * tanh(x / cap) : x;
    if (slope) *slope = cap > 0 ? 1 - tanh(x / cap) * tanh(x / cap) : 1;
    return y + (a->bias ? a->bias[bias_at(a, q, s)] : 0);
}

/* What dropout multiplies the probability with. */
static double kept(const struct attn *a, const struct query *q, int64_t s)
{
    if (!(a->attr->dropout > 0)) return 1;
    uint32_t row = ref_drop_row(a->attr, a->scalars, q->b);
    uint32_t line = ref_mix(row ^ ((uint32_t)q->h << 24 ^ (uint32_t)q->own));
    return ref_drop(a->attr, line, (uint32_t)s);
}

static void attend(const struct attn *a, const struct query *q, double *o, double *lse)
{
    double top = -INFINITY, sum = 0;
    for (int64_t d = 0; d < a->size; d++) o[q->at + d] = 0;
    lse[q->stat] = 0;
    for (int64_t s = 0; s < a->keys; s++)
        if (sees(a, q, s)) top = fmax(top, score(a, q, s, NULL));
    if (top == -INFINITY) return;
    for (int64_t s = 0; s < a->keys; s++)
        if (sees(a, q, s)) sum += exp(score(a, q, s, NULL) - top);
    lse[q->stat] = top + log(sum);
    for (int64_t s = 0; s < a->keys; s++) {
        if (!sees(a, q, s)) continue;
        double p = exp(score(a, q, s, NULL) - lse[q->stat]) * kept(a, q, s);
        for (int64_t d = 0; d < a->size; d++) o[q->at + d] += p * a->v[key_at(a, q, s) + d];
    }
}

void ref_attn(const struct ref_call *call)
{
    const struct attn a = attn_of(call, forward);
    for (int64_t b = 0; b < a.batch; b++)
        for (int64_t h = 0; h < a.heads; h++)
            for (int64_t t = 0; t < a.time; t++) {
                struct query q = query_of(&a, b, t, h);
                attend(&a, &q, call->out[ATTN_O].f, call->out[ATTN_LSE].f);
            }
}

/* What one query adds to dq, dk, dv and dbias. */
static void attend_bwd(const struct attn *a, const struct ref_call *call, const struct query *q)
{
    const double *d_o = call->in[ATTN_BWD_DO].f + q->at;
    double lse = call->in[ATTN_BWD_LSE].f[q->stat], scale = (double)a->attr->scale;
    double delta = dot(d_o, call->in[ATTN_BWD_O].f + q->at, a->size);
    double *dq = call->out[ATTN_BWD_DQ].f + q->at;
    for (int64_t s = 0; s < a->keys; s++) {
        if (!sees(a, q, s)) continue;
        int64_t key = key_at(a, q, s);
        double *dk = call->out[ATTN_BWD_DK].f + key, *dv = call->out[ATTN_BWD_DV].f + key, slope;
        double p = exp(score(a, q, s, &slope) - lse), m = kept(a, q, s);
        double ds = p * (m * dot(d_o, a->v + key, a->size) - delta);
        if (call->out[ATTN_BWD_DBIAS].f) call->out[ATTN_BWD_DBIAS].f[bias_at(a, q, s)] += ds;
        for (int64_t d = 0; d < a->size; d++) {
            dq[d] += scale * slope * ds * a->k[key + d];
            dk[d] += scale * slope * ds * a->q[q->at + d];
            dv[d] += m * p * d_o[d];
        }
    }
}

void ref_attn_bwd(const struct ref_call *call)
{
    const struct attn a = attn_of(call, backward);
    for (int i = ATTN_BWD_DQ; i <= ATTN_BWD_DV; i++)
        for (int64_t j = 0; j < tensor_count(ref_out(call, i)); j++) call->out[i].f[j] = 0;
    if (call->out[ATTN_BWD_DBIAS].f) ref_begin(call, ATTN_BWD_DBIAS);
    for (int64_t b = 0; b < a.batch; b++)
        for (int64_t h = 0; h < a.heads; h++)
            for (int64_t t = 0; t < a.time; t++) {
                struct query q = query_of(&a, b, t, h);
                attend_bwd(&a, call, &q);
            }
}
