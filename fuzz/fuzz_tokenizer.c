/* fuzz_tokenizer.c - any bytes as a tokenizer.json, and after a NUL byte a text (without one: the input's own tail):
 * loaded, the text encoded and its ids decoded again, or refused with a line. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum { TAIL = 200 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was encoded can be decoded: every id is in the vocabulary. */
static void there_and_back(const struct tokenizer *tok, const char *text, size_t len, unsigned flags)
{
    struct encoder *enc = NULL;
    struct token_list ids = {0};
    struct strbuf out = STRBUF_INIT;
    struct plim_error err = {0};
    if (encoder_open(tok, &enc, &err) == PLIM_OK &&
        encoder_encode(enc, text, len, flags, &ids, &err) == PLIM_OK &&
        tokenizer_decode(tok, ids.id, ids.count, flags, &out, &err) == PLIM_BAD_INPUT)
        abort();
    strbuf_release(&out);
    token_list_release(&ids);
    encoder_close(enc);
}

/* Tokens that are located are those that are encoded, each with a place. */
static void located(const struct tokenizer *tok, const char *text, size_t len)
{
    struct encoder *enc = NULL;
    struct token_list ids = {0}, same = {0};
    struct span_list spans = {0};
    struct plim_error err = {0};
    if (encoder_open(tok, &enc, &err) == PLIM_OK &&
        encoder_locate(enc, text, len, &ids, &spans, &err) == PLIM_OK &&
        encoder_encode(enc, text, len, 0, &same, &err) == PLIM_OK) {
        if (ids.count != same.count || spans.count != ids.count) abort();
        if (ids.count && memcmp(ids.id, same.id, ids.count * sizeof *ids.id)) abort();
        for (size_t i = 0; i < spans.count; i++)
            if (spans.at[i].begin > spans.at[i].end || spans.at[i].end > len) abort();
    }
    token_list_release(&ids), token_list_release(&same), span_list_release(&spans);
    encoder_close(enc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *json = (const char *)data, *nul = size ? memchr(json, '\0', size) : NULL;
    size_t len = nul ? (size_t)(nul - json) : size, tail = size < TAIL ? size : TAIL;
    const char *text = nul ? nul + 1 : json + size - tail;
    size_t text_len = nul ? size - len - 1 : tail;
    struct tokenizer *tok = NULL;
    struct plim_error err = {0};
    if (tokenizer_parse(json, len, "fuzz", &tok, &err) != PLIM_OK) return 0;
    there_and_back(tok, text, text_len, TOKENIZE_SPECIAL);
    there_and_back(tok, text, text_len, TOKENIZE_SKIP_SPECIAL);
    located(tok, text, text_len);
    tokenizer_free(tok);
    return 0;
}
