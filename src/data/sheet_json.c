/* sheet_json.c - the objects of one JSON array. They pass through as they are, but for line ends between their values, which
 * become blanks; whoever reads the lines checks what is in them. Objects that share a line of the file get lines of their own, and
 * the numbers agree again as soon as the file has had as many. */
#include "data/sheet_part.h"

#include <stdlib.h>

enum place { BEFORE, BETWEEN, INSIDE, AFTER };

struct array {
    enum place place;
    int64_t depth;
    bool text, escaped; /* inside a text; behind a backslash of it */
    bool item;          /* one has come since the last comma */
    bool comma;         /* the last thing was a comma */
    uint64_t ahead;     /* lines written that the file has not had yet */
};

static enum plim_status open_array(struct sheet *t, const struct input_file *, struct plim_error *err)
{
    t->state = calloc(1, sizeof(struct array));
    return t->state ? PLIM_OK : plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory for a table", t->path);
}

static void close_array(struct sheet *t) { free(t->state); }

static size_t array_bytes(const struct input_file *) { return sizeof(struct array); }

static enum plim_status wrong(const struct sheet *t, const char *what, struct plim_error *err)
{
    return plim_fail(err, PLIM_BAD_INPUT, "%s:%llu: %s", t->path, (unsigned long long)t->line, what);
}

static void end_line(struct sheet *t, struct array *a)
{
    if (a->ahead)
        a->ahead--;
    else if (a->place == INSIDE)
        t->inside++;
    else
        sheet_end_line(t);
}

static void take_inside(struct sheet *t, struct array *a, char ch)
{
    bool blank = ch == '\n' && !a->text; /* a text has no line end: it is passed on for the error it makes */
    sheet_put(t, blank ? ' ' : ch);
    if (blank) end_line(t, a);
    if (a->text) {
        if (ch == '"' && !a->escaped) a->text = false;
        a->escaped = ch == '\\' && !a->escaped;
    } else if (ch == '"') {
        a->text = true;
    } else {
        a->depth += (ch == '{' || ch == '[') - (ch == '}' || ch == ']');
    }
    if (a->depth) return;
    a->place = BETWEEN, a->item = true, a->comma = false;
    a->ahead++;
    sheet_end_line(t);
}

static enum plim_status take_between(struct sheet *t, struct array *a, char ch, struct plim_error *err)
{
    if (ch == '\n') end_line(t, a);
    if (ch == '\n' || ch == ' ' || ch == '\t' || ch == '\r') return PLIM_OK;
    if (ch == ']' && !a->comma) {
        a->place = AFTER;
        return PLIM_OK;
    }
    if (ch == ',' && a->item) {
        a->item = false, a->comma = true;
        return PLIM_OK;
    }
    if (a->item) return wrong(t, "expected ',' or ']' after an object", err);
    if (ch != '{') return wrong(t, "expected an object: the array must hold one for each record", err);
    a->place = INSIDE, a->depth = 0;
    take_inside(t, a, ch);
    return PLIM_OK;
}

static enum plim_status take_byte(struct sheet *t, struct array *a, char ch, struct plim_error *err)
{
    if (a->place == INSIDE) {
        take_inside(t, a, ch);
        return PLIM_OK;
    }
    if (a->place == BETWEEN) return take_between(t, a, ch, err);
    if (ch == '\n') end_line(t, a);
    if (a->place == BEFORE && ch == '[')
        a->place = BETWEEN;
    else if (a->place == AFTER && ch > ' ')
        return wrong(t, "something follows the array", err);
    return PLIM_OK;
}

static enum plim_status fill_array(struct sheet *t, struct plim_error *err)
{
    struct array *a = t->state;
    enum plim_status status = PLIM_OK;
    while (status == PLIM_OK && !sheet_full(t)) {
        bool more;
        status = sheet_more(t, &more, err);
        if (status != PLIM_OK) break;
        t->ended = !more;
        if (!more && a->place != AFTER)
            return wrong(t, "the file ends inside the array; is it cut off?", err);
        if (!more) break;
        char ch = t->in[t->in_at++];
        status = take_byte(t, a, ch, err);
        t->line += ch == '\n';
    }
    return status;
}

const struct sheet_reader json_array_reader = {open_array, fill_array, close_array, array_bytes};
