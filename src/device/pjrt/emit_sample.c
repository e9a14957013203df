/* emit_sample.c - the emitter of sampling. Likeliest and given tokens are computed for all rows at once; a loop visits the drawn
 * rows alone, because they sort their candidates. */
#include "device/pjrt/emit_parts.h"

#include <math.h>
#include <stddef.h>

/* The word at which a field of a row begins. */
#define WORD(field) ((int)(offsetof(struct sample_row, field) / sizeof(int32_t)))

struct sample {
    struct emit *e;
    int64_t rows, vocab;
    struct hlo_value info;   /* [R,22] I32 */
    struct hlo_value logits; /* [R,V] F32 */
    struct hlo_value within; /* [R,V] BOOL: below the row's vocab */
};

static struct hlo_value whole(const struct sample *s, int word)
{
    return hlo_reshape(s->e->h, hlo_slice(s->e->h, s->info, 1, word, 1), HLO_SHAPE(s->rows));
}

/* A struct sample_number: the bits of a double in two words. */
static struct hlo_value number(const struct sample *s, int word)
{
    struct hlo *h = s->e->h;
    struct hlo_value low = hlo_convert(h, hlo_bits(h, whole(s, word), HLO_U32), HLO_I64);
    struct hlo_value high = hlo_convert(h, whole(s, word + 1), HLO_I64);
    high = hlo_binary(h, "shift_left", high, hlo_like(h, high, 32));
    return hlo_bits(h, hlo_binary(h, "or", high, low), HLO_F64);
}

static struct sample sample_of(struct emit *e)
{
    struct sample s = {.e = e, .info = emit_in(e, SAMPLE_ROWS)};
    s.rows = s.info.dim[0];
    s.vocab = tensor_count(emit_in_tensor(e, SAMPLE_LOGITS)) / s.rows;
    s.logits = part_rows(e, SAMPLE_LOGITS, s.vocab);
    s.within = hlo_compare(e->h, "LT", hlo_iota(e->h, HLO_I32, 1, HLO_SHAPE(s.rows, s.vocab)),
                           hlo_over(e->h, whole(&s, WORD(vocab)), s.logits, 0));
    return s;
}

/* Logits that a choice may compare: what lies beyond the vocabulary or is not a number is never larger. */
static struct hlo_value comparable(const struct sample *s, struct hlo_value x)
{
    struct hlo *h = s->e->h;
    struct hlo_value good = hlo_binary(h, "and", s->within, hlo_compare(h, "EQ", x, x));
    return hlo_select(h, good, x, hlo_like(h, x, -INFINITY));
}

/* --- penalties ----------------------------------------------------------------------------------------------- */

/* For each pair of seen, the row it belongs to; -1: none. */
static struct hlo_value owners(const struct sample *s, int64_t pairs)
{
    struct hlo *h = s->e->h;
    struct hlo_value l = hlo_iota(h, HLO_I32, 0, HLO_SHAPE(pairs, s->rows));
    struct hlo_value at = hlo_sub(h, l, hlo_over(h, whole(s, WORD(seen_first)), l, 1));
    struct hlo_value mine =
        hlo_binary(h, "and", hlo_compare_to(h, "GE", at, 0),
                   hlo_compare(h, "LT", at, hlo_over(h, whole(s, WORD(seen_count)), l, 1)));
    struct hlo_value row = hlo_iota(h, HLO_I32, 1, l.ndim, l.dim);
    return hlo_reduce(h, "maximum", hlo_select(h, mine, row, hlo_like(h, row, -1)), 1u << 1);
}

/* tensor/sample.h, sampling_penalty: x, and how often it was seen. */
static struct hlo_value penalty(const struct sample *s, struct hlo_value owner, struct hlo_value x,
                                struct hlo_value times)
{
    struct hlo *h = s->e->h;
    struct hlo_value by = hlo_take(h, number(s, WORD(repetition)), owner);
    struct hlo_value presence = hlo_take(h, number(s, WORD(presence)), owner);
    struct hlo_value frequency = hlo_take(h, number(s, WORD(frequency)), owner);
    by = hlo_select(h, hlo_compare_to(h, "GT", by, 0), by, hlo_like(h, by, 1));
    x = hlo_convert(h, x, HLO_F64);
    x = hlo_select(h, hlo_compare_to(h, "GT", x, 0), hlo_div(h, x, by), hlo_mul(h, x, by));
    struct hlo_value less = hlo_add(h, presence, hlo_mul(h, frequency, hlo_convert(h, times, HLO_F64)));
    x = hlo_select(h, hlo_compare_to(h, "GT", times, 0), hlo_sub(h, x, less), x);
    return hlo_convert(h, x, HLO_F32);
}

static struct hlo_value penalised(const struct sample *s)
{
    struct hlo *h = s->e->h;
    if (!emit_has(s->e, SAMPLE_SEEN)) return s->logits;
    struct hlo_value seen = emit_in(s->e, SAMPLE_SEEN);
    int64_t pairs = seen.dim[0];
    struct hlo_value token = hlo_reshape(h, hlo_slice(h, seen, 1, 0, 1), HLO_SHAPE(pairs));
    struct hlo_value times = hlo_reshape(h, hlo_slice(h, seen, 1, 1, 1), HLO_SHAPE(pairs));
    struct hlo_value owner = owners(s, pairs),
                     flat = hlo_reshape(h, s->logits, HLO_SHAPE(s->rows * s->vocab));
    struct hlo_value counts =
        hlo_binary(h, "and", hlo_compare_to(h, "GE", owner, 0),
                   hlo_compare(h, "LT", token, hlo_take(h, whole(s, WORD(vocab)), owner)));
    struct hlo_value at = hlo_add(h, hlo_times(h, owner, (double)s->vocab), token);
    struct hlo_value x = penalty(s, owner, hlo_take(h, flat, at), times);
    flat = hlo_put(h, flat, hlo_select(h, counts, at, hlo_like(h, at, -1)), x, false);
    return hlo_reshape(h, flat, s->logits.ndim, s->logits.dim);
}

/* --- drawing ------------------------------------------------------------------------------------------------- */

/* Sums of v[0..i] of a vector. */
static struct hlo_value running_sum(struct hlo *h, struct hlo_value v)
{
    int64_t n = v.dim[0];
    for (int64_t step = 1; step < n; step *= 2) {
        struct hlo_value before = hlo_fill(h, v.type, 0, HLO_SHAPE(step));
        v = hlo_add(h, v, hlo_concat(h, 0, before, hlo_slice(h, v, 0, 0, n - step)));
    }
    return v;
}

/* The number of places of a vector where a condition holds. */
static struct hlo_value count_of(struct hlo *h, struct hlo_value condition)
{
    return hlo_reduce(h, "add", hlo_convert(h, condition, HLO_I32), 1u << 0);
}

/* One number of a row, for each of V candidates. */
static struct hlo_value of_row(struct hlo *h, struct hlo_value all, struct hlo_value row,
                               struct hlo_value like)
{
    return hlo_over(h, hlo_element(h, all, row), like, 0);
}

/* Settings of one row, for each candidate. */
struct draw {
    struct hlo_value place;                /* 0, 1, .. */
    struct hlo_value vocab, top_k;         /* I32; top_k at most vocab, and vocab for all */
    struct hlo_value top_p, min_p, number; /* F64; top_p 0: all */
    struct hlo_value limited;              /* BOOL: top_k is below vocab */
    struct hlo_value every;                /* BOOL: all candidates stay, in the order of tokens */
};

static struct draw draw_of(const struct sample *s, struct hlo_value row)
{
    struct hlo *h = s->e->h;
    struct draw d = {.place = hlo_iota(h, HLO_I32, 0, HLO_SHAPE(s->vocab))};
    d.vocab = of_row(h, whole(s, WORD(vocab)), row, d.place);
    d.top_k = of_row(h, whole(s, WORD(top_k)), row, d.place);
    d.limited =
        hlo_binary(h, "and", hlo_compare_to(h, "GT", d.top_k, 0), hlo_compare(h, "LT", d.top_k, d.vocab));
    d.top_k = hlo_select(h, d.limited, d.top_k, d.vocab);
    d.top_p = of_row(h, number(s, WORD(top_p)), row, d.place);
    d.top_p = hlo_select(h, hlo_compare_to(h, "LT", d.top_p, 1), d.top_p, hlo_like(h, d.top_p, 0));
    d.min_p = of_row(h, number(s, WORD(min_p)), row, d.place);
    d.number = of_row(h, number(s, WORD(number)), row, d.place);
    d.every = hlo_binary(h, "and", hlo_compare_to(h, "LE", d.top_p, 0), hlo_compare_to(h, "LE", d.min_p, 0));
    d.every = hlo_binary(h, "and", d.every, hlo_unary(h, "not", d.limited));
    return d;
}

/* Whether each candidate, likeliest first, stays: w are their weights, F64. Each condition holds up to some place and not beyond it. */
static struct hlo_value staying(struct hlo *h, const struct draw *d, struct hlo_value w)
{
    struct hlo_value first = hlo_compare_to(h, "EQ", d->place, 0), zero = hlo_like(h, w, 0);
    struct hlo_value heavy = hlo_binary(h, "or", first, hlo_compare(h, "GE", w, d->min_p));
    struct hlo_value among = hlo_compare(h, "LT", d->place, d->top_k);
    /* With top-k, light candidates do not count towards the share; without it they do. */
    struct hlo_value shared =
        hlo_binary(h, "and", among, hlo_binary(h, "or", heavy, hlo_unary(h, "not", d->limited)));
    struct hlo_value total = hlo_reduce(h, "add", hlo_select(h, shared, w, zero), 1u << 0);
    struct hlo_value before = hlo_sub(h, running_sum(h, w), w);
    struct hlo_value needed = hlo_compare(h, "LT", before, hlo_mul(h, d->top_p, hlo_over(h, total, w, 0)));
    needed = hlo_binary(h, "or", needed, hlo_compare_to(h, "LE", d->top_p, 0));
    needed = hlo_binary(h, "or", needed, first);
    return hlo_binary(h, "and", needed, hlo_binary(h, "and", heavy, among));
}

/* The token that one row draws: x are its logits [V], comparable. */
static struct hlo_value drawn(const struct sample *s, struct hlo_value row, struct hlo_value x)
{
    struct hlo *h = s->e->h;
    struct draw d = draw_of(s, row);
    struct hlo_value heat = hlo_element(h, number(s, WORD(temperature)), row);
    struct hlo_value top = hlo_over(h, hlo_reduce(h, "maximum", x, 1u << 0), x, 0);
    struct hlo_value w = hlo_sub(h, hlo_convert(h, x, HLO_F64), hlo_convert(h, top, HLO_F64));
    w = hlo_convert(h, hlo_unary(h, "exponential", hlo_div(h, w, hlo_over(h, heat, w, 0))), HLO_F32);
    struct hlo_value inside = hlo_compare(h, "LT", d.place, d.vocab), token = d.place;
    w = hlo_select(h, inside, w, hlo_like(h, w, 0));
    struct hlo_value key = hlo_select(h, d.every, hlo_like(h, w, 0), hlo_unary(h, "negate", w));
    key = hlo_select(h, inside, key, hlo_like(h, key, 1));
    hlo_sort(h, &key, &token);
    w = hlo_convert(h, hlo_take(h, w, token), HLO_F64);
    struct hlo_value stays = staying(h, &d, w);
    w = hlo_select(h, stays, w, hlo_like(h, w, 0));
    struct hlo_value total = hlo_over(h, hlo_reduce(h, "add", w, 1u << 0), w, 0);
    struct hlo_value passed = hlo_compare(h, "LE", running_sum(h, w), hlo_mul(h, d.number, total));
    struct hlo_value last = hlo_plus(h, count_of(h, stays), -1);
    struct hlo_value at = hlo_binary(h, "minimum", count_of(h, passed), last);
    return hlo_element(h, token, at);
}

/* tokens[R] with those of drawn rows. */
static struct hlo_value draw_rows(const struct sample *s, struct hlo_value x, struct hlo_value tokens)
{
    struct hlo *h = s->e->h;
    struct hlo_value draws = hlo_compare_to(h, "EQ", whole(s, WORD(mode)), SAMPLE_DRAWN);
    struct hlo_value order = hlo_iota(h, HLO_I32, 0, HLO_SHAPE(s->rows));
    struct hlo_value others = hlo_convert(h, hlo_unary(h, "not", draws), HLO_I32);
    hlo_sort(h, &others, &order);
    struct hlo_loop loop;
    hlo_loop_begin_times(h, &loop, count_of(h, draws), 1, &tokens);
    struct hlo_value row = hlo_element(h, order, loop.index);
    struct hlo_value token = drawn(s, row, hlo_element(h, x, row));
    tokens = hlo_put(h, tokens, row, token, false);
    hlo_loop_end(h, &loop, &tokens);
    return tokens;
}

/* --- log-probabilities --------------------------------------------------------------------------------------- */

/* The token's logit, -inf from vocab on. */
static struct hlo_value token_logit(const struct sample *s, struct hlo_value token)
{
    struct hlo *h = s->e->h;
    struct hlo_value id = hlo_iota(h, HLO_I32, 1, HLO_SHAPE(s->rows, s->vocab));
    struct hlo_value hot = hlo_compare(h, "EQ", id, hlo_over(h, token, id, 0));
    hot = hlo_binary(h, "and", hot, s->within);
    return hlo_reduce(h, "maximum", hlo_select(h, hot, s->logits, hlo_like(h, s->logits, -INFINITY)),
                      1u << 1);
}

/* top[:, column] and logprob[:, column + 1] of the rows that want them. */
struct told {
    struct hlo_value top, logprob; /* [K,R], [K+1,R] */
};

/* The likeliest tokens, one after the other: each is taken out of x before the next. */
static struct told likeliest(const struct sample *s, struct hlo_value token, struct hlo_value x, int64_t most)
{
    struct hlo *h = s->e->h;
    struct hlo_value peak = hlo_reduce(h, "maximum", x, 1u << 1);
    struct hlo_value p = hlo_unary(h, "exponential", hlo_sub(h, x, hlo_over(h, peak, x, 0)));
    struct hlo_value lse = hlo_add(h, peak, hlo_unary(h, "log", hlo_reduce(h, "add", p, 1u << 1)));
    struct hlo_value wanted = whole(s, WORD(wanted)), zero = hlo_like(h, lse, 0);
    struct hlo_value tells =
        hlo_binary(h, "and", hlo_compare_to(h, "GE", token, 0), hlo_compare_to(h, "GT", wanted, 0));
    struct hlo_value own = hlo_select(h, tells, hlo_sub(h, token_logit(s, token), lse), zero);
    struct hlo_value carried[] = {x, hlo_fill(h, HLO_I32, 0, HLO_SHAPE(most, s->rows)),
                                  hlo_fill(h, HLO_F32, 0, HLO_SHAPE(most, s->rows))};
    struct hlo_loop loop;
    hlo_loop_begin(h, &loop, most, 3, carried);
    struct hlo_value left = carried[0], best = hlo_argmax(h, left),
                     value = hlo_reduce(h, "maximum", left, 1u << 1);
    struct hlo_value place = hlo_plus(h, hlo_over(h, loop.index, wanted, 0), 1);
    struct hlo_value shown = hlo_binary(h, "and", tells, hlo_compare(h, "LT", place, wanted));
    shown = hlo_binary(h, "and", shown, hlo_compare(h, "LE", place, whole(s, WORD(vocab))));
    struct hlo_value id = hlo_iota(h, HLO_I32, 1, left.ndim, left.dim);
    struct hlo_value taken = hlo_compare(h, "EQ", id, hlo_over(h, best, id, 0));
    carried[0] = hlo_select(h, taken, hlo_like(h, left, -INFINITY), left);
    best = hlo_select(h, shown, best, hlo_like(h, best, 0));
    value = hlo_select(h, shown, hlo_sub(h, value, lse), zero);
    carried[1] = hlo_put(h, carried[1], loop.index, best, false);
    carried[2] = hlo_put(h, carried[2], loop.index, value, false);
    hlo_loop_end(h, &loop, carried);
    own = hlo_reshape(h, own, HLO_SHAPE(1, s->rows));
    return (struct told){carried[1], hlo_concat(h, 0, own, carried[2])};
}

static void emit_sample(struct emit *e)
{
    static const int swapped[] = {1, 0};
    struct hlo *h = e->h;
    struct sample s = sample_of(e);
    struct hlo_value x = comparable(&s, penalised(&s)), mode = whole(&s, WORD(mode)),
                     token = hlo_argmax(h, x);
    struct hlo_value given = hlo_compare_to(h, "EQ", mode, SAMPLE_AS_GIVEN);
    token = hlo_select(h, given, whole(&s, WORD(given)), token);
    token =
        hlo_select(h, hlo_compare_to(h, "EQ", mode, SAMPLE_NONE), hlo_like(h, token, SAMPLED_NONE), token);
    token = draw_rows(&s, x, token);
    emit_out(e, SAMPLE_TOKEN, token);
    if (emit_wants(e, SAMPLE_NEXT))
        emit_out(e, SAMPLE_NEXT, hlo_binary(h, "maximum", token, hlo_like(h, token, 0)));
    if (!emit_wants(e, SAMPLE_TOP)) return;
    struct told told = likeliest(&s, token, comparable(&s, s.logits), emit_out_tensor(e, SAMPLE_TOP)->dim[1]);
    emit_out(e, SAMPLE_TOP, hlo_transpose(h, told.top, swapped));
    emit_out(e, SAMPLE_LOGPROB, hlo_transpose(h, told.logprob, swapped));
}

/* Logits in F32, twice where they change, and one row's candidates while it is drawn. */
static size_t sample_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    (void)op, (void)threads;
    int64_t logits = tensor_count(desc[SAMPLE_LOGITS]), vocab = logits / desc[SAMPLE_ROWS]->dim[0];
    return (size_t)(2 * logits * 4 + 8 * vocab * 8);
}
const struct emitter pjrt_sample = {.kernel = {.workspace = sample_workspace}, .emit = emit_sample};
