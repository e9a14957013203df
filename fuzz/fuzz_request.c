/* fuzz_request.c - any bytes as the body of a request: every form reads it or refuses it with a status, a message and, where a
 * parameter is at fault, its name; stop strings that were read are found wherever the text is cut. */
#include "base/json.h"
#include "serve/ask.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_refusal(const struct refusal *why)
{
    struct strbuf out = STRBUF_INIT;
    struct doc *doc = NULL;
    if (why->status != 400 && why->status != 422) abort();
    if (!why->message[0] || (why->status == 422 && !why->param[0])) abort();
    refusal_write(why, &out);
    if (json_parse(strbuf_text(&out), out.len, "refusal", &doc, NULL) != PLIM_OK) abort();
    doc_free(doc);
    strbuf_release(&out);
}

/* The text in pieces of `step` bytes; what came out, and the string that stopped it. */
static int run(const struct ask *ask, const char *text, size_t len, size_t step, struct strbuf *out)
{
    struct stop_text stop = {.strings = ask->stop, .count = ask->stops};
    int found = -1;
    for (size_t at = 0; at < len && found < 0; at += step)
        found = stop_text_add(&stop, text + at, len - at < step ? len - at : step, out);
    if (found < 0) stop_text_end(&stop, out);
    stop_text_release(&stop);
    return found;
}

/* The last bytes of the body are the text: stop strings stand near them. Forms that have read the same strings need one look. */
static void check_stops(const struct ask *ask, const char *text, size_t len)
{
    const size_t most = 256;
    struct strbuf whole = STRBUF_INIT, pieces = STRBUF_INIT;
    if (!ask->stops) return;
    if (len > most) text += len - most, len = most;
    int found = run(ask, text, len, len ? len : 1, &whole);
    for (size_t step = 1; step < 4; step++) {
        strbuf_clear(&pieces);
        if (run(ask, text, len, step, &pieces) != found || pieces.len != whole.len ||
            memcmp(strbuf_text(&pieces), strbuf_text(&whole), whole.len))
            abort();
    }
    strbuf_release(&whole);
    strbuf_release(&pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct quota quota = {.most = 32 << 20, .why = "the most for a request"};
    struct doc *doc = NULL;
    if (size > 4096 || json_parse_within((const char *)data, size, "body", &quota, &doc, NULL) != PLIM_OK)
        return 0;
    bool looked = false;
    for (int form = ASK_COMPLETION; form <= ASK_CLASSIFY; form <<= 1) {
        struct ask ask;
        struct refusal why = {0};
        if (!ask_read(&doc->root, (enum ask_form)form, &ask, &why))
            check_refusal(&why);
        else if (why.status || ask.n < 1 || ask.n > ASK_CHOICES || ask.logprobs > 20)
            abort();
        else if (!looked)
            check_stops(&ask, (const char *)data, size), looked = ask.stops > 0;
    }
    doc_free(doc);
    return 0;
}
