/* entities.c - see entities.h.
 *
 *     tokens -> words (first, average, max) -> groups of one label (all but none) -> without those that are ignored
 *
 * Each stage is a list of entities whose words lie in one text; a joined word is made by the tokenizer's decoder.
 */
#include "serve/entities.h"
#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const aggregation_names[AGGREGATIONS + 1] = {"none", "simple", "first", "average", "max", NULL};

void scores_softmax(float *x, size_t n)
{
    float most = n ? x[0] : 0;
    double sum = 0;
    for (size_t i = 1; i < n; i++) most = x[i] > most ? x[i] : most;
    for (size_t i = 0; i < n; i++) sum += exp((double)x[i] - (double)most);
    for (size_t i = 0; i < n; i++) x[i] = (float)(exp((double)x[i] - (double)most) / sum);
}

void entity_list_release(struct entity_list *list)
{
    free(list->items);
    strbuf_release(&list->words);
    *list = (struct entity_list){0};
}

static size_t best_of(const float *scores, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (scores[i] > scores[best]) best = i;
    return best;
}

/* A place in a text by characters, found from the place before. */
struct text_place {
    const char *text;
    size_t len, byte, point;
};

static size_t byte_of(struct text_place *p, size_t point)
{
    uint32_t unused;
    if (point < p->point) p->byte = p->point = 0;
    for (; p->point < point && p->byte < p->len; p->point++) {
        size_t n = utf8_decode(p->text + p->byte, p->len - p->byte, &unused);
        p->byte += n ? n : 1;
    }
    return p->byte;
}

static size_t points_of(const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* --- one row ------------------------------------------------------------------------------------------------- */

struct work {
    const struct entity_how *how;
    struct entity_list *list; /* the result */
    struct plim_error *err;
    enum plim_status status;
    struct text_place place;
    int32_t unk;
    bool word_aware; /* the vocabulary says which tokens go on inside a word */
    struct entity_list tokens, words;
    const float *scores; /* of the first token: [tokens][nlabels] */
    bool *inside;        /* does token i go on inside a word? */
};

static void fail_memory(struct work *w)
{
    if (w->status == PLIM_OK) w->status = plim_fail(w->err, PLIM_NO_MEMORY, "out of memory for entities");
}

static struct entity *add(struct work *w, struct entity_list *list, const struct entity *e)
{
    if (list->count == list->cap) {
        size_t cap = list->cap ? list->cap + list->cap / 2 : 32;
        struct entity *more = realloc(list->items, cap * sizeof *more);
        if (!more) return fail_memory(w), NULL;
        list->items = more, list->cap = cap;
    }
    list->items[list->count] = *e;
    return &list->items[list->count++];
}

/* Words of from[a..b) joined behind those of `to`. */
static void join_words(struct work *w, const struct entity_list *from, size_t a, size_t b,
                       struct entity_list *to, struct entity *e)
{
    struct decoding *d = NULL;
    if (w->status == PLIM_OK) w->status = decoding_open(w->how->tok, 0, &d, w->err);
    e->word_at = to->words.len;
    for (size_t i = a; i < b && w->status == PLIM_OK; i++)
        w->status = decoding_add_text(d, strbuf_text(&from->words) + from->items[i].word_at,
                                      from->items[i].word_len, &to->words, w->err);
    if (w->status == PLIM_OK) w->status = decoding_end(d, &to->words, w->err);
    e->word_len = to->words.len - e->word_at;
    decoding_close(d);
}

/* Does the token go on inside a word? Where the vocabulary does not say, no blank stands before it. */
static bool goes_on(struct work *w, const struct entity *e)
{
    if (w->word_aware)
        return points_of(strbuf_text(&w->tokens.words) + e->word_at, e->word_len) != e->end - e->begin;
    if (!e->begin) return false;
    size_t at = byte_of(&w->place, e->begin - 1), next = byte_of(&w->place, e->begin);
    return w->place.text[at] != ' ' && !(next < w->place.len && w->place.text[next] == ' ');
}

static void add_token(struct work *w, const struct label_text *text, const struct label_row *row, size_t i)
{
    const float *scores = w->scores + i * w->how->nlabels;
    size_t best = best_of(scores, w->how->nlabels), len = 0;
    const struct token_span *span = &text->spans.at[row->from + i];
    int32_t id = text->body.id[row->from + i];
    const char *word = tokenizer_text(w->how->tok, id, &len);
    struct entity e = {.name = w->how->labels[best],
                       .score = scores[best],
                       .index = row->skip + i,
                       .begin = span->begin,
                       .end = span->end,
                       .word_at = w->tokens.words.len};
    if (id == w->unk) {
        size_t from = byte_of(&w->place, span->begin);
        word = w->place.text + from, len = byte_of(&w->place, span->end) - from;
    }
    strbuf_addn(&w->tokens.words, word, len);
    e.word_len = w->tokens.words.len - e.word_at;
    w->inside[i] = id != w->unk && goes_on(w, &e);
    add(w, &w->tokens, &e);
}

/* --- words ---------------------------------------------------------------------------------------------------- */

static void label_word(const struct work *w, size_t a, size_t b, struct entity *e)
{
    size_t n = w->how->nlabels, best = a;
    float mean = -1;
    if (w->how->aggregation != AGGREGATE_AVERAGE) {
        for (size_t i = a + 1; i < b && w->how->aggregation == AGGREGATE_MAX; i++)
            if (w->tokens.items[i].score > w->tokens.items[best].score) best = i;
        e->name = w->tokens.items[best].name, e->score = w->tokens.items[best].score;
        return;
    }
    for (size_t label = 0; label < n; label++) {
        double sum = 0;
        for (size_t i = a; i < b; i++) sum += (double)w->scores[i * n + label];
        if ((float)(sum / (double)(b - a)) > mean)
            mean = (float)(sum / (double)(b - a)), e->name = w->how->labels[label];
    }
    e->score = mean;
}

static void make_words(struct work *w)
{
    const struct entity_list *t = &w->tokens;
    for (size_t a = 0, b; a < t->count && w->status == PLIM_OK; a = b) {
        for (b = a + 1; b < t->count && w->inside[b];) b++;
        struct entity e = t->items[a];
        e.end = t->items[b - 1].end;
        label_word(w, a, b, &e);
        join_words(w, t, a, b, &w->words, &e);
        add(w, &w->words, &e);
    }
}

/* --- groups --------------------------------------------------------------------------------------------------- */

/* A label's type, behind its "B-" or "I-". */
static const char *type_of(const char *label)
{
    return !strncmp(label, "B-", 2) || !strncmp(label, "I-", 2) ? label + 2 : label;
}

static bool joins(const char *last, const char *next)
{
    return strncmp(next, "B-", 2) != 0 && !strcmp(type_of(last), type_of(next));
}

static bool is_ignored(const struct entity_how *how, const char *name)
{
    for (size_t i = 0; i < how->nignored; i++)
        if (!strcmp(how->ignored[i], name)) return true;
    return false;
}

static void make_groups(struct work *w, const struct entity_list *from)
{
    for (size_t a = 0, b; a < from->count && w->status == PLIM_OK; a = b) {
        double sum = (double)from->items[a].score;
        for (b = a + 1; b < from->count && joins(from->items[b - 1].name, from->items[b].name); b++)
            sum += (double)from->items[b].score;
        struct entity e = from->items[a];
        const char *dash = strchr(e.name, '-');
        e.name = dash ? dash + 1 : e.name;
        e.score = (float)(sum / (double)(b - a)), e.end = from->items[b - 1].end;
        if (is_ignored(w->how, e.name)) continue;
        join_words(w, from, a, b, w->list, &e);
        add(w, w->list, &e);
    }
}

static void take_tokens(struct work *w)
{
    for (size_t i = 0; i < w->tokens.count; i++) {
        struct entity e = w->tokens.items[i];
        if (is_ignored(w->how, e.name)) continue;
        const char *word = strbuf_text(&w->tokens.words) + e.word_at;
        e.word_at = w->list->words.len;
        strbuf_addn(&w->list->words, word, e.word_len);
        add(w, w->list, &e);
    }
}

static int32_t unknown_id(const struct tokenizer *tok)
{
    int32_t id = tokenizer_id(tok, "[UNK]", 5);
    return id >= 0 ? id : tokenizer_id(tok, "<unk>", 5);
}

enum plim_status entities_of_row(struct entity_list *list, const struct entity_how *how,
                                 const struct label_text *text, const struct label_row *row, float *logits,
                                 struct plim_error *err)
{
    struct work w = {.how = how, .list = list, .err = err, .scores = logits + row->skip * how->nlabels};
    w.place = (struct text_place){.text = strbuf_text(&text->text), .len = text->text.len};
    w.unk = unknown_id(how->tok), w.word_aware = !strcmp(tokenizer_kind(how->tok), "WordPiece");
    w.inside = calloc(row->tokens + 1, sizeof *w.inside);
    if (!w.inside) fail_memory(&w);
    for (size_t i = 0; i < row->count; i++) scores_softmax(logits + i * how->nlabels, how->nlabels);
    for (size_t i = 0; i < row->tokens && w.status == PLIM_OK; i++) add_token(&w, text, row, i);
    if (w.status == PLIM_OK && how->aggregation > AGGREGATE_SIMPLE) make_words(&w);
    if (how->aggregation == AGGREGATE_NONE)
        take_tokens(&w);
    else
        make_groups(&w, how->aggregation > AGGREGATE_SIMPLE ? &w.words : &w.tokens);
    if (w.tokens.words.failed || w.words.words.failed || list->words.failed) fail_memory(&w);
    entity_list_release(&w.tokens), entity_list_release(&w.words);
    free(w.inside);
    return w.status;
}

/* --- several windows ------------------------------------------------------------------------------------------- */

/* By their beginning; a stable order, and nearly there: each window comes in order. */
static void sort_by_begin(struct entity_list *list)
{
    for (size_t i = 1; i < list->count; i++) {
        struct entity e = list->items[i];
        size_t at = i;
        for (; at > 0 && list->items[at - 1].begin > e.begin; at--) list->items[at] = list->items[at - 1];
        list->items[at] = e;
    }
}

void entities_overlapping(struct entity_list *list)
{
    if (!list->count) return;
    sort_by_begin(list);
    struct entity last = list->items[0];
    size_t kept = 0;
    for (size_t i = 1; i < list->count; i++) {
        struct entity e = list->items[i];
        uint32_t now = e.end - e.begin, before = last.end - last.begin;
        if (e.begin >= last.end) {
            list->items[kept++] = last, last = e;
        } else if (now > before || (now == before && e.score > last.score)) {
            last = e;
        }
    }
    list->items[kept++] = last;
    list->count = kept;
}
