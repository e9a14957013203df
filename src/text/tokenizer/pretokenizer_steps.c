/* pretokenizer_steps.c - the steps that rewrite text (ByteLevel, Metaspace) and those with a rule of their own. */
#define _GNU_SOURCE /* memmem */
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/pretokenizer.h"
#include "text/tokenizer/text.h"
#include "text/unicode.h"
#include <string.h>

/* The text with a blank before it, in the step's buffer; false: out of memory. */
static bool with_blank(struct pretok_run *run, size_t step, struct pretok_text *text)
{
    struct strbuf *out = &run->step[step].text;
    size_t before = scratch_begin(run->limit, out);
    strbuf_clear(out);
    strbuf_addc(out, ' ');
    strbuf_addn(out, text->at, text->len);
    if (run->walk) span_blank(run->walk, text->at, strbuf_text(out), out->len);
    text->at = strbuf_text(out), text->len = out->len;
    return scratch_end(run->limit, out, before);
}

static bool pass_bytes(const struct pretokenizer *p, struct pretok_run *run, size_t step,
                       struct pretok_text piece)
{
    if (p->step[step].raw) return pretok_pass(p, run, step, piece);
    struct strbuf *out = &run->step[step].piece;
    strbuf_clear(out);
    size_t before = scratch_begin(run->limit, out);
    strbuf_reserve(out, BYTE_ALPHABET_MOST * piece.len);
    if (!scratch_end(run->limit, out, before)) return false;
    piece.len = byte_alphabet_write(piece.at, piece.len, out->data);
    piece.at = out->data;
    return pretok_pass(p, run, step, piece);
}

bool pretok_byte_level(const struct pretokenizer *p, struct pretok_run *run, size_t step,
                       struct pretok_text text)
{
    const struct pretok_step *s = &p->step[step];
    if (s->prefix == PRETOK_ALWAYS && text.at[0] != ' ' && !with_blank(run, step, &text)) return false;
    if (!s->split) return pass_bytes(p, run, step, text);
    for (size_t at = 0, end; at < text.len; at = end) {
        end = scan_gpt2(text.at, at, text.len);
        struct pretok_text piece = {text.at + at, end - at, text.first && at == 0};
        if (!pass_bytes(p, run, step, piece)) return false;
    }
    return true;
}

/* Blanks become the replacement, with one before the text where the scheme says so. */
static void replace_blanks(const struct pretok_step *s, struct strbuf *out, struct pretok_text text)
{
    bool begins =
        text.at[0] == ' ' || (text.len >= s->string_len && memcmp(text.at, s->string, s->string_len) == 0);
    bool wanted = s->prefix == PRETOK_ALWAYS || (s->prefix == PRETOK_FIRST && text.first);
    strbuf_clear(out);
    if (wanted && !begins) strbuf_addn(out, s->string, s->string_len);
    const char *at = text.at, *end = at + text.len, *blank;
    while ((blank = memchr(at, ' ', (size_t)(end - at)))) {
        strbuf_addn(out, at, (size_t)(blank - at));
        strbuf_addn(out, s->string, s->string_len);
        at = blank + 1;
    }
    strbuf_addn(out, at, (size_t)(end - at));
}

bool pretok_metaspace(const struct pretokenizer *p, struct pretok_run *run, size_t step,
                      struct pretok_text text)
{
    const struct pretok_step *s = &p->step[step];
    struct strbuf *out = &run->step[step].text;
    size_t before = scratch_begin(run->limit, out);
    replace_blanks(s, out, text);
    if (!scratch_end(run->limit, out, before)) return false;
    struct pretok_text all = {strbuf_text(out), out->len, text.first};
    if (!s->split) return pretok_pass(p, run, step, all);
    for (size_t at = 0, end; at < all.len; at = end) { /* each replacement begins a piece */
        size_t skip = 0;
        text_point(all.at + at, &skip);
        const char *next = memmem(all.at + at + skip, all.len - at - skip, s->string, s->string_len);
        end = next ? (size_t)(next - all.at) : all.len;
        struct pretok_text piece = {all.at + at, end - at, all.first && at == 0};
        if (!pretok_pass(p, run, step, piece)) return false;
    }
    return true;
}

/* A blank is added whatever the text begins with. */
bool pretok_dummy_prefix(const struct pretokenizer *p, struct pretok_run *run, size_t step,
                         struct pretok_text text)
{
    const struct pretok_step *s = &p->step[step];
    struct strbuf *out = &run->step[step].text;
    if (s->prefix == PRETOK_FIRST && !text.first) return pretok_pass(p, run, step, text);
    strbuf_clear(out);
    if (!s->behind) strbuf_addn(out, s->string, s->string_len);
    strbuf_addn(out, text.at, text.len);
    if (s->behind) strbuf_addn(out, s->string, s->string_len);
    struct pretok_text all = {strbuf_text(out), out->len, text.first};
    return !out->failed && pretok_pass(p, run, step, all);
}

enum word_kind { WORD_SPACE, WORD_WORD, WORD_OTHER };

static enum word_kind word_kind(uint32_t point)
{
    return unicode_is_word(point) ? WORD_WORD : unicode_is_space(point) ? WORD_SPACE : WORD_OTHER;
}

/* \w+|[^\w\s]+ */
bool pretok_words(const struct pretokenizer *p, struct pretok_run *run, size_t step, struct pretok_text text)
{
    for (size_t at = 0, end; at < text.len; at = end) {
        end = at;
        enum word_kind kind = word_kind(text_point(text.at + at, &end));
        for (size_t next = end; next < text.len; end = next)
            if (word_kind(text_point(text.at + end, &next)) != kind) break;
        struct pretok_text piece = {text.at + at, end - at, text.first && at == 0};
        if (kind != WORD_SPACE && !pretok_pass(p, run, step, piece)) return false;
    }
    return true;
}

bool pretok_fixed(const struct pretokenizer *p, struct pretok_run *run, size_t step, struct pretok_text text)
{
    for (size_t at = 0, end; at < text.len; at = end) {
        end = at;
        for (size_t i = 0; i < p->step[step].length && end < text.len; i++) text_point(text.at + end, &end);
        struct pretok_text piece = {text.at + at, end - at, text.first && at == 0};
        if (!pretok_pass(p, run, step, piece)) return false;
    }
    return true;
}
