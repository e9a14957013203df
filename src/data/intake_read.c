/* intake_read.c - from files to slots of whole records, and from slots to tokens.
 *
 * A slot begins where the one before it ended. It is filled up to INTAKE_SLOT bytes and cut after the last whole line
 * (text: where text_cut says) or after INTAKE_LINES of them; what is left over is carried into the next. A line longer
 * than that moves into the room for long lines, and is read on, until it ends or is longer than allowed; it is a slot
 * alone. Every byte is looked at once for the end of a line. So where slots are cut follows from the place of the first
 * byte, and reading can begin at any such place.
 */
#define _GNU_SOURCE /* memrchr */
#include "data/intake_part.h"
#include "base/bytes.h"
#include "data/order.h"

#include <stdio.h>
#include <string.h>

/* Keeps the order of files apart from the order of samples. */
#define FILES_STREAM 0x66696c6573u
/* How far the end of a line is looked for that will be refused. */
#define MEASURE_MOST ((uint64_t)1 << 30)

int intake_file(const struct intake_options *o, uint64_t epoch, uint64_t visit)
{
    if (!o->shuffle) return (int)visit;
    return (int)order_sample(o->seed ^ FILES_STREAM, epoch, visit, (uint64_t)o->inputs->count);
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
    struct sheet_want want;
    record_want(&o->rules, o->skip_bad, &want);
    enum plim_status status = byte_stream_open(r->file, &want, &r->stream, err);
    if (status == PLIM_OK && r->at.offset)
        return byte_stream_skip(r->stream, r->at.offset, r->stopped, r->arg, err);
    if (status == PLIM_OK) status = byte_stream_read(r->stream, r->carry, 3, &r->carry_len, err);
    if (status == PLIM_OK && r->carry_len == 3 && !memcmp(r->carry, "\xef\xbb\xbf", 3))
        r->carry_len = 0, r->at.offset = 3;
    return status;
}

void intake_reader_rest(struct intake_reader *r)
{
    byte_stream_close(r->stream);
    r->stream = NULL, r->carry_len = 0;
}

void intake_slot_trim(struct intake_slot *slot)
{
    struct intake_slot_work *w = slot->work;
    if (!w->large) return;
    w->large->tokens = slot->tokens;
    slot->tokens = w->own_tokens;
    w->raw = w->own, w->large = NULL;
    slot->more = false;
}

/* Moves the bytes read so far to a larger buffer. */
static void make_large(struct intake_slot *slot, struct intake_long *room)
{
    struct intake_slot_work *w = slot->work;
    memcpy(room->raw, w->raw, w->len);
    w->own_tokens = slot->tokens;
    slot->tokens = room->tokens;
    slot->tokens.count = 0;
    w->raw = room->raw, w->large = room;
}

/* Where the `most`th line ends, or n; how many line ends there are up to there into *lines. */
static size_t take_lines(const char *text, size_t n, uint64_t most, uint64_t *lines)
{
    const char *at = text, *end = text + n, *next;
    for (*lines = 0; *lines < most; ++*lines, at = next + 1)
        if (!(next = memchr(at, '\n', (size_t)(end - at)))) return n;
    return (size_t)(at - text);
}

/* How many bytes of the slot are whole records, when none ends in the first `looked` of them; 0: not even one. */
static size_t whole(const struct intake_reader *r, const struct intake_slot_work *w, size_t looked)
{
    if (r->options->rules.kind == RECORD_TEXT) return text_cut(w->raw, w->len);
    const char *last = memrchr(w->raw + looked, '\n', w->len - looked);
    return last ? (size_t)(last - w->raw) + 1 : 0;
}

static enum plim_status interrupted(struct plim_error *err)
{
    return plim_fail(err, PLIM_INTERRUPTED, "reading was stopped");
}

static enum plim_status line_too_long(uint64_t length, size_t longest, struct plim_error *err)
{
    char is[BYTES_TEXT], most[BYTES_TEXT];
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "the line is %s%s long, and the loader holds lines of up to %s; raise data.max_line_bytes "
        "(and the budget), or split the line",
        length >= MEASURE_MOST ? "over " : "", bytes_format(is, length),
        bytes_format(most, (uint64_t)longest));
}

/* Read over a line that is too long, up to its end, and say how long it is; the slot then begins after it. One that is
 * an error is not followed for ever. */
static enum plim_status pass_line(struct intake_reader *r, struct intake_slot *slot, bool *eof,
                                  uint64_t *length, struct plim_error *err)
{
    struct intake_slot_work *w = slot->work;
    for (*length = 0;;) {
        char *end = memchr(w->raw, '\n', w->len);
        size_t n = end ? (size_t)(end - w->raw) + 1 : w->len;
        *length += n - (end != NULL);
        w->len -= n;
        r->at.offset += n;
        memmove(w->raw, w->raw + n, w->len);
        if (end || *eof || (!r->options->skip_bad && *length >= MEASURE_MOST)) return PLIM_OK;
        if (r->stopped(r->arg)) return interrupted(err);
        enum plim_status status = byte_stream_read(r->stream, w->raw, INTAKE_SLOT, &w->len, err);
        if (status != PLIM_OK) return status;
        *eof = w->len < INTAKE_SLOT;
    }
}

/* The line that the slot begins with is too long: an error, or a bad record. */
static enum plim_status refuse_line(struct intake_reader *r, struct intake_slot *slot, bool *eof,
                                    struct plim_error *err)
{
    uint64_t length;
    struct plim_error why = {0};
    enum plim_status status = pass_line(r, slot, eof, &length, err);
    if (status != PLIM_OK) return status;
    status = line_too_long(length, r->longest, &why);
    plim_error_prefix(&why, "%s:%llu", r->file->path, (unsigned long long)++r->at.line);
    if (!r->options->skip_bad) {
        if (err) *err = why;
        return status;
    }
    slot->work->dropped = true;
    slot->place = r->at;
    if (!slot->problem[0]) snprintf(slot->problem, sizeof slot->problem, "%.*s", 255, why.text);
    return PLIM_OK;
}

/* Read until a record ends: *cut bytes are whole ones. */
static enum plim_status fill(struct intake_reader *r, struct intake_slot *slot, size_t *cut, bool *eof,
                             struct plim_error *err)
{
    struct intake_slot_work *w = slot->work;
    size_t got = 0, looked = 0;
    bool lines = r->options->rules.kind != RECORD_TEXT;
    enum plim_status status = PLIM_OK;
    for (*cut = 0, *eof = false; status == PLIM_OK;) {
        size_t want = w->len < INTAKE_SLOT ? INTAKE_SLOT - w->len : INTAKE_SLOT;
        if (!*eof) {
            status = byte_stream_read(r->stream, w->raw + w->len, want, &got, err);
            w->len += got;
            *eof = got < want;
        }
        if (status != PLIM_OK) break;
        *cut = lines || !*eof ? whole(r, w, looked) : w->len;
        looked = w->len;
        if (lines && !*cut &&
            w->len > r->longest) { /* the slot is what was left out; what follows is the next */
            status = refuse_line(r, slot, eof, err);
            if (w->len) *eof = false;
            break;
        }
        if (*cut || *eof) break;
        if (r->stopped(r->arg)) return interrupted(err);
        if (w->large) continue;
        struct intake_long *room = r->grow(r->arg);
        if (!room) return interrupted(err);
        make_large(slot, room);
    }
    if (*eof) *cut = w->len;
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
    slot->file_end = slot->epoch_end = slot->more = false, slot->before = 0;
    w->len = 0, w->dropped = false;
    enum plim_status status = r->stream ? PLIM_OK : open_file(r, err);
    if (status != PLIM_OK || r->ended) return status;
    slot->place = r->at;
    w->path = r->file->path;
    memcpy(w->raw, r->carry, r->carry_len);
    w->len = r->carry_len, r->carry_len = 0;
    status = fill(r, slot, &cut, &eof, err);
    if (status != PLIM_OK) return status;
    uint64_t lines, most = w->large ? 1 : intake_lines_most(r->options);
    size_t some = take_lines(w->raw, cut, most, &lines);
    if (some < cut) cut = some, eof = false; /* the end is met again */
    r->carry_len = w->len - cut;
    memcpy(r->carry, w->raw + cut, r->carry_len);
    w->len = slot->bytes = cut;
    r->at.offset += cut;
    r->at.line += lines;
    if (eof) close_file(r, slot);
    slot->next = r->at;
    return PLIM_OK;
}

/* --- encoding --- */

static struct intake_record *add_record(struct intake_slot *slot, uint64_t offset, uint64_t line)
{
    struct intake_record *record = &slot->records[slot->count++];
    *record = (struct intake_record){.offset = offset, .line = line, .first = (uint32_t)slot->tokens.count};
    return record;
}

/* All tokens of a record, or of a long line the first. */
static enum plim_status encode_text(const struct intake_options *o, struct record_encoder *enc,
                                    struct intake_slot *slot, char *text, size_t len, unsigned place,
                                    struct plim_error *err)
{
    bool pieces = slot->work->large && o->rules.most == 0;
    if (!pieces) return record_encode(enc, text, len, place, &slot->tokens, err);
    enum plim_status status = record_begin(enc, text, len, place, err);
    return status == PLIM_OK ? record_more(enc, &slot->tokens, &slot->more, err) : status;
}

static enum plim_status encode_one(const struct intake_options *o, struct record_encoder *enc,
                                   struct intake_slot *slot, size_t from, size_t len, uint64_t line,
                                   unsigned place, struct plim_error *err)
{
    struct intake_slot_work *w = slot->work;
    struct plim_error why = {0};
    struct intake_record *record = add_record(slot, slot->place.offset + from, line);
    enum plim_status status = o->rules.kind != RECORD_TEXT && len > o->max_line
                                  ? line_too_long(len, o->max_line, &why)
                                  : encode_text(o, enc, slot, w->raw + from, len, place, &why);
    if (status != PLIM_OK) slot->tokens.count = record->first;
    record->count = (uint32_t)slot->tokens.count - record->first;
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
    if (w->dropped) add_record(slot, slot->place.offset, slot->place.line)->bad = true;
    if (o->rules.kind != RECORD_TEXT) return encode_lines(o, enc, slot, err);
    unsigned place = slot->file_end ? RECORD_LAST : RECORD_MIDDLE;
    if (slot->place.offset <= 3) place |= RECORD_FIRST;
    return encode_one(o, enc, slot, 0, w->len, slot->place.line, place, err);
}
