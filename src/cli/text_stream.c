/* text_stream.c - see text_stream.h. */
#include "cli/text_stream.h"
#include "base/utf8.h"

#include <string.h>

#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

static void put(struct text_stream *t, const char *bytes, size_t n) {
    if (!n) return;
    if (t->copy) strbuf_addn(t->copy, bytes, n);
    if (t->out && (fwrite(bytes, 1, n, t->out) != n || fflush(t->out))) t->failed = true;
    t->last = bytes[n - 1];
}

/* Bytes that the character beginning with `first` has; 0 when none begins so. */
static size_t length_of(unsigned char first) {
    if (first < 0x80) return 1;
    if (first >= 0xC2 && first <= 0xDF) return 2;
    if ((first & 0xF0) == 0xE0) return 3;
    return first >= 0xF0 && first <= 0xF4 ? 4 : 0;
}

/* May the pending bytes, which are not a character, still become one? */
static bool may_grow(const struct text_stream *t) {
    if (t->count >= length_of((unsigned char)t->pending[0])) return false;
    for (size_t i = 1; i < t->count; i++)
        if (((unsigned char)t->pending[i] & 0xC0) != 0x80) return false;
    return true;
}

/* Everything that is decided leaves. */
static void settle(struct text_stream *t) {
    while (t->count) {
        size_t good = utf8_valid_prefix(t->pending, t->count), gone = good;
        if (!good && may_grow(t)) return;
        if (good) put(t, t->pending, good);
        if (!good) put(t, REPLACEMENT, 3), gone = 1;
        t->count -= gone;
        memmove(t->pending, t->pending + gone, t->count);
    }
}

void text_stream_token(struct text_stream *t, int32_t token) {
    if (token < 0 || token > 255) {
        text_stream_end(t);
        put(t, REPLACEMENT, 3);
        return;
    }
    t->pending[t->count++] = (char)(unsigned char)token;
    settle(t);
}

void text_stream_end(struct text_stream *t) {
    for (; t->count; settle(t)) {
        put(t, REPLACEMENT, 3);
        memmove(t->pending, t->pending + 1, --t->count);
    }
}
