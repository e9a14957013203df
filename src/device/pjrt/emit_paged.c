/* emit_paged.c - emitters of attention over a pool of blocks.
 *
 * Few tokens, at most as many as there are rows (decoding), each gather the blocks of their own row. Otherwise a loop over rows
 * computes all tokens against one row's keys, and tokens of other rows see none of them. Both are `attend`: U units of T tokens, each
 * unit with M blocks.
 */
#include "device/pjrt/emit.h"
#include "tensor/kv8.h"

#include <math.h>

struct paged {
    struct emit *e;
    int64_t tokens, kv_heads, group, size, rows, reach; /* reach: blocks of a row */
    struct hlo_value q;                                 /* [N,K,G,D] */
    struct hlo_value pool;                              /* [2LP,K,chunk] */
    struct hlo_value row_info, blocks;                  /* [R,3], and as rows of `pool` for keys [R,M] */
};

static struct paged paged_of(struct emit *e)
{
    struct hlo *h = e->h;
    struct hlo_value q = emit_in(e, ATTN_PAGED_Q), pool = emit_in(e, ATTN_PAGED_POOL);
    struct paged p = {.e = e, .kv_heads = pool.dim[2], .group = q.dim[2] / pool.dim[2], .size = q.dim[3]};
    int64_t parts = pool.dim[1], layer = e->op->layer > 0 ? e->op->layer : 0;
    p.tokens = q.dim[0] * q.dim[1];
    p.q = hlo_reshape(h, q, HLO_SHAPE(p.tokens, p.kv_heads, p.group, p.size));
    p.pool = hlo_reshape(h, pool, HLO_SHAPE(pool.dim[0] * parts, p.kv_heads, pool.dim[3]));
    p.row_info = emit_in(e, ATTN_PAGED_ROWS);
    p.blocks = emit_in(e, ATTN_PAGED_BLOCKS);
    p.rows = p.blocks.dim[0], p.reach = p.blocks.dim[1];
    p.blocks = hlo_plus(h, hlo_times(h, p.blocks, (double)parts), (double)(2 * layer));
    return p;
}

/* --- blocks -------------------------------------------------------------------------------------------------- */

/* fp32 scales [U,M,K,16] from their bytes at the end of chunks. */
static struct hlo_value scales_of(struct hlo *h, struct hlo_value chunks, int64_t codes)
{
    int64_t shape[] = {chunks.dim[0], chunks.dim[1], chunks.dim[2], KV_BLOCK, KV8_SCALE};
    struct hlo_value bytes = hlo_slice(h, chunks, 3, codes, KV_BLOCK * KV8_SCALE);
    bytes = hlo_convert(h, hlo_reshape(h, bytes, 5, shape), HLO_U32);
    struct hlo_value shift = hlo_times(h, hlo_iota(h, HLO_U32, 4, 5, shape), 8);
    return hlo_bits(h, hlo_reduce(h, "add", hlo_binary(h, "shift_left", bytes, shift), 1u << 4), HLO_F32);
}

/* Signed codes in the x-type, which has them exactly. */
static struct hlo_value signed_codes(struct hlo *h, struct hlo_value bytes, enum hlo_type type)
{
    struct hlo_value x = hlo_convert(h, bytes, type);
    return hlo_select(h, hlo_compare_to(h, "GE", x, 128), hlo_plus(h, x, -256), x);
}

/* Blocks ids[U,M] of the pool in the x-type: keys [U,M,K,D,16] or values [U,M,K,16,D]. scale: of each position, [U,M,K,16]; id -1:
 * none. */
static struct hlo_value chunks_at(const struct paged *p, struct hlo_value ids, bool value,
                                  struct hlo_value *scale)
{
    struct hlo *h = p->e->h;
    struct hlo_value chunks = hlo_take(h, p->pool, hlo_plus(h, ids, value));
    scale->id = -1;
    if (chunks.type == HLO_U8) {
        *scale = scales_of(h, chunks, KV_BLOCK * p->size);
        chunks = signed_codes(h, hlo_slice(h, chunks, 3, 0, KV_BLOCK * p->size), p->q.type);
    }
    int64_t wide = value ? KV_BLOCK : p->size, deep = value ? p->size : KV_BLOCK;
    return hlo_reshape(h, chunks, HLO_SHAPE(ids.dim[0], ids.dim[1], p->kv_heads, wide, deep));
}

/* A scale of each position, for each pair of `like` [U,K,T,G,M,16]. */
static struct hlo_value scale_over(struct hlo *h, struct hlo_value scale, struct hlo_value like)
{
    scale = hlo_transpose(h, scale, (const int[]){0, 2, 1, 3});
    return hlo_broadcast(h, scale, (const int[]){0, 1, 4, 5}, like.ndim, like.dim);
}

/* --- attention ----------------------------------------------------------------------------------------------- */

/* [U,T,M,16] BOOL: the positions that a token sees. */
static struct hlo_value seen_by(const struct paged *p, struct hlo_value position)
{
    struct hlo *h = p->e->h;
    int64_t shape[] = {position.dim[0], position.dim[1], p->reach, KV_BLOCK};
    struct hlo_value s = hlo_add(h, hlo_times(h, hlo_iota(h, HLO_I32, 2, 4, shape), KV_BLOCK),
                                 hlo_iota(h, HLO_I32, 3, 4, shape));
    struct hlo_value own = hlo_over(h, position, s, 0), seen = hlo_compare(h, "LE", s, own);
    int window = p->e->op->attr.window;
    if (!window) return seen;
    return hlo_binary(h, "and", seen, hlo_compare(h, "GT", s, hlo_plus(h, own, -window)));
}

/* Capped scores of q[U,T,K,G,D]: [U,K,T,G,M,16]. */
static struct hlo_value scores_of(const struct paged *p, struct hlo_value q, struct hlo_value ids)
{
    static const struct hlo_pairs pairs = {
        .batch = 2, .a_batch = {0, 2}, .b_batch = {0, 2}, .sum = 1, .a_sum = {4}, .b_sum = {3}};
    struct hlo *h = p->e->h;
    struct hlo_value scale, keys = chunks_at(p, ids, false, &scale);
    struct hlo_value x = hlo_times(h, hlo_dot(h, q, keys, &pairs), (double)p->e->op->attr.scale);
    if (scale.id >= 0) x = hlo_mul(h, x, scale_over(h, scale, x));
    double cap = (double)p->e->op->attr.cap;
    return cap > 0 ? hlo_times(h, hlo_unary(h, "tanh", hlo_times(h, x, 1 / cap)), cap) : x;
}

/* Values that no token sees count as 0: unused places may hold anything. */
static struct hlo_value seen_values(const struct paged *p, struct hlo_value ids, struct hlo_value seen,
                                    struct hlo_value *scale)
{
    struct hlo *h = p->e->h;
    struct hlo_value v = chunks_at(p, ids, true, scale),
                     any = hlo_reduce(h, "or", seen, 1u << 1); /* [U,M,16] */
    static const int to[] = {0, 1, 3};
    if (scale->id < 0) return hlo_select(h, hlo_broadcast(h, any, to, v.ndim, v.dim), v, hlo_like(h, v, 0));
    *scale =
        hlo_select(h, hlo_broadcast(h, any, to, scale->ndim, scale->dim), *scale, hlo_like(h, *scale, 0));
    return v;
}

/* o [U,K,T,G,D] of q[U,T,K,G,D] at position[U,T] (-1: sees nothing, o = 0) over blocks ids[U,M]. */
static struct hlo_value attend(const struct paged *p, struct hlo_value q, struct hlo_value position,
                               struct hlo_value ids)
{
    static const struct hlo_pairs pairs = {
        .batch = 2, .a_batch = {0, 1}, .b_batch = {0, 2}, .sum = 2, .a_sum = {4, 5}, .b_sum = {1, 3}};
    struct hlo *h = p->e->h;
    struct hlo_value s = scores_of(p, q, ids), seen = seen_by(p, position), scale;
    struct hlo_value shown = hlo_broadcast(h, seen, (const int[]){0, 2, 4, 5}, s.ndim, s.dim);
    s = hlo_select(h, shown, s, hlo_like(h, s, -INFINITY));
    struct hlo_value top = hlo_reduce(h, "maximum", s, 3u << 4);
    top = hlo_select(h, hlo_compare_to(h, "EQ", top, -INFINITY), hlo_like(h, top, 0), top);
    struct hlo_value w = hlo_unary(h, "exponential", hlo_sub(h, s, hlo_over(h, top, s, 0)));
    struct hlo_value sum = hlo_reduce(h, "add", w, 3u << 4);
    sum = hlo_select(h, hlo_compare_to(h, "EQ", sum, 0), hlo_like(h, sum, 1), sum);
    struct hlo_value v = seen_values(p, ids, seen, &scale);
    if (scale.id >= 0) w = hlo_mul(h, w, scale_over(h, scale, w));
    struct hlo_value o = hlo_dot(h, hlo_convert(h, w, v.type), v, &pairs);
    return hlo_div(h, o, hlo_over(h, sum, o, 0));
}

/* --- rows ---------------------------------------------------------------------------------------------------- */

/* The number `column` of each row, as a row of [N,R]. */
static struct hlo_value info_over(const struct paged *p, int column, struct hlo_value like)
{
    struct hlo_value v = hlo_slice(p->e->h, p->row_info, 1, column, 1);
    return hlo_over(p->e->h, hlo_reshape(p->e->h, v, HLO_SHAPE(p->rows)), like, 1);
}

/* Tokens [N] with the blocks of their rows: o [N,K,1,G,D]. */
static struct hlo_value by_token(const struct paged *p)
{
    struct hlo *h = p->e->h;
    struct hlo_value n = hlo_iota(h, HLO_I32, 0, HLO_SHAPE(p->tokens, p->rows));
    struct hlo_value at = hlo_sub(h, n, info_over(p, 0, n)), none = hlo_like(h, n, -1);
    struct hlo_value mine =
        hlo_binary(h, "and", hlo_compare_to(h, "GE", at, 0), hlo_compare(h, "LT", at, info_over(p, 1, n)));
    struct hlo_value position = hlo_select(h, mine, hlo_add(h, at, info_over(p, 2, n)), none);
    struct hlo_value row = hlo_select(h, mine, hlo_iota(h, HLO_I32, 1, n.ndim, n.dim), none);
    position = hlo_reduce(h, "maximum", position, 1u << 1);
    row = hlo_reduce(h, "maximum", row, 1u << 1);
    struct hlo_value q = hlo_reshape(h, p->q, HLO_SHAPE(p->tokens, 1, p->kv_heads, p->group, p->size));
    return attend(p, q, hlo_reshape(h, position, HLO_SHAPE(p->tokens, 1)), hlo_take(h, p->blocks, row));
}

/* A number of row_info's row as a vector of all tokens. */
static struct hlo_value number_over(const struct paged *p, struct hlo_value row, int column,
                                    struct hlo_value like)
{
    struct hlo_value v = hlo_reshape(p->e->h, hlo_slice(p->e->h, row, 0, column, 1), 0, NULL);
    return hlo_over(p->e->h, v, like, 0);
}

/* Row after row: o [1,K,N,G,D]. */
static struct hlo_value by_row(const struct paged *p)
{
    struct hlo *h = p->e->h;
    struct hlo_value o = hlo_fill(h, HLO_F32, 0, HLO_SHAPE(1, p->kv_heads, p->tokens, p->group, p->size));
    struct hlo_value q = hlo_reshape(h, p->q, HLO_SHAPE(1, p->tokens, p->kv_heads, p->group, p->size));
    struct hlo_loop loop;
    hlo_loop_begin(h, &loop, p->rows, 1, &o);
    struct hlo_value row = hlo_element(h, p->row_info, loop.index),
                     ids = hlo_element(h, p->blocks, loop.index);
    struct hlo_value n = hlo_iota(h, HLO_I32, 0, HLO_SHAPE(p->tokens));
    struct hlo_value at = hlo_sub(h, n, number_over(p, row, 0, n));
    struct hlo_value mine = hlo_binary(h, "and", hlo_compare_to(h, "GE", at, 0),
                                       hlo_compare(h, "LT", at, number_over(p, row, 1, n)));
    struct hlo_value position =
        hlo_select(h, mine, hlo_add(h, at, number_over(p, row, 2, n)), hlo_like(h, at, -1));
    o = hlo_add(h, o,
                attend(p, q, hlo_reshape(h, position, HLO_SHAPE(1, p->tokens)),
                       hlo_reshape(h, ids, HLO_SHAPE(1, p->reach))));
    hlo_loop_end(h, &loop, &o);
    return o;
}

static void emit_attn_paged(struct emit *e)
{
    struct paged p = paged_of(e);
    struct hlo_value o = p.tokens <= p.rows ? by_token(&p) : by_row(&p);
    emit_out(e, ATTN_PAGED_O, hlo_transpose(e->h, o, (const int[]){0, 2, 1, 3, 4}));
}

/* Gathered keys and values, scores and probabilities. */
static size_t paged_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    (void)op, (void)threads;
    const struct tensor *q = desc[ATTN_PAGED_Q], *pool = desc[ATTN_PAGED_POOL],
                        *blocks = desc[ATTN_PAGED_BLOCKS];
    int64_t tokens = q->dim[0] * q->dim[1], keys = blocks->dim[1] * KV_BLOCK;
    int64_t units = tokens <= blocks->dim[0] ? tokens : 1;
    int64_t gathered = units * keys * pool->dim[2] * q->dim[3], scores = tokens * q->dim[2] * keys;
    return (size_t)(2 * gathered + 2 * scores) * sizeof(float);
}
const struct emitter pjrt_attn_paged = {.kernel = {.workspace = paged_workspace}, .emit = emit_attn_paged};
const struct emitter pjrt_attn_paged8 = {.kernel = {.workspace = paged_workspace}, .emit = emit_attn_paged};
