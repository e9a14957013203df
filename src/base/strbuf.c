/* strbuf.c - capacity doubles, so adding n bytes one by one costs O(n). */
#include "base/strbuf.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void strbuf_init(struct strbuf *sb) { *sb = (struct strbuf)STRBUF_INIT; }

bool strbuf_reserve(struct strbuf *sb, size_t more)
{
    if (sb->failed) return false;
    if (sb->most && (sb->len > sb->most || more > sb->most - sb->len)) {
        sb->failed = sb->full = true;
        return false;
    }
    if (more < sb->cap - sb->len && sb->cap) return true;
    size_t cap = sb->cap ? sb->cap : 64;
    while (cap - sb->len <= more && cap <= SIZE_MAX / 2) cap *= 2;
    if (sb->most && cap > sb->most) cap = sb->most < SIZE_MAX ? sb->most + 1 : sb->most;
    char *data = cap > sb->len && cap - sb->len > more ? realloc(sb->data, cap) : NULL;
    if (!data) {
        sb->failed = true;
        return false;
    }
    sb->data = data;
    sb->cap = cap;
    data[sb->len] = '\0';
    return true;
}

void strbuf_addn(struct strbuf *sb, const void *bytes, size_t len)
{
    if (len == 0 || !strbuf_reserve(sb, len)) return;
    memcpy(sb->data + sb->len, bytes, len);
    sb->len += len;
    sb->data[sb->len] = '\0';
}

void strbuf_add(struct strbuf *sb, const char *text) { strbuf_addn(sb, text, strlen(text)); }

void strbuf_addc(struct strbuf *sb, char c) { strbuf_addn(sb, &c, 1); }

void strbuf_pad(struct strbuf *sb, char c, size_t times)
{
    if (times == 0 || !strbuf_reserve(sb, times)) return;
    memset(sb->data + sb->len, c, times);
    sb->len += times;
    sb->data[sb->len] = '\0';
}

void strbuf_vaddf(struct strbuf *sb, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    size_t room = sb->cap ? sb->cap - sb->len : 0;
    char none[1];
    int n = vsnprintf(room ? sb->data + sb->len : none, room, fmt, ap);
    if (sb->failed || n < 0) {
        sb->failed = true;
        if (room) sb->data[sb->len] = '\0';
    } else if ((size_t)n < room) {
        sb->len += (size_t)n;
    } else {
        if (room) sb->data[sb->len] = '\0';
        if (strbuf_reserve(sb, (size_t)n)) {
            vsnprintf(sb->data + sb->len, (size_t)n + 1, fmt, again);
            sb->len += (size_t)n;
        }
    }
    va_end(again);
}

void strbuf_addf(struct strbuf *sb, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    strbuf_vaddf(sb, fmt, ap);
    va_end(ap);
}

static const char *html_entity(char c)
{
    static const struct {
        char c;
        const char *text;
    } entities[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
    for (size_t i = 0; i < sizeof entities / sizeof entities[0]; i++)
        if (entities[i].c == c) return entities[i].text;
    return NULL;
}

void strbuf_add_html(struct strbuf *sb, const char *text)
{
    while (*text) {
        size_t plain = strcspn(text, "&<>\"'");
        strbuf_addn(sb, text, plain);
        text += plain;
        if (*text) strbuf_add(sb, html_entity(*text++));
    }
}

void strbuf_truncate(struct strbuf *sb, size_t len)
{
    if (len >= sb->len) return;
    sb->len = len;
    sb->data[len] = '\0';
}

void strbuf_clear(struct strbuf *sb)
{
    strbuf_truncate(sb, 0);
    sb->failed = sb->full = false;
}

const char *strbuf_text(const struct strbuf *sb) { return sb->data ? sb->data : ""; }

enum plim_status strbuf_status(const struct strbuf *sb, struct plim_error *err)
{
    if (!sb->failed) return PLIM_OK;
    if (sb->full)
        return plim_fail(err, PLIM_BAD_INPUT, "a text of more than %zu bytes, which is its limit", sb->most);
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory for a text of more than %zu bytes", sb->len);
}

char *strbuf_detach(struct strbuf *sb, size_t *len)
{
    strbuf_reserve(sb, 0);
    char *data = sb->data;
    if (len) *len = sb->len;
    if (sb->failed) {
        free(data);
        data = NULL;
        if (len) *len = 0;
    }
    strbuf_init(sb);
    return data;
}

void strbuf_release(struct strbuf *sb)
{
    free(sb->data);
    strbuf_init(sb);
}
