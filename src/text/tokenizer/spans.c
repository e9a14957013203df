/* spans.c - see spans.h. */
#include "text/tokenizer/spans.h"
#include "text/tokenizer/text.h"
#include <stdlib.h>
#include <string.h>

void span_list_release(struct span_list *list)
{
    free(list->at);
    *list = (struct span_list){0};
}

static void add(struct span_walk *w, size_t begin, size_t end)
{
    struct span_list *list = w->out;
    if (list->count == list->cap) {
        size_t cap = list->cap ? list->cap + list->cap / 2 : 64;
        struct token_span *more = realloc(list->at, cap * sizeof *more);
        if (!more) {
            w->failed = true;
            return;
        }
        list->at = more, list->cap = cap;
    }
    list->at[list->count++] = (struct token_span){(uint32_t)begin, (uint32_t)end};
}

void span_begin(struct span_walk *w, const struct normalizer *normalizer, const struct token_model *model,
                const char *text, struct span_list *out)
{
    *w = (struct span_walk){.out = out, .normalizer = normalizer, .model = model, .text = text};
}

void span_end(struct span_walk *w)
{
    strbuf_release(&w->one);
    strbuf_release(&w->spare);
}

/* How many bytes of `made` come from the character here. */
static void measure(struct span_walk *w)
{
    size_t len = 0;
    w->here = 0;
    if (w->at >= w->end) return;
    text_point(w->text + w->at, &len);
    if (w->same) {
        w->here = len;
        return;
    }
    normalizer_run(w->normalizer, w->text + w->at, len, &w->one, &w->spare);
    w->here = w->one.len;
    w->failed |= w->one.failed;
    if (w->done + w->here > w->made_len || memcmp(w->made + w->done, strbuf_text(&w->one), w->here) != 0)
        w->lost = true;
}

static void move_on(struct span_walk *w)
{
    size_t len = 0;
    text_point(w->text + w->at, &len);
    w->at += len, w->point++, w->done += w->here;
}

void span_stretch(struct span_walk *w, const char *part, size_t len, const char *made, size_t made_len)
{
    size_t begin = (size_t)(part - w->text);
    while (w->at < begin) move_on(w);
    w->end = begin + len, w->done = 0, w->copy = NULL;
    w->made = made, w->made_len = made_len, w->same = made == part;
    measure(w);
}

void span_blank(struct span_walk *w, const char *from, const char *copy, size_t copy_len)
{
    w->first = from, w->copy = copy, w->copy_len = copy_len;
}

static void seek(struct span_walk *w, size_t byte)
{
    while (!w->lost && w->at < w->end && byte >= w->done + w->here) {
        move_on(w);
        measure(w);
    }
    w->lost |= w->at >= w->end;
}

void span_range(struct span_walk *w, size_t begin, size_t end)
{
    if (begin >= end) {
        w->lost = true;
        return;
    }
    seek(w, begin);
    size_t first = w->point;
    seek(w, end - 1);
    add(w, first, w->point + 1);
}

/* Bytes [begin, end) of a piece. The blank that was put before a text is its first character's. */
static void range_of_piece(struct span_walk *w, const char *piece, size_t begin, size_t end)
{
    const char *base = w->made;
    size_t skip = 0;
    if (w->copy && piece >= w->copy && piece <= w->copy + w->copy_len) base = w->copy, skip = 1;
    if (piece < base || (!skip && piece > base + w->made_len)) {
        w->lost = true;
        return;
    }
    size_t before = skip ? (size_t)(w->first - w->made) : 0, at = (size_t)(piece - base);
    begin += at, end += at;
    begin -= skip < begin ? skip : begin, end -= skip < end ? skip : end - 1;
    if (end == begin) end++; /* the blank alone */
    span_range(w, before + begin, before + end);
}

void span_piece(struct span_walk *w, const char *piece, size_t len, const int32_t *ids, size_t count)
{
    size_t at = 0;
    for (size_t i = 0; i < count && !w->lost; i++) {
        size_t n = w->model->ops->covers ? w->model->ops->covers(w->model, ids[i], i == 0) : 0;
        if (count == 1) n = len;
        if (n == 0 || at + n > len) {
            w->lost = true;
            return;
        }
        range_of_piece(w, piece, at, at + n);
        at += n;
    }
    w->lost |= count > 0 && at != len;
}
