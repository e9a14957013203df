/* model_unigram.c - the most probable way to cut a piece into tokens.
 *
 * Viterbi over byte positions: best[p] is the best way to reach p. From every reachable position the trie gives
 * all tokens that begin there; a code point that is no token costs unk_score, ten less than the worst token. Of
 * equal ways the one found first stays, and scores are added in the same order as in the library whose results
 * we reproduce, so that rounding decides alike. Neighbouring unknown tokens become one span; a span that is not in
 * the vocabulary is spelled in byte tokens (byte_fallback) or is one unknown token. A model that comes from a SentencePiece
 * file (sentencepiece.h) follows that library instead, which adds scores as floats.
 *
 * No token reaches over a position p once all tokens found so far end at or before it: then every way passes
 * through p, and what lies before is decided. Long pieces are settled at such positions, so that the scratch
 * stays at WINDOW positions for any text with blanks in it.
 */
#include "text/tokenizer/byte_trie.h"
#include "text/tokenizer/word_cache.h"
#include "base/number.h"
#include <math.h>
#include <stdio.h>

enum { WINDOW = 4096, UNREACHED = -1, SCORES = 2 * TOKEN_BYTES_MOST };
static const double UNK_PENALTY = 10.0, NEVER = -INFINITY;

struct unigram {
    struct token_model base;
    struct byte_trie trie;
    double *score; /* by id */
    size_t size;
    int32_t unk; /* -1: none */
    bool byte_fallback;
    /* Like SentencePiece itself: sums are rounded to floats, and tokens without a score are not found in text. */
    bool single;
    double unk_score;
    int32_t byte_id[256]; /* "<0x00>".. or -1 */
};

struct best {
    int32_t id;
    int32_t from; /* UNREACHED, or the position the last token begins at, from the window's begin */
};

struct unigram_scratch {
    struct word_cache *cache;
    struct scratch_limit *limit;
    size_t keep; /* bytes; a larger table is given back */
    struct best *best;
    size_t cap;
    double score[SCORES]; /* of best[at], at at % SCORES: no token reaches further */
};

/* One piece on its way. Unknown tokens wait in [unk_begin, unk_end) until it is clear that no more follow. */
struct cutting {
    const struct unigram *model;
    struct unigram_scratch *scratch;
    const char *text;
    struct token_list *out;
    size_t unk_begin, unk_end;
};

static size_t char_len(unsigned char lead) { return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4; }

static bool scratch_grow(struct unigram_scratch *s, size_t need)
{
    size_t cap = s->cap ? s->cap : 256;
    while (cap < need) cap = scratch_more(cap);
    if (cap == s->cap) return true;
    if (cap > INT32_MAX) return false;
    if (!scratch_take(s->limit, (cap - s->cap) * sizeof *s->best)) return false;
    struct best *best = realloc(s->best, cap * sizeof *best);
    if (!best) return false;
    s->best = best;
    for (size_t i = s->cap; i < cap; i++) best[i].from = UNREACHED;
    s->cap = cap;
    return true;
}

static bool emit(struct token_list *out, int32_t id)
{
    if (out->count == out->cap && !token_list_reserve(out, 1)) return false;
    out->id[out->count++] = id;
    return true;
}

/* Tokens of text that no path through the vocabulary explained. */
static bool emit_unknown(struct cutting *c)
{
    const struct unigram *m = c->model;
    size_t begin = c->unk_begin, end = c->unk_end;
    c->unk_begin = c->unk_end;
    if (begin == end) return true;
    int32_t id = m->single ? -1 : token_vocab_id(m->base.vocab, c->text + begin, end - begin);
    if (id >= 0) return emit(c->out, id);
    bool spelled = m->byte_fallback;
    for (size_t i = begin; i < end && spelled; i++) spelled = m->byte_id[(unsigned char)c->text[i]] >= 0;
    for (size_t i = begin; i < end && spelled; i++)
        if (!emit(c->out, m->byte_id[(unsigned char)c->text[i]])) return false;
    return spelled || m->unk < 0 || emit(c->out, m->unk);
}

static bool emit_span(struct cutting *c, size_t begin, size_t end, int32_t id)
{
    if (id != c->model->unk) return emit_unknown(c) && emit(c->out, id);
    if (c->unk_begin == c->unk_end) c->unk_begin = begin;
    c->unk_end = end;
    return true;
}

/* Turns the way to `end` around: `from` then says where the next token ends, 0: there is none. The first token's end. */
static size_t turn_around(struct best *best, size_t end)
{
    size_t next = 0;
    for (size_t at = end, from; at > 0; next = at, at = from) {
        from = (size_t)best[at].from;
        best[at].from = (int32_t)next;
    }
    return next;
}

/* Writes the best way to `end` (a position in the window that begins at `base`) and empties the window. */
static bool settle(struct cutting *c, size_t base, size_t end)
{
    struct best *best = c->scratch->best;
    for (size_t begin = 0, at = turn_around(best, end); at > 0; begin = at, at = (size_t)best[at].from)
        if (!emit_span(c, base + begin, base + at, best[at].id)) return false;
    for (size_t i = 0; i <= end; i++) best[i].from = UNREACHED;
    return true;
}

static inline void offer(const struct unigram *m, struct unigram_scratch *s, size_t at, double score,
                         int32_t id, size_t from)
{
    if (m->single) score = (float)score;
    if (s->best[at].from != UNREACHED && !(score > s->score[at % SCORES])) return;
    s->best[at] = (struct best){id, (int32_t)from};
    s->score[at % SCORES] = score;
}

/* All tokens that begin at `at` of the window; returns the furthest end. */
static size_t extend(const struct unigram *m, struct unigram_scratch *s, const char *text, size_t len,
                     size_t at, double base)
{
    size_t single = char_len((unsigned char)text[0]), far = single;
    bool has_single = false;
    uint64_t node = byte_trie_root(&m->trie);
    if (single > len) single = far = len;
    for (size_t n = 0; n < len && byte_trie_step(&m->trie, &node, (unsigned char)text[n]);) {
        int32_t id = byte_trie_value(node);
        n++;
        if (id < 0 || m->score[id] == NEVER) continue;
        if (at + n >= s->cap && !scratch_grow(s, at + n + 1)) return 0;
        offer(m, s, at + n, m->score[id] + base, id, at);
        has_single |= n == single;
        if (n > far) far = n;
    }
    if (!has_single) {
        if (at + single >= s->cap && !scratch_grow(s, at + single + 1)) return 0;
        offer(m, s, at + single, m->unk_score + base, m->unk, at);
    }
    return at + far;
}

static bool cut(struct cutting *c, size_t len)
{
    struct unigram_scratch *s = c->scratch;
    size_t base = 0, reach = 0, at = 0; /* reach and at: from base */
    double start = 0;                   /* score of the way to base */
    while (base + at < len) {
        if (at == reach && at >= WINDOW) {
            start = s->score[at % SCORES];
            if (!settle(c, base, at)) return false;
            base += at, at = reach = 0;
        }
        double score = at ? s->score[at % SCORES] : start;
        size_t end = extend(c->model, s, c->text + base + at, len - base - at, at, score);
        if (!end) return false;
        if (end > reach) reach = end;
        size_t step = char_len((unsigned char)c->text[base + at]);
        at = step < len - base - at ? at + step : len - base;
    }
    return settle(c, base, at) && emit_unknown(c);
}

static bool unigram_encode(const struct token_model *model, void *scratch, const char *piece, size_t len,
                           struct token_list *out)
{
    struct unigram_scratch *s = scratch;
    struct cutting c = {(const struct unigram *)model, s, piece, out, 0, 0};
    uint64_t hash = 0;
    size_t before = out->count;
    if (len <= WORD_KEY_MOST) {
        hash = word_cache_hash(piece, len);
        const struct word_entry *hit = word_cache_find(s->cache, hash, piece, len);
        if (hit) {
            if (out->cap - out->count < WORD_IDS_MOST && !token_list_reserve(out, WORD_IDS_MOST))
                return false;
            memcpy(out->id + out->count, hit->id, sizeof hit->id);
            out->count += hit->count;
            return true;
        }
    }
    if (!scratch_grow(s, 256)) return false;
    bool done = cut(&c, len);
    if (done && out->count > before && len <= WORD_KEY_MOST)
        word_cache_put(s->cache, hash, piece, len, out->id + before, out->count - before);
    for (size_t i = 0; !done && i < s->cap; i++) s->best[i].from = UNREACHED;
    if (s->cap * sizeof *s->best > s->keep) {
        free(s->best);
        s->best = NULL, s->cap = 0;
    }
    return done;
}

static void unigram_scratch_close(void *scratch)
{
    struct unigram_scratch *s = scratch;
    if (!s) return;
    free(s->cache);
    free(s->best);
    free(s);
}

static void *unigram_scratch_open(const struct token_model *, const struct encoder_room *room,
                                  struct scratch_limit *limit)
{
    struct unigram_scratch *s = calloc(1, sizeof *s);
    if (s) s->limit = limit, s->keep = room->keep, s->cache = word_cache_open(room->cache);
    if (s && s->cache) return s;
    unigram_scratch_close(s);
    return NULL;
}

static void unigram_free(struct token_model *model)
{
    struct unigram *m = (struct unigram *)model;
    if (!m) return;
    byte_trie_release(&m->trie);
    free(m->score);
    free(m);
}

static size_t unigram_bytes(const struct token_model *model)
{
    const struct unigram *m = (const struct unigram *)model;
    return sizeof *m + m->trie.count * sizeof *m->trie.unit + m->size * sizeof *m->score;
}

static size_t unigram_scratch_bytes(const struct token_model *, const struct encoder_room *room)
{
    return sizeof(struct unigram_scratch) + word_cache_bytes(room->cache) + room->keep;
}

static const struct token_model_ops unigram_ops = {.kind = "Unigram",
                                                   .free = unigram_free,
                                                   .scratch_open = unigram_scratch_open,
                                                   .scratch_close = unigram_scratch_close,
                                                   .encode = unigram_encode,
                                                   .bytes = unigram_bytes,
                                                   .scratch_bytes = unigram_scratch_bytes};

/* The reference library reads decimal numbers with two roundings: the digits as one whole number, then one division
 * or multiplication by a power of ten. Where that gives another last bit than the nearest double, ties between two
 * ways fall differently, so the same is done here. The digits are the shortest that mean `score`, which is how that
 * library writes them. */
static double as_the_reference_reads(double score)
{
    char text[NUMBER_TEXT];
    uint64_t digits = 0;
    int exponent = 0;
    bool fraction = false;
    number_format_double(text, fabs(score));
    const char *at = text;
    for (; (*at >= '0' && *at <= '9') || *at == '.'; at++) {
        if (*at == '.')
            fraction = true;
        else
            digits = 10 * digits + (uint64_t)(*at - '0'), exponent -= fraction;
    }
    if (*at == 'e') exponent += atoi(at + 1);
    if (abs(exponent) > 22) return score; /* powers of ten that are not exact: no log probability is there */
    double power = 1;
    for (int i = 0; i < abs(exponent); i++) power *= 10;
    return copysign(exponent < 0 ? (double)digits / power : (double)digits * power, score);
}

static enum plim_status read_scores(struct unigram *m, const struct node *spec, const char *name,
                                    struct quota *quota, struct plim_error *err)
{
    const struct node *vocab = node_get(spec, "vocab"), *unk_score = node_get(spec, "unk_score");
    double least = INFINITY;
    m->size = node_count(vocab);
    if (!quota_take(quota, (m->size + 1) * sizeof *m->score)) return quota_fail(quota, name, err);
    m->score = malloc((m->size + 1) * sizeof *m->score);
    if (!m->score) return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for %zu scores", name, m->size);
    for (size_t i = 0; i < m->size; i++) {
        const struct node *item = node_item(vocab, i), *score = node_item(item, 1);
        bool never = m->single && score && score->kind == NODE_NULL;
        m->score[i] = never ? NEVER : node_float(score, NAN);
        if (!never && !isfinite(m->score[i]))
            return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: vocab: expected [text, score]", name, item->line);
        if (score->kind == NODE_FLOAT && !m->single) m->score[i] = as_the_reference_reads(m->score[i]);
        if (!never && m->score[i] < least) least = m->score[i];
    }
    m->unk_score = node_float(unk_score, least - UNK_PENALTY);
    return PLIM_OK;
}

static enum plim_status read_options(struct unigram *m, const struct node *spec, const char *name,
                                     struct plim_error *err)
{
    static const char *const refused[] = {"alpha", "nbest_size"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const struct node *option = node_get(spec, refused[i]);
        if (option && option->kind != NODE_NULL && node_float(option, 1.0) != 0)
            return plim_fail(err, PLIM_UNSUPPORTED, "%s:%d: model Unigram: '%s' is not supported", name,
                             option->line, refused[i]);
    }
    const struct node *unk = node_get(spec, "unk_id");
    int64_t id = -1;
    if (unk && unk->kind != NODE_NULL && (!node_is_whole(unk, &id) || id < 0 || (uint64_t)id >= m->size))
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: model Unigram: 'unk_id': expected an id below %zu",
                         name, unk->line, m->size);
    m->unk = (int32_t)id;
    m->byte_fallback = node_bool(node_get(spec, "byte_fallback"), false);
    for (unsigned i = 0; i < 256; i++) {
        char text[8];
        int len = snprintf(text, sizeof text, "<0x%02X>", i);
        m->byte_id[i] = token_vocab_id(m->base.vocab, text, (size_t)len);
    }
    return PLIM_OK;
}

enum plim_status model_unigram_build(const struct node *spec, const char *name,
                                     const struct token_vocab *vocab, struct quota *quota,
                                     struct token_model **out, struct plim_error *err)
{
    const struct node *list = node_get(spec, "vocab");
    *out = NULL;
    if (!list || list->kind != NODE_LIST)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: model Unigram: 'vocab': expected a list", name,
                         spec ? spec->line : 1);
    struct unigram *m = calloc(1, sizeof *m);
    if (!m) return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for the model", name);
    m->base = (struct token_model){&unigram_ops, vocab};
    m->single = node_bool(node_get(spec, "sentencepiece"), false);
    enum plim_status status = read_scores(m, spec, name, quota, err);
    if (status == PLIM_OK) status = read_options(m, spec, name, err);
    if (status == PLIM_OK) status = byte_trie_build(&m->trie, vocab, name, quota, err);
    if (status == PLIM_OK)
        *out = &m->base;
    else
        unigram_free(&m->base);
    return status;
}
