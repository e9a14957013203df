/* status.c - the text is formatted aside first, so that arguments may point into the error itself. */
#include "base/status.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Format into text[size]; a text that does not fit ends in "...". */
static void format(char *text, size_t size, const char *fmt, va_list ap)
{
    int n = vsnprintf(text, size, fmt, ap);
    if (n < 0) text[0] = '\0';
    if (n < (int)size) return;
    size_t end = size - 4;
    while (end > 0 && (text[end] & 0xc0) == 0x80) end--; /* no half of a character before the dots */
    memcpy(text + end, "...", 4);
}

enum plim_status plim_fail(struct plim_error *err, enum plim_status status, const char *fmt, ...)
{
    if (!err) return status;
    char text[sizeof err->text];
    va_list ap;
    va_start(ap, fmt);
    format(text, sizeof text, fmt, ap);
    va_end(ap);
    err->status = status, err->place = 0;
    memcpy(err->text, text, strlen(text) + 1);
    return status;
}

void plim_error_prefix(struct plim_error *err, const char *fmt, ...)
{
    if (!err) return;
    char prefix[sizeof err->text], text[sizeof err->text];
    va_list ap;
    va_start(ap, fmt);
    format(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    memcpy(text, err->text, sizeof text);
    size_t place = strlen(prefix) + 2 + err->place;
    plim_fail(err, err->status, "%s: %s", prefix, text);
    err->place = (unsigned)(place < strlen(err->text) ? place : strlen(err->text));
}

int plim_exit_code(enum plim_status status)
{
    static const int codes[] = {
        [PLIM_OK] = 0,        [PLIM_BAD_INPUT] = 2,   [PLIM_NO_FIT] = 3,
        [PLIM_NO_MEMORY] = 4, [PLIM_IO] = 2,          [PLIM_LINK] = 2,
        [PLIM_NOT_FOUND] = 2, [PLIM_UNSUPPORTED] = 2, [PLIM_INTERRUPTED] = 130,
        [PLIM_BUSY] = 75,     [PLIM_BUG] = 70,
    };
    if ((size_t)status >= sizeof codes / sizeof codes[0]) return codes[PLIM_BUG];
    return codes[status];
}
