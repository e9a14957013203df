/* bench_token_text.c - generated text as it comes, fed through a pipe; for comparing with other implementations
 * (tests/golden/tokenizer/check_stream.py).
 *
 *     bench_token_text tokenizer.json < records > results
 *
 * A record is how many of its ids are the prompt, how many ids there are (u32 each), and the ids. A result is the text that
 * follows the prompt: its length (u32) and its bytes. Numbers are in the machine's order.
 */
#include "text/token_text.h"
#include <stdio.h>
#include <stdlib.h>

static bool read_number(uint32_t *number) { return fread(number, sizeof *number, 1, stdin) == 1; }

static enum plim_status answer(const struct codec *codec, const int32_t *ids, size_t prompt, size_t count,
                               struct strbuf *out, struct plim_error *err)
{
    struct token_text text;
    token_text_init(&text, codec);
    enum plim_status status = token_text_follow(&text, ids, prompt, err);
    for (size_t i = prompt; i < count && status == PLIM_OK; i++)
        status = token_text_add(&text, ids[i], out, err);
    if (status == PLIM_OK) status = token_text_end(&text, out, err);
    token_text_release(&text);
    return status;
}

int main(int argc, char **argv)
{
    struct plim_error err = {0};
    struct codec codec;
    uint32_t prompt, count;
    enum plim_status status = codec_open(argc == 2 ? argv[1] : "bytes", &codec, &err);
    while (status == PLIM_OK && read_number(&prompt) && read_number(&count)) {
        struct strbuf out = STRBUF_INIT;
        int32_t *ids = malloc((count + 1) * sizeof *ids);
        if (!ids || prompt > count || fread(ids, sizeof *ids, count, stdin) != count) return 2;
        status = answer(&codec, ids, prompt, count, &out, &err);
        uint32_t len = (uint32_t)out.len;
        fwrite(&len, sizeof len, 1, stdout);
        fwrite(strbuf_text(&out), 1, len, stdout);
        strbuf_release(&out);
        free(ids);
    }
    if (status != PLIM_OK) fprintf(stderr, "bench_token_text: %s\n", err.text);
    codec_close(&codec);
    return status == PLIM_OK ? 0 : 2;
}
