/* intake_read.c - from files to slots of whole records, and from slots to tokens.
 *
 * A slot begins where the one before it ended. It is filled up to INTAKE_SLOT bytes and cut after the last whole line
 * (text: where text_cut says) or after INTAKE_LINES of them; what is left over is carried into the next. A line longer than that makes its slot
 * grow until the line ends or is longer than allowed. So where slots are cut follows from the place of the first
 * byte, and reading can begin at any such place.
 */
#define _GNU_SOURCE /* memrchr */
#include "data/intake_part.h"
#include "base/bytes.h"
#include "data/order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keeps the order of files apart from the order of samples. */
#define FILES_STREAM 0x66696c6573u

int intake_file(const struct intake_options *o, uint64_t epoch, uint64_t visit)
{
    if (!o->shuffle) return (int)visit;
    return (int)order_sample(o->seed ^ FILES_STREAM, epoch, visit, (uint64_t)o->inputs->count);
}

static enum plim_status no_memory(struct plim_error *err)
{
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory while data were read");
}

static bool ensure(char **buf, size_t *cap, size_t want)
{
    if (want <= *cap) return true;
    char *more = realloc(*buf, want);
    if (more) *buf = more, *cap = want;
    return more != NULL;
}

/* The next file, at the place where reading stands. */
static enum plim_status open_file(struct intake_reader *r, struct plim_error *err)
{
    const struct intake_options *o = r->options;
    if (r->at.visit == (uint64_t)o->inputs->count) {
        if (!o->endless) {
            r->ended = true;
            return PLIM_OK;
        }
        r->at = (struct intake_place){.epoch = r->at.epoch + 1};
    }
    r->file = &o->inputs->file[intake_file(o, r->at.epoch, r->at.visit)];
    enum plim_status status = byte_stream_open(r->file, &r->stream, err);
    if (status == PLIM_OK && r->at.offset) return byte_stream_skip(r->stream, r->at.offset, err);
    if (status != PLIM_OK) return status;
    char head[3];
    status = byte_stream_read(r->stream, head, 3, &r->carry_len, err);
    if (status != PLIM_OK) return status;
    if (!ensure(&r->carry, &r->carry_cap, INTAKE_SLOT)) return no_memory(err);
    if (r->carry_len == 3 && !memcmp(head, "\xef\xbb\xbf", 3))
        r->carry_len = 0, r->at.offset = 3;
    else
        memcpy(r->carry, head, r->carry_len);
    return PLIM_OK;
}

void intake_reader_release(struct intake_reader *r)
{
    byte_stream_close(r->stream);
    free(r->carry);
    r->stream = NULL, r->carry = NULL;
}

void intake_slot_trim(struct intake_slot *slot)
{
    struct intake_slot_work *w = slot->work;
    if (!w->large) return;
    free(w->raw);
    token_list_release(&slot->tokens);
    w->raw = NULL, w->cap = 0, w->large = false;
}

/* Where the `most`th line ends, or n; how many line ends there are up to there into *lines. */
static size_t take_lines(const char *text, size_t n, uint64_t most, uint64_t *lines)
{
    const char *at = text, *end = text + n, *next;
    for (*lines = 0; *lines < most; ++*lines, at = next + 1)
        if (!(next = memchr(at, '\n', (size_t)(end - at)))) return n;
    return (size_t)(at - text);
}

/* How many bytes of the slot are whole records; 0: not even one. */
static size_t whole(const struct intake_reader *r, const struct intake_slot_work *w)
{
    if (r->options->rules.kind == RECORD_TEXT) return text_cut(w->raw, w->len);
    const char *last = memrchr(w->raw, '\n', w->len);
    return last ? (size_t)(last - w->raw) + 1 : 0;
}

static enum plim_status line_too_long(size_t max_line, struct plim_error *err)
{
    char most[BYTES_TEXT];
    return plim_fail(err, PLIM_BAD_INPUT,
                     "the line is longer than %s; raise data.max_line_bytes or split the line",
                     bytes_format(most, (uint64_t)max_line));
}

static enum plim_status too_long(const struct intake_reader *r, struct plim_error *err)
{
    enum plim_status status = line_too_long(r->options->max_line, err);
    plim_error_prefix(err, "%s:%llu", r->file->path, (unsigned long long)r->at.line + 1);
    return status;
}

/* Throw a line away that is too long, up to its end; the slot then begins after it. */
static enum plim_status drop_line(struct intake_reader *r, struct intake_slot *slot, bool *eof,
                                  struct plim_error *err)
{
    struct intake_slot_work *w = slot->work;
    for (;;) {
        char *end = memchr(w->raw, '\n', w->len);
        size_t n = end ? (size_t)(end - w->raw) + 1 : w->len;
        r->at.offset += n;
        w->len -= n;
        memmove(w->raw, w->raw + n, w->len);
        if (end || *eof) break;
        enum plim_status status = byte_stream_read(r->stream, w->raw, INTAKE_SLOT, &w->len, err);
        if (status != PLIM_OK) return status;
        *eof = w->len < INTAKE_SLOT;
    }
    w->dropped_lines++;
    r->at.line++;
    slot->place = r->at;
    if (!slot->problem[0])
        snprintf(slot->problem, sizeof slot->problem, "%s:%llu: the line is too long", r->file->path,
                 (unsigned long long)r->at.line);
    return PLIM_OK;
}

/* No record ends inside the slot: make it larger and read on. */
static enum plim_status lengthen(struct intake_reader *r, struct intake_slot *slot, bool *eof,
                                 struct plim_error *err)
{
    struct intake_slot_work *w = slot->work;
    if (w->len > r->options->max_line)
        return r->options->skip_bad ? drop_line(r, slot, eof, err) : too_long(r, err);
    if (!w->large && !r->grow(r->arg, slot)) return plim_fail(err, PLIM_INTERRUPTED, "closed");
    size_t want =
        w->len * 2 < r->options->max_line + INTAKE_SLOT ? w->len * 2 : r->options->max_line + INTAKE_SLOT;
    if (want < w->len + INTAKE_SLOT) want = w->len + INTAKE_SLOT;
    return ensure(&w->raw, &w->cap, want) ? PLIM_OK : no_memory(err);
}

static enum plim_status fill(struct intake_reader *r, struct intake_slot *slot, size_t *cut, bool *eof,
                             struct plim_error *err)
{
    struct intake_slot_work *w = slot->work;
    size_t got = 0;
    enum plim_status status = PLIM_OK;
    for (*cut = 0, *eof = false; status == PLIM_OK;) {
        size_t want = w->len < INTAKE_SLOT ? INTAKE_SLOT - w->len : INTAKE_SLOT;
        if (!*eof) {
            status = byte_stream_read(r->stream, w->raw + w->len, want, &got, err);
            w->len += got;
            *eof = got < want;
        }
        if (status != PLIM_OK) break;
        *cut = *eof ? w->len : whole(r, w);
        bool over = *eof && r->options->rules.kind != RECORD_TEXT && w->len > r->options->max_line &&
                    !memchr(w->raw, '\n', w->len);
        if (over)
            status = r->options->skip_bad ? drop_line(r, slot, eof, err) : too_long(r, err);
        else if (*eof || *cut)
            break;
        else
            status = lengthen(r, slot, eof, err);
    }
    return status;
}

static void close_file(struct intake_reader *r, struct intake_slot *slot)
{
    byte_stream_close(r->stream);
    r->stream = NULL;
    slot->file_end = true;
    slot->epoch_end = r->at.visit + 1 == (uint64_t)r->options->inputs->count;
    r->at = (struct intake_place){.epoch = r->at.epoch, .visit = r->at.visit + 1};
}

enum plim_status intake_read_slot(struct intake_reader *r, struct intake_slot *slot, struct plim_error *err)
{
    struct intake_slot_work *w = slot->work;
    size_t cut;
    bool eof;
    slot->count = 0, slot->tokens.count = 0, slot->problem[0] = 0;
    slot->file_end = slot->epoch_end = false;
    w->len = 0, w->dropped_lines = 0;
    enum plim_status status = r->stream ? PLIM_OK : open_file(r, err);
    if (status != PLIM_OK || r->ended) return status;
    if (!ensure(&w->raw, &w->cap, 2 * INTAKE_SLOT) || !ensure(&r->carry, &r->carry_cap, INTAKE_SLOT))
        return no_memory(err);
    slot->place = r->at;
    w->path = r->file->path;
    memcpy(w->raw, r->carry, r->carry_len);
    w->len = r->carry_len, r->carry_len = 0;
    status = fill(r, slot, &cut, &eof, err);
    if (status != PLIM_OK) return status;
    uint64_t lines, most = intake_lines_most(r->options);
    size_t some = take_lines(w->raw, cut, most, &lines);
    if (some < cut) cut = some, eof = false; /* the end is met again */
    r->carry_len = w->len - cut;
    if (!ensure(&r->carry, &r->carry_cap, r->carry_len)) return no_memory(err);
    memcpy(r->carry, w->raw + cut, r->carry_len);
    w->len = slot->bytes = cut;
    r->at.offset += cut;
    r->at.line += lines;
    if (eof) close_file(r, slot);
    slot->next = r->at;
    return PLIM_OK;
}

/* --- encoding --- */

static struct intake_record *add_record(struct intake_slot *slot)
{
    struct intake_slot_work *w = slot->work;
    if (slot->count == w->records_cap) {
        size_t cap = w->records_cap ? 2 * w->records_cap : 64;
        struct intake_record *more = realloc(slot->records, cap * sizeof *more);
        if (!more) return NULL;
        slot->records = more, w->records_cap = cap;
    }
    struct intake_record *record = &slot->records[slot->count++];
    *record = (struct intake_record){.first = slot->tokens.count};
    return record;
}

static enum plim_status encode_one(const struct intake_options *o, struct record_encoder *enc,
                                   struct intake_slot *slot, size_t from, size_t len, uint64_t line,
                                   unsigned place, struct plim_error *err)
{
    struct intake_slot_work *w = slot->work;
    struct plim_error why = {0};
    struct intake_record *record = add_record(slot);
    if (!record) return no_memory(err);
    record->offset = slot->place.offset + from, record->line = line;
    enum plim_status status = o->rules.kind != RECORD_TEXT && len > o->max_line
                                  ? line_too_long(o->max_line, &why)
                                  : record_encode(enc, w->raw + from, len, place, &slot->tokens, &why);
    record->count = slot->tokens.count - record->first;
    if (status == PLIM_OK) return PLIM_OK;
    plim_error_prefix(&why, "%s:%llu", w->path, (unsigned long long)line + 1);
    if (o->skip_bad && (status == PLIM_BAD_INPUT || status == PLIM_UNSUPPORTED)) {
        record->bad = true;
        if (!slot->problem[0]) snprintf(slot->problem, sizeof slot->problem, "%.*s", 255, why.text);
        return PLIM_OK;
    }
    slot->count--;
    if (err) *err = why;
    return status;
}

static bool is_empty(const char *text, size_t len)
{
    while (len && (text[len - 1] == ' ' || text[len - 1] == '\t' || text[len - 1] == '\r')) len--;
    return len == 0;
}

static enum plim_status encode_lines(const struct intake_options *o, struct record_encoder *enc,
                                     struct intake_slot *slot, struct plim_error *err)
{
    struct intake_slot_work *w = slot->work;
    enum plim_status status = PLIM_OK;
    uint64_t line = slot->place.line;
    for (size_t at = 0; at < w->len && status == PLIM_OK; line++) {
        char *text = w->raw + at, *end = memchr(text, '\n', w->len - at);
        size_t len = end ? (size_t)(end - text) : w->len - at, next = at + len + (end != NULL);
        if (len && text[len - 1] == '\r') len--;
        if (!is_empty(text, len)) status = encode_one(o, enc, slot, at, len, line, RECORD_WHOLE, err);
        at = next;
    }
    return status;
}

enum plim_status intake_encode_slot(const struct intake_options *o, struct record_encoder *enc,
                                    struct intake_slot *slot, struct plim_error *err)
{
    struct intake_slot_work *w = slot->work;
    for (uint64_t i = 0; i < w->dropped_lines; i++) {
        struct intake_record *record = add_record(slot);
        if (!record) return no_memory(err);
        record->offset = slot->place.offset, record->line = slot->place.line, record->bad = true;
    }
    if (o->rules.kind != RECORD_TEXT) return encode_lines(o, enc, slot, err);
    unsigned place = slot->file_end ? RECORD_LAST : RECORD_MIDDLE;
    if (slot->place.offset <= 3) place |= RECORD_FIRST;
    return encode_one(o, enc, slot, 0, w->len, slot->place.line, place, err);
}
