/* torch_trace_csv.c - one event a line, fields by the header's names. */
#include "store/torch_trace_csv.h"
#include "base/number.h"

#include <stdlib.h>
#include <string.h>

enum column { ACTION, ID, SIZE, STREAM, COLUMNS };

static const char *const names[COLUMNS] = {"action", "id", "size", "stream"};

struct field {
    const char *text;
    size_t len;
};

struct lines {
    const char *name, *at, *end;
    int line;
    enum column role[COLUMNS];
    int columns;
    struct torch_device *device;
    size_t cap;
    struct plim_error *err;
};

static enum plim_status wrong(const struct lines *l, const char *what, struct field f)
{
    return plim_fail(l->err, PLIM_BAD_INPUT, "%s:%d: %s '%.*s'", l->name, l->line, what,
                     (int)(f.len < 60 ? f.len : 60), f.text);
}

static struct field trimmed(const char *from, const char *to)
{
    while (from < to && (*from == ' ' || *from == '\t')) from++;
    while (to > from && (to[-1] == ' ' || to[-1] == '\t' || to[-1] == '\r')) to--;
    return (struct field){from, (size_t)(to - from)};
}

/* The fields of the next line that is not blank: how many, 0 at the end, more than COLUMNS when there are too many. */
static int split(struct lines *l, struct field fields[COLUMNS])
{
    while (l->at < l->end) {
        const char *nl = memchr(l->at, '\n', (size_t)(l->end - l->at)), *stop = nl ? nl : l->end,
                   *from = l->at;
        int n = 0;
        l->at = nl ? nl + 1 : l->end;
        l->line++;
        if (!trimmed(from, stop).len) continue;
        for (;; n++) {
            const char *comma = memchr(from, ',', (size_t)(stop - from));
            if (n < COLUMNS) fields[n] = trimmed(from, comma ? comma : stop);
            if (!comma) return n + 1;
            from = comma + 1;
        }
    }
    return 0;
}

static bool is(struct field f, const char *word)
{
    return f.len == strlen(word) && !memcmp(f.text, word, f.len);
}

static enum plim_status read_header(struct lines *l)
{
    struct field fields[COLUMNS];
    bool seen[COLUMNS] = {false};
    int n = split(l, fields);
    if (n > COLUMNS) return wrong(l, "too many columns; they are action,id,size,stream, not", fields[0]);
    for (int i = 0; i < n; i++) {
        int c = 0;
        while (c < COLUMNS && !is(fields[i], names[c])) c++;
        if (c == COLUMNS || seen[c])
            return wrong(l, "the columns are action,id,size,stream, each once, not", fields[i]);
        seen[c] = true;
        l->role[i] = (enum column)c;
    }
    l->columns = n;
    if (seen[ACTION] && seen[ID]) return PLIM_OK;
    return plim_fail(l->err, PLIM_BAD_INPUT,
                     "%s: neither a memory snapshot of PyTorch nor a trace: the first line must name the "
                     "columns action,id,size,stream",
                     l->name);
}

static enum plim_status add(struct lines *l, const struct torch_event *e)
{
    struct torch_device *d = l->device;
    if (d->event_count == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 1024;
        struct torch_event *more = realloc(d->events, cap * sizeof *more);
        if (!more) return plim_fail(l->err, PLIM_NO_MEMORY, "%s: out of memory", l->name);
        d->events = more, l->cap = cap;
    }
    d->events[d->event_count++] = *e;
    return PLIM_OK;
}

static enum plim_status read_numbers(struct lines *l, const struct field *fields, struct torch_event *e)
{
    int64_t numbers[COLUMNS] = {0};
    for (int i = 0; i < l->columns; i++) {
        enum column c = l->role[i];
        bool empty = !fields[i].len && (c == STREAM || (c == SIZE && e->action != TORCH_ALLOC));
        if (c == ACTION || empty) continue;
        if (!number_parse_int64(fields[i].text, fields[i].len, &numbers[c]) || numbers[c] < 0)
            return wrong(l, "a whole number is needed, not", fields[i]);
    }
    e->address = (uint64_t)numbers[ID], e->size = numbers[SIZE], e->stream = (uint64_t)numbers[STREAM];
    return PLIM_OK;
}

static enum plim_status read_event(struct lines *l, const struct field *fields)
{
    static const struct {
        const char *word;
        enum torch_action action;
    } actions[] = {{"alloc", TORCH_ALLOC},
                   {"free", TORCH_FREE_REQUESTED},
                   {"free_requested", TORCH_FREE_REQUESTED},
                   {"free_completed", TORCH_FREE_COMPLETED}};
    struct torch_event e = {.frame = TORCH_NO_FRAME};
    int at = 0;
    size_t k = 0;
    while (l->role[at] != ACTION) at++;
    while (k < sizeof actions / sizeof actions[0] && !is(fields[at], actions[k].word)) k++;
    if (k == sizeof actions / sizeof actions[0])
        return wrong(l, "an action is alloc, free, free_requested or free_completed, not", fields[at]);
    e.action = actions[k].action;
    enum plim_status status = read_numbers(l, fields, &e);
    if (status == PLIM_OK) status = add(l, &e);
    if (status != PLIM_OK || !is(fields[at], "free")) return status;
    e.action = TORCH_FREE_COMPLETED;
    return add(l, &e);
}

enum plim_status torch_trace_read_csv(struct torch_snapshot *out, const char *text, size_t len,
                                      const char *name, struct plim_error *err)
{
    struct lines l = {.name = name, .at = text, .end = text + len, .err = err};
    struct field fields[COLUMNS];
    *out = (struct torch_snapshot){.conf = "", .devices = calloc(1, sizeof *out->devices)};
    if (!out->devices) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", name);
    if (len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) l.at += 3;
    out->device_count = 1;
    l.device = out->devices;
    enum plim_status status = read_header(&l);
    for (int n; status == PLIM_OK && (n = split(&l, fields)) > 0;)
        status = n == l.columns ? read_event(&l, fields)
                                : plim_fail(err, PLIM_BAD_INPUT, "%s:%d: %d fields where the header has %d",
                                            name, l.line, n, l.columns);
    if (status == PLIM_OK && !l.device->event_count)
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: no event behind the header", name);
    if (status != PLIM_OK) torch_snapshot_release(out);
    return status;
}
