/* draw.c - see draw.h. */
#include "serve/draw.h"
#include "tensor/likely.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t drawer_bytes(struct threads *team, int64_t vocab)
{
    return threads_count(team) * (sampler_bytes(vocab) + vocab * (int64_t)sizeof(float));
}

enum plim_status drawer_init(struct drawer *d, struct threads *team, int64_t vocab, struct plim_error *err)
{
    *d = (struct drawer){.team = team, .vocab = vocab, .workers = threads_count(team)};
    d->room = calloc((size_t)d->workers, sizeof *d->room);
    enum plim_status status = d->room ? PLIM_OK : PLIM_NO_MEMORY;
    for (int i = 0; i < d->workers && status == PLIM_OK; i++) {
        struct draw_room *r = &d->room[i];
        r->row = malloc((size_t)vocab * sizeof *r->row);
        status = r->row ? sampler_init(&r->sampler, vocab, &(struct sampling){0}, err) : PLIM_NO_MEMORY;
    }
    if (status == PLIM_OK) return PLIM_OK;
    drawer_release(d);
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory for rows of logits");
}

void drawer_release(struct drawer *d)
{
    for (int i = 0; d->room && i < d->workers; i++) {
        free(d->room[i].row);
        sampler_release(&d->room[i].sampler);
    }
    free(d->room);
    *d = (struct drawer){0};
}

static void find_logprobs(const float *row, int64_t vocab, struct draw *w)
{
    struct likely top[ENGINE_LOGPROBS];
    double norm = likely_norm(row, vocab);
    w->ntop = likely_top(row, vocab, w->logprobs, top);
    for (int i = 0; i < w->ntop; i++)
        w->top[i] = (struct engine_logprob){top[i].token, (float)((double)top[i].logit - norm)};
    w->logprob = w->token < vocab ? (float)((double)row[w->token] - norm) : -INFINITY;
}

/* --- rows ------------------------------------------------------------------------------------------------- */

static void draw_row(struct drawer *d, struct draw_room *r, struct draw *w)
{
    if (w->done) return;
    bool penalised = sampling_penalises(w->sampling);
    dtype_convert(r->row, DT_F32, w->logits, w->type, d->vocab);
    w->token = w->given, w->ntop = 0, w->logprob = 0;
    if (w->given < 0) {
        if (penalised) sampling_penalise(w->sampling, w->seen->token, w->seen->count, r->row, d->vocab);
        r->sampler.sampling = *w->sampling;
        w->token = sampler_draw(&r->sampler, r->row, w->step);
    }
    if (w->logprobs < 0) return;
    if (penalised) dtype_convert(r->row, DT_F32, w->logits, w->type, d->vocab);
    find_logprobs(r->row, d->vocab, w);
}

static void draw_body(void *arg, int64_t begin, int64_t end, int worker)
{
    struct drawer *d = arg;
    d->room[worker].sampler.team = NULL;
    for (int64_t i = begin; i < end; i++) draw_row(d, &d->room[worker], &d->draws[i]);
}

void drawer_run(struct drawer *d, struct draw *draws, int count)
{
    d->draws = draws;
    if (count > 1) {
        threads_each(d->team, count, 1, draw_body, d);
    } else if (count == 1) {
        d->room[0].sampler.team = d->team;
        draw_row(d, &d->room[0], draws);
    }
    d->draws = NULL;
}

/* --- a device that draws ---------------------------------------------------------------------------------- */

static bool put_seen(const struct draw *w, struct draw_seen *seen, struct sample_row *row)
{
    const struct sampling *s = w->sampling;
    int64_t count = w->seen->count;
    if (count > seen->room - seen->used) return false;
    memcpy(seen->at + seen->used, w->seen->token, (size_t)count * sizeof *seen->at);
    row->seen_first = (int32_t)seen->used, row->seen_count = (int32_t)count;
    seen->used += count;
    row->repetition = sample_number(s->repetition_penalty);
    row->presence = sample_number(s->presence_penalty);
    row->frequency = sample_number(s->frequency_penalty);
    return true;
}

bool draw_ask(const struct draw *w, int64_t vocab, struct draw_seen *seen, struct sample_row *row)
{
    const struct sampling *s = w->sampling;
    bool drawn = w->given < 0;
    *row = (struct sample_row){.mode = SAMPLE_NONE};
    if (drawn && sampling_penalises(s) && !put_seen(w, seen, row)) return false;
    row->mode = !drawn ? SAMPLE_AS_GIVEN : s->temperature > 0 ? SAMPLE_DRAWN : SAMPLE_LIKELIEST;
    row->vocab = (int32_t)vocab;
    row->top_k = (int32_t)(s->top_k < vocab ? s->top_k : 0);
    row->given = w->given;
    row->wanted = w->logprobs + 1;
    row->temperature = sample_number(s->temperature);
    row->top_p = sample_number(s->top_p);
    row->min_p = sample_number(s->min_p);
    if (drawn && s->temperature > 0) row->number = sample_number(sampling_number(s, w->step));
    return true;
}

void draw_take(struct draw *w, int64_t vocab, int32_t token, const int32_t *top, const float *logprob)
{
    w->done = token >= 0, w->ntop = 0, w->logprob = 0;
    if (!w->done) return;
    w->token = token;
    if (w->logprobs < 0) return;
    w->logprob = logprob[0];
    w->ntop = w->logprobs < vocab ? w->logprobs : (int)vocab;
    for (int i = 0; i < w->ntop; i++) w->top[i] = (struct engine_logprob){top[i], logprob[1 + i]};
}
