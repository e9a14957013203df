/* engine.c - the outside of the engine: opening, submitting, waiting. See engine.h and engine_part.h. */
#include "serve/engine.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "job/job.h"
#include "model/hf.h"
#include "serve/engine_part.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct model_spec *engine_spec(const struct engine *e) { return &e->spec; }

const struct engine_plan *engine_plan(const struct engine *e) { return &e->plan; }

enum { ANSWER_USUAL = 256 };

/* --- opening ---------------------------------------------------------------------------------------------- */

static enum plim_status check_options(const struct engine_options *o, struct plim_error *err)
{
    if (o->max_context < 0 || o->step_tokens < 0 || o->chunk < 0 || o->queue < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "sizes of an engine cannot be below 0");
    if (o->parallel < 0 || o->parallel > 4096)
        return plim_fail(err, PLIM_BAD_INPUT, "%d requests at once: write 1 to 4096, or 0 for as many as fit",
                         o->parallel);
    return PLIM_OK;
}

/* A number that others cannot guess, so that nobody can craft two texts with the same name. Made from the stack's
 * address, the time and the process id. */
static uint64_t secret(void)
{
    int here;
    double now = clock_seconds();
    uint64_t bits;
    memcpy(&bits, &now, sizeof bits);
    return bits ^ (uint64_t)(uintptr_t)&here << 20 ^ (uint64_t)getpid() << 48;
}

static enum plim_status take_buffers(struct engine *e, struct plim_error *err)
{
    const struct engine_plan *p = &e->plan;
    size_t rows = (size_t)p->parallel;
    const struct model_flat *largest = &e->family.size[e->family.count - 1];
    bool good = true;
    for (int i = 0; i < engine_steps(e); i++) {
        struct step *step = &e->step[i];
        step->rows = calloc(rows, sizeof *step->rows);
        step->draws = calloc(rows, sizeof *step->draws);
        step->drawn = calloc(rows, sizeof *step->drawn);
        good = good && step->rows && step->draws && step->drawn;
    }
    if (!e->device->facts.unified_memory) {
        int64_t numbers = (3 + !!e->adapters.slots) * p->step_tokens +
                          p->parallel * (largest->reach + 4 + SAMPLE_WORDS) + 2 * largest->seen;
        e->staged = malloc((size_t)numbers * sizeof *e->staged);
        e->told = malloc(rows * DRAWN_NUMBERS * sizeof *e->told);
        size_t raw = rows < ENGINE_RAW_ROWS ? rows : ENGINE_RAW_ROWS;
        e->raw = malloc(raw * (size_t)e->spec.vocab_size * sizeof(float)); /* no type is wider */
        good = good && e->staged && e->told && e->raw;
    }
    if (!good) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the rows of a step");
    int64_t vocab =
        e->options.vocab && e->options.vocab < e->spec.vocab_size ? e->options.vocab : e->spec.vocab_size;
    enum plim_status status = drawer_init(&e->drawer, e->device->team, vocab, err);
    if (status == PLIM_OK) status = blocks_init(&e->blocks, p->blocks, err);
    struct schedule *s = &e->schedule; /* who is in its queue stays there */
    s->blocks = &e->blocks, s->tokens = p->step_tokens, s->rows = p->parallel, s->chunk = e->options.chunk;
    s->window = e->offer.window, s->share = !e->options.no_prefix_sharing && !e->offer.window,
    s->seed = secret();
    s->keeper = engine_keeper(e), s->seats = adapters_seats(e);
    return status;
}

void engine_tell(const struct engine *e, const char *stage)
{
    if (e->options.stage) e->options.stage(e->options.stage_arg, stage);
}

static enum plim_status open_decoder(struct engine *e, struct plim_error *err)
{
    enum plim_status status = engine_make_plan(e, err);
    if (status != PLIM_OK || e->options.plan_only) return status;
    engine_tell(e, "model_loaded_cpu");
    status = take_buffers(e, err);
    if (status == PLIM_OK) status = engine_commit(e, err);
    return status == PLIM_OK ? engine_readmit(e, err) : status;
}

static void close_decoder(struct engine *e)
{
    schedule_restart(&e->schedule);
    adapters_empty(e);
    blocks_release(&e->blocks);
    if (e->options.plan_only)
        family_drop(&e->family);
    else
        family_close(&e->family);
    memset(&e->family, 0, sizeof e->family);
}

static void largest_decoder(const struct engine *e, const struct tape **tape, const struct layout **layout)
{
    const struct family *f = &e->family;
    const struct forward *last = f->count > 1 ? &f->more[f->count - 2] : NULL;
    *tape = last ? &last->tape : &f->runtime.plan.tape;
    *layout = last ? &last->layout : &f->runtime.plan.layout;
}

const struct engine_kind engine_decoder = {open_decoder, close_decoder, engine_step_decoder, engine_move_line,
                                           largest_decoder};

static const struct engine_kind *kind_of(const struct model_spec *spec)
{
    return model_is_encoder(spec)   ? &engine_vectors
           : model_has_source(spec) ? &engine_source
                                    : &engine_decoder;
}

/* Encoders are computed as embed does. */
static enum plim_status check_type(const struct engine *e, struct plim_error *err)
{
    if (!e->options.dtype_given || kind_of(&e->spec) != &engine_vectors) return PLIM_OK;
    return plim_fail(err, PLIM_UNSUPPORTED,
                     "%s: a %s model is computed in the type of its files; leave out --dtype", e->model,
                     model_architecture_name(e->spec.arch));
}

void engine_peak(const struct engine *e, struct peak *out)
{
    const struct tape *tape = NULL;
    const struct layout *layout = NULL;
    e->kind->largest(e, &tape, &layout);
    peak_of(tape, layout, out);
}

static void note_refusal(const struct engine *e)
{
    struct engine_refusal *r = e->options.refusal;
    if (!r) return;
    engine_peak(e, &r->peak);
    r->needed = *r->peak.tensor ? e->plan.total : 0;
}

/* Makes a plan and everything it needs. */
static enum plim_status open_plan(struct engine *e, struct plim_error *err)
{
    if (e->options.refusal) *e->options.refusal = (struct engine_refusal){.peak = {.cls = ""}};
    enum plim_status status = check_options(&e->options, err);
    if (status == PLIM_OK) status = check_type(e, err);
    if (status == PLIM_OK) status = e->kind->open(e, err);
    pthread_mutex_lock(&e->lock);
    e->plan.limit = e->options.limit;
    pthread_mutex_unlock(&e->lock);
    if (status != PLIM_OK) note_refusal(e), engine_tell(e, ENGINE_FAILED);
    return status;
}

/* Frees the step buffers that all kinds share. */
static void drop_buffers(struct engine *e)
{
    for (int i = 0; i < DEVICE_READS; i++) {
        free(e->step[i].rows);
        free(e->step[i].draws);
        free(e->step[i].drawn);
        e->step[i] = (struct step){0};
    }
    e->under_way = e->untold = NULL;
    drawer_release(&e->drawer);
    free(e->staged), e->staged = NULL;
    free(e->told), e->told = NULL;
    free(e->raw), e->raw = NULL;
}

/* Frees everything except the requests. */
static void close_plan(struct engine *e)
{
    engine_tell_rest(e);
    e->kind->close(e);
    quantise_release(&e->quantisation);
    drop_buffers(e);
}

enum plim_status engine_reopen(struct engine *e, struct device *device, const struct engine_options *options,
                               struct plim_error *err)
{
    int64_t line = e->options.budget ? e->options.budget : options->budget;
    close_plan(e);
    e->device = device, e->options = *options, e->options.model = e->model, e->options.budget = line;
    return open_plan(e, err);
}

enum plim_status engine_open(struct device *device, const struct engine_options *options, struct engine **out,
                             struct plim_error *err)
{
    struct engine *e = calloc(1, sizeof *e);
    if (!e || !(e->model = strdup(options->model))) {
        free(e);
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an engine was set up");
    }
    e->device = device, e->options = *options, e->options.model = e->model;
    pthread_mutex_init(&e->lock, NULL);
    pthread_mutex_init(&e->adapters.files, NULL);
    pthread_cond_init(&e->more, NULL);
    pthread_cond_init(&e->settled, NULL);
    e->incoming_end = &e->incoming;
    e->schedule.answer = options->usual_answer ? (double)options->usual_answer : ANSWER_USUAL;
    enum plim_status status = hf_config_load(e->model, &e->spec, err);
    if (status == PLIM_OK) e->kind = kind_of(&e->spec), status = adapters_open(e, err);
    if (status == PLIM_OK) status = open_plan(e, err);
    if (status != PLIM_OK) {
        engine_close(e);
        return status;
    }
    *out = e;
    return PLIM_OK;
}

void engine_close(struct engine *e)
{
    if (!e) return;
    engine_tell_rest(e);
    while (e->live)
        engine_finish(e, e->live, &(struct engine_event){.token = -1, .finish = FINISH_CANCELLED});
    if (e->kind) close_plan(e);
    adapters_close(e);
    schedule_release(&e->schedule);
    pthread_cond_destroy(&e->settled);
    pthread_cond_destroy(&e->more);
    pthread_mutex_destroy(&e->lock);
    free(e->model);
    free(e);
}

void engine_fail(struct engine *e, const char *why)
{
    engine_drain(e);
    engine_tell_rest(e);
    while (e->live)
        engine_finish(e, e->live, &(struct engine_event){.token = -1, .finish = FINISH_FAILED, .why = why});
}

/* --- requests --------------------------------------------------------------------------------------------- */

static enum plim_status check_request(const struct engine *e, const struct engine_request *r,
                                      struct plim_error *err)
{
    if (r->count < 1 || (r->tokens < 1 && !e->plan.width))
        return plim_fail(err, PLIM_BAD_INPUT, "prompt and answer need at least one token each");
    if (r->logprobs > ENGINE_LOGPROBS)
        return plim_fail(err, PLIM_BAD_INPUT, "%d log-probabilities: at most %d", r->logprobs,
                         ENGINE_LOGPROBS);
    for (int64_t i = 0; i < r->count; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= e->spec.vocab_size)
            return plim_fail(err, PLIM_BAD_INPUT, "token %d of the prompt is outside the vocabulary of %lld",
                             r->prompt[i], (long long)e->spec.vocab_size);
    if (r->prompt_logprobs && e->kind != &engine_decoder)
        return plim_fail(err, PLIM_UNSUPPORTED, "prompts of a %s model have no log-probabilities",
                         model_architecture_name(e->spec.arch));
    return sampling_check(&r->sampling, err);
}

/* The last token is handed out and never read, so it needs no position. */
static bool fits(const struct engine_plan *p, const struct engine_request *r)
{
    int64_t room = engine_answer_room(p, r->count);
    return room >= 0 && (p->width || r->tokens - !p->answer <= room);
}

/* Against the plan of the moment, under the lock. */
static enum plim_status check_fit(const struct engine *e, const struct engine_request *r,
                                  struct plim_error *err)
{
    if (!fits(&e->plan, r))
        return plim_fail(
            err, PLIM_NO_FIT,
            "a prompt of %lld tokens and an answer of up to %lld do not fit %lld positions; shorten "
            "either, or raise max-context or the budget",
            (long long)r->count, (long long)r->tokens, (long long)e->plan.context);
    if (e->plan.window && r->prompt_logprobs)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "log-probabilities of prompts are not available with a window of %lld tokens",
                         (long long)e->plan.window);
    return PLIM_OK;
}

void request_free(struct request *r)
{
    if (!r) return;
    seen_release(&r->so_far);
    free(r->why);
    free(r->tokens);
    free(r->sequence.table);
    free(r);
}

/* Penalties go by prompt and answer, of an encoder-decoder by the answer alone. */
static bool see_prompt(const struct engine *e, struct request *r)
{
    int64_t prompt = e->kind == &engine_decoder ? r->ask.count : 0, most = prompt + r->ask.tokens;
    int64_t room = most < e->spec.vocab_size ? most : e->spec.vocab_size;
    if (!sampling_penalises(&r->ask.sampling)) return true;
    r->bytes += room * (int64_t)sizeof *r->so_far.token;
    return seen_init(&r->so_far, room, r->tokens, prompt);
}

static struct request *new_request(const struct engine *e, const struct engine_request *ask)
{
    struct request *r = calloc(1, sizeof *r);
    int64_t most = ask->count + ask->tokens;
    if (!r) return NULL;
    r->tokens = malloc((size_t)most * sizeof *r->tokens);
    r->sequence.table = malloc((size_t)blocks_for(most) * sizeof *r->sequence.table);
    r->ask = *ask, r->ask.prompt = r->tokens;
    r->bytes = (int64_t)sizeof *r + (most + blocks_for(most)) * (int64_t)sizeof *r->tokens;
    bool good = r->tokens && r->sequence.table;
    if (good) memcpy(r->tokens, ask->prompt, (size_t)ask->count * sizeof *r->tokens);
    if (!good || !see_prompt(e, r)) return request_free(r), NULL;
    if (ask->prompt_logprobs && ask->logprobs < 0) r->ask.logprobs = 0;
    r->sequence.tokens = r->tokens;
    r->sequence.known = r->sequence.prompt = ask->count;
    r->sequence.every = ask->prompt_logprobs;
    r->sequence.most = most - 1, r->sequence.whole = ask->ignore_eos; /* the last token is not read */
    r->submitted = clock_seconds();
    return r;
}

/* Under the lock. */
static enum plim_status enqueue(struct engine *e, struct request *r, struct plim_error *err)
{
    const char *name = r->ask.adapter;
    r->ask.adapter = NULL; /* the caller's */
    enum plim_status status = check_fit(e, &r->ask, err);
    if (status != PLIM_OK) return status;
    if (e->draining) return plim_fail(err, PLIM_BUSY, "no more requests are taken");
    if (e->live_count >= e->plan.parallel + e->plan.queue)
        return plim_fail(err, PLIM_BUSY, "%lld requests run or wait; try later", (long long)e->live_count);
    if (e->live_count && e->live_bytes + r->bytes > e->bytes_room)
        return plim_fail(err, PLIM_BUSY, "requests that run or wait take %lld bytes; try later",
                         (long long)e->live_bytes);
    if (name) status = adapters_join(e, r, name, err);
    if (status != PLIM_OK) return status;
    r->id = ++e->next_id;
    r->next = e->live, r->link = &e->live, e->live = r;
    if (r->next) r->next->link = &r->next;
    e->live_count++, e->live_bytes += r->bytes;
    *e->incoming_end = r, e->incoming_end = &r->after;
    e->stats.waiting++;
    return PLIM_OK;
}

enum plim_status engine_submit(struct engine *e, const struct engine_request *request, int64_t *id,
                               struct plim_error *err)
{
    enum plim_status status = check_request(e, request, err);
    if (status != PLIM_OK) return status;
    struct request *r = new_request(e, request);
    if (!r) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for a request");
    pthread_mutex_lock(&e->lock);
    status = enqueue(e, r, err);
    if (status == PLIM_OK && id) *id = r->id;
    if (status == PLIM_OK) pthread_cond_signal(&e->more);
    pthread_mutex_unlock(&e->lock);
    if (status == PLIM_OK) return PLIM_OK;
    request_free(r);
    return status;
}

void engine_cancel(struct engine *e, int64_t id)
{
    LOCKED(&e->lock);
    for (struct request *r = e->live; r; r = r->next)
        if (r->id == id) r->cancelled = e->cancels = true;
    pthread_cond_signal(&e->more);
}

bool engine_busy(const struct engine *e)
{
    struct engine *any = (struct engine *)(uintptr_t)e;
    LOCKED(&any->lock);
    return e->live_count > 0;
}

/* --- what kinds without a schedule share ------------------------------------------------------------------ */

bool engine_is_cancelled(struct engine *e, const struct request *r)
{
    LOCKED(&e->lock);
    return r->cancelled;
}

static struct request *take_cancelled(struct engine *e)
{
    struct request *gone = NULL, **at = &e->incoming;
    LOCKED(&e->lock);
    while (*at) {
        struct request *r = *at;
        if (!r->cancelled) {
            at = &r->after;
            continue;
        }
        *at = r->after, r->after = gone, gone = r;
    }
    e->incoming_end = at;
    return gone;
}

void engine_end_cancelled(struct engine *e)
{
    for (struct request *gone = take_cancelled(e), *next; gone; gone = next)
        next = gone->after, engine_finish_cancelled(e, gone);
}

struct request *engine_next(struct engine *e)
{
    LOCKED(&e->lock);
    struct request *r = e->incoming;
    if (r) e->incoming = r->after;
    if (!e->incoming) e->incoming_end = &e->incoming;
    return r;
}

void engine_put_back(struct engine *e, struct request *r)
{
    LOCKED(&e->lock);
    r->after = e->incoming;
    if (!e->incoming) e->incoming_end = &r->after;
    e->incoming = r;
}

void engine_note(struct engine *e, int running, int rows)
{
    LOCKED(&e->lock);
    e->stats.running = running, e->stats.waiting = (int)e->live_count - running;
    e->stats.blocks = rows, e->stats.blocks_used = running;
    e->stats.generated_tokens += e->fresh_tokens, e->fresh_tokens = 0;
    e->stats.budget = e->plan.budget ? e->plan.budget : e->plan.limit;
    e->stats.used = (int64_t)ledger_current(e->device->ledger[TIER_DEVICE]);
}

void engine_set_room(struct engine *e, int64_t request_bytes, int64_t most)
{
    struct engine_plan *p = &e->plan;
    int64_t queue = most / request_bytes - p->parallel;
    if (p->queue > queue) p->queue = queue < p->parallel ? p->parallel : (int)queue;
    if (e->options.queue) p->queue = e->options.queue;
    int64_t all = (p->parallel + p->queue) * request_bytes;
    p->requests = e->bytes_room = all < most && all + request_bytes > most ? most : all;
}

/* --- running ---------------------------------------------------------------------------------------------- */

void engine_on_told(struct engine *e, void (*told)(void *arg), void *arg)
{
    LOCKED(&e->lock);
    e->on_told = told, e->told_arg = arg;
}

void engine_told(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    void (*told)(void *arg) = e->on_told;
    void *arg = e->told_arg;
    pthread_mutex_unlock(&e->lock);
    if (told) told(arg);
}

enum plim_status engine_step(struct engine *e, struct plim_error *err)
{
    engine_snapshot_idle(e);
    enum plim_status status = e->kind->step(e, err);
    engine_told(e);
    return status;
}

/* Sleeps while there is nothing to do; false: nothing will come. */
static bool wait_for_work(struct engine *e, const atomic_int *stop)
{
    LOCKED(&e->lock);
    while (!e->live_count && !e->budget_moved && !e->orders.waiting && !e->draining && !(stop && *stop))
        thread_wait(&e->more, &e->lock, true);
    return (e->live_count || e->budget_moved || e->orders.waiting) && !(stop && *stop);
}

enum plim_status engine_run(struct engine *e, const atomic_int *stop, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    while (status == PLIM_OK && wait_for_work(e, stop)) status = engine_step(e, err);
    return status;
}

void engine_drain(struct engine *e)
{
    LOCKED(&e->lock);
    e->draining = true;
    pthread_cond_signal(&e->more);
}

enum plim_status engine_set_budget(struct engine *e, int64_t budget, struct plim_error *err)
{
    char line[BYTES_TEXT], need[BYTES_TEXT];
    const struct device_facts *facts = &e->device->facts;
    pthread_mutex_lock(&e->lock);
    int64_t before = e->options.budget;
    pthread_mutex_unlock(&e->lock);
    enum plim_status status =
        facts->free_bytes ? budget_check_next("serve", "budget", before, budget, facts, err) : PLIM_OK;
    if (status != PLIM_OK) return status;
    pthread_mutex_lock(&e->lock);
    int64_t smallest = e->smallest, context = e->plan.context, bytes = engine_line(e, budget);
    if (budget < 0 || (bytes && bytes < smallest)) {
        pthread_mutex_unlock(&e->lock);
        return plim_fail(err, PLIM_NO_FIT,
                         "a budget of %s does not hold parameters, one step and a request of %lld positions: "
                         "these need %s",
                         bytes_format(line, (uint64_t)(budget > 0 ? budget : 0)), (long long)context,
                         bytes_format(need, (uint64_t)smallest));
    }
    e->wanted_budget = budget, e->budget_moved = true;
    pthread_cond_signal(&e->more);
    pthread_mutex_unlock(&e->lock);
    return PLIM_OK;
}

bool engine_await_budget(struct engine *e, const atomic_int *stop)
{
    pthread_mutex_lock(&e->lock);
    while ((e->budget_moved || e->budget_moving) && !*stop) thread_wait(&e->settled, &e->lock, true);
    bool taken = !e->budget_moved && !e->budget_moving && e->options.budget == e->wanted_budget;
    pthread_mutex_unlock(&e->lock);
    return taken;
}

struct engine_plan engine_plan_now(struct engine *e)
{
    LOCKED(&e->lock);
    return e->plan;
}

void engine_stats(struct engine *e, struct engine_stats *out)
{
    LOCKED(&e->lock);
    *out = e->stats;
}

void engine_count_anew(struct engine *e)
{
    struct engine_stats *s = &e->stats;
    LOCKED(&e->lock);
    s->steps = s->preemptions = s->prompt_tokens = s->generated_tokens = s->shared_tokens = 0;
    s->swapped = s->ahead = 0;
    memset(s->finished, 0, sizeof s->finished);
}
