/* reference_attn.c - attention and its gradient, one query of one head at a time.
 *
 * The forward makes two passes over the visible keys (log-sum-exp, then the weighted sum); the backward takes
 * the log-sum-exp and the output as it is given them, as every kernel does.
 */
#include "reference/reference_ops.h"

#include <math.h>

struct attn {
    int64_t batch, time, heads, size, keys, kv_heads;
    const double *q, *k, *v;
    const int32_t *pos;
    const struct op_attr *attr;
};

/* Input slots of either op. */
struct attn_slots {
    int q, k, v, pos;
};

static const struct attn_slots forward = {ATTN_Q, ATTN_K, ATTN_V, ATTN_POS},
                               backward = {ATTN_BWD_Q, ATTN_BWD_K, ATTN_BWD_V, ATTN_BWD_POS};

static struct attn attn_of(const struct ref_call *call, struct attn_slots at)
{
    const struct tensor *qd = ref_in(call, at.q), *kd = ref_in(call, at.k);
    return (struct attn){.batch = qd->dim[0],
                         .time = qd->dim[1],
                         .heads = qd->dim[2],
                         .size = qd->dim[3],
                         .keys = kd->dim[1],
                         .kv_heads = kd->dim[2],
                         .q = call->in[at.q].f,
                         .k = call->in[at.k].f,
                         .v = call->in[at.v].f,
                         .pos = call->in[at.pos].i,
                         .attr = &call->op->attr};
}

/* Visible keys of a query: [first, last]. */
static void visible(const struct attn *a, int64_t b, int64_t t, int64_t *first, int64_t *last)
{
    int64_t pos = a->pos[b * a->time + t];
    *last = a->attr->cached ? pos : t;
    *first = a->attr->cached ? 0 : t - pos;
    if (a->attr->window && *last - a->attr->window + 1 > *first) *first = *last - a->attr->window + 1;
}

/* Where the vector of query head h, and of the kv head it reads, begins. */
static int64_t query_at(const struct attn *a, int64_t b, int64_t t, int64_t h)
{
    return ((b * a->time + t) * a->heads + h) * a->size;
}

static int64_t key_at(const struct attn *a, int64_t b, int64_t s, int64_t h)
{
    return ((b * a->keys + s) * a->kv_heads + h / (a->heads / a->kv_heads)) * a->size;
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

static double score(const struct attn *a, int64_t query, int64_t key)
{
    return (double)a->attr->scale * dot(a->q + query, a->k + key, a->size);
}

static void attend(const struct attn *a, int64_t b, int64_t t, int64_t h, double *o, double *lse)
{
    int64_t first, last, query = query_at(a, b, t, h);
    visible(a, b, t, &first, &last);
    double top = -INFINITY, sum = 0;
    for (int64_t s = first; s <= last; s++) top = fmax(top, score(a, query, key_at(a, b, s, h)));
    for (int64_t s = first; s <= last; s++) sum += exp(score(a, query, key_at(a, b, s, h)) - top);
    *lse = top + log(sum);
    for (int64_t d = 0; d < a->size; d++) o[query + d] = 0;
    for (int64_t s = first; s <= last; s++) {
        int64_t key = key_at(a, b, s, h);
        double p = exp(score(a, query, key) - *lse);
        for (int64_t d = 0; d < a->size; d++) o[query + d] += p * a->v[key + d];
    }
}

void ref_attn(const struct ref_call *call)
{
    const struct attn a = attn_of(call, forward);
    for (int64_t b = 0; b < a.batch; b++)
        for (int64_t h = 0; h < a.heads; h++)
            for (int64_t t = 0; t < a.time; t++)
                attend(&a, b, t, h, call->out[ATTN_O].f,
                       &call->out[ATTN_LSE].f[(b * a.heads + h) * a.time + t]);
}

/* What one query adds to dq, dk and dv. */
static void attend_bwd(const struct attn *a, const struct ref_call *call, int64_t b, int64_t t, int64_t h)
{
    int64_t first, last, query = query_at(a, b, t, h);
    const double *d_o = call->in[ATTN_BWD_DO].f + query;
    double lse = call->in[ATTN_BWD_LSE].f[(b * a->heads + h) * a->time + t], scale = (double)a->attr->scale;
    double delta = dot(d_o, call->in[ATTN_BWD_O].f + query, a->size);
    double *dq = call->out[ATTN_BWD_DQ].f + query;
    visible(a, b, t, &first, &last);
    for (int64_t s = first; s <= last; s++) {
        int64_t key = key_at(a, b, s, h);
        double *dk = call->out[ATTN_BWD_DK].f + key, *dv = call->out[ATTN_BWD_DV].f + key;
        double p = exp(score(a, query, key) - lse);
        double ds = p * (dot(d_o, a->v + key, a->size) - delta);
        for (int64_t d = 0; d < a->size; d++) {
            dq[d] += scale * ds * a->k[key + d];
            dk[d] += scale * ds * a->q[query + d];
            dv[d] += p * d_o[d];
        }
    }
}

void ref_attn_bwd(const struct ref_call *call)
{
    const struct attn a = attn_of(call, backward);
    for (int i = ATTN_BWD_DQ; i <= ATTN_BWD_DV; i++)
        for (int64_t j = 0; j < tensor_count(ref_out(call, i)); j++) call->out[i].f[j] = 0;
    for (int64_t b = 0; b < a.batch; b++)
        for (int64_t h = 0; h < a.heads; h++)
            for (int64_t t = 0; t < a.time; t++) attend_bwd(&a, call, b, t, h);
}
