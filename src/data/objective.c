/* objective.c - see objective.h. */
#include "data/objective.h"
#include "base/hash.h"
#include "base/minmax.h"
#include "base/rng.h"
#include "data/record_preference.h"
#include "store/token_file.h"

#include <math.h>
#include <string.h>

/* The seed's random stream that chooses tokens. */
#define TOKEN_STREAM 0x6d61736b

static void put_at(const struct rows *row, int64_t t, int32_t id, int32_t target, int64_t pos)
{
    row->ids[t] = id;
    if (row->targets) row->targets[t] = target;
    if (row->pos) row->pos[t] = (int32_t)pos;
    if (row->types) row->types[t] = 0;
}

/* --- next token ------------------------------------------------------------------------------------------------ */

static void measure_next(const struct objective_rules *, const struct sample *s, int64_t *positions,
                         int64_t *targets)
{
    *positions = s->count > 0 ? s->count - 1 : 0, *targets = 0;
    for (int64_t t = 1; t < s->count; t++) *targets += token_is_target(s->tokens[t]);
}

static void put_next(const struct objective_rules *, const struct sample *s, const struct rows *row,
                     int64_t used)
{
    for (int64_t t = 0; t + 1 < s->count; t++) {
        int32_t next = s->tokens[t + 1];
        put_at(row, used + t, token_id(s->tokens[t]), token_is_target(next) ? next : -1, t);
    }
}

/* --- masked tokens --------------------------------------------------------------------------------------------- */

#define MASKED_SHARE 0.15

/* Half of the random bits of a position chooses it, the other half what it shows. */
static uint64_t bits_of(const struct sample *s, int64_t t) { return rng_u64(s->seed, s->key, (uint64_t)t); }
static uint32_t choice_of(const struct sample *s, int64_t t) { return (uint32_t)(bits_of(s, t) >> 32); }

static bool may_hide(const struct objective_rules *r, int32_t token)
{
    return token_is_target(token) &&
           !(r->codec->tokenizer && tokenizer_is_special(r->codec->tokenizer, token));
}

/* Where nothing is chosen, the position that comes nearest to it is; -1: nothing may be hidden. */
static int64_t nearest_position(const struct objective_rules *r, const struct sample *s, int64_t n)
{
    int64_t best = -1;
    for (int64_t t = 0; t < n; t++)
        if (may_hide(r, s->tokens[t]) && (best < 0 || choice_of(s, t) < choice_of(s, best))) best = t;
    return best;
}

static bool is_chosen(const struct objective_rules *r, const struct sample *s, int64_t t)
{
    return may_hide(r, s->tokens[t]) && choice_of(s, t) < (uint32_t)(MASKED_SHARE * 4294967296.0);
}

static void measure_masked(const struct objective_rules *r, const struct sample *s, int64_t *positions,
                           int64_t *targets)
{
    *positions = min64(s->count, r->time), *targets = 0;
    for (int64_t t = 0; t < *positions; t++) *targets += is_chosen(r, s, t);
    if (!*targets) *targets = nearest_position(r, s, *positions) >= 0;
}

static int32_t shown(const struct objective_rules *r, const struct sample *s, int64_t t)
{
    double part = (double)(uint32_t)bits_of(s, t) / 4294967296.0;
    if (part < 0.8) return r->mask;
    if (part >= 0.9) return s->tokens[t];
    return (int32_t)(rng_u64(s->seed ^ TOKEN_STREAM, s->key, (uint64_t)t) % (uint64_t)r->codec->vocab_size);
}

static void put_masked(const struct objective_rules *r, const struct sample *s, const struct rows *row,
                       int64_t used)
{
    int64_t n = min64(s->count, r->time), chosen = 0;
    for (int64_t t = 0; t < n; t++) {
        bool hides = is_chosen(r, s, t);
        int32_t id = token_id(s->tokens[t]);
        put_at(row, used + t, hides ? shown(r, s, t) : id, hides ? id : -1, t);
        chosen += hides;
    }
    int64_t t = chosen ? -1 : nearest_position(r, s, n);
    if (t >= 0) put_at(row, used + t, shown(r, s, t), s->tokens[t], t);
}

/* --- two parts ---------------------------------------------------------------------------------------------------- */

struct parts {
    const int32_t *first, *second;
    int64_t nfirst, nsecond;
};

static struct parts parts_of(const struct sample *s)
{
    int64_t n = s->count > 0 ? s->tokens[0] : 0;
    return (struct parts){s->tokens + 1, s->tokens + 1 + n, n, s->count > 0 ? s->count - 1 - n : 0};
}

static void measure_labels(const struct objective_rules *r, const struct sample *s, int64_t *positions,
                           int64_t *targets)
{
    struct parts p = parts_of(s);
    *positions = min64(p.nfirst, r->time), *targets = 0;
    for (int64_t t = 0; t < *positions; t++) *targets += p.second[t] >= 0;
}

static void put_labels(const struct objective_rules *r, const struct sample *s, const struct rows *row,
                       int64_t used)
{
    struct parts p = parts_of(s);
    int64_t n = min64(p.nfirst, r->time);
    for (int64_t t = 0; t < n; t++) put_at(row, used + t, p.first[t], p.second[t], t);
}

/* A pair counts once. */
static struct parts pair_of(const struct sample *s)
{
    struct parts p = parts_of(s);
    p.nsecond = p.nsecond > 0 ? p.nsecond - 1 : 0; /* its score */
    return p;
}

static void measure_pair(const struct objective_rules *r, const struct sample *s, int64_t *positions,
                         int64_t *targets)
{
    struct parts p = pair_of(s);
    *positions = min64(p.nfirst > p.nsecond ? p.nfirst : p.nsecond, r->time);
    *targets = p.nfirst > 0 && p.nsecond > 0;
}

static void put_pair(const struct objective_rules *r, const struct sample *s, const struct rows *rows,
                     int64_t used)
{
    struct parts p = pair_of(s);
    const int32_t *texts[] = {p.first, p.second};
    int64_t counts[] = {min64(p.nfirst, r->time), min64(p.nsecond, r->time)};
    for (int k = 0; k < 2; k++)
        for (int64_t t = 0; t < counts[k]; t++) put_at(&rows[k], used + t, texts[k][t], -1, t);
    for (int k = 0; k < 2; k++)
        if (rows[k].lengths) *rows[k].lengths = (int32_t)(used + counts[k]);
    for (int k = 0; k < 2; k++)
        if (rows[k].scores) *rows[k].scores = s->tokens[s->count - 1];
}

static void measure_source(const struct objective_rules *r, const struct sample *s, int64_t *positions,
                           int64_t *targets)
{
    struct parts p = parts_of(s);
    *positions = *targets = p.nfirst > 0 ? min64(p.nsecond, r->time) : 0;
}

static void put_source(const struct objective_rules *r, const struct sample *s, const struct rows *row,
                       int64_t used)
{
    struct parts p = parts_of(s);
    int64_t n = min64(p.nsecond, r->time), source = min64(p.nfirst, r->source_time);
    for (int64_t t = 0; t < n; t++) put_at(row, used + t, t ? p.second[t - 1] : r->start, p.second[t], t);
    if (row->source_lengths) *row->source_lengths = (int32_t)source;
    if (!row->source_ids) return;
    memcpy(row->source_ids, p.first, (size_t)source * sizeof *p.first);
    memset(row->source_ids + source, 0, (size_t)(row->source_time - source) * sizeof *p.first);
}

/* --- preferences ----------------------------------------------------------------------------------------------------- */

struct preference_parts {
    const int32_t *prompt, *completion[2];
    int64_t nprompt, count[2];
};

static struct preference_parts preference_of(const struct sample *s)
{
    struct preference_parts p = {.prompt = s->tokens + PREFERENCE_HEADER,
                                 .nprompt = s->tokens[PREFERENCE_PROMPT]};
    p.count[0] = s->tokens[PREFERENCE_FIRST];
    p.completion[0] = p.prompt + p.nprompt, p.completion[1] = p.completion[0] + p.count[0];
    p.count[1] = s->count - PREFERENCE_HEADER - p.nprompt - p.count[0];
    return p;
}

uint64_t objective_key(const struct rows *rows, const int64_t *lengths, int count)
{
    uint64_t key = 0;
    for (int k = 0; k < count; k++) {
        key = hash64(rows[k].ids, (size_t)lengths[k] * sizeof *rows[k].ids, key);
        key = hash64(rows[k].targets, (size_t)lengths[k] * sizeof *rows[k].targets, key);
    }
    return key;
}

/* Tokens of a completion that a row behind its prompt holds. */
static int64_t fitting(const struct objective_rules *r, int64_t nprompt, int64_t count)
{
    int64_t room = r->time + 1 - nprompt;
    return room < 1 ? 0 : min64(count, room);
}

/* Targets of a row: the first token of all has none. */
static int64_t targets_of(int64_t nprompt, int64_t count) { return nprompt > 0 ? count : count - 1; }

/* Completions that a row does not hold, or not their difference, cannot be learned, nor a pair that is too long. */
static void measure_preference(const struct objective_rules *r, const struct sample *s, int64_t *positions,
                               int64_t *targets)
{
    *positions = *targets = 0;
    if (s->count < PREFERENCE_HEADER) return;
    struct preference_parts p = preference_of(s);
    int64_t a = fitting(r, p.nprompt, p.count[0]), b = fitting(r, p.nprompt, p.count[1]);
    if (targets_of(p.nprompt, a) < 1 || targets_of(p.nprompt, b) < 1) return;
    if (a == b && !memcmp(p.completion[0], p.completion[1], (size_t)a * sizeof *p.prompt)) return;
    if (r->pair_time && p.nprompt + a + b - 2 > r->pair_time) return;
    *positions = p.nprompt + (a > b ? a : b) - 1;
    /* A loss over tokens is that of chosen rows, orpo's with prompts. */
    *targets = r->objective == OBJECTIVE_ORPO ? p.nprompt + a - 1 : targets_of(p.nprompt, a);
}

/* Positions [0, first) of a row predict its prompt, the others its completion. */
static int64_t first_target(int64_t nprompt) { return nprompt > 0 ? nprompt - 1 : 0; }

/* Returns the positions that it fills. */
static int64_t put_side(const struct objective_rules *r, const struct preference_parts *p, int k,
                        bool learn_prompt, const struct rows *row, int64_t used)
{
    int64_t n = fitting(r, p->nprompt, p->count[k]), all = p->nprompt + n;
    for (int64_t t = 0; t + 1 < all; t++) {
        int32_t id = t < p->nprompt ? p->prompt[t] : p->completion[k][t - p->nprompt];
        int64_t next = t + 1;
        int32_t target = next < p->nprompt ? p->prompt[next] : p->completion[k][next - p->nprompt];
        put_at(row, used + t, id, learn_prompt || next >= p->nprompt ? target : -1, t);
    }
    if (row->lengths) *row->lengths = (int32_t)(used + all - 1);
    return all - 1;
}

static void put_reference(const struct rows *row, float logp)
{
    if (row->reference) memcpy(row->reference, &logp, sizeof logp);
}

/* Log-probabilities that the record says, or else the reference. */
static struct reference_entry known_reference(const struct objective_rules *r, const struct sample *s,
                                              const struct rows *rows, const int64_t *lengths, int count,
                                              int32_t *tokens, int32_t most)
{
    struct reference_entry e = {.logp = {NAN, NAN}};
    memcpy(e.logp, s->tokens + PREFERENCE_REFERENCE, sizeof e.logp);
    if (!isnan(e.logp[0]) && !isnan(e.logp[1])) return e;
    if (r->reference && rows[0].targets &&
        reference_find(r->reference, objective_key(rows, lengths, count), &e, tokens, most))
        return e;
    return (struct reference_entry){.logp = {NAN, NAN}};
}

static void put_preference(const struct objective_rules *r, const struct sample *s, const struct rows *rows,
                           int64_t used)
{
    struct preference_parts p = preference_of(s);
    struct reference_entry known = {0};
    int64_t lengths[2];
    for (int k = 0; k < 2; k++)
        lengths[k] = put_side(r, &p, k, r->objective == OBJECTIVE_ORPO && k == 0, &rows[k], used);
    if (r->objective == OBJECTIVE_DPO) known = known_reference(r, s, rows, lengths, 2, NULL, 0);
    for (int k = 0; k < 2; k++) {
        put_reference(&rows[k], known.logp[k]);
        if (rows[k].marks) *rows[k].marks = k == 0 ? (int32_t)first_target(p.nprompt) : 0;
    }
}

static void measure_unpaired(const struct objective_rules *r, const struct sample *s, int64_t *positions,
                             int64_t *targets)
{
    *positions = *targets = 0;
    if (s->count < PREFERENCE_HEADER) return;
    struct preference_parts p = preference_of(s);
    int64_t n = fitting(r, p.nprompt, p.count[0]);
    *targets = n > 0 ? targets_of(p.nprompt, n) : 0;
    if (*targets > 0) *positions = p.nprompt + n - 1;
}

/* The second row is made of what the reference has for this sample; without a reference it is empty. */
static void put_unpaired(const struct objective_rules *r, const struct sample *s, const struct rows *rows,
                         int64_t used)
{
    struct preference_parts p = preference_of(s);
    int32_t most = (int32_t)fitting(r, p.nprompt, r->time + 1);
    int64_t length = put_side(r, &p, 0, false, &rows[0], used);
    /* Read where the row will have its ids, from the completion's first token on. */
    struct reference_entry known =
        known_reference(r, s, rows, &length, 1, rows[1].ids + used + p.nprompt, most - 1);
    int64_t n = min64(known.count, most - 1);
    for (int64_t t = 0; t + 1 < p.nprompt + n; t++) {
        int32_t id = t < p.nprompt ? p.prompt[t] : rows[1].ids[used + t];
        int32_t target = t + 1 < p.nprompt ? -1 : rows[1].ids[used + t + 1];
        put_at(&rows[1], used + t, id, target, t);
    }
    if (rows[1].lengths) *rows[1].lengths = (int32_t)(used + (n ? p.nprompt + n - 1 : 0));
    for (int k = 0; k < 2; k++) put_reference(&rows[k], known.logp[k]);
    for (int k = 0; k < 2; k++)
        if (rows[k].marks) *rows[k].marks = k == 0 ? s->tokens[PREFERENCE_LABEL] : 0;
}

void objective_mismatch(const struct rows *from, const struct rows *other, const struct rows *to,
                        const int32_t **tokens, int32_t *count)
{
    int64_t prompt = 0, begin = 0, n = 0, time = to->time;
    while (prompt < time && from->targets[prompt] < 0) prompt++;
    while (begin < time && other->targets[begin] < 0) begin++;
    while (begin + n < time && other->targets[begin + n] >= 0) n++;
    n = min64(n, time - prompt - 1); /* put_unpaired has no place for more */
    *tokens = other->targets + begin, *count = (int32_t)n;
    for (int64_t t = 0; t < prompt + n; t++) {
        int32_t id = t <= prompt ? from->ids[t] : (*tokens)[t - prompt - 1];
        put_at(to, t, id, t < prompt ? -1 : (*tokens)[t - prompt], t);
    }
    rows_pad(to, prompt + n);
    if (to->lengths) *to->lengths = (int32_t)(prompt + n);
}

/* --- the table ------------------------------------------------------------------------------------------------ */

#define FEED(name) (1u << FEED_##name)
#define DECODER    (FEED(IDS) | FEED(POS) | FEED(TARGETS))
#define ENCODER    (FEED(IDS) | FEED(POS) | FEED(LENGTHS) | FEED(TYPES))

static const struct objective_row rows[OBJECTIVES] = {
    [OBJECTIVE_NEXT_TOKEN] = {"next_token", DECODER, false, 1, false, measure_next, put_next},
    [OBJECTIVE_MASKED_TOKENS] = {"masked_tokens", ENCODER | FEED(TARGETS), false, 1, false, measure_masked,
                                 put_masked},
    [OBJECTIVE_TOKEN_LABELS] = {"token_labels", ENCODER | FEED(TARGETS), true, 1, false, measure_labels,
                                put_labels},
    [OBJECTIVE_SENTENCE_PAIRS] = {"sentence_pairs", ENCODER | FEED(TARGETS) | FEED(SCORES), true, 2, true,
                                  measure_pair, put_pair},
    [OBJECTIVE_SOURCE_TARGET] = {"source_target", DECODER | FEED(SOURCE_IDS) | FEED(SOURCE_LENGTHS), true, 1,
                                 false, measure_source, put_source},
    [OBJECTIVE_DPO] = {"dpo", DECODER | FEED(REFERENCE), true, 2, false, measure_preference, put_preference},
    [OBJECTIVE_KTO] = {"kto", DECODER | FEED(REFERENCE) | FEED(MARKS), true, 2, false, measure_unpaired,
                       put_unpaired},
    [OBJECTIVE_ORPO] = {"orpo", DECODER | FEED(MARKS), true, 2, false, measure_preference, put_preference},
};

const struct objective_row *objective_row(enum objective objective) { return &rows[objective]; }

int64_t objective_source(const struct objective_rules *r, const struct sample *s)
{
    return r->objective == OBJECTIVE_SOURCE_TARGET ? min64(parts_of(s).nfirst, r->source_time) : 0;
}

int64_t objective_sample_most(const struct objective_rules *r)
{
    if (!rows[r->objective].two_parts) return r->time + 1;
    if (objective_prefers(r->objective)) return PREFERENCE_HEADER + 3 * (r->time + 1);
    return 1 + r->time + (r->objective == OBJECTIVE_SENTENCE_PAIRS) +
           (r->objective == OBJECTIVE_SOURCE_TARGET ? r->source_time : r->time);
}

void objective_measure(const struct objective_rules *r, const struct sample *s, int64_t *positions,
                       int64_t *targets)
{
    rows[r->objective].measure(r, s, positions, targets);
}

void objective_put(const struct objective_rules *r, const struct sample *s, const struct rows *to,
                   int64_t used)
{
    rows[r->objective].put(r, s, to, used);
}

int32_t objective_mask_token(const struct codec *codec)
{
    static const char *const names[] = {"[MASK]", "<mask>"};
    for (size_t i = 0; i < sizeof names / sizeof *names && codec->tokenizer; i++) {
        int32_t id = tokenizer_id(codec->tokenizer, names[i], strlen(names[i]));
        if (id >= 0) return id;
    }
    return -1;
}
