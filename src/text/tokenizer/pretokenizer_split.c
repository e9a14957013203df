/* pretokenizer_split.c - cutting at matches: the five things that can be done with what matched.
 *
 * A matcher gives segments in the order of the text, each a match or what lies between two matches. `feed` joins
 * them as the behaviour says, holding back the one segment that the next may still be joined to.
 */
#define _GNU_SOURCE /* memmem */
#include "text/tokenizer/pretokenizer.h"
#include "text/tokenizer/text.h"
#include <string.h>

struct cutter {
    const struct pretokenizer *p;
    struct pretok_run *run;
    size_t step;
    struct pretok_text text;
    enum pretok_behavior behavior;
    bool invert;
    bool held, held_match; /* a segment is held back; it is a match, and nothing was joined to it */
    bool last_match;       /* what was fed last */
    size_t start, end;     /* the held segment */
};

static bool emit(const struct cutter *c, size_t start, size_t end)
{
    struct pretok_text piece = {c->text.at + start, end - start, c->text.first && start == 0};
    return pretok_pass(c->p, c->run, c->step, piece);
}

static bool flush(struct cutter *c)
{
    bool held = c->held;
    c->held = false;
    return !held || emit(c, c->start, c->end);
}

static bool joins(const struct cutter *c, bool match)
{
    switch (c->behavior) {
    case PRETOK_CONTIGUOUS:
        return match == c->last_match;
    case PRETOK_MERGED_WITH_PREVIOUS:
        return match && !c->last_match;
    case PRETOK_MERGED_WITH_NEXT:
        return c->held_match && !match;
    default:
        return false;
    }
}

static bool feed(struct cutter *c, size_t start, size_t end, bool match)
{
    match = match != c->invert;
    if (c->behavior == PRETOK_ISOLATED) return emit(c, start, end);
    if (c->behavior == PRETOK_REMOVED) return match || emit(c, start, end);
    bool fine = true;
    if (c->held && joins(c, match)) {
        c->end = end;
        c->held_match = false;
    } else {
        fine = flush(c);
        c->held = true, c->held_match = match, c->start = start, c->end = end;
    }
    c->last_match = match;
    return fine;
}

/* --- matchers ---------------------------------------------------------------------------------------------- */

static bool by_point(struct cutter *c, bool (*is_cut)(uint32_t))
{
    size_t before = 0, at = 0, len = c->text.len;
    bool fine = true;
    while (at < len && fine) {
        size_t next = at;
        if (is_cut(text_point(c->text.at + at, &next))) {
            if (before < at) fine = feed(c, before, at, false);
            fine = fine && feed(c, at, next, true);
            before = next;
        }
        at = next;
    }
    return fine && (before == len || feed(c, before, len, false));
}

static bool by_string(struct cutter *c, const char *string, size_t string_len)
{
    const char *text = c->text.at, *end = text + c->text.len, *before = text, *hit;
    bool fine = true;
    while (fine && (hit = memmem(before, (size_t)(end - before), string, string_len))) {
        size_t at = (size_t)(hit - text);
        if (before < hit) fine = feed(c, (size_t)(before - text), at, false);
        fine = fine && feed(c, at, at + string_len, true);
        before = hit + string_len;
    }
    return fine && (before == end || feed(c, (size_t)(before - text), c->text.len, false));
}

static bool by_scan(struct cutter *c, token_scan *scan)
{
    bool fine = true;
    for (size_t at = 0, end; at < c->text.len && fine; at = end) {
        end = scan(c->text.at, at, c->text.len);
        fine = feed(c, at, end, true);
    }
    return fine;
}

/* The next match, within the encoder's limit. */
static bool find_regex(struct cutter *c, const struct regex *regex, size_t from, size_t *start, size_t *end)
{
    struct regex_run *run = &c->run->step[c->step].regex;
    struct scratch_limit *limit = c->run->limit;
    size_t held = regex_run_bytes(run);
    run->most = limit->most ? held + scratch_left(limit) : 0;
    bool found = regex_find(regex, run, from, start, end);
    limit->grown += regex_run_bytes(run) - held;
    limit->full |= run->full;
    return found;
}

/* An empty match right behind the last one is not taken; the search goes on one character later. */
static bool by_regex(struct cutter *c, const struct regex *regex)
{
    struct regex_run *run = &c->run->step[c->step].regex;
    size_t before = 0, from = 0, start, end, last_end = SIZE_MAX, len = c->text.len;
    bool fine = true;
    regex_begin(run, c->text.at, len);
    while (fine && from <= len && find_regex(c, regex, from, &start, &end)) {
        if (start == end && end == last_end) {
            if (from < len)
                text_point(c->text.at + from, &from);
            else
                from++;
            continue;
        }
        if (before != start) fine = feed(c, before, start, false);
        fine = fine && feed(c, start, end, true);
        before = from = last_end = end;
    }
    return fine && !run->failed && (before == len || feed(c, before, len, false));
}

bool pretok_split(const struct pretokenizer *p, struct pretok_run *run, size_t step, struct pretok_text text)
{
    const struct pretok_step *s = &p->step[step];
    struct cutter c = {
        .p = p, .run = run, .step = step, .text = text, .behavior = s->behavior, .invert = s->invert};
    bool fine = s->is_cut  ? by_point(&c, s->is_cut)
                : s->scan  ? by_scan(&c, s->scan)
                : s->regex ? by_regex(&c, s->regex)
                           : by_string(&c, s->string, s->string_len);
    return fine && flush(&c);
}

bool pretok_tiles(const struct pretokenizer *p, struct pretok_run *run, size_t step, struct pretok_text text)
{
    token_scan *scan = p->step[step].scan;
    for (size_t at = 0, end; at < text.len; at = end) {
        end = scan(text.at, at, text.len);
        struct pretok_text piece = {text.at + at, end - at, text.first && at == 0};
        if (!pretok_pass(p, run, step, piece)) return false;
    }
    return true;
}
