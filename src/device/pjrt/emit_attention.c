/* emit_attention.c - see emit_attention.h. All scores of an op exist at once; the workspace counts them. */
#include "device/pjrt/emit_attention.h"
#include "device/pjrt/emit_parts.h"
#include "tape/bias_bucket.h"

#include <math.h>

struct attention attention_of(struct emit *e, const struct attention_slots *slots)
{
    const struct tensor *q = emit_in_tensor(e, slots->q), *k = emit_in_tensor(e, slots->k);
    struct attention a = {.e = e, .slots = slots, .batch = q->dim[0], .time = q->dim[1], .keys = k->dim[1]};
    a.kv_heads = k->dim[2], a.group = q->dim[2] / k->dim[2], a.size = q->dim[3];
    a.own =
        e->op->attr.cached ? emit_in(e, slots->pos) : hlo_iota(e->h, HLO_I32, 1, HLO_SHAPE(a.batch, a.time));
    memcpy(a.pairs, (int64_t[]){a.batch, a.kv_heads, a.time, a.group, a.keys}, sizeof a.pairs);
    return a;
}

struct hlo_value attention_queries(const struct attention *a, int slot)
{
    return hlo_reshape(a->e->h, emit_in(a->e, slot),
                       HLO_SHAPE(a->batch, a->time, a->kv_heads, a->group, a->size));
}

struct hlo_value attention_products(const struct attention *a)
{
    static const struct hlo_pairs pairs = {
        .batch = 2, .a_batch = {0, 2}, .b_batch = {0, 2}, .sum = 1, .a_sum = {4}, .b_sum = {3}};
    struct hlo_value dot =
        hlo_dot(a->e->h, attention_queries(a, a->slots->q), emit_in(a->e, a->slots->k), &pairs);
    return hlo_times(a->e->h, dot, (double)a->e->op->attr.scale);
}

struct hlo_value attention_over(const struct attention *a, struct hlo_value v)
{
    return hlo_broadcast(a->e->h, v, (const int[]){0, 2, 4}, 5, a->pairs);
}

/* --- bias ---------------------------------------------------------------------------------------------------- */

/* The largest |key - query| whose bucket matters: farther ones are in the same bucket, or do not occur. */
static int64_t bias_reach(const struct attention *a, const struct bias_buckets *b)
{
    int64_t longest = a->time > a->keys ? a->time : a->keys, last = b->begins[b->side - 1];
    return last < longest ? last : longest;
}

struct hlo_value attention_buckets(const struct attention *a, int64_t *reach)
{
    struct hlo *h = a->e->h;
    struct bias_buckets b = bias_buckets(emit_in_tensor(a->e, a->slots->bias)->dim[0], &a->e->op->attr);
    *reach = bias_reach(a, &b);
    struct hlo_value offset =
        hlo_plus(h, hlo_iota(h, HLO_I32, 0, HLO_SHAPE(2 * *reach + 1)), -(double)*reach);
    struct hlo_value far = hlo_unary(h, "abs", offset), zero = hlo_like(h, offset, 0), bucket = zero;
    struct hlo_value after = hlo_compare(h, "GT", offset, zero);
    if (!b.two_sided) far = hlo_select(h, after, zero, far);
    for (int i = 1; i < b.side; i++)
        bucket = hlo_add(h, bucket, hlo_convert(h, hlo_compare_to(h, "GE", far, b.begins[i]), HLO_I32));
    return b.two_sided ? hlo_select(h, after, hlo_plus(h, bucket, b.side), bucket) : bucket;
}

struct hlo_value attention_offsets(const struct attention *a)
{
    struct hlo *h = a->e->h;
    bool cached = a->e->op->attr.cached;
    int64_t pairs[] = {a->batch, a->time, a->keys}, *dim = cached ? pairs : pairs + 1;
    int ndim = cached ? 3 : 2;
    struct hlo_value query = cached ? hlo_broadcast(h, a->own, (const int[]){0, 1}, ndim, dim)
                                    : hlo_iota(h, HLO_I32, 0, ndim, dim);
    return hlo_sub(h, hlo_iota(h, HLO_I32, ndim - 1, ndim, dim), query);
}

/* The bias of each pair. */
static struct hlo_value bias_of(const struct attention *a)
{
    struct hlo *h = a->e->h;
    int64_t reach;
    struct hlo_value by_offset =
        hlo_take(h, emit_real(a->e, a->slots->bias), attention_buckets(a, &reach)); /* [.., H] */
    struct hlo_value v = hlo_take(h, by_offset, hlo_plus(h, attention_offsets(a), (double)reach));
    if (a->e->op->attr.cached) {
        v = hlo_reshape(h, v, HLO_SHAPE(a->batch, a->time, a->keys, a->kv_heads, a->group));
        return hlo_transpose(h, v, (const int[]){0, 3, 1, 4, 2});
    }
    v = hlo_reshape(h, v, HLO_SHAPE(a->time, a->keys, a->kv_heads, a->group));
    v = hlo_transpose(h, v, (const int[]){2, 0, 3, 1});
    return hlo_broadcast(h, v, (const int[]){1, 2, 3, 4}, 5, a->pairs);
}

struct hlo_value attention_scores(const struct attention *a, struct hlo_value x, struct hlo_value *slope)
{
    struct hlo *h = a->e->h;
    double cap = (double)a->e->op->attr.cap;
    if (slope) slope->id = -1;
    if (cap > 0) {
        struct hlo_value t = hlo_unary(h, "tanh", hlo_times(h, x, 1 / cap));
        if (slope) *slope = hlo_sub(h, hlo_like(h, t, 1), hlo_mul(h, t, t));
        x = hlo_times(h, t, cap);
    }
    return emit_has(a->e, a->slots->bias) ? hlo_add(h, x, bias_of(a)) : x;
}

/* --- mask ---------------------------------------------------------------------------------------------------- */

/* Both conditions; *all is not a value yet if its id is -1. */
static void require(struct hlo *h, struct hlo_value *all, struct hlo_value also)
{
    *all = all->id < 0 ? also : hlo_binary(h, "and", *all, also);
}

/* Blocks of a sample: the nearest local_blocks and the first global_blocks. */
static struct hlo_value near_block(const struct attention *a, struct hlo_value pos, struct hlo_value key)
{
    struct hlo *h = a->e->h;
    const struct op_attr *attr = &a->e->op->attr;
    struct hlo_value size = hlo_like(h, key, attr->sparse_block);
    struct hlo_value mine = hlo_div(h, pos, size), theirs = hlo_div(h, key, size);
    return hlo_binary(h, "or", hlo_compare_to(h, "LT", hlo_sub(h, mine, theirs), attr->local_blocks),
                      hlo_compare_to(h, "LT", theirs, attr->global_blocks));
}

/* Keys of the query's sample up to its own, as far as the mask reaches. s, own: [B,T,S]. */
static void require_past(const struct attention *a, struct hlo_value s, struct hlo_value own,
                         struct hlo_value *seen)
{
    struct hlo *h = a->e->h;
    const struct op_attr *attr = &a->e->op->attr;
    struct hlo_value pos = own, begin = hlo_like(h, own, 0);
    require(h, seen, hlo_compare(h, "LE", s, own));
    if (!attr->cached && emit_has(a->e, a->slots->pos)) {
        pos = hlo_over(h, emit_in(a->e, a->slots->pos), s, 0);
        begin = hlo_sub(h, own, pos);
        require(h, seen, hlo_compare(h, "GE", s, begin));
    }
    if (attr->mask == MASK_BLOCKS)
        require(h, seen, near_block(a, pos, hlo_sub(h, s, begin)));
    else if (attr->window)
        require(h, seen, hlo_compare(h, "GT", s, hlo_plus(h, own, -attr->window)));
}

bool attention_mask(const struct attention *a, struct hlo_value *seen)
{
    struct hlo *h = a->e->h;
    enum mask_kind mask = a->e->op->attr.mask;
    struct hlo_value s = hlo_iota(h, HLO_I32, 2, HLO_SHAPE(a->batch, a->time, a->keys));
    struct hlo_value own = hlo_over(h, a->own, s, 0);
    seen->id = -1;
    if (emit_has(a->e, a->slots->lengths)) {
        struct hlo_value length = hlo_over(h, emit_in(a->e, a->slots->lengths), s, 0);
        require(h, seen, hlo_compare(h, "LT", s, length));
        if (mask != MASK_CROSS) require(h, seen, hlo_compare(h, "LT", own, length));
    }
    if (mask == MASK_CAUSAL || mask == MASK_BLOCKS) require_past(a, s, own, seen);
    return seen->id >= 0;
}

/* --- dropout ------------------------------------------------------------------------------------------------- */

struct hlo_value attention_drop(const struct attention *a)
{
    struct hlo *h = a->e->h;
    int64_t heads[] = {a->batch, a->kv_heads, a->time, a->group};
    struct hlo_value k = hlo_iota(h, HLO_U32, 1, 4, heads), g = hlo_iota(h, HLO_U32, 3, 4, heads);
    struct hlo_value head = hlo_add(h, hlo_times(h, k, (double)a->group), g);
    struct hlo_value own = hlo_convert(h, a->own, HLO_U32);
    own = hlo_broadcast(h, own, (const int[]){0, 2}, 4, heads);
    struct hlo_value line = hlo_binary(h, "xor", hlo_times(h, head, 16777216), own);
    struct hlo_value rows = part_drop_rows(a->e, a->slots->scalars, a->batch);
    line = part_mix(h, hlo_binary(h, "xor", line, hlo_over(h, rows, line, 0)));
    line = hlo_broadcast(h, line, (const int[]){0, 1, 2, 3}, 5, a->pairs);
    return part_drop(a->e, hlo_iota(h, HLO_U32, 4, 5, a->pairs), line);
}

/* --- the op -------------------------------------------------------------------------------------------------- */

static const struct attention_slots forward = {ATTN_Q,       ATTN_K,    ATTN_V,      ATTN_POS,
                                               ATTN_LENGTHS, ATTN_BIAS, ATTN_SCALARS};

/* Values; those that no query sees are 0, as unused places of a cache may hold anything. */
static struct hlo_value seen_values(const struct attention *a, struct hlo_value seen)
{
    struct hlo *h = a->e->h;
    struct hlo_value v = emit_in(a->e, ATTN_V);
    if (!a->e->op->attr.cached || seen.id < 0) return v;
    struct hlo_value any = hlo_reduce(h, "or", seen, 1u << 1);
    return hlo_select(h, hlo_over(h, any, v, 0), v, hlo_like(h, v, 0));
}

/* [B,K,T,G,..] to [B,T,K,G,..] or [B,K,G,T]. */
static struct hlo_value by_query(struct hlo *h, struct hlo_value v)
{
    return v.ndim == 5 ? hlo_transpose(h, v, (const int[]){0, 2, 1, 3, 4})
                       : hlo_transpose(h, v, (const int[]){0, 1, 3, 2});
}

static void emit_attn(struct emit *e)
{
    static const struct hlo_pairs pairs = {
        .batch = 2, .a_batch = {0, 1}, .b_batch = {0, 2}, .sum = 1, .a_sum = {4}, .b_sum = {1}};
    struct hlo *h = e->h;
    struct attention a = attention_of(e, &forward);
    struct hlo_value s = attention_scores(&a, attention_products(&a), NULL), seen;
    if (attention_mask(&a, &seen)) s = hlo_select(h, attention_over(&a, seen), s, hlo_like(h, s, -INFINITY));
    struct hlo_value top = hlo_reduce(h, "maximum", s, 1u << 4);
    top = hlo_select(h, hlo_compare_to(h, "EQ", top, -INFINITY), hlo_like(h, top, 0), top);
    struct hlo_value p = hlo_unary(h, "exponential", hlo_sub(h, s, hlo_over(h, top, s, 0)));
    struct hlo_value sum = hlo_reduce(h, "add", p, 1u << 4), none = hlo_compare_to(h, "EQ", sum, 0);
    if (e->op->attr.dropout > 0) p = hlo_mul(h, p, attention_drop(&a));
    struct hlo_value v = seen_values(&a, seen);
    struct hlo_value o = hlo_dot(h, hlo_convert(h, p, v.type), v, &pairs);
    o = hlo_div(h, o, hlo_over(h, hlo_select(h, none, hlo_like(h, sum, 1), sum), o, 0));
    emit_out(e, ATTN_O, by_query(h, o));
    struct hlo_value lse = hlo_add(h, top, hlo_unary(h, "log", sum));
    emit_out(e, ATTN_LSE, by_query(h, hlo_select(h, none, hlo_like(h, lse, 0), lse)));
}

/* Scores and probabilities in F32, and the bias of all pairs. */
static size_t attn_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    (void)threads;
    const struct tensor *q = desc[ATTN_Q];
    int64_t pairs = q->dim[2] * q->dim[1] * desc[ATTN_K]->dim[1], all = q->dim[0] * pairs;
    int64_t bias = desc[ATTN_BIAS] ? (op->attr.cached ? all : pairs) : 0;
    return (size_t)(2 * all + bias) * sizeof(float);
}
const struct emitter pjrt_attn = {.kernel = {.workspace = attn_workspace}, .emit = emit_attn};
