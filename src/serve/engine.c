/* engine.c - requests one after the other over the generator of generate.h: what engine.h asks, without batching.
 *
 * One request is one step. The cache of the generator is the pool, and its positions are the context. Likelihoods are
 * refused. Invariant: `first` is the request under way, and only engine_step takes it off the list.
 */
#include "serve/engine.h"
#include "serve/generate.h"
#include "base/clock.h"
#include "model/hf.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct waiting {
    struct waiting *next;
    struct engine *engine;
    struct engine_request request;
    int64_t id, tokens;
    double queued, begun, first;
    bool cancelled;
    int32_t prompt[];
};

struct engine {
    struct device *device;
    struct generator *generator;
    struct engine_plan plan;
    int64_t vocab;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct waiting *first;
    int count;
    bool draining;
    int64_t last_id;
    struct engine_stats stats;
};

static void tell_stage(const struct engine_options *o, const char *name)
{
    if (o->stage) o->stage(o->stage_arg, name);
}

/* The largest context that fits, from what was asked or the model has down by halves. */
static enum plim_status open_generator(struct engine *e, const struct engine_options *o,
                                       struct plim_error *err)
{
    struct model_spec spec;
    enum plim_status status = hf_config_load(o->model, &spec, err);
    int64_t context =
        o->max_context && o->max_context < spec.max_positions ? o->max_context : spec.max_positions;
    if (status != PLIM_OK) return status;
    if (!o->max_context && context > 8192) context = 8192;
    int64_t beside = e->device->facts.unified_memory ? o->beside : 0, budget = o->budget;
    if (budget && budget <= beside)
        return plim_fail(err, PLIM_NO_FIT,
                         "connections and requests alone may take %lld of the budget of %lld bytes",
                         (long long)beside, (long long)budget);
    if (budget) budget -= beside;
    for (;; context /= 2) {
        struct generate_room room = {.prompt = context - 1, .tokens = 1, .budget = budget, .log = o->log};
        status = generator_open(o->model, e->device, &room, &e->generator, err);
        if (status != PLIM_NO_FIT || o->max_context || context < 64) break;
    }
    return status;
}

enum plim_status engine_open(struct device *device, const struct engine_options *options, struct engine **out,
                             struct plim_error *err)
{
    struct engine *e = calloc(1, sizeof *e);
    *out = NULL;
    if (!e) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an engine was set up");
    e->device = device, e->vocab = options->vocab;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    enum plim_status status = open_generator(e, options, err);
    if (status != PLIM_OK) return engine_close(e), status;
    tell_stage(options, "model_on_device");
    const struct generate_plan *p = generator_plan(e->generator);
    int parallel = 1,
        queue = options->queue ? options->queue : 4 * (options->parallel ? options->parallel : 8);
    e->plan = (struct engine_plan){.budget = options->budget,
                                   .total = p->total + (device->facts.unified_memory ? options->beside : 0),
                                   .arena = p->arena,
                                   .params = p->params,
                                   .pool = p->cache,
                                   .blocks = (p->positions + ENGINE_BLOCK - 1) / ENGINE_BLOCK,
                                   .context = p->positions,
                                   .step_tokens = p->chunk,
                                   .parallel = parallel,
                                   .queue = queue};
    e->stats.blocks = e->plan.blocks, e->stats.budget = options->budget, e->stats.used = e->plan.total;
    *out = e;
    return PLIM_OK;
}

const struct model_spec *engine_spec(const struct engine *e) { return generator_spec(e->generator); }
const struct engine_plan *engine_plan(const struct engine *e) { return &e->plan; }

/* --- events ------------------------------------------------------------------------------------------------ */

static bool tell(struct waiting *w, int32_t token, enum engine_finish finish, const char *why)
{
    double now = clock_seconds(), begun = w->begun > 0 ? w->begun : now,
           first = w->first > 0 ? w->first : now;
    struct engine_event event = {.id = w->id,
                                 .token = token,
                                 .finish = finish,
                                 .prompt_tokens = w->request.count,
                                 .tokens = w->tokens,
                                 .queue_seconds = begun - w->queued,
                                 .prefill_seconds = first - begun,
                                 .decode_seconds = now - first,
                                 .why = why};
    return w->request.hear(w->request.arg, &event);
}

static bool hear_token(void *arg, int32_t token)
{
    struct waiting *w = arg;
    struct engine *e = w->engine;
    w->tokens++;
    if (w->first <= 0) w->first = clock_seconds();
    bool go_on = tell(w, token, FINISH_NONE, NULL);
    pthread_mutex_lock(&e->lock);
    if (!go_on) w->cancelled = true;
    go_on = !w->cancelled;
    e->stats.generated_tokens++;
    e->stats.blocks_used = (w->request.count + w->tokens + ENGINE_BLOCK - 1) / ENGINE_BLOCK;
    pthread_mutex_unlock(&e->lock);
    return go_on;
}

/* Off the list, and its last event. */
static void finish(struct engine *e, struct waiting *w, enum engine_finish how, const char *why)
{
    pthread_mutex_lock(&e->lock);
    for (struct waiting **at = &e->first; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    e->count--, e->stats.finished[how]++, e->stats.blocks_used = 0, e->stats.running = 0;
    pthread_mutex_unlock(&e->lock);
    tell(w, -1, how, why);
    free(w);
}

void engine_close(struct engine *e)
{
    if (!e) return;
    while (e->first) finish(e, e->first, FINISH_CANCELLED, NULL);
    generator_close(e->generator);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

/* --- requests ---------------------------------------------------------------------------------------------- */

static enum plim_status check(const struct engine *e, const struct engine_request *r, struct plim_error *err)
{
    if (r->count + r->tokens > e->plan.context)
        return plim_fail(err, PLIM_NO_FIT,
                         "%lld tokens of prompt and %lld of answer do not fit a context of %lld",
                         (long long)r->count, (long long)r->tokens, (long long)e->plan.context);
    for (int64_t i = 0; i < r->count; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= engine_spec(e)->vocab_size)
            return plim_fail(err, PLIM_BAD_INPUT, "token %d is outside the vocabulary", r->prompt[i]);
    if (r->logprobs >= 0 || r->prompt_logprobs)
        return plim_fail(err, PLIM_UNSUPPORTED, "logprobs are not supported by this engine");
    return sampling_check(&r->sampling, err);
}

enum plim_status engine_submit(struct engine *e, const struct engine_request *request, int64_t *id,
                               struct plim_error *err)
{
    enum plim_status status = check(e, request, err);
    if (status != PLIM_OK) return status;
    struct waiting *w = malloc(sizeof *w + (size_t)request->count * sizeof *w->prompt);
    if (!w) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for a request");
    *w = (struct waiting){.engine = e, .request = *request, .queued = clock_seconds()};
    memcpy(w->prompt, request->prompt, (size_t)request->count * sizeof *w->prompt);
    w->request.prompt = w->prompt;
    pthread_mutex_lock(&e->lock);
    if (e->draining || e->count >= e->plan.parallel + e->plan.queue) {
        status =
            plim_fail(err, PLIM_BUSY,
                      e->draining ? "the engine is draining" : "%d requests are waiting already", e->count);
    } else {
        struct waiting **at = &e->first;
        while (*at) at = &(*at)->next;
        *at = w, *id = w->id = ++e->last_id, e->count++;
        pthread_cond_signal(&e->changed);
    }
    pthread_mutex_unlock(&e->lock);
    if (status != PLIM_OK) free(w);
    return status;
}

void engine_cancel(struct engine *e, int64_t id)
{
    pthread_mutex_lock(&e->lock);
    for (struct waiting *w = e->first; w; w = w->next)
        if (w->id == id) w->cancelled = true;
    pthread_cond_signal(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* --- steps ------------------------------------------------------------------------------------------------- */

enum plim_status engine_step(struct engine *e, struct plim_error *err)
{
    struct generate_result result = {0};
    pthread_mutex_lock(&e->lock);
    struct waiting *w = e->first;
    bool cancelled = w && w->cancelled;
    if (w) e->stats.running = 1, e->stats.steps++;
    pthread_mutex_unlock(&e->lock);
    if (!w) return PLIM_OK;
    if (cancelled) return finish(e, w, FINISH_CANCELLED, NULL), PLIM_OK;
    w->begun = clock_seconds();
    struct generate_request r = {.prompt = w->prompt,
                                 .count = w->request.count,
                                 .tokens = w->request.tokens,
                                 .vocab = e->vocab,
                                 .sampling = w->request.sampling,
                                 .hear = hear_token,
                                 .arg = w};
    enum plim_status status = generator_run(e->generator, &r, &result, err);
    pthread_mutex_lock(&e->lock);
    e->stats.prompt_tokens += w->request.count;
    cancelled = w->cancelled;
    pthread_mutex_unlock(&e->lock);
    enum engine_finish how = status != PLIM_OK             ? FINISH_FAILED
                             : cancelled                   ? FINISH_CANCELLED
                             : result.stop == GENERATE_END ? FINISH_EOS
                                                           : FINISH_LENGTH;
    finish(e, w, how, status == PLIM_OK ? NULL : err->text);
    return status;
}

bool engine_busy(const struct engine *e)
{
    struct engine *own = (struct engine *)e;
    pthread_mutex_lock(&own->lock);
    bool busy = own->first;
    pthread_mutex_unlock(&own->lock);
    return busy;
}

/* Something to do, or nothing will come any more, or a moment has passed: signals wake nobody who waits for a condition. */
static bool wait_a_moment(struct engine *e)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 50000000;
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
    pthread_mutex_lock(&e->lock);
    if (!e->first && !e->draining) pthread_cond_timedwait(&e->changed, &e->lock, &until);
    bool over = e->draining && !e->first;
    pthread_mutex_unlock(&e->lock);
    return !over;
}

enum plim_status engine_run(struct engine *e, const volatile int *stop, struct plim_error *err)
{
    while (!*stop && wait_a_moment(e)) {
        enum plim_status status = engine_step(e, err);
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
    (void)e, (void)budget;
    return plim_fail(err, PLIM_UNSUPPORTED, "this engine keeps the line it was opened with");
}

void engine_stats(struct engine *e, struct engine_stats *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    out->waiting = e->count - e->stats.running;
    pthread_mutex_unlock(&e->lock);
}
