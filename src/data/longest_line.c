/* longest_line.c - see longest_line.h. */
#include "data/longest_line.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 32 << 10 }; /* on the stack: before a plan stands there is not room for much */

struct scan {
    size_t run, longest; /* bytes of the present record so far, and of the longest */
    bool sentences;      /* records are lines up to an empty one; else each line is one */
    bool filled;         /* the present line has more than blanks */
};

static bool has_word(const char *at, size_t n)
{
    while (n && strchr(" \t\r\n", *at)) at++, n--;
    return n > 0;
}

/* Bytes that a piece of a CoNLL line takes in a JSON line: marks are escaped, and a word and its label have quotes and a comma. */
enum { AROUND_WORDS = 8, AROUND_SENTENCE = 64 };
static size_t as_json(const char *at, size_t n)
{
    size_t bytes = AROUND_WORDS;
    for (size_t i = 0; i < n; i++)
        bytes += (unsigned char)at[i] < ' '      ? (strchr(" \t\r\n", at[i]) ? 1 : 6)
                 : at[i] == '"' || at[i] == '\\' ? 2
                                                 : 1;
    return bytes;
}

static void scan_piece(struct scan *s, const char *at, size_t n)
{
    for (const char *end = at + n; at < end;) {
        const char *line = memchr(at, '\n', (size_t)(end - at));
        size_t bytes = line ? (size_t)(line + 1 - at) : (size_t)(end - at);
        s->run += s->sentences ? as_json(at, bytes) : bytes;
        s->filled = s->filled || !s->sentences || has_word(at, bytes);
        if (s->run > s->longest) s->longest = s->run;
        if (!line) return;
        if (!s->sentences || !s->filled) s->run = 0;
        s->filled = false, at = line + 1;
    }
}

/* JSON lines begin with an object; what begins otherwise may be cut into records in another way. */
static bool begins_well(const char *text, size_t n, enum data_format format)
{
    size_t i = 0;
    while (i < n && strchr(" \t\r\n\xef\xbb\xbf", text[i])) i++;
    return format == DATA_LINES || (i < n && text[i] == '{');
}

static bool scan_file(const struct input_file *file, enum data_format format, size_t *longest)
{
    char piece[PIECE];
    struct scan s = {.sentences = file->form == FORM_CONLL};
    int fd = open(file->path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, piece, sizeof piece) : -1;
    bool good = n > 0 && (s.sentences || begins_well(piece, (size_t)n, format));
    for (; good && n > 0; n = read(fd, piece, sizeof piece)) scan_piece(&s, piece, (size_t)n);
    if (fd >= 0) close(fd);
    if (s.sentences) s.longest += AROUND_SENTENCE;
    if (s.longest > *longest) *longest = s.longest;
    return good && n == 0;
}

size_t longest_line_of(const struct inputs *in, enum data_format format)
{
    int64_t bytes = 0;
    size_t longest = 0;
    for (int i = 0; i < in->count; i++) {
        bytes += in->file[i].bytes;
        bool conll = in->file[i].form == FORM_CONLL && input_is_sized(&in->file[i]);
        if (!(conll || input_is_plain(&in->file[i])) || bytes > LONGEST_READ) return 0;
        if (!conll && format != DATA_LINES && format != DATA_JSONL) return 0;
    }
    for (int i = 0; i < in->count; i++)
        if (!scan_file(&in->file[i], format, &longest)) return 0;
    return longest + 2; /* the last may lack its end, and lines of two bytes end so, too */
}
