/* emit_attention_bwd.c - gradient of attention. Probabilities and their gradients exist for all pairs at once; the workspace counts
 * them. */
#include "device/pjrt/emit_attention.h"

static const struct attention_slots backward = {
    ATTN_BWD_Q, ATTN_BWD_K, ATTN_BWD_V, ATTN_BWD_POS, ATTN_BWD_LENGTHS, ATTN_BWD_BIAS, ATTN_BWD_SCALARS};

/* A number for each query and head, [B,K,T,G] by `map`, repeated over its keys. */
static struct hlo_value over_keys(const struct attention *a, struct hlo_value v, const int *map)
{
    return hlo_broadcast(a->e->h, v, map, 5, a->pairs);
}

/* Probabilities before dropout: e^(s - lse), 0 for hidden keys. */
static struct hlo_value probabilities(const struct attention *a, struct hlo_value *slope)
{
    struct hlo *h = a->e->h;
    struct hlo_value s = attention_scores(a, attention_products(a), slope), seen;
    struct hlo_value lse =
        hlo_reshape(h, emit_in(a->e, ATTN_BWD_LSE), HLO_SHAPE(a->batch, a->kv_heads, a->group, a->time));
    lse = over_keys(a, lse, (const int[]){0, 1, 3, 2});
    struct hlo_value p = hlo_unary(h, "exponential", hlo_sub(h, s, lse));
    if (!attention_mask(a, &seen)) return p;
    return hlo_select(h, attention_over(a, seen), p, hlo_like(h, p, 0));
}

/* do . o of each query and head. */
static struct hlo_value deltas(const struct attention *a)
{
    struct hlo *h = a->e->h;
    struct hlo_value d = hlo_convert(h, attention_queries(a, ATTN_BWD_DO), HLO_F32);
    struct hlo_value o = hlo_convert(h, attention_queries(a, ATTN_BWD_O), HLO_F32);
    return over_keys(a, hlo_reduce(h, "add", hlo_mul(h, d, o), 1u << 4), (const int[]){0, 2, 1, 3});
}

/* Sums over the queries of each key and value: pairs[B,K,T,G,S] by queries[B,T,K,G,D]. */
static void emit_by_key(const struct attention *a, int slot, struct hlo_value pairs, struct hlo_value queries)
{
    static const struct hlo_pairs product = {
        .batch = 2, .a_batch = {0, 1}, .b_batch = {0, 2}, .sum = 2, .a_sum = {2, 3}, .b_sum = {1, 3}};
    struct hlo *h = a->e->h;
    struct hlo_value v = hlo_dot(h, hlo_convert(h, pairs, queries.type), queries, &product); /* [B,K,S,D] */
    emit_out(a->e, slot, hlo_transpose(h, v, (const int[]){0, 2, 1, 3}));
}

static void emit_dq(const struct attention *a, struct hlo_value ds)
{
    static const struct hlo_pairs product = {
        .batch = 2, .a_batch = {0, 1}, .b_batch = {0, 2}, .sum = 1, .a_sum = {4}, .b_sum = {1}};
    struct hlo *h = a->e->h;
    struct hlo_value k = emit_in(a->e, ATTN_BWD_K);
    struct hlo_value v = hlo_dot(h, hlo_convert(h, ds, k.type), k, &product); /* [B,K,T,G,D] */
    emit_out(a->e, ATTN_BWD_DQ, hlo_transpose(h, v, (const int[]){0, 2, 1, 3, 4}));
}

/* Sums of x[H,T,S] over pairs with the same key - query: [H,T+S], offset -(T-1) first and 0 at the end. Rows padded to T + S - 1
 * and read as rows of T + S have the same offset in the same column. */
static struct hlo_value sum_by_offset(struct hlo *h, struct hlo_value x)
{
    int64_t heads = x.dim[0], time = x.dim[1], keys = x.dim[2];
    if (time > 1) x = hlo_concat(h, 2, hlo_fill(h, HLO_F32, 0, HLO_SHAPE(heads, time, time - 1)), x);
    x = hlo_reshape(h, x, HLO_SHAPE(heads, time * (time + keys - 1)));
    x = hlo_concat(h, 1, x, hlo_fill(h, HLO_F32, 0, HLO_SHAPE(heads, time)));
    return hlo_reduce(h, "add", hlo_reshape(h, x, HLO_SHAPE(heads, time, time + keys)), 1u << 1);
}

static void emit_dbias(const struct attention *a, struct hlo_value ds)
{
    struct hlo *h = a->e->h;
    int64_t heads = a->kv_heads * a->group, rows = emit_out_tensor(a->e, ATTN_BWD_DBIAS)->dim[0], reach;
    ds = hlo_transpose(h, hlo_reduce(h, "add", ds, 1), (const int[]){0, 2, 1, 3}); /* [K,G,T,S] */
    struct hlo_value sums = sum_by_offset(h, hlo_reshape(h, ds, HLO_SHAPE(heads, a->time, a->keys)));
    struct hlo_value buckets = attention_buckets(a, &reach);
    struct hlo_value at = hlo_iota(h, HLO_I32, 0, HLO_SHAPE(sums.dim[1]));
    struct hlo_value bucket = hlo_take(h, buckets, hlo_plus(h, at, (double)(reach - (a->time - 1))));
    struct hlo_value row = hlo_iota(h, HLO_I32, 1, HLO_SHAPE(sums.dim[1], rows));
    struct hlo_value is = hlo_convert(h, hlo_compare(h, "EQ", row, hlo_over(h, bucket, row, 0)), HLO_F32);
    emit_sum(a->e, ATTN_BWD_DBIAS,
             hlo_dot(h, is, sums, &(struct hlo_pairs){.sum = 1, .a_sum = {0}, .b_sum = {1}}));
}

static void emit_attn_bwd(struct emit *e)
{
    static const struct hlo_pairs product = {
        .batch = 2, .a_batch = {0, 2}, .b_batch = {0, 2}, .sum = 1, .a_sum = {4}, .b_sum = {3}};
    struct hlo *h = e->h;
    struct attention a = attention_of(e, &backward);
    struct hlo_value queries = attention_queries(&a, ATTN_BWD_Q), d = attention_queries(&a, ATTN_BWD_DO),
                     slope;
    struct hlo_value p = probabilities(&a, &slope), applied = p;
    struct hlo_value dp = hlo_dot(h, d, emit_in(e, ATTN_BWD_V), &product);
    if (e->op->attr.dropout > 0) {
        struct hlo_value kept = attention_drop(&a);
        dp = hlo_mul(h, dp, kept), applied = hlo_mul(h, p, kept);
    }
    struct hlo_value ds = hlo_mul(h, p, hlo_sub(h, dp, deltas(&a)));
    if (emit_wants(e, ATTN_BWD_DBIAS)) emit_dbias(&a, ds);
    if (slope.id >= 0) ds = hlo_mul(h, ds, slope);
    ds = hlo_times(h, ds, (double)e->op->attr.scale);
    emit_dq(&a, ds);
    emit_by_key(&a, ATTN_BWD_DK, ds, queries);
    emit_by_key(&a, ATTN_BWD_DV, applied, d);
}

/* Probabilities and their gradient in F32 and again in the compute type; with a bias the sums over rows as well. */
static size_t attn_bwd_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    (void)op, (void)threads;
    const struct tensor *q = desc[ATTN_BWD_Q];
    int64_t time = q->dim[1], keys = desc[ATTN_BWD_K]->dim[1], pairs = q->dim[2] * time * keys;
    int64_t bias = desc[ATTN_BWD_BIAS] ? q->dim[2] * time * (time + 3 * keys) : 0;
    return (size_t)(2 * q->dim[0] * pairs) * (sizeof(float) + dtype_size(q->type)) +
           (size_t)bias * sizeof(float);
}
const struct emitter pjrt_attn_bwd = {.kernel = {.workspace = attn_bwd_workspace}, .emit = emit_attn_bwd};
