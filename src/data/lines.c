/* lines.c - see lines.h.
 *
 * Bytes [at, end) of the buffer have been read and are in no line yet; it grows while a line does not fit. */
#include "data/lines.h"
#include "data/byte_stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIRST_ROOM ((size_t)64 << 10)

struct lines {
    struct inputs inputs; /* none: standard input */
    int file;             /* the next one */
    struct byte_stream *stream;
    bool standard, open;
    const char *path;
    uint64_t number;
    char *buf;
    size_t room, at, end, max_line;
    bool ended; /* the present file has no more bytes */
    bool json;
};

enum plim_status lines_open(const char *const *paths, int count, enum data_format format, size_t max_line,
                            struct lines **out, struct plim_error *err)
{
    struct lines *l = calloc(1, sizeof *l);
    char *buf = malloc(FIRST_ROOM);
    if (!l || !buf) {
        free(l), free(buf);
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory for lines");
    }
    l->buf = buf, l->room = FIRST_ROOM, l->max_line = max_line;
    l->standard = !count || (count == 1 && !strcmp(paths[0], "-"));
    enum plim_status status = l->standard ? PLIM_OK : inputs_find(paths, count, &l->inputs, err);
    if (status == PLIM_OK) status = inputs_refuse_binary(&l->inputs, err);
    for (int i = 0; i < l->inputs.count; i++)
        l->inputs.file[i].form = data_form_of(format, l->inputs.file[i].form);
    if (status == PLIM_OK)
        *out = l;
    else
        lines_close(l);
    return status;
}

void lines_close(struct lines *l)
{
    if (!l) return;
    if (l->stream) byte_stream_close(l->stream);
    inputs_release(&l->inputs);
    free(l->buf);
    free(l);
}

/* The next file, or standard input once. False in *more: there is none. */
static enum plim_status open_next(struct lines *l, bool *more, struct plim_error *err)
{
    if (l->stream) byte_stream_close(l->stream), l->stream = NULL;
    *more = l->standard ? l->file == 0 : l->file < l->inputs.count;
    if (!*more) return PLIM_OK;
    l->at = l->end = 0, l->number = 0, l->ended = false, l->open = true;
    l->path = l->standard ? "standard input" : l->inputs.file[l->file].path;
    l->json = !l->standard && l->inputs.file[l->file].form != FORM_TEXT;
    return l->standard ? (l->file++, PLIM_OK)
                       : byte_stream_open(&l->inputs.file[l->file++], NULL, &l->stream, err);
}

/* As many bytes as come, at least one unless the file has ended. */
static enum plim_status read_some(struct lines *l, struct plim_error *err)
{
    size_t got = 0, n = l->room - l->end;
    if (l->stream) {
        enum plim_status status = byte_stream_read(l->stream, l->buf + l->end, n, &got, err);
        if (status != PLIM_OK) return status;
        l->ended = got < n;
    } else {
        ssize_t came = read(STDIN_FILENO, l->buf + l->end, n);
        if (came < 0)
            return errno == EINTR ? plim_fail(err, PLIM_INTERRUPTED, "stopped")
                                  : plim_fail(err, PLIM_IO, "standard input: %s", strerror(errno));
        got = (size_t)came, l->ended = !got;
    }
    l->end += got;
    return PLIM_OK;
}

static enum plim_status refuse_long(const struct lines *l, uint64_t number, struct plim_error *err)
{
    return plim_fail(err, PLIM_BAD_INPUT, "%s:%llu: a line of more than %zu bytes; raise --max-line", l->path,
                     (unsigned long long)number, l->max_line);
}

static enum plim_status make_room(struct lines *l, struct plim_error *err)
{
    if (l->at) memmove(l->buf, l->buf + l->at, l->end - l->at);
    l->end -= l->at, l->at = 0;
    if (l->end < l->room) return PLIM_OK;
    if (l->room > l->max_line) return refuse_long(l, l->number + 1, err);
    char *larger = realloc(l->buf, 2 * l->room);
    if (!larger) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory for a line", l->path);
    l->buf = larger, l->room *= 2;
    return PLIM_OK;
}

/* The line of `len` bytes that is next, and `step` bytes to the one after it. */
static enum plim_status take(struct lines *l, size_t len, size_t step, struct line *out,
                             struct plim_error *err)
{
    char *text = l->buf + l->at;
    l->at += step;
    if (len && text[len - 1] == '\r') len--;
    if (!l->number && len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) text += 3, len -= 3;
    *out = (struct line){text, len, l->path, ++l->number, l->json};
    return len > l->max_line ? refuse_long(l, l->number, err) : PLIM_OK;
}

enum plim_status lines_next(struct lines *l, struct line *out, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    size_t seen = 0; /* of the bytes from `at` on, without an end of a line */
    *out = (struct line){0};
    for (bool more = true; status == PLIM_OK && more;) {
        const char *from = l->buf + l->at,
                   *lf = l->open ? memchr(from + seen, '\n', l->end - l->at - seen) : NULL;
        size_t left = l->end - l->at;
        if (lf) return take(l, (size_t)(lf - from), (size_t)(lf - from) + 1, out, err);
        if (l->open && l->ended && left) return take(l, left, left, out, err);
        seen = left;
        if (!l->open || l->ended) {
            status = open_next(l, &more, err), seen = 0;
            continue;
        }
        if ((status = make_room(l, err)) == PLIM_OK) status = read_some(l, err);
    }
    return status;
}
