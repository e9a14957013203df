/* draw.c - see draw.h. */
#include "serve/draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t drawer_bytes(struct threads *team, int64_t vocab)
{
    return threads_count(team) * (sampler_bytes(vocab) + 2 * vocab * (int64_t)sizeof(float));
}

enum plim_status drawer_init(struct drawer *d, struct threads *team, int64_t vocab, struct plim_error *err)
{
    *d = (struct drawer){.team = team, .vocab = vocab, .workers = threads_count(team)};
    d->room = calloc((size_t)d->workers, sizeof *d->room);
    enum plim_status status = d->room ? PLIM_OK : PLIM_NO_MEMORY;
    for (int i = 0; i < d->workers && status == PLIM_OK; i++) {
        struct draw_room *r = &d->room[i];
        r->row = malloc((size_t)vocab * sizeof *r->row);
        r->counts = calloc((size_t)vocab, sizeof *r->counts);
        status = r->row && r->counts ? sampler_init(&r->sampler, vocab, &(struct sampling){0}, err)
                                     : PLIM_NO_MEMORY;
    }
    if (status == PLIM_OK) return PLIM_OK;
    drawer_release(d);
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory for rows of logits");
}

void drawer_release(struct drawer *d)
{
    for (int i = 0; d->room && i < d->workers; i++) {
        free(d->room[i].row);
        free(d->room[i].counts);
        sampler_release(&d->room[i].sampler);
    }
    free(d->room);
    *d = (struct drawer){0};
}

/* --- penalties -------------------------------------------------------------------------------------------- */

static bool penalised(const struct sampling *s)
{
    return (s->repetition_penalty > 0 && s->repetition_penalty != 1) || s->presence_penalty != 0 ||
           s->frequency_penalty != 0;
}

static float penalty(const struct sampling *s, float x, int32_t times)
{
    double by = s->repetition_penalty > 0 ? s->repetition_penalty : 1, y = (double)x;
    y = y > 0 ? y / by : y * by;
    if (times > 0) y -= s->presence_penalty + s->frequency_penalty * times;
    return (float)y;
}

/* Each token that has come so far is changed once, whatever their order. */
static void penalise(const struct drawer *d, struct draw_room *r, const struct draw *w)
{
    for (int64_t i = w->prompt; i < w->known; i++)
        if (w->tokens[i] < d->vocab) r->counts[w->tokens[i]]++;
    for (int64_t i = 0; i < w->known; i++) {
        int32_t t = w->tokens[i];
        if (t >= d->vocab || r->counts[t] < 0) continue;
        r->row[t] = penalty(w->sampling, r->row[t], r->counts[t]);
        r->counts[t] = -1;
    }
    for (int64_t i = 0; i < w->known; i++)
        if (w->tokens[i] < d->vocab) r->counts[w->tokens[i]] = 0;
}

/* --- log-probabilities ------------------------------------------------------------------------------------ */

static double log_sum(const float *x, int64_t n)
{
    float most = x[0];
    double sum = 0;
    for (int64_t i = 1; i < n; i++) most = x[i] > most ? x[i] : most;
    for (int64_t i = 0; i < n; i++) sum += (double)expf(x[i] - most);
    return (double)most + log(sum);
}

/* The likeliest first; equal ones by their ids. */
static void find_top(const float *x, int64_t vocab, int n, struct draw *w)
{
    for (int64_t i = 0; i < vocab; i++) {
        if (w->ntop == n && !(n && x[i] > w->top[n - 1].logprob)) continue;
        int at = w->ntop < n ? w->ntop++ : n - 1;
        for (; at > 0 && x[i] > w->top[at - 1].logprob; at--) w->top[at] = w->top[at - 1];
        w->top[at] = (struct engine_logprob){(int32_t)i, x[i]};
    }
}

static void find_logprobs(const float *row, int64_t vocab, struct draw *w)
{
    double norm = log_sum(row, vocab);
    if (w->logprobs > 0) find_top(row, vocab, w->logprobs, w);
    for (int i = 0; i < w->ntop; i++) w->top[i].logprob = (float)((double)w->top[i].logprob - norm);
    w->logprob = w->token < vocab ? (float)((double)row[w->token] - norm) : -INFINITY;
}

/* --- rows ------------------------------------------------------------------------------------------------- */

static void draw_row(struct drawer *d, struct draw_room *r, struct draw *w)
{
    if (w->done) return;
    dtype_convert(r->row, DT_F32, w->logits, w->type, d->vocab);
    w->token = w->given, w->ntop = 0, w->logprob = 0;
    if (w->given < 0) {
        if (penalised(w->sampling)) penalise(d, r, w);
        r->sampler.sampling = *w->sampling;
        w->token = sampler_draw(&r->sampler, r->row, w->step);
    }
    if (w->logprobs < 0) return;
    if (penalised(w->sampling)) dtype_convert(r->row, DT_F32, w->logits, w->type, d->vocab);
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

static void put_number(int32_t *words, double x) { memcpy(words, &x, sizeof x); }

bool draw_words(const struct draw *w, int64_t vocab, int32_t words[SAMPLE_WORDS])
{
    const struct sampling *s = w->sampling;
    memset(words, 0, SAMPLE_WORDS * sizeof *words);
    if (w->given >= 0 || w->logprobs >= 0 || penalised(s)) return false;
    words[SAMPLE_MODE] = s->temperature > 0 ? SAMPLE_DRAWN : SAMPLE_LIKELIEST;
    words[SAMPLE_VOCAB] = (int32_t)vocab;
    words[SAMPLE_TOP_K] = (int32_t)(s->top_k < vocab ? s->top_k : 0);
    put_number(words + SAMPLE_TEMPERATURE, s->temperature);
    put_number(words + SAMPLE_TOP_P, s->top_p);
    put_number(words + SAMPLE_MIN_P, s->min_p);
    if (s->temperature > 0) put_number(words + SAMPLE_NUMBER, sampling_number(s, w->step));
    return true;
}
