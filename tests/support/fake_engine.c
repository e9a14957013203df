/* fake_engine.c - an engine without a model, for tests of the server: every function of serve/engine.h, deterministic and
 * as awkward as told. Linked before the real one into build/<preset>/tests/fake_engine/plimsoll.
 *
 * PLIMSOLL_FAKE_ENGINE is a list like "delay=5,queue=4": delay (ms a step), parallel, queue, context, load (ms of opening),
 * fail (the n-th request fails after two tokens), step_fail (the n-th step is an error of the device, once), dead (every step
 * is one), refuse (opening fails with this status), gather (after the first
 * request, no step before so many are there).
 *
 * Token i of an answer is token (i + seed) % count of the prompt with temperature, i % count without: an echo. A byte 4 in the
 * prompt is the end of text. Logprobs are -(token % 8) / 4; of the likeliest, token t + k has one 1/4 lower than t + k - 1.
 * All running requests advance by a token a step; a prompt costs one step. Requests with the same prompt share blocks.
 */
#include "serve/engine.h"
#include "serve/engine_adapters.h"
#include "serve/engine_snapshot.h"
#include "base/clock.h"
#include "base/locked.h"
#include "model/hf.h"

#include <stdatomic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct job {
    struct job *next;
    struct engine_request r;
    int32_t *prompt;
    int64_t id, made;
    bool running, cancelled, read;
    int number;
    double queued, begun, first;
};

struct engine {
    struct model_spec spec;
    struct engine_plan plan;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct job *jobs;
    int count, taken;
    bool draining, gathered;
    int64_t last_id;
    struct engine_stats stats;
    struct engine_orders orders;
    void (*on_told)(void *arg);
    void *told_arg;
};

static int64_t setting(const char *name, int64_t otherwise)
{
    const char *all = getenv("PLIMSOLL_FAKE_ENGINE");
    size_t len = strlen(name);
    for (const char *at = all; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, name, len) && at[len] == '=') return atoll(at + len + 1);
    return otherwise;
}

static void pause_ms(int64_t ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    if (ms > 0) nanosleep(&t, NULL);
}

enum plim_status engine_open(struct device *device, const struct engine_options *options, struct engine **out,
                             struct plim_error *err)
{
    struct engine *e = calloc(1, sizeof *e);
    (void)device;
    if (setting("refuse", 0)) {
        free(e);
        return plim_fail(err, (enum plim_status)setting("refuse", 0), "the fake engine was told to refuse");
    }
    enum plim_status status = hf_config_load(options->model, &e->spec, err);
    if (status != PLIM_OK) return free(e), status;
    if (options->stage) options->stage(options->stage_arg, "weights_mapped");
    pause_ms(setting("load", 0));
    int parallel = options->parallel ? options->parallel : (int)setting("parallel", 4);
    int64_t context = options->max_context ? options->max_context : setting("context", 512);
    e->plan =
        (struct engine_plan){.budget = options->budget,
                             .total = 3 << 20,
                             .arena = 2 << 20,
                             .params = 1 << 20,
                             .pool = 1 << 20,
                             .context = context,
                             .step_tokens = 256,
                             .rung = options->rung,
                             .parallel = parallel,
                             .queue = options->queue ? options->queue : (int)setting("queue", 4 * parallel)};
    e->plan.blocks = parallel * ((context + ENGINE_BLOCK - 1) / ENGINE_BLOCK);
    e->stats.blocks = e->plan.blocks, e->stats.budget = options->budget, e->stats.used = e->plan.total;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    if (options->stage) options->stage(options->stage_arg, "model_on_device");
    *out = e;
    return PLIM_OK;
}

const struct model_spec *engine_spec(const struct engine *e) { return &e->spec; }
const struct engine_plan *engine_plan(const struct engine *e) { return &e->plan; }

void engine_remember(const struct engine *e) { (void)e; }
void engine_count_anew(struct engine *e) { (void)e; }

void engine_peak(const struct engine *e, struct peak *out)
{
    (void)e;
    *out = (struct peak){.cls = ""};
}

struct engine_plan engine_plan_now(struct engine *e) { return e->plan; }

enum plim_status engine_reopen(struct engine *e, struct device *device, const struct engine_options *options,
                               struct plim_error *err)
{
    (void)device, (void)err;
    e->plan.rung = options->rung;
    return PLIM_OK;
}

static float logprob_of(int32_t token) { return -(float)(token % 8) / 4; }

static bool tell(struct engine *e, struct job *j, int32_t token, enum engine_finish finish, const char *why)
{
    struct engine_logprob top[ENGINE_LOGPROBS];
    double now = clock_seconds();
    struct engine_event event = {.id = j->id,
                                 .token = token,
                                 .finish = finish,
                                 .prompt_tokens = j->r.count,
                                 .shared_tokens = j->r.count / ENGINE_BLOCK * ENGINE_BLOCK,
                                 .tokens = j->made,
                                 .queue_seconds = (j->begun > 0 ? j->begun : now) - j->queued,
                                 .prefill_seconds = j->first > 0 ? j->first - j->begun : 0,
                                 .decode_seconds = j->first > 0 ? now - j->first : 0,
                                 .why = why};
    if (token >= 0 && j->r.logprobs >= 0) {
        event.logprob = logprob_of(token), event.top = top, event.ntop = j->r.logprobs;
        for (int k = 0; k < event.ntop; k++)
            top[k] = (struct engine_logprob){(int32_t)((token + k) % e->spec.vocab_size),
                                             logprob_of(token) - (float)k / 4};
    }
    return j->r.hear(j->r.arg, &event);
}

static void finish(struct engine *e, struct job *j, enum engine_finish how, const char *why)
{
    pthread_mutex_lock(&e->lock);
    for (struct job **at = &e->jobs; *at; at = &(*at)->next)
        if (*at == j) {
            *at = j->next;
            break;
        }
    e->count--, e->stats.finished[how]++;
    if (j->running) e->stats.running--;
    pthread_mutex_unlock(&e->lock);
    tell(e, j, -1, how, why);
    free(j->prompt);
    free(j);
}

void engine_close(struct engine *e)
{
    while (e->jobs) finish(e, e->jobs, FINISH_CANCELLED, NULL);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

enum plim_status engine_submit(struct engine *e, const struct engine_request *request, int64_t *id,
                               struct plim_error *err)
{
    if (request->count + request->tokens - 1 > e->plan.context) /* the last is drawn and not read */
        return plim_fail(err, PLIM_NO_FIT, "%lld and %lld tokens do not fit a context of %lld",
                         (long long)request->count, (long long)request->tokens, (long long)e->plan.context);
    enum plim_status status = sampling_check(&request->sampling, err);
    if (status != PLIM_OK) return status;
    struct job *j = calloc(1, sizeof *j);
    j->r = *request, j->queued = clock_seconds();
    j->prompt = malloc((size_t)request->count * sizeof *j->prompt);
    memcpy(j->prompt, request->prompt, (size_t)request->count * sizeof *j->prompt);
    pthread_mutex_lock(&e->lock);
    if (e->draining || e->count >= e->plan.parallel + e->plan.queue) {
        pthread_mutex_unlock(&e->lock);
        free(j->prompt);
        free(j);
        return plim_fail(err, PLIM_BUSY, "the queue is full: %d requests wait", e->plan.queue);
    }
    struct job **at = &e->jobs;
    while (*at) at = &(*at)->next;
    *at = j, *id = j->id = ++e->last_id, j->number = ++e->taken, e->count++;
    pthread_cond_signal(&e->changed);
    pthread_mutex_unlock(&e->lock);
    return PLIM_OK;
}

void engine_cancel(struct engine *e, int64_t id)
{
    pthread_mutex_lock(&e->lock);
    for (struct job *j = e->jobs; j; j = j->next)
        if (j->id == id) j->cancelled = true;
    pthread_mutex_unlock(&e->lock);
}

void engine_on_told(struct engine *e, void (*told)(void *arg), void *arg)
{
    LOCKED(&e->lock);
    e->on_told = told, e->told_arg = arg;
}

static void tell_step(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    void (*told)(void *arg) = e->on_told;
    void *arg = e->told_arg;
    pthread_mutex_unlock(&e->lock);
    if (told) told(arg);
}

static void read_prompt(struct engine *e, struct job *j)
{
    j->read = true;
    for (int64_t i = 0; j->r.prompt_logprobs && i < j->r.count; i++)
        tell(e, j, j->prompt[i], FINISH_NONE, NULL);
}

static void advance(struct engine *e, struct job *j)
{
    int64_t shift = j->r.sampling.temperature > 0 ? (int64_t)(j->r.sampling.seed % (uint64_t)j->r.count) : 0;
    int32_t token = j->prompt[(j->made + shift) % j->r.count];
    if (j->number == setting("fail", 0) && j->made == 2)
        return finish(e, j, FINISH_FAILED, "the fake engine failed it");
    if (token == 4 && !j->r.ignore_eos) return finish(e, j, FINISH_EOS, NULL);
    if (!j->made++) j->first = clock_seconds();
    bool go_on = tell(e, j, token, FINISH_NONE, NULL);
    pthread_mutex_lock(&e->lock);
    e->stats.generated_tokens++;
    if (!go_on) j->cancelled = true;
    pthread_mutex_unlock(&e->lock);
    if (j->made == j->r.tokens) finish(e, j, FINISH_LENGTH, NULL);
}

/* Admits in order, then moves each running request on. */
static void step(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    int64_t used = 0;
    for (struct job *j = e->jobs; j; j = j->next) {
        if (!j->running && e->stats.running < e->plan.parallel)
            j->running = true, e->stats.running++, j->begun = clock_seconds(),
            e->stats.prompt_tokens += j->r.count;
        if (j->running) used += (j->r.count + j->made + ENGINE_BLOCK - 1) / ENGINE_BLOCK;
    }
    e->stats.blocks_used = used, e->stats.waiting = e->count - e->stats.running;
    struct job *j = e->jobs;
    pthread_mutex_unlock(&e->lock);
    while (j) {
        pthread_mutex_lock(&e->lock);
        struct job *next = j->next;
        bool running = j->running, cancelled = j->cancelled;
        pthread_mutex_unlock(&e->lock);
        if (cancelled)
            finish(e, j, FINISH_CANCELLED, NULL);
        else if (running && !j->read)
            read_prompt(e, j);
        else if (running)
            advance(e, j);
        j = next;
    }
    tell_step(e);
}

/* Were enough requests there at once? If not, a moment passes. */
static bool is_gathered(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->gathered |= e->count >= setting("gather", 0) || e->draining;
    bool is = e->gathered || e->taken < 2; /* the first is the warm-up */
    pthread_mutex_unlock(&e->lock);
    if (!is) pause_ms(1);
    return is;
}

enum plim_status engine_step(struct engine *e, struct plim_error *err)
{
    if (!is_gathered(e)) return PLIM_OK;
    pthread_mutex_lock(&e->lock);
    int64_t number = ++e->stats.steps;
    pthread_mutex_unlock(&e->lock);
    if (number == setting("step_fail", 0)) return plim_fail(err, PLIM_IO, "the fake device was lost");
    if (setting("dead", 0) && number > setting("dead", 0)) {
        pthread_mutex_lock(&e->lock);
        e->stats.steps--;
        pthread_mutex_unlock(&e->lock);
        return plim_fail(err, PLIM_IO, "the fake device is dead");
    }
    pause_ms(setting("delay", 0));
    step(e);
    return PLIM_OK;
}

bool engine_busy(const struct engine *e)
{
    struct engine *own = (struct engine *)e;
    pthread_mutex_lock(&own->lock);
    bool busy = own->jobs;
    pthread_mutex_unlock(&own->lock);
    return busy;
}

static bool wait_a_moment(struct engine *e)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 20000000;
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
    pthread_mutex_lock(&e->lock);
    if (!e->jobs && !e->draining) pthread_cond_timedwait(&e->changed, &e->lock, &until);
    bool over = e->draining && !e->jobs;
    pthread_mutex_unlock(&e->lock);
    return !over;
}

enum plim_status engine_run(struct engine *e, const atomic_int *stop, struct plim_error *err)
{
    while (!*stop && wait_a_moment(e)) {
        enum plim_status status = engine_busy(e) ? engine_step(e, err) : PLIM_OK;
        if (status != PLIM_OK) return status;
    }
    return PLIM_OK;
}

void engine_drain(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->draining = true;
    pthread_cond_signal(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

enum plim_status engine_set_budget(struct engine *e, int64_t budget, struct plim_error *err)
{
    (void)err;
    e->stats.budget = budget;
    return PLIM_OK;
}

enum plim_status engine_save_plan(struct engine *e, const struct snapshot_wish *wish, struct plim_error *err)
{
    (void)e, (void)wish;
    return plim_fail(err, PLIM_UNSUPPORTED, "the fake engine has no plan");
}

/* Every order is done at once, and makes nothing. */
enum plim_status engine_snapshot(struct engine *e, const struct snapshot_wish *wish, int64_t *number,
                                 struct plim_error *err)
{
    (void)wish, (void)err;
    *number = ++e->orders.done;
    return PLIM_OK;
}

void engine_orders(struct engine *e, struct engine_orders *out) { *out = e->orders; }

void engine_stats(struct engine *e, struct engine_stats *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    out->waiting = e->count - e->stats.running;
    if (!e->count) out->blocks_used = 0;
    pthread_mutex_unlock(&e->lock);
}

/* It has no adapters. */
enum plim_status engine_load_adapter(struct engine *, const char *, const char *, bool,
                                     struct plim_error *err)
{
    return plim_fail(err, PLIM_UNSUPPORTED, "the fake engine has no adapters");
}

enum plim_status engine_unload_adapter(struct engine *, const char *name, struct plim_error *err)
{
    return plim_fail(err, PLIM_BAD_INPUT, "there is no adapter '%.128s'", name);
}

bool engine_has_adapter(struct engine *, const char *) { return false; }

void engine_each_adapter(struct engine *, void (*)(void *, const char *, const char *), void *) {}
