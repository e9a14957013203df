/* decoder_piece.c - one token as it stands inside a text. What decoding does to the ends of a text is left out, and bytes
 * that are only a part of a character stay bytes. */
#include "text/tokenizer/decoder_part.h"
#include "base/utf8.h"
#include <string.h>

void decoder_byte_level_piece(const struct decoder_step *, struct token_bytes token, struct strbuf *out)
{
    if (!decoder_add_alphabet(out, token)) strbuf_addn(out, token.text, token.len);
}

void decoder_byte_fallback_piece(const struct decoder_step *, struct token_bytes token, struct strbuf *out)
{
    int byte = decoder_fallback_byte(token);
    if (byte >= 0)
        strbuf_addc(out, (char)byte);
    else
        strbuf_addn(out, token.text, token.len);
}

/* The step's text becomes a blank wherever it stands. */
void decoder_blank_piece(const struct decoder_step *step, struct token_bytes token, struct strbuf *out)
{
    char blank[] = " ";
    struct text_replace r = {
        .pattern = step->text, .pattern_len = step->len, .content = blank, .content_len = 1};
    text_replace_run(&r, token.text, token.len, out);
}

void decoder_wordpiece_piece(const struct decoder_step *step, struct token_bytes token, struct strbuf *out)
{
    STRBUF_AUTO spare = STRBUF_INIT;
    bool inner = token.len >= step->len && memcmp(token.text, step->text, step->len) == 0;
    size_t skip = inner ? step->len : 0;
    if (!inner) strbuf_addc(out, ' ');
    strbuf_addn(out, token.text + skip, token.len - skip);
    if (step->flag) decoder_clean_up(out, &spare);
}

void decoder_strip_piece(const struct decoder_step *step, struct token_bytes token, struct strbuf *out)
{
    struct token_bytes t = token;
    for (size_t n = 0; n < step->start && t.len >= step->len && !memcmp(t.text, step->text, step->len); n++)
        t.text += step->len, t.len -= step->len;
    for (size_t n = 0;
         n < step->stop && t.len >= step->len && !memcmp(t.text + t.len - step->len, step->text, step->len);
         n++)
        t.len -= step->len;
    strbuf_addn(out, t.text, t.len);
}

void decoder_replace_piece(const struct decoder_step *step, struct token_bytes token, struct strbuf *out)
{
    text_replace_run(&step->replace, token.text, token.len, out);
}

/* After these all tokens are one text, whose ends are stripped: not those of a token. */
static bool joins(const struct decoder_kind *kind)
{
    return kind->close == decoder_fuse_close || kind->close == decoder_byte_level_close;
}

enum plim_status token_decoder_piece(const struct token_decoder *d, struct token_bytes token,
                                     struct strbuf *out, struct plim_error *err)
{
    STRBUF_AUTO now = STRBUF_INIT, next = STRBUF_INIT;
    bool joined = false;
    if (!d) strbuf_addc(&now, ' ');
    strbuf_addn(&now, token.text, token.len);
    for (size_t i = 0; d && i < d->count && !now.failed; i++) {
        const struct decoder_kind *kind = d->step[i].kind;
        bool end = joined && kind->close == decoder_strip_close;
        joined = joined || joins(kind);
        if (!kind->piece || end) continue;
        if (utf8_valid_prefix(strbuf_text(&now), now.len) != now.len) break; /* no text any more */
        strbuf_clear(&next);
        next.most = decoder_most(token.len);
        kind->piece(&d->step[i], (struct token_bytes){strbuf_text(&now), now.len}, &next);
        struct strbuf swap = now;
        now = next, next = swap;
    }
    enum plim_status status = strbuf_status(&now, err);
    if (status == PLIM_OK) strbuf_addn(out, strbuf_text(&now), now.len);
    return status == PLIM_OK ? strbuf_status(out, err) : status;
}
