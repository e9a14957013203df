/* token_text.c - see token_text.h. */
#include "text/token_text.h"

#include <string.h>

void token_text_init(struct token_text *t, const struct codec *codec)
{
    *t = (struct token_text){.codec = codec, .piece = STRBUF_INIT, .known = STRBUF_INIT};
}

void token_text_release(struct token_text *t)
{
    decoding_close(t->decoding);
    strbuf_release(&t->piece);
    strbuf_release(&t->known);
    *t = (struct token_text){.codec = t->codec};
}

static unsigned flags_of(const struct token_text *t) { return t->special ? 0 : TOKENIZE_SKIP_SPECIAL; }

static enum plim_status begin(struct token_text *t, struct plim_error *err)
{
    strbuf_clear(&t->piece);
    if (t->decoding) return PLIM_OK;
    return decoding_open(t->codec->tokenizer, flags_of(t), &t->decoding, err);
}

static size_t step(const char *text, size_t at, size_t len)
{
    for (at++; at < len && ((unsigned char)text[at] & 0xc0) == 0x80;) at++;
    return at;
}

/* The piece, less the characters that the prompt already ended with; from the first that differs on everything is new. */
static void hand_out(struct token_text *t, struct strbuf *out)
{
    const char *text = strbuf_text(&t->piece);
    size_t at = 0, len = t->piece.len;
    while (at < len && t->met < t->known.len) {
        size_t end = step(text, at, len), known = step(t->known.data, t->met, t->known.len);
        if (end - at != known - t->met || memcmp(text + at, t->known.data + t->met, end - at) != 0) {
            t->met = t->known.len;
            break;
        }
        at = end, t->met = known;
    }
    strbuf_addn(out, text + at, len - at);
}

enum plim_status token_text_follow(struct token_text *t, const int32_t *ids, size_t count,
                                   struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    if (!t->codec->tokenizer) return PLIM_OK;
    for (size_t i = 0; i < count && status == PLIM_OK; i++) {
        status = begin(t, err);
        if (status == PLIM_OK) status = decoding_add(t->decoding, ids[i], &t->piece, err);
    }
    return status == PLIM_OK && t->decoding ? decoding_tail(t->decoding, &t->known, err) : status;
}

enum plim_status token_text_add(struct token_text *t, int32_t token, struct strbuf *out,
                                struct plim_error *err)
{
    char bytes[BYTE_TEXT_MAX];
    if (!t->codec->tokenizer) {
        strbuf_addn(out, bytes, byte_text_add(&t->bytes, token, bytes));
        return strbuf_status(out, err);
    }
    enum plim_status status = begin(t, err);
    if (status == PLIM_OK) status = decoding_add(t->decoding, token, &t->piece, err);
    if (status != PLIM_OK) return status;
    hand_out(t, out);
    return strbuf_status(out, err);
}

enum plim_status token_text_end(struct token_text *t, struct strbuf *out, struct plim_error *err)
{
    char bytes[BYTE_TEXT_MAX];
    if (!t->codec->tokenizer) {
        strbuf_addn(out, bytes, byte_text_end(&t->bytes, bytes));
        return strbuf_status(out, err);
    }
    enum plim_status status = begin(t, err);
    if (status == PLIM_OK) status = decoding_end(t->decoding, &t->piece, err);
    if (status != PLIM_OK) return status;
    hand_out(t, out);
    return strbuf_status(out, err);
}

bool token_text_holds(const struct token_text *t)
{
    return t->bytes.count || (t->decoding && decoding_holds(t->decoding));
}

enum plim_status token_text_piece(const struct token_text *t, int32_t token, struct strbuf *out,
                                  struct plim_error *err)
{
    return codec_piece(t->codec, token, flags_of(t), out, err);
}
