/* model_bpe.c - byte pair encoding of one piece.
 *
 * A piece becomes first-level symbols (bytes or characters), which join by rank (bpe_merges.h). Text repeats
 * itself, so every thread keeps the ids of words it has seen (word_cache.h); a hit is one hash, one compare and
 * one copy. SentencePiece vocabularies do not cut text into words beforehand: where their merges prove that
 * nothing joins across a word's beginning, `cut_words` does it here, and the cache works for them as well.
 */
#include "text/tokenizer/model_bpe.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/word_cache.h"

static const char word_mark[] = "\xe2\x96\x81"; /* U+2581 */
enum { WORD_MARK = sizeof word_mark - 1 };

struct bpe_scratch {
    struct word_cache *cache;
    struct scratch_limit *limit;
    size_t keep; /* bytes; larger buffers are given back */
    struct bpe_work work;
    int32_t *symbol;
    size_t count, cap;
    struct strbuf text; /* a symbol with its affixes; a word in the byte alphabet */
    bool failed;
};

static const struct model_bpe *bpe_of(const struct token_model *model)
{
    return (const struct model_bpe *)(const void *)model;
}

static void add_symbol(struct bpe_scratch *s, int32_t id)
{
    if (s->count == s->cap) {
        size_t cap = s->cap ? scratch_more(s->cap) : 256;
        bool may = scratch_take(s->limit, (cap - s->cap) * sizeof *s->symbol);
        int32_t *grown = may ? realloc(s->symbol, cap * sizeof *grown) : NULL;
        if (!grown) {
            s->failed = true;
            return;
        }
        s->symbol = grown, s->cap = cap;
    }
    s->symbol[s->count++] = id;
}

static bool add_byte_tokens(const struct model_bpe *m, struct bpe_scratch *s, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (m->byte_id[(unsigned char)text[i]] < 0) return false;
    for (size_t i = 0; i < len; i++) add_symbol(s, m->byte_id[(unsigned char)text[i]]);
    return true;
}

/* Text of one first-level symbol, affixes included, and its id. */
static int32_t symbol_with_affixes(const struct model_bpe *m, struct bpe_scratch *s, const char *text,
                                   size_t len, bool first, bool last)
{
    strbuf_clear(&s->text);
    if (!first) strbuf_addn(&s->text, strbuf_text(&m->prefix), m->prefix.len);
    strbuf_addn(&s->text, text, len);
    if (last) strbuf_addn(&s->text, strbuf_text(&m->suffix), m->suffix.len);
    s->failed |= s->text.failed;
    return token_vocab_id(m->base.vocab, strbuf_text(&s->text), s->text.len);
}

static int32_t symbol_of(const struct model_bpe *m, const char *text, size_t len)
{
    uint32_t point = 0;
    utf8_decode(text, len, &point);
    return point < BPE_POINTS ? m->point_id[point] : token_vocab_id(m->base.vocab, text, len);
}

/* Unknown characters wait in `unknown` until a known one comes, so that a run of them can become one token. */
static void add_unknown(const struct model_bpe *m, struct bpe_scratch *s, bool *unknown)
{
    if (m->unk < 0) return;
    if (*unknown && !m->fuse_unk) add_symbol(s, m->unk);
    *unknown = true;
}

static size_t point_bytes(unsigned char lead)
{
    return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

static void characters(const struct model_bpe *m, struct bpe_scratch *s, const char *word, size_t len)
{
    bool unknown = false;
    for (size_t at = 0, n; at < len; at += n) {
        n = point_bytes((unsigned char)word[at]);
        const char *text = word + at;
        size_t text_len = n;
        int32_t id;
        if (m->point_id) {
            id = symbol_of(m, text, n);
        } else {
            id = symbol_with_affixes(m, s, text, n, at == 0, at + n == len);
            text = strbuf_text(&s->text), text_len = s->text.len;
        }
        if (id >= 0) {
            if (unknown) add_symbol(s, m->unk);
            unknown = false;
            add_symbol(s, id);
        } else if (!m->byte_fallback || !add_byte_tokens(m, s, text, text_len)) {
            add_unknown(m, s, &unknown);
        }
    }
    if (unknown) add_symbol(s, m->unk);
}

static void bytes(const struct model_bpe *m, struct bpe_scratch *s, const char *word, size_t len)
{
    bool unknown = false;
    for (size_t i = 0; i < len; i++) {
        int32_t id = m->byte_id[(unsigned char)word[i]];
        if (id < 0) {
            add_unknown(m, s, &unknown);
            continue;
        }
        if (unknown) add_symbol(s, m->unk);
        unknown = false;
        add_symbol(s, id);
    }
    if (unknown) add_symbol(s, m->unk);
}

/* The word as a token of its own, or -1. */
static int32_t whole_word(const struct model_bpe *m, struct bpe_scratch *s, const char *word, size_t len)
{
    if (!m->byte_level) return token_vocab_id(m->base.vocab, word, len);
    strbuf_clear(&s->text);
    size_t before = scratch_begin(s->limit, &s->text);
    strbuf_reserve(&s->text, BYTE_ALPHABET_MOST * len);
    if (!scratch_end(s->limit, &s->text, before)) {
        s->failed = true;
        return -1;
    }
    size_t n = byte_alphabet_write(word, len, s->text.data);
    return token_vocab_id(m->base.vocab, s->text.data, n);
}

static void join(const struct model_bpe *m, struct bpe_scratch *s)
{
    size_t held = bpe_work_bytes(s->work.room);
    s->work.most = s->limit->most ? held + scratch_left(s->limit) : 0;
    s->count = bpe_merges_run(m->merges, &s->work, s->symbol, s->count);
    size_t holds = bpe_work_bytes(s->work.room);
    if (holds > held) s->limit->grown += holds - held;
    s->limit->full |= s->work.full;
}

/* The ids of a word that is not in the cache: s->symbol[0..s->count). */
static bool work_out(const struct model_bpe *m, struct bpe_scratch *s, const char *word, size_t len)
{
    s->count = 0, s->failed = false;
    int32_t whole = m->ignore_merges ? whole_word(m, s, word, len) : -1;
    if (whole >= 0) {
        add_symbol(s, whole);
    } else {
        (m->byte_level ? bytes : characters)(m, s, word, len);
        if (!s->failed) join(m, s);
    }
    return !s->failed && s->count != SIZE_MAX;
}

static void give_back(struct bpe_scratch *s)
{
    if (s->cap * sizeof *s->symbol > s->keep) {
        free(s->symbol);
        s->symbol = NULL, s->cap = 0;
    }
    if (bpe_work_bytes(s->work.room) > s->keep) bpe_work_release(&s->work);
    if (s->text.cap > s->keep) strbuf_release(&s->text);
}

static bool encode_new(const struct model_bpe *m, struct bpe_scratch *s, const char *word, size_t len,
                       struct token_list *out)
{
    bool fine = work_out(m, s, word, len) && token_list_reserve(out, s->count);
    if (fine && s->count) memcpy(out->id + out->count, s->symbol, s->count * sizeof *s->symbol);
    if (fine) out->count += s->count;
    return fine;
}

static bool encode_word(const struct model_bpe *m, struct bpe_scratch *s, const char *word, size_t len,
                        struct token_list *out)
{
    if (len > WORD_KEY_MOST) {
        bool fine = encode_new(m, s, word, len, out);
        give_back(s);
        return fine;
    }
    if (out->cap - out->count < WORD_IDS_MOST && !token_list_reserve(out, WORD_IDS_MOST)) return false;
    uint64_t hash = word_cache_hash(word, len);
    const struct word_entry *hit = word_cache_find(s->cache, hash, word, len);
    if (hit) {
        memcpy(out->id + out->count, hit->id, sizeof hit->id); /* always all of it: one copy without a loop */
        out->count += hit->count;
        return true;
    }
    if (!encode_new(m, s, word, len, out)) return false;
    word_cache_put(s->cache, hash, word, len, s->symbol, s->count);
    return true;
}

static bool is_mark(const char *piece, size_t len, size_t at)
{
    return at + WORD_MARK <= len && piece[at + 1] == word_mark[1] && piece[at + 2] == word_mark[2];
}

/* Where the word that starts at `at` ends: before a mark that follows something else, or at a cut. */
static size_t word_end(const struct model_bpe *m, const char *piece, size_t len, size_t at)
{
    while (at < len && piece[at] == word_mark[0] && is_mark(piece, len, at)) at += WORD_MARK;
    unsigned char left = 0xff, right;
    for (; at < len; at++, left = right) {
        right = (unsigned char)piece[at];
        if (right >= 0x80) {
            if (piece[at] == word_mark[0] && is_mark(piece, len, at)) return at;
        } else if (left < 0x80 && m->cut[left][right >> 6] >> (right & 63) & 1) {
            return at;
        }
    }
    return len;
}

static bool encode_text(const struct model_bpe *m, void *scratch, const char *piece, size_t len,
                        struct token_list *out)
{
    if (!m->cut_words) return encode_word(m, scratch, piece, len, out);
    for (size_t at = 0, end; at < len; at = end) {
        end = word_end(m, piece, len, at);
        if (!encode_word(m, scratch, piece + at, end - at, out)) return false;
    }
    return true;
}

static bool bpe_encode(const struct token_model *model, void *scratch, const char *piece, size_t len,
                       struct token_list *out)
{
    const struct model_bpe *m = bpe_of(model);
    struct added_search search = {.text = piece, .len = len};
    struct added_hit hit;
    size_t done = 0;
    while (m->symbols && added_next(m->symbols, ADDED_RAW, &search, &hit)) {
        if (done < hit.start && !encode_text(m, scratch, piece + done, hit.start - done, out)) return false;
        if (!token_list_reserve(out, 1)) return false;
        out->id[out->count++] = hit.id;
        done = hit.end;
    }
    return done == len || encode_text(m, scratch, piece + done, len - done, out);
}

static void *bpe_scratch_open(const struct token_model *, const struct encoder_room *room,
                              struct scratch_limit *limit)
{
    struct bpe_scratch *s = calloc(1, sizeof *s);
    if (s) s->limit = limit, s->keep = room->keep, s->cache = word_cache_open(room->cache);
    if (s && s->cache) return s;
    free(s);
    return NULL;
}

static void bpe_scratch_close(void *scratch)
{
    struct bpe_scratch *s = scratch;
    if (!s) return;
    free(s->cache);
    free(s->symbol);
    bpe_work_release(&s->work);
    strbuf_release(&s->text);
    free(s);
}

static void bpe_free(struct token_model *model)
{
    struct model_bpe *m = (struct model_bpe *)(void *)model;
    bpe_merges_free(m->merges);
    added_tokens_free(m->symbols);
    strbuf_release(&m->prefix);
    strbuf_release(&m->suffix);
    free(m->point_id);
    free(m);
}

static size_t bpe_bytes(const struct token_model *model)
{
    const struct model_bpe *m = bpe_of(model);
    size_t points = m->point_id ? BPE_POINTS * sizeof *m->point_id : 0;
    size_t symbols = m->symbols ? added_tokens_bytes(m->symbols) : 0;
    return sizeof *m + points + symbols + m->prefix.cap + m->suffix.cap + bpe_merges_bytes(m->merges);
}

/* A token in the byte alphabet has a character for each byte. */
static size_t bpe_covers(const struct token_model *model, int32_t id, bool)
{
    const struct model_bpe *m = bpe_of(model);
    size_t len = 0, points = 0;
    const char *text = token_vocab_text(model->vocab, id, &len);
    if (!text || id == m->unk || m->prefix.len || m->suffix.len || m->byte_fallback) return 0;
    for (size_t i = 0; i < len; i++) points += ((unsigned char)text[i] & 0xc0) != 0x80;
    return m->byte_level ? points : len;
}

static size_t bpe_scratch_bytes(const struct token_model *, const struct encoder_room *room)
{
    return sizeof(struct bpe_scratch) + word_cache_bytes(room->cache) + 3 * room->keep;
}

const struct token_model_ops model_bpe_ops = {
    .kind = "BPE",
    .free = bpe_free,
    .scratch_open = bpe_scratch_open,
    .scratch_close = bpe_scratch_close,
    .encode = bpe_encode,
    .bytes = bpe_bytes,
    .covers = bpe_covers,
    .scratch_bytes = bpe_scratch_bytes,
};
