/* sheet_conll.c - a word on each line, its label in the last column, an empty line between sentences: CoNLL-2003 and its
 * relatives, and CoNLL-U, whose columns are ten and whose label is the part of speech.
 *
 * A sentence is a row of two lists. Words are written as they come; their labels wait until the sentence ends, which bounds
 * how long it may be. */
#include "base/json.h"
#include "data/sheet_part.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MOST   4096
#define LABELS_MOST ((size_t)128 << 10)

struct conll {
    char line[LINE_MOST];
    size_t len;
    int columns; /* of the lines of the present sentence; 0: none is open */
    bool bad;    /* the sentence was given up */
    bool pouring;
    struct strbuf labels;
    size_t poured; /* of the labels, once the sentence has ended */
};

struct column {
    const char *at;
    size_t len;
};

/* The columns of a line: those a reader needs, and how many there are. */
struct split {
    struct column first, second, fourth, last;
    int count;
};

static enum plim_status open_conll(struct sheet *t, const struct input_file *, struct plim_error *err)
{
    struct conll *c = t->state = calloc(1, sizeof *c);
    if (!c) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory for a table", t->path);
    c->labels.most = LABELS_MOST;
    if (!strbuf_reserve(&c->labels, LABELS_MOST - 1))
        return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory for a table", t->path);
    return PLIM_OK;
}

static void close_conll(struct sheet *t)
{
    struct conll *c = t->state;
    if (c) strbuf_release(&c->labels);
    free(c);
}

static size_t conll_bytes(const struct input_file *)
{
    return sizeof(struct conll) + LABELS_MOST + LABELS_MOST / 2;
}

/* Between tabs where there are any, else between runs of blanks. */
static void split_line(const struct conll *c, struct split *out)
{
    char separator = memchr(c->line, '\t', c->len) ? '\t' : ' ';
    const char *end = c->line + c->len;
    *out = (struct split){0};
    for (const char *at = c->line; at <= end;) {
        while (separator == ' ' && at < end && *at == ' ') at++;
        const char *stop = memchr(at, separator, (size_t)(end - at));
        if (!stop) stop = end;
        out->last = (struct column){at, (size_t)(stop - at)};
        if (out->count == 0) out->first = out->last;
        if (out->count == 1) out->second = out->last;
        if (out->count == 3) out->fourth = out->last;
        out->count++;
        at = stop + 1;
    }
}

static bool is_universal(const struct split *s)
{
    return s->count == 10 && isdigit((unsigned char)*s->first.at);
}

/* --- sentences ----------------------------------------------------------------------------------------------------- */

static void end_sentence(struct sheet *t, struct conll *c)
{
    const char *labels = t->want.count > 1 ? t->want.name[1] : "labels";
    c->columns = 0, c->pouring = true, c->poured = 0;
    if (c->bad) strbuf_clear(&c->labels);
    sheet_put_text(t, "],", 2);
    sheet_put_quoted(t, labels, strlen(labels));
    sheet_put_text(t, ":[", 2);
}

/* Labels may take more room than one step has. */
static void pour_labels(struct sheet *t, struct conll *c)
{
    while (c->poured < c->labels.len && !sheet_full(t)) sheet_put(t, c->labels.data[c->poured++]);
    if (c->poured < c->labels.len || sheet_full(t)) return;
    sheet_put_text(t, "]}", 2);
    sheet_end_line(t);
    strbuf_clear(&c->labels);
    c->pouring = c->bad = false;
}

static enum plim_status give_up(struct sheet *t, struct conll *c, const char *what, struct plim_error *err)
{
    c->bad = true;
    return sheet_bad_row(t, what, err);
}

static enum plim_status take_word(struct sheet *t, struct conll *c, const struct split *s,
                                  struct plim_error *err)
{
    bool universal = is_universal(s), opens = c->columns == 0;
    const char *words = t->want.count ? t->want.name[0] : "tokens";
    const struct column *word = universal ? &s->second : &s->first,
                        *label = universal ? &s->fourth : &s->last;
    if (opens) {
        sheet_put(t, '{');
        sheet_put_quoted(t, words, strlen(words));
        sheet_put_text(t, ":[", 2);
        c->columns = s->count;
    } else {
        t->inside++;
    }
    if (c->bad) return PLIM_OK;
    if (s->count < 2) return give_up(t, c, "the line has one column; a word needs its label behind it", err);
    if (s->count != c->columns)
        return give_up(t, c, "the line has another number of columns than the first one of its sentence",
                       err);
    if (!opens) sheet_put(t, ','), strbuf_addc(&c->labels, ',');
    sheet_put_quoted(t, word->at, word->len);
    json_quote(&c->labels, label->at, label->len);
    if (!c->labels.failed) return PLIM_OK;
    return give_up(t, c, "the sentence is too long: its labels take more than 128 KiB", err);
}

static void skip_line(struct sheet *t, const struct conll *c)
{
    if (c->columns)
        t->inside++;
    else
        sheet_end_line(t);
}

static enum plim_status take_line(struct sheet *t, struct conll *c, struct plim_error *err)
{
    static const char document[] = "-DOCSTART-";
    struct split s;
    while (c->len && strchr(" \t\r", c->line[c->len - 1])) c->len--;
    bool begins = c->len >= sizeof document - 1 && !memcmp(c->line, document, sizeof document - 1);
    if (!c->len || begins) {
        skip_line(t, c);
        if (c->columns) end_sentence(t, c);
        return PLIM_OK;
    }
    split_line(c, &s);
    bool comment = *c->line == '#' && !c->columns && !form_is_tag(s.last.at, s.last.len);
    bool part =
        is_universal(&s) && (memchr(s.first.at, '-', s.first.len) || memchr(s.first.at, '.', s.first.len));
    if (!comment && !part) return take_word(t, c, &s, err);
    skip_line(t, c);
    return PLIM_OK;
}

static enum plim_status take_byte(struct sheet *t, struct conll *c, char ch, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    if (ch == '\n') {
        status = take_line(t, c, err);
        c->len = 0, t->line++;
    } else if (c->len < LINE_MOST) {
        c->line[c->len++] = ch;
    } else {
        status = plim_fail(err, PLIM_BAD_INPUT, "%s:%llu: a line of more than %d bytes; is it CoNLL data?",
                           t->path, (unsigned long long)t->line, LINE_MOST);
    }
    return status;
}

static enum plim_status fill_conll(struct sheet *t, struct plim_error *err)
{
    struct conll *c = t->state;
    enum plim_status status = PLIM_OK;
    while (status == PLIM_OK && !sheet_full(t)) {
        bool more;
        if (c->pouring) {
            pour_labels(t, c);
            continue;
        }
        status = sheet_more(t, &more, err);
        if (status != PLIM_OK) break;
        if (more) {
            status = take_byte(t, c, t->in[t->in_at++], err);
        } else if (c->len) {
            status = take_byte(t, c, '\n', err);
        } else if (c->columns) {
            end_sentence(t, c);
        } else {
            t->ended = true;
            break;
        }
    }
    return status;
}

const struct sheet_reader conll_reader = {open_conll, fill_conll, close_conll, conll_bytes};
