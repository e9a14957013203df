/* beam.c - see beam.h.
 *
 * Invariants
 *  1. Running rows are sorted by score; in the beginning only the first may be continued.
 *  2. Finished texts are sorted by score, and places that none has yet are behind them.
 */
#include "serve/beam.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NEVER (-1.0e9f) /* the score of a row that is not to be continued */

struct text {
    float score;
    int64_t count; /* 0 in a finished place: it is free */
    int32_t *tokens;
};

struct candidate {
    float score;
    int row;
    int32_t token;
    bool ends;
};

struct beam_search {
    struct beam_options options;
    int64_t step;
    int candidates;     /* of a step */
    struct text *texts; /* all of the next three */
    struct text *running, *next, *finished;
    struct candidate *best; /* sorted */
    int *parents;
    int32_t *last;
    int32_t *room; /* of all texts' tokens */
};

static int candidate_count(const struct beam_options *o)
{
    return (o->eos_count > 1 ? 1 + o->eos_count : 2) * o->beams;
}

int64_t beam_bytes(const struct beam_options *o)
{
    int64_t texts = 3 * (int64_t)o->beams;
    return (int64_t)sizeof(struct beam_search) + texts * (int64_t)sizeof(struct text) +
           texts * o->tokens * (int64_t)sizeof(int32_t) +
           (candidate_count(o) + 1) * (int64_t)sizeof(struct candidate) +
           o->beams * (int64_t)(sizeof(int) + sizeof(int32_t));
}

enum plim_status beam_open(const struct beam_options *o, struct beam_search **out, struct plim_error *err)
{
    size_t beams = (size_t)o->beams, tokens = (size_t)o->tokens;
    struct beam_search *s = calloc(1, sizeof *s);
    if (!s) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for a beam search");
    s->options = *o;
    if (!o->usable || o->usable > o->vocab) s->options.usable = o->vocab;
    s->candidates = candidate_count(o);
    s->texts = calloc(3 * beams, sizeof *s->texts);
    s->room = calloc(3 * beams * tokens, sizeof *s->room);
    s->best = calloc((size_t)s->candidates + 1, sizeof *s->best);
    s->parents = calloc(beams, sizeof *s->parents);
    s->last = calloc(beams, sizeof *s->last);
    if (!s->texts || !s->room || !s->best || !s->parents || !s->last) {
        beam_close(s);
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory for a beam search");
    }
    s->running = s->texts, s->next = s->running + beams, s->finished = s->next + beams;
    for (size_t i = 0; i < 3 * beams; i++) s->texts[i].tokens = s->room + i * tokens;
    for (size_t i = 0; i < beams; i++) s->running[i].score = i ? NEVER : 0, s->finished[i].score = NEVER;
    *out = s;
    return PLIM_OK;
}

void beam_close(struct beam_search *s)
{
    if (!s) return;
    free(s->texts), free(s->room), free(s->best), free(s->parents), free(s->last);
    free(s);
}

static bool is_end(const struct beam_options *o, int32_t token)
{
    for (int i = 0; i < o->eos_count; i++)
        if (o->eos[i] == token) return true;
    return false;
}

/* The place of a new candidate among *count sorted ones, of which `most` are kept; equal ones stay before it. */
static void offer(struct candidate *best, int *count, int most, struct candidate new)
{
    int at = *count;
    if (at == most && !(new.score > best[at - 1].score)) return;
    while (at > 0 && new.score > best[at - 1].score) at--;
    memmove(best + at + 1, best + at, (size_t)(*count - at) * sizeof *best);
    best[at] = new;
    if (*count < most) ++*count;
}

/* The likeliest continuations of all rows. */
static int gather(struct beam_search *s, const float *logits)
{
    const struct beam_options *o = &s->options;
    int count = 0;
    for (int row = 0; row < o->beams; row++, logits += o->vocab) {
        double top = -INFINITY, sum = 0;
        for (int64_t v = 0; v < o->vocab; v++) top = logits[v] > top ? logits[v] : top;
        for (int64_t v = 0; v < o->vocab; v++) sum += exp(logits[v] - top);
        double all = top + log(sum);
        for (int64_t v = 0; v < o->usable; v++) {
            float score = (float)(logits[v] - all) + s->running[row].score;
            offer(s->best, &count, s->candidates, (struct candidate){score, row, (int32_t)v, false});
        }
    }
    for (int i = 0; i < count; i++) s->best[i].ends = is_end(o, s->best[i].token) || s->step + 1 >= o->tokens;
    return count;
}

static void extend(const struct beam_search *s, struct text *to, const struct candidate *c)
{
    const struct text *from = &s->running[c->row];
    memcpy(to->tokens, from->tokens, (size_t)s->step * sizeof *to->tokens);
    to->tokens[s->step] = c->token;
    to->count = s->step + 1, to->score = c->score;
}

static void finish(struct beam_search *s, const struct candidate *c)
{
    int last = s->options.beams - 1, at = last;
    float score = (float)(c->score / pow((double)(s->step + 1), s->options.length_penalty));
    if (!(score > s->finished[last].score)) return;
    struct text new = s->finished[last]; /* its tokens' place is taken over */
    extend(s, &new, c);
    new.score = score;
    for (; at > 0 && score > s->finished[at - 1].score; at--) s->finished[at] = s->finished[at - 1];
    s->finished[at] = new;
}

/* The best that do not end become the running rows; with too few of them those that end fill up and are never continued. */
static void run_on(struct beam_search *s, int count)
{
    int n = 0;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < count && n < s->options.beams; i++) {
            struct candidate *c = &s->best[i];
            if (c->ends != (round == 1)) continue;
            extend(s, &s->next[n], c);
            if (c->ends) s->next[n].score += NEVER;
            s->parents[n] = c->row, s->last[n] = c->token, n++;
        }
    struct text *swap = s->running;
    s->running = s->next, s->next = swap;
}

bool beam_step(struct beam_search *s, const float *logits)
{
    const struct beam_options *o = &s->options;
    int count = gather(s, logits), open = 0;
    for (int i = 0; i < count; i++) {
        open += !s->best[i].ends;
        if (i < o->beams && s->best[i].ends) finish(s, &s->best[i]);
    }
    run_on(s, count);
    s->step++;
    const struct text *worst = &s->finished[o->beams - 1];
    float possible = (float)(s->running[0].score / pow((double)s->step, o->length_penalty));
    return open > 0 && (worst->count == 0 || possible > worst->score);
}

const int *beam_parents(const struct beam_search *s) { return s->parents; }

const int32_t *beam_tokens(const struct beam_search *s) { return s->last; }

const int32_t *beam_best(const struct beam_search *s, int64_t *count)
{
    const struct text *t = s->finished[0].count ? &s->finished[0] : &s->running[0];
    *count = t->count;
    return t->tokens;
}
