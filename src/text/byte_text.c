/* byte_text.c - see byte_text.h. */
#include "text/byte_text.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <string.h>

static size_t put(char *out, const char *bytes, size_t n)
{
    memcpy(out, bytes, n);
    return n;
}

static size_t put_replacement(char *out) { return put(out, "\xEF\xBF\xBD", 3); /* U+FFFD */ }

/* Bytes that the character beginning with `first` has; 0 when none begins so. */
static size_t length_of(unsigned char first)
{
    if (first < 0x80) return 1;
    if (first >= 0xC2 && first <= 0xDF) return 2;
    if ((first & 0xF0) == 0xE0) return 3;
    return first >= 0xF0 && first <= 0xF4 ? 4 : 0;
}

/* May the pending bytes, which are not a character, still become one? */
static bool may_grow(const struct byte_text *t)
{
    if (t->count >= length_of((unsigned char)t->pending[0])) return false;
    for (size_t i = 1; i < t->count; i++)
        if (((unsigned char)t->pending[i] & 0xC0) != 0x80) return false;
    return true;
}

static void drop(struct byte_text *t, size_t n)
{
    t->count -= n;
    memmove(t->pending, t->pending + n, t->count);
}

/* Everything that is decided leaves; at the end everything is. */
static size_t settle(struct byte_text *t, bool end, char *out)
{
    size_t written = 0;
    while (t->count) {
        size_t good = utf8_valid_prefix(t->pending, t->count);
        if (!good && !end && may_grow(t)) break;
        written += good ? put(out + written, t->pending, good) : put_replacement(out + written);
        drop(t, good ? good : 1);
    }
    return written;
}

size_t byte_text_add(struct byte_text *t, int32_t token, char out[BYTE_TEXT_MAX])
{
    if (token < 0 || token > 255) {
        size_t n = settle(t, true, out);
        return n + put_replacement(out + n);
    }
    t->pending[t->count++] = (char)(unsigned char)token;
    return settle(t, false, out);
}

size_t byte_text_end(struct byte_text *t, char out[BYTE_TEXT_MAX]) { return settle(t, true, out); }
