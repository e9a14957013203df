/* strbuf.h - a string that grows, for reports, HTML and JSON.
 *
 *     struct strbuf sb = STRBUF_INIT;
 *     strbuf_addf(&sb, "%d layers\n", n);
 *     if (strbuf_status(&sb, &err) != PLIM_OK) ...       // one check at the end
 *     fwrite(strbuf_text(&sb), 1, sb.len, stdout);
 *     strbuf_release(&sb);
 *
 * Adding never returns an error. When memory runs out, or `most` bytes are not enough, the buffer sets `failed` and ignores
 * further text; strbuf_status reports it. Invariants: data is NULL exactly when cap is 0; otherwise data[len] is NUL and
 * len < cap. Only strbuf_truncate may lower `len`.
 */
#pragma once

#include "base/status.h"
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct strbuf {
    char *data;
    size_t len, cap;
    bool failed, full; /* full: failed because of `most` */
    size_t most;       /* maximum length, set by the owner; 0: no limit */
};

#define STRBUF_INIT                                                                                          \
    {                                                                                                        \
        0                                                                                                    \
    }

/* A local buffer that is released at the end of its block: STRBUF_AUTO text = STRBUF_INIT; */
#define STRBUF_AUTO __attribute__((cleanup(strbuf_release))) struct strbuf

void strbuf_init(struct strbuf *sb);
void strbuf_add(struct strbuf *sb, const char *text);               /* a C string        */
void strbuf_addn(struct strbuf *sb, const void *bytes, size_t len); /* bytes             */
void strbuf_addc(struct strbuf *sb, char c);                        /* one byte          */
void strbuf_pad(struct strbuf *sb, char c, size_t times);           /* c, `times` times  */
void strbuf_addf(struct strbuf *sb, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void strbuf_vaddf(struct strbuf *sb, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
void strbuf_add_html(struct strbuf *sb, const char *text); /* & < > " ' escaped */

/* Makes room for `more` bytes beyond len; false when memory is short. */
bool strbuf_reserve(struct strbuf *sb, size_t more);

/* Shortens to len bytes (no effect when already shorter). */
void strbuf_truncate(struct strbuf *sb, size_t len);

/* Empties the buffer, keeps its memory and clears a failure. */
void strbuf_clear(struct strbuf *sb);

/* The text, "" when nothing was added; valid until the next change. */
const char *strbuf_text(const struct strbuf *sb);

/* PLIM_NO_MEMORY when text was lost for lack of memory, PLIM_BAD_INPUT when it exceeded `most`. */
enum plim_status strbuf_status(const struct strbuf *sb, struct plim_error *err);

/* Hands the memory to the caller (free() it); NULL when text was lost. The buffer is empty afterwards. */
char *strbuf_detach(struct strbuf *sb, size_t *len);

/* Frees the memory; the buffer is as after strbuf_init. */
void strbuf_release(struct strbuf *sb);
