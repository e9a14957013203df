/* engine_step.c - one step: its rows, its tokens, events, the end of requests. See engine_part.h.
 *
 * If the next step is certain to be the same rows with one more token each, it is launched before this one is read. So the
 * device never waits for the host. A request that turns out to have ended leaves both steps (let_go), and nobody reads what the
 * second one computes for it. Its blocks are free at once: the next write to them is queued behind that step.
 *
 * Otherwise the next step is launched as soon as the tokens of this one are counted, and the tokens are reported while the
 * device computes (untold). With two thousand requests, reporting is most of the host's work. Until it is reported, a request
 * that has ended is in the engine but no longer in the schedule.
 */
#include "base/clock.h"
#include "serve/engine_part.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the end of a request --------------------------------------------------------------------------------- */

static void fill_event(const struct request *r, double now, struct engine_event *event)
{
    event->id = r->id;
    event->prompt_tokens = r->ask.count, event->tokens = r->made, event->shared_tokens = r->sequence.shared;
    event->queue_seconds = (r->seen ? r->started : now) - r->submitted;
    event->prefill_seconds = r->seen ? (r->made ? r->answered : now) - r->started : 0;
    event->decode_seconds = r->made ? now - r->answered : 0;
}

static void unlink_live(struct engine *e, struct request *r)
{
    *r->link = r->next;
    if (r->next) r->next->link = r->link;
    e->live_count--, e->live_bytes -= r->bytes;
    adapters_part(e, r);
}

/* Nothing that steps other than `but` (NULL: all) compute of this request counts. */
static void let_go(struct engine *e, const struct request *r, const struct step *but)
{
    for (int i = 0; i < DEVICE_READS; i++) {
        struct step *s = &e->step[i];
        if (s == but) continue;
        for (int k = 0; k < s->row_count; k++)
            if (s->rows[k].sequence == &r->sequence) s->rows[k].sequence = NULL;
        for (int k = 0; k < s->draw_count; k++)
            if (s->drawn[k] == r) s->drawn[k] = NULL;
    }
}

void engine_finish(struct engine *e, struct request *r, struct engine_event *event)
{
    fill_event(r, clock_seconds(), event);
    let_go(e, r, NULL);
    if (!r->ends) schedule_remove(&e->schedule, &r->sequence);
    pthread_mutex_lock(&e->lock);
    unlink_live(e, r);
    e->stats.finished[event->finish]++;
    pthread_mutex_unlock(&e->lock);
    if (r->ask.hear) r->ask.hear(r->ask.arg, event);
    request_free(r);
}

/* Stop strings and clients that leave end answers this way. An answer with tokens teaches how long others will be. */
void engine_finish_cancelled(struct engine *e, struct request *r)
{
    if (r->made && !r->ends) schedule_learn(&e->schedule, &r->sequence, false);
    engine_finish(e, r, &(struct engine_event){.token = -1, .finish = FINISH_CANCELLED});
}

/* --- before the pass -------------------------------------------------------------------------------------- */

/* New requests join the queue. */
static enum plim_status take_in(struct engine *e, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    LOCKED(&e->lock);
    while (e->incoming && status == PLIM_OK) {
        struct request *r = e->incoming;
        status = schedule_add(&e->schedule, &r->sequence, err);
        if (status != PLIM_OK) break;
        e->incoming = r->after;
        if (!e->incoming) e->incoming_end = &e->incoming;
    }
    return status;
}

/* --- tokens ----------------------------------------------------------------------------------------------- */

static bool is_end(const struct model_spec *spec, int32_t token)
{
    for (int i = 0; i < spec->eos_count; i++)
        if (spec->eos_token_ids[i] == token) return true;
    return false;
}

/* of_prompt: none of the answer is reported yet, whatever has been counted. */
static bool tell(const struct engine *e, struct request *r, const struct draw *d, int32_t token,
                 bool of_prompt)
{
    struct engine_event event = {.token = token, .logprob = d->logprob, .ntop = d->ntop, .top = d->top};
    fill_event(r, e->now, &event);
    if (of_prompt) event.tokens = 0;
    return !r->ask.hear || r->ask.hear(r->ask.arg, &event);
}

/* The first token of a prompt has nothing before it to be likely after. */
static bool tell_first(struct engine *e, struct request *r)
{
    static const struct draw first = {.logprob = NAN};
    if (r->told || !r->ask.prompt_logprobs) return true;
    r->told = 1;
    return tell(e, r, &first, r->tokens[0], true);
}

static void tell_prompt(struct engine *e, struct request *r, const struct draw *d)
{
    bool go_on = tell_first(e, r);
    if (go_on) go_on = tell(e, r, d, d->token, true), r->told++;
    if (go_on) return;
    LOCKED(&e->lock);
    r->cancelled = e->cancels = true;
}

/* Counts the token of an answer; r->ends says whether it was the last. */
static void take_token(struct engine *e, struct request *r, const struct draw *d)
{
    if (!r->answered) r->answered = e->now;
    if (!r->ask.ignore_eos && is_end(&e->spec, d->token)) {
        r->ends = FINISH_EOS;
        return;
    }
    r->tokens[r->sequence.known++] = d->token;
    if (r->so_far.token) seen_add(&r->so_far, d->token);
    r->made++, e->fresh_tokens++;
    if (r->made == r->ask.tokens) r->ends = FINISH_LENGTH;
}

/* Reports it. Returns false if the request ended with it. */
static bool tell_token(struct engine *e, struct request *r, const struct draw *d)
{
    struct engine_event end = {.token = -1, .finish = r->ends};
    if (!tell_first(e, r)) return engine_finish_cancelled(e, r), false;
    if (r->ends == FINISH_LENGTH)
        end.token = d->token, end.logprob = d->logprob, end.ntop = d->ntop, end.top = d->top;
    if (r->ends) return engine_finish(e, r, &end), false;
    if (tell(e, r, d, d->token, false)) return true;
    return engine_finish_cancelled(e, r), false;
}

bool engine_answer(struct engine *e, struct request *r, const struct draw *d)
{
    take_token(e, r, d);
    return tell_token(e, r, d);
}

/* Requests that end leave the schedule, and with it the step behind this one. */
static void take_all(struct engine *e, const struct step *s)
{
    for (int i = 0; i < s->draw_count; i++) {
        struct request *r = s->drawn[i];
        if (!r || s->draws[i].given >= 0) continue;
        take_token(e, r, &s->draws[i]);
        if (!r->ends) continue;
        let_go(e, r, s);
        schedule_learn(&e->schedule, &r->sequence, r->ends == FINISH_LENGTH);
        schedule_remove(&e->schedule, &r->sequence);
    }
}

/* Returns true if requests have ended. */
static bool tell_all(struct engine *e, const struct step *s)
{
    bool ended = false;
    for (int i = 0; i < s->draw_count; i++) {
        struct request *r = s->drawn[i];
        const struct draw *d = &s->draws[i];
        if (!r) continue;
        if (d->given >= 0)
            tell_prompt(e, r, d);
        else
            ended |= !tell_token(e, r, d);
    }
    return ended;
}

/* May the next step be launched before the tokens of this one are reported? Not with a prompt's log-probabilities: reporting
 * them decides which logits the next step needs. */
static bool may_wait(const struct engine *e, const struct step *s)
{
    bool may = engine_steps(e) > 1;
    for (int i = 0; i < s->draw_count && may; i++) may = !s->drawn[i] || !s->drawn[i]->ask.prompt_logprobs;
    return may;
}

/* Requests that were cancelled, from outside or by whoever hears them. */
static void sweep(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    bool any = e->cancels;
    e->cancels = false;
    pthread_mutex_unlock(&e->lock);
    for (int i = any ? e->schedule.count - 1 : -1; i >= 0; i--) {
        struct request *r = request_of(e->schedule.queue[i]);
        if (engine_is_cancelled(e, r)) engine_finish_cancelled(e, r);
    }
}

/* Requests whose adapter could not be read. */
static void end_broken(struct engine *e)
{
    for (int i = e->schedule.count - 1; i >= 0 && e->broken; i--) {
        struct request *r = request_of(e->schedule.queue[i]);
        if (r->why)
            engine_finish(e, r, &(struct engine_event){.token = -1, .finish = FINISH_FAILED, .why = r->why});
    }
    e->broken = false;
}

/* Tokens of the same adapter side by side read its matrices once. */
static int by_slot(const void *x, const void *y)
{
    const struct step_row *a = x, *b = y;
    int first = request_slot(request_of(a->sequence)), second = request_slot(request_of(b->sequence));
    return first != second ? first - second : (a->sequence > b->sequence) - (a->sequence < b->sequence);
}

/* Under the lock. */
static void count_up(struct engine *e, const struct step *s)
{
    for (int r = 0; r < s->row_count; r++) {
        struct request *q = request_of(s->rows[r].sequence);
        int64_t before = s->rows[r].first, prompt = q->ask.count - before;
        if (prompt > 0 && !(e->offer.window && q->seen))
            e->stats.prompt_tokens += prompt < s->rows[r].count ? prompt : s->rows[r].count;
        if (q->seen) continue;
        q->seen = true, q->started = clock_seconds();
        e->stats.shared_tokens += q->sequence.shared;
    }
}

/* Statistics, before a step (NULL: none comes) and after one with which requests have ended. */
static void note(struct engine *e, const struct step *s)
{
    int running = e->schedule.running;
    LOCKED(&e->lock);
    if (s) count_up(e, s);
    e->stats.generated_tokens += e->fresh_tokens, e->fresh_tokens = 0;
    e->stats.running = running;
    e->stats.waiting = (int)e->live_count - running - e->untold_ends;
    e->stats.blocks = e->blocks.count, e->stats.blocks_used = e->blocks.count - blocks_left(&e->blocks);
    e->stats.blocks_shared = e->blocks.shared, e->stats.preemptions = e->schedule.preemptions;
    e->stats.budget = e->plan.budget ? e->plan.budget : e->plan.limit;
    e->stats.used = (int64_t)ledger_current(e->device->ledger[TIER_DEVICE]);
}

void engine_tell_rest(struct engine *e)
{
    const struct step *s = e->untold;
    e->untold = NULL, e->untold_ends = 0;
    if (!s) return;
    if (tell_all(e, s)) note(e, NULL);
    engine_told(e);
}

enum plim_status engine_readmit(struct engine *e, struct plim_error *err)
{
    char why[160];
    enum plim_status status = take_in(e, err);
    for (int i = e->schedule.count - 1; i >= 0; i--) {
        struct request *r = request_of(e->schedule.queue[i]);
        if (r->ask.count + r->ask.tokens - 1 <= e->plan.context &&
            !(e->offer.window && r->ask.prompt_logprobs))
            continue;
        snprintf(
            why, sizeof why,
            "the device failed; what is left of the server takes %lld positions, this request may need %lld",
            (long long)e->plan.context, (long long)(r->ask.count + r->ask.tokens - 1));
        engine_finish(e, r, &(struct engine_event){.token = -1, .finish = FINISH_FAILED, .why = why});
    }
    note(e, NULL);
    return status;
}

enum plim_status engine_take_line(struct engine *e, struct plim_error *err)
{
    pthread_mutex_lock(&e->lock);
    bool moved = e->budget_moved;
    int64_t had = e->options.budget;
    e->budget_moved = false, e->budget_moving = moved;
    if (moved) e->options.budget = e->wanted_budget;
    pthread_mutex_unlock(&e->lock);
    if (!moved) return PLIM_OK;
    enum plim_status status = e->kind->move(e, err);
    pthread_mutex_lock(&e->lock);
    if (status != PLIM_OK) e->options.budget = had;
    e->budget_moving = false;
    pthread_cond_broadcast(&e->settled);
    pthread_mutex_unlock(&e->lock);
    return status;
}

/* Has a request, a cancellation or a budget arrived since the last step? One lock for all three: every step asks. */
static bool has_news(struct engine *e)
{
    LOCKED(&e->lock);
    return e->incoming || e->cancels || e->budget_moved;
}

/* --- a step ----------------------------------------------------------------------------------------------- */

static enum plim_status launch(struct engine *e, struct step *s, struct plim_error *err)
{
    step_size(e, s);
    note(e, s);
    return step_launch(e, s, err);
}

/* Requests whose token the device left to the host after their logits were overwritten: their step is repeated, and read before
 * the next one begins. */
static void take_again(struct engine *e, struct step *s)
{
    for (int i = 0; i < s->draw_count; i++)
        if (s->drawn[i] && !s->draws[i].done) s->drawn[i]->open = true, let_go(e, s->drawn[i], NULL);
}

/* Reads the step under way and counts its tokens; `next`, if there is one, is under way from then on. They are reported here, or
 * when the step after this one has been launched. */
static enum plim_status end_step(struct engine *e, struct step *next, struct plim_error *err)
{
    struct step *s = e->under_way;
    int before = e->schedule.count;
    e->under_way = NULL;
    enum plim_status status = step_draw(e, s, next != NULL, err);
    if (status != PLIM_OK) return status;
    e->under_way = next;
    e->now = clock_seconds();
    pthread_mutex_lock(&e->lock);
    e->stats.steps++, e->stats.ahead += s->behind;
    pthread_mutex_unlock(&e->lock);
    if (next) take_again(e, s);
    schedule_done(&e->schedule, s->rows, s->row_count);
    take_all(e, s);
    e->untold = s, e->untold_ends = before - e->schedule.count;
    if (e->untold_ends) note(e, NULL);
    if (next || !may_wait(e, s)) engine_tell_rest(e);
    return PLIM_OK;
}

/* Is the step after this one the same rows with one token more, whatever the tokens of this one are? Then next->rows has them. */
static bool may_run_ahead(struct engine *e, const struct step *s, struct step *next)
{
    if (!step_may_be_overtaken(e, s) || has_news(e)) return false;
    next->row_count = schedule_next(&e->schedule, s->rows, s->row_count, next->rows);
    return next->row_count > 0;
}

/* The next step is launched before the one under way is read; *out is NULL where it cannot be. */
static enum plim_status run_ahead(struct engine *e, struct step **out, struct plim_error *err)
{
    struct step *next = &e->step[e->under_way == &e->step[0]];
    *out = NULL;
    if (!may_run_ahead(e, e->under_way, next)) return PLIM_OK;
    next->behind = true, *out = next;
    return launch(e, next, err);
}

/* The step under way is read before the budget moves, because it uses blocks where they are now. Its tokens are reported before,
 * too: making a plan takes long. A budget that comes after this look waits for the next step. */
static enum plim_status take_news(struct engine *e, struct plim_error *err)
{
    pthread_mutex_lock(&e->lock);
    bool moved = e->budget_moved;
    pthread_mutex_unlock(&e->lock);
    enum plim_status status = moved && e->under_way ? end_step(e, NULL, err) : PLIM_OK;
    if (status == PLIM_OK && moved) engine_tell_rest(e), status = engine_take_line(e, err);
    if (status == PLIM_OK) status = take_in(e, err);
    if (status == PLIM_OK) sweep(e), note(e, NULL);
    return status;
}

/* Nobody who is in the step is still there. */
static bool is_left(const struct step *s)
{
    for (int r = 0; r < s->row_count; r++)
        if (s->rows[r].sequence) return false;
    return true;
}

enum plim_status engine_step_decoder(struct engine *e, struct plim_error *err)
{
    struct step *next = NULL;
    enum plim_status status = has_news(e) ? take_news(e, err) : PLIM_OK;
    if (status != PLIM_OK) return status;
    if (e->under_way && is_left(e->under_way)) e->under_way = NULL;
    if (!e->under_way) {
        struct step *s = &e->step[e->untold == &e->step[0]];
        s->behind = false, s->draw_count = 0;
        s->row_count = schedule_step(&e->schedule, s->rows);
        if (e->broken) end_broken(e);
        if (e->adapters.slots) qsort(s->rows, (size_t)s->row_count, sizeof *s->rows, by_slot);
        if (!s->row_count) return engine_tell_rest(e), note(e, NULL), PLIM_OK;
        status = launch(e, s, err);
        e->under_way = s;
        engine_tell_rest(e);
    }
    if (status == PLIM_OK) status = run_ahead(e, &next, err);
    if (status == PLIM_OK) return end_step(e, next, err);
    e->under_way = NULL; /* nothing of it has been told: the next one begins where it began */
    return status;
}
