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
    tokenizer_free(tok);
    return 0;
}
