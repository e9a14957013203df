/* encoder.c - text through the parts of a tokenizer, one thread's work.
 *
 *     input -> valid UTF-8 -> raw added tokens cut out -> normalizer -> normalized added tokens cut out
 *           -> pre-tokenizer -> model
 *
 * Nothing is copied that need not be: text that is valid, that the normalizer leaves alone and that the
 * pre-tokenizer does not rewrite reaches the model as ranges of the caller's bytes.
 */
#include "base/utf8.h"
#include "text/tokenizer/bytes_hash.h"
#include "text/tokenizer/text.h"
#include "text/tokenizer/tokenizer_impl.h"
#include "text/unicode.h"
#include <stdlib.h>

enum { KEEP_TEXT = 128 << 10, BUFFERS = 4 }; /* longer texts give their memory back */

struct encoder {
    const struct tokenizer *tok;
    struct encoder_room room;
    struct scratch_limit limit;
    void *scratch; /* the model's */
    struct pretok_run pre;
    struct strbuf clean, normal, spare, first;
    bool asks_start;
    size_t grown; /* bytes of a text that the normalizer made too many of; 0: it did not */
};

/* --- UTF-8 ------------------------------------------------------------------------------------------------- */

/* The end of what is valid from `at` on. */
static size_t valid_end(const char *text, size_t at, size_t len)
{
    while (at < len) {
        if (len - at >= 8 && !(bytes_hash_load(text + at) & 0x8080808080808080u)) {
            at += 8;
            continue;
        }
        uint32_t point;
        size_t n = (unsigned char)text[at] < 0x80 ? 1 : utf8_decode(text + at, len - at, &point);
        if (n == 0) break;
        at += n;
    }
    return at;
}

/* Bytes of the longest beginning of a character that text[at] holds, at least 1: it becomes one U+FFFD. */
static size_t bad_bytes(const char *text, size_t at, size_t len)
{
    const unsigned char *p = (const unsigned char *)text + at;
    size_t left = len - at, n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2, good = 1;
    if (p[0] < 0xc2 || p[0] > 0xf4 || left < 2) return 1;
    unsigned low = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
    unsigned high = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
    if (p[1] < low || p[1] > high) return 1;
    for (good = 2; good < n && good < left && (p[good] & 0xc0) == 0x80;) good++;
    return good;
}

static bool clean(struct encoder *enc, const char **text, size_t *len)
{
    size_t at = valid_end(*text, 0, *len);
    if (at == *len) return true;
    struct strbuf *out = &enc->clean;
    size_t before = scratch_begin(&enc->limit, out);
    strbuf_clear(out);
    for (size_t from = 0;;) {
        strbuf_addn(out, *text + from, at - from);
        if (at == *len) break;
        strbuf_addn(out, "\xef\xbf\xbd", 3);
        from = at + bad_bytes(*text, at, *len);
        at = valid_end(*text, from, *len);
    }
    *text = strbuf_text(out), *len = out->len;
    return scratch_end(&enc->limit, out, before);
}

/* --- the way through --------------------------------------------------------------------------------------- */

static bool add_id(struct token_list *out, int32_t id)
{
    if (!token_list_reserve(out, 1)) return false;
    out->id[out->count++] = id;
    return true;
}

/* A token that is found as it is written. */
static void span_hit(struct span_walk *walk, enum added_stage stage, const char *text,
                     const struct added_hit *hit)
{
    if (stage == ADDED_NORMALIZED) {
        span_range(walk, hit->start, hit->end);
        return;
    }
    size_t len = hit->end - hit->start;
    span_stretch(walk, text + hit->start, len, text + hit->start, len);
    span_range(walk, 0, len);
}

/* Runs `plain` on the text between added tokens; passes the added tokens through. */
static bool between_tokens(struct encoder *enc, enum added_stage stage, const char *text, size_t len,
                           bool at_start, bool (*plain)(struct encoder *, const char *, size_t, bool))
{
    const struct added_tokens *added = enc->tok->added;
    if (!added_tokens_any(added, stage)) return plain(enc, text, len, at_start);
    struct added_search search = {.text = text, .len = len};
    struct added_hit hit;
    size_t done = 0;
    while (added_next(added, stage, &search, &hit)) {
        if (done < hit.start && !plain(enc, text + done, hit.start - done, at_start && done == 0))
            return false;
        if (!add_id(enc->pre.sink.out, hit.id)) return false;
        if (enc->pre.walk) span_hit(enc->pre.walk, stage, text, &hit);
        done = hit.end;
    }
    return done >= len || plain(enc, text + done, len - done, at_start && done == 0);
}

static bool normalized(struct encoder *enc, const char *text, size_t len, bool at_start)
{
    return pretokenizer_run(enc->tok->pretokenizer, &enc->pre, text, len, at_start);
}

/* A normalizer writes into two buffers, and in between needs memory for two more at most. */
static bool normalize(struct encoder *enc, const char *text, size_t len, struct strbuf *out)
{
    size_t before = out->cap + enc->spare.cap, most = normalizer_most(len),
           left = scratch_left(&enc->limit) / BUFFERS;
    bool limited = left < most;
    out->most = enc->spare.most = limited ? left : most;
    normalizer_run(enc->tok->normalizer, text, len, out, &enc->spare);
    if (out->cap + enc->spare.cap > before) enc->limit.grown += out->cap + enc->spare.cap - before;
    enc->grown = out->full && !limited ? len : 0;
    enc->limit.full |= out->full && limited;
    return !out->failed;
}

/* A text whose first character the normalizer drops no longer begins the input. */
static bool keeps_first(struct encoder *enc, const char *text)
{
    size_t first = 0;
    text_point(text, &first);
    normalize(enc, text, first, &enc->first);
    return enc->first.len > 0;
}

static bool raw(struct encoder *enc, const char *text, size_t len, bool at_start)
{
    const struct normalizer *normalizer = enc->tok->normalizer;
    const char *given = text;
    size_t given_len = len;
    if (normalizer && !normalizer_is_identity(normalizer, text, len)) {
        if (enc->asks_start && at_start) at_start = keeps_first(enc, text);
        if (!normalize(enc, text, len, &enc->normal)) return false;
        text = strbuf_text(&enc->normal), len = enc->normal.len;
        if (len == 0) return true;
    }
    if (enc->pre.walk) span_stretch(enc->pre.walk, given, given_len, text, len);
    return between_tokens(enc, ADDED_NORMALIZED, text, len, at_start, normalized);
}

static bool add_ids(struct token_list *out, const int32_t *ids, size_t count)
{
    if (!token_list_reserve(out, count)) return false;
    if (count) memcpy(out->id + out->count, ids, count * sizeof *ids);
    out->count += count;
    return true;
}

static void give_back(struct encoder *enc)
{
    struct strbuf *all[BUFFERS] = {&enc->clean, &enc->normal, &enc->spare, &enc->first};
    for (int i = 0; i < BUFFERS; i++)
        if (all[i]->cap > enc->room.keep) strbuf_release(all[i]);
    pretok_run_trim(&enc->pre, enc->room.keep);
}

static enum plim_status refuse(const struct encoder *enc, size_t given, struct plim_error *err)
{
    if (enc->grown) return normalizer_fail(enc->grown, err);
    if (enc->limit.full)
        return plim_fail(err, PLIM_NO_FIT,
                         "a text of %zu bytes needs more than the %zu bytes of memory that it may take while "
                         "it is tokenized; send shorter texts",
                         given, enc->limit.most);
    return plim_fail(err, PLIM_NO_MEMORY, "no memory to encode a text of %zu bytes", given);
}

static void begin(struct encoder *enc, struct token_list *out)
{
    enc->pre.sink.out = out;
    enc->grown = enc->limit.grown = 0;
    enc->limit.full = false;
}

static bool run(struct encoder *enc, const char *text, size_t len)
{
    return len == 0 || between_tokens(enc, ADDED_RAW, text, len, true, raw);
}

enum plim_status encoder_encode(struct encoder *enc, const char *text, size_t len, unsigned flags,
                                struct token_list *out, struct plim_error *err)
{
    const int32_t *before = NULL, *after = NULL;
    size_t nbefore = 0, nafter = 0, count = out->count, given = len;
    if (flags & TOKENIZE_SPECIAL) postproc_single(enc->tok->postproc, &before, &nbefore, &after, &nafter);
    if (!(flags & TOKENIZE_BEFORE)) nbefore = 0;
    if (!(flags & TOKENIZE_AFTER)) nafter = 0;
    begin(enc, out);
    bool fine = add_ids(out, before, nbefore) && clean(enc, &text, &len) && run(enc, text, len) &&
                add_ids(out, after, nafter);
    if (given > enc->room.keep / 8) give_back(enc);
    if (fine) return PLIM_OK;
    out->count = count;
    return refuse(enc, given, err);
}

/* White space that a token in the byte alphabet begins or ends with is not part of it. */
static bool is_blank(const char *text, size_t at)
{
    size_t len = 0;
    uint32_t point = text_point(text + at, &len);
    return point == 0x120 || unicode_is_space(point);
}

static void trim(const char *text, size_t len, bool keeps_first, struct token_span *span)
{
    size_t leading = 0, trailing = 0;
    for (size_t at = 0; at < len && is_blank(text, at); leading++) text_point(text + at, &at);
    for (size_t at = len; at > 0 && is_blank(text, text_before(text, at)); trailing++)
        at = text_before(text, at);
    if (leading == 1 && keeps_first) leading = 0;
    if (span->begin + leading > span->end)
        span->begin = span->end;
    else
        span->begin += (uint32_t)leading;
    if (span->end >= trailing && trailing)
        span->end = span->end - trailing > span->begin ? span->end - (uint32_t)trailing : span->begin;
}

/* Bytes of `text` from its character `from` to `to`; *at is the byte of `from` then. */
static size_t characters(const char *text, size_t *at, size_t *point, size_t to)
{
    size_t begin = *at, end = begin;
    for (size_t i = *point; i < to; i++) text_point(text + end, &end);
    *at = end, *point = to;
    return end - begin;
}

/* An added token is what was found in the text, with the white space that it took along; others are as the vocabulary has them. */
static void trim_all(const struct tokenizer *tok, const char *text, const int32_t *ids,
                     struct token_span *spans, size_t count)
{
    bool prefix;
    size_t at = 0, point = 0, len = 0;
    if (!postproc_trims(tok->postproc, &prefix)) return;
    for (size_t i = 0; i < count; i++) {
        const char *token = token_vocab_text(tok->vocab, ids[i], &len);
        if (added_tokens_text(tok->added, ids[i], NULL)) {
            characters(text, &at, &point, spans[i].begin);
            token = text + at;
            len = characters(text, &at, &point, spans[i].end);
        }
        trim(token, len, prefix && (i == 0 || spans[i].begin == 0), &spans[i]);
    }
}

enum plim_status encoder_locate(struct encoder *enc, const char *text, size_t len, struct token_list *out,
                                struct span_list *spans, struct plim_error *err)
{
    size_t count = out->count, had = spans->count, given = len;
    struct span_walk walk;
    begin(enc, out);
    bool fine = clean(enc, &text, &len);
    span_begin(&walk, enc->tok->normalizer, enc->tok->model, text, spans);
    enc->pre.walk = &walk;
    fine = fine && run(enc, text, len) && !walk.failed;
    enc->pre.walk = NULL;
    bool lost = walk.lost || out->count - count != spans->count - had;
    span_end(&walk);
    if (fine && !lost) trim_all(enc->tok, text, out->id + count, spans->at + had, out->count - count);
    if (given > enc->room.keep / 8) give_back(enc);
    if (fine && !lost) return PLIM_OK;
    out->count = count, spans->count = had;
    if (!fine) return refuse(enc, given, err);
    return plim_fail(err, PLIM_UNSUPPORTED,
                     "where tokens of a text come from is not known with this tokenizer (%s); WordPiece and "
                     "byte-level BPE are supported",
                     tokenizer_kind(enc->tok));
}

enum plim_status encoder_open_within(const struct tokenizer *tok, const struct encoder_room *room,
                                     struct encoder **out, struct plim_error *err)
{
    const struct token_model_ops *ops = tok->model->ops;
    struct encoder *enc = calloc(1, sizeof *enc);
    *out = NULL;
    if (!enc) return plim_fail(err, PLIM_NO_MEMORY, "no memory for an encoder");
    pretok_run_init(&enc->pre, &enc->limit);
    enc->tok = tok, enc->room = *room;
    enc->asks_start = pretokenizer_asks_start(tok->pretokenizer);
    if (ops->scratch_open && !(enc->scratch = ops->scratch_open(tok->model, room, &enc->limit))) {
        encoder_close(enc);
        return plim_fail(err, PLIM_NO_MEMORY, "no memory for an encoder");
    }
    enc->pre.sink.model = tok->model;
    enc->pre.sink.scratch = enc->scratch;
    *out = enc;
    return PLIM_OK;
}

void encoder_close(struct encoder *enc)
{
    if (!enc) return;
    if (enc->scratch && enc->tok->model->ops->scratch_close)
        enc->tok->model->ops->scratch_close(enc->scratch);
    pretok_run_release(&enc->pre);
    strbuf_release(&enc->clean);
    strbuf_release(&enc->normal);
    strbuf_release(&enc->spare);
    strbuf_release(&enc->first);
    free(enc);
}

static const struct encoder_room usual = {ENCODER_CACHE, KEEP_TEXT};

enum plim_status encoder_open(const struct tokenizer *tok, struct encoder **out, struct plim_error *err)
{
    return encoder_open_within(tok, &usual, out, err);
}

void encoder_limit(struct encoder *enc, size_t bytes) { enc->limit.most = bytes; }

size_t encoder_room_bytes(const struct tokenizer *tok, const struct encoder_room *room)
{
    const struct token_model_ops *ops = tok->model->ops;
    size_t steps = tok->pretokenizer ? tok->pretokenizer->count : 0;
    return sizeof(struct encoder) + (ops->scratch_bytes ? ops->scratch_bytes(tok->model, room) : 0) +
           (BUFFERS + 4 * steps) * room->keep;
}

size_t encoder_bytes_most(const struct tokenizer *tok, size_t longest)
{
    return encoder_room_bytes(tok, &usual) + (tok->normalizer ? 2 * normalizer_most(longest) : 2 * longest);
}
