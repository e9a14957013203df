/* token_text.c - see token_text.h. The last tokens that are out stay in the list as context for those that follow:
 * what is new is the text of all of them less the text of the old ones. */
#include "text/token_text.h"

#include <string.h>

void token_text_init(struct token_text *t, const struct codec *codec)
{
    *t = (struct token_text){.codec = codec, .now = STRBUF_INIT, .before = STRBUF_INIT};
}

void token_text_release(struct token_text *t)
{
    token_list_release(&t->ids);
    strbuf_release(&t->now);
    strbuf_release(&t->before);
}

static enum plim_status decode(const struct token_text *t, size_t count, struct strbuf *out,
                               struct plim_error *err)
{
    strbuf_clear(out);
    return tokenizer_decode(t->codec->tokenizer, t->ids.id, count, TOKENIZE_SKIP_SPECIAL, out, err);
}

static bool ends_unfinished(const struct strbuf *text)
{
    return text->len >= 3 && !memcmp(text->data + text->len - 3, "\xEF\xBF\xBD", 3);
}

/* A replacement character at the end may be the beginning of a real one: at most this many tokens are waited for. */
#define PATIENCE 8

static enum plim_status hand_out(struct token_text *t, bool all, struct strbuf *out, struct plim_error *err)
{
    enum plim_status status = decode(t, t->told, &t->before, err);
    if (status == PLIM_OK) status = decode(t, t->ids.count, &t->now, err);
    if (status != PLIM_OK) return status;
    bool wait = ends_unfinished(&t->now) && t->ids.count - t->told < PATIENCE;
    if (wait && !all) return PLIM_OK;
    if (t->now.len > t->before.len) strbuf_addn(out, t->now.data + t->before.len, t->now.len - t->before.len);
    size_t fresh = t->ids.count - t->told; /* the newest stay as context */
    memmove(t->ids.id, t->ids.id + t->told, fresh * sizeof *t->ids.id);
    t->ids.count = t->told = fresh;
    return strbuf_status(out, err);
}

enum plim_status token_text_follow(struct token_text *t, const int32_t *ids, size_t count,
                                   struct plim_error *err)
{
    if (!t->codec->tokenizer) return PLIM_OK;
    size_t n = count < PATIENCE ? count : PATIENCE;
    if (!token_list_reserve(&t->ids, n)) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for tokens");
    memcpy(t->ids.id, ids + count - n, n * sizeof *ids);
    t->ids.count = t->told = n;
    return PLIM_OK;
}

enum plim_status token_text_add(struct token_text *t, int32_t token, struct strbuf *out,
                                struct plim_error *err)
{
    char bytes[BYTE_TEXT_MAX];
    if (!t->codec->tokenizer) {
        strbuf_addn(out, bytes, byte_text_add(&t->bytes, token, bytes));
        return strbuf_status(out, err);
    }
    if (!token_list_reserve(&t->ids, 1)) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for tokens");
    t->ids.id[t->ids.count++] = token;
    return hand_out(t, false, out, err);
}

enum plim_status token_text_end(struct token_text *t, struct strbuf *out, struct plim_error *err)
{
    char bytes[BYTE_TEXT_MAX];
    if (!t->codec->tokenizer) {
        strbuf_addn(out, bytes, byte_text_end(&t->bytes, bytes));
        return strbuf_status(out, err);
    }
    return t->ids.count > t->told ? hand_out(t, true, out, err) : PLIM_OK;
}
