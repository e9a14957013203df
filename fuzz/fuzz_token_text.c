/* fuzz_token_text.c - any bytes as a tokenizer.json, and after a NUL byte ids, one a byte, of which the first says where
 * the prompt ends: what is streamed after the prompt is the decoded text of all of them, less what it has in common with
 * that of the prompt. */
#include "text/token_text.h"

#include <stdlib.h>
#include <string.h>

enum { IDS = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool stream(const struct codec *codec, const int32_t *ids, size_t prompt, size_t count,
                   struct strbuf *out)
{
    struct plim_error err = {0};
    struct token_text text;
    token_text_init(&text, codec);
    bool good = token_text_follow(&text, ids, prompt, &err) == PLIM_OK;
    for (size_t i = prompt; i < count && good; i++)
        good = token_text_add(&text, ids[i], out, &err) == PLIM_OK;
    good = good && token_text_end(&text, out, &err) == PLIM_OK;
    token_text_release(&text);
    return good;
}

static void check(const struct codec *codec, const int32_t *ids, size_t prompt, size_t count)
{
    struct strbuf before = STRBUF_INIT, all = STRBUF_INIT, out = STRBUF_INIT;
    struct plim_error err = {0};
    size_t n = 0;
    if (stream(codec, ids, prompt, count, &out) &&
        tokenizer_decode(codec->tokenizer, ids, prompt, TOKENIZE_SKIP_SPECIAL, &before, &err) == PLIM_OK &&
        tokenizer_decode(codec->tokenizer, ids, count, TOKENIZE_SKIP_SPECIAL, &all, &err) == PLIM_OK) {
        while (n < before.len && n < all.len && before.data[n] == all.data[n]) n++;
        while (n && n < all.len && ((unsigned char)all.data[n] & 0xc0) == 0x80) n--;
        if (out.len != all.len - n || (out.len && memcmp(out.data, all.data + n, out.len) != 0)) abort();
    }
    strbuf_release(&before);
    strbuf_release(&all);
    strbuf_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *json = (const char *)data, *nul = size ? memchr(json, '\0', size) : NULL;
    struct codec codec = {.eos = -1};
    struct plim_error err = {0};
    int32_t ids[IDS];
    size_t count = 0;
    if (!nul || tokenizer_parse(json, (size_t)(nul - json), "fuzz", &codec.tokenizer, &err) != PLIM_OK)
        return 0;
    int64_t vocab = tokenizer_vocab_size(codec.tokenizer);
    const uint8_t *end = data + size, *at = (const uint8_t *)nul + 1;
    size_t prompt = at < end ? *at++ : 0;
    for (; at < end && count < IDS && vocab; at++) ids[count++] = (int32_t)(*at % vocab);
    check(&codec, ids, count ? prompt % (count + 1) : 0, count);
    tokenizer_free(codec.tokenizer);
    return 0;
}
