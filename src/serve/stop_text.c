/* stop_text.c - see stop_text.h. Strings are short and few, so each place is simply tried; a string is looked for by where
 * it ends, so that the answer does not depend on how the text was cut. */
#include "serve/stop_text.h"

#include <string.h>

/* The longest string that ends where text[0..len) ends, or -1. */
static int ends_with(const struct stop_text *stop, const char *text, size_t len)
{
    int best = -1;
    for (int i = 0; i < stop->count; i++) {
        const struct stop_string *s = &stop->strings[i];
        if (s->len > len || text[len - 1] != s->text[s->len - 1]) continue;
        if (memcmp(text + len - s->len, s->text, s->len)) continue;
        if (best < 0 || s->len > stop->strings[best].len) best = i;
    }
    return best;
}

/* Does text end with the first n bytes of s? Most places are told by their first byte. */
static bool begins(const struct stop_string *s, const char *text, size_t len, size_t n)
{
    const char *at = text + len - n;
    return *at == *s->text && !memcmp(at, s->text, n);
}

/* Bytes at the end of text[0..len) that some string begins with: the most of them. */
static size_t begun(const struct stop_text *stop, const char *text, size_t len)
{
    size_t most = 0;
    for (int i = 0; i < stop->count; i++) {
        const struct stop_string *s = &stop->strings[i];
        size_t n = s->len - 1 < len ? s->len - 1 : len;
        while (n > most && !begins(s, text, len, n)) n--;
        if (n > most) most = n;
    }
    return most;
}

static void hand_out(struct stop_text *stop, size_t n, struct strbuf *out)
{
    struct strbuf *held = &stop->held;
    strbuf_addn(out, strbuf_text(held), n);
    if (held->len > n) memmove(held->data, held->data + n, held->len - n);
    strbuf_truncate(held, held->len - n);
}

int stop_text_add(struct stop_text *stop, const char *piece, size_t len, struct strbuf *out)
{
    struct strbuf *held = &stop->held;
    size_t before = held->len;
    if (!stop->count) return strbuf_addn(out, piece, len), -1;
    strbuf_addn(held, piece, len);
    for (size_t end = before + 1; end <= held->len; end++) {
        int found = ends_with(stop, held->data, end);
        if (found < 0) continue;
        hand_out(stop, end - stop->strings[found].len, out);
        return found;
    }
    if (held->len) hand_out(stop, held->len - begun(stop, held->data, held->len), out);
    return -1;
}

void stop_text_end(struct stop_text *stop, struct strbuf *out) { hand_out(stop, stop->held.len, out); }

void stop_text_release(struct stop_text *stop) { strbuf_release(&stop->held); }
