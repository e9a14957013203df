/* engine.c - the handle of plimsoll/engine.h: opening, who may step, budgets and figures. See engine_part.h.
 *
 * Invariants
 *  1. At most one thread steps: the engine's own (started), or one that is in step, run or generate (stepping).
 *  2. An engine whose steps fail on every rung is broken: its requests have ended as FAILED and it takes no more.
 */
#include "api/engine_part.h"
#include "api/model_text.h"
#include "base/threads.h"
#include "model/hf.h"
#include "serve/engine_adapters.h"

#include <stdlib.h>
#include <string.h>

/* --- opening ------------------------------------------------------------------------------------------------ */

/* Memory is planned for prompts of up to PROMPT bytes; longer ones take more while they are encoded. */
enum { PROMPT = 64 << 10, ANSWERS = 256 << 10 };

/* An encoder's cache of words makes long prompts faster; under a small budget it is small. */
static struct encoder_room encoder_room(const struct plim_engine *e)
{
    uint64_t budget = device_line_host(&e->model.line), share = budget / 64;
    if (!budget || share > ENCODER_CACHE) share = ENCODER_CACHE;
    return (struct encoder_room){.cache = share, .keep = PROMPT};
}

static enum plim_status check_options(const struct caller *c, const struct plim_engine_options *o,
                                      bool plan_only, struct plim_error *err)
{
    enum dtype unused;
    if (!o->model) return caller_refuse(c, "model", err, "name a model folder or file");
    if (o->kv_type && !kv_type_parse(o->kv_type, &unused))
        return caller_refuse(c, "kv_type", err, "'%s'; write auto, f32, bf16, f16, i8 or fp8", o->kv_type);
    if (o->budget > INT64_MAX) return caller_refuse(c, "budget", err, "more than there is");
    if (o->max_context < 0)
        return caller_refuse(c, "max_context", err, "write 0 for what fits, or e.g. 4096");
    if (o->parallel < 0 || o->parallel > 4096)
        return caller_refuse(c, "parallel", err, "%d; write 0 for what fits, or up to 4096", o->parallel);
    if (o->queue < 0 || o->queue > 1000000)
        return caller_refuse(c, "queue", err, "%d; write 0 for 4 x parallel, or up to 1000000", o->queue);
    if (o->max_adapters < 0 || o->max_adapters > ADAPTER_SLOT_MOST)
        return caller_refuse(c, "max_adapters", err, "%d; write 0 for none, or up to %d", o->max_adapters,
                             ADAPTER_SLOT_MOST);
    if (o->max_adapter_rank < 0 || o->max_adapter_rank > ADAPTER_SLOT_MOST)
        return caller_refuse(c, "max_adapter_rank", err, "%d; write 0 for 16, or up to %d",
                             o->max_adapter_rank, ADAPTER_SLOT_MOST);
    return caller_check(c, o->device, plan_only, o->weights, o->threads, err);
}

static enum plim_status open_text(struct plim_engine *e, const struct plim_engine_options *o,
                                  struct plim_error *err)
{
    struct model_spec spec;
    enum plim_status status = find_model(e->model.caller.context, o->model, e->dir, sizeof e->dir, err);
    if (status == PLIM_OK) status = hf_config_load(e->dir, &spec, err);
    if (status == PLIM_OK && model_is_encoder(&spec))
        status = plim_fail(err, PLIM_UNSUPPORTED,
                           "%s: a %s model embeds texts and cannot generate; open it with plim_embedder_open",
                           e->dir, model_architecture_name(spec.arch));
    if (status == PLIM_OK)
        status = open_codec(e->model.caller.context, o->tokenizer, e->dir, device_line_host(&e->model.line),
                            &e->codec, err);
    if (status == PLIM_OK) status = check_vocabulary(&e->codec, e->dir, spec.vocab_size, err);
    struct encoder_room room = encoder_room(e);
    if (status == PLIM_OK && e->codec.tokenizer)
        status = encoder_open_within(e->codec.tokenizer, &room, &e->encoder, err);
    if (status != PLIM_OK) return status;
    warn_of_bytes(&e->codec, o->tokenizer, e->dir, spec.vocab_size, e->model.log);
    chat_template_load(e->dir, NULL, &e->chat, &e->no_chat);
    return PLIM_OK;
}

/* Host memory of text: tokenizer, encoder, template, and answers under way. */
static int64_t text_bytes(const struct plim_engine *e)
{
    struct encoder_room room = encoder_room(e);
    size_t encoder =
        e->codec.tokenizer ? encoder_room_bytes(e->codec.tokenizer, &room) + ENCODER_LIMIT(PROMPT) : 0;
    size_t chat = e->chat ? chat_template_bytes(e->chat) : 0;
    return (int64_t)(e->codec.bytes + encoder + chat) + ANSWERS;
}

static enum plim_status open_engine(struct plim_engine *e, const struct plim_engine_options *o,
                                    bool plan_only, struct plim_error *err)
{
    struct engine_options options = {.model = e->dir,
                                     .caller_bytes = text_bytes(e),
                                     .max_context = o->max_context,
                                     .weights = weights_kind_parse(o->weights ? o->weights : "as-is"),
                                     .scratch = e->scratch,
                                     .parallel = o->parallel,
                                     .queue = o->queue,
                                     .adapter_slots = o->max_adapters,
                                     .adapter_rank = o->max_adapter_rank,
                                     .vocab = e->codec.vocab_size,
                                     .kv_type = DT_COUNT,
                                     .log = e->model.log,
                                     .plan_only = plan_only,
                                     .advice = o->max_context ? "lower max_context" : NULL,
                                     .remember = true};
    unsigned allowed = (o->allow_kv8 ? ALLOW_KV8 : 0) | (o->allow_window ? ALLOW_WINDOW : 0);
    if (o->kv_type) kv_type_parse(o->kv_type, &options.kv_type);
    enum plim_status status = model_engine_open(&e->model, &options, allowed, err);
    if (status == PLIM_OK && !plan_only) status = model_engine_warm_up(&e->model, err);
    if (status == PLIM_OK) e->model.ladder.stage = NULL;
    return status;
}

static void init_locks(struct plim_engine *e)
{
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&e->gate, &recursive);
    pthread_mutexattr_destroy(&recursive);
    pthread_mutex_init(&e->encoding, NULL);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->idle, NULL);
}

/* Everything but the handle's check; nobody steps. */
static void release(struct plim_engine *e)
{
    model_engine_close(&e->model);
    encoder_close(e->encoder);
    chat_template_free(e->chat);
    codec_close(&e->codec);
    pthread_cond_destroy(&e->idle);
    pthread_mutex_destroy(&e->lock);
    pthread_mutex_destroy(&e->encoding);
    pthread_mutex_destroy(&e->gate);
    free(e->scratch);
    handle_free(e);
}

enum plim_status engine_handle_open(struct plim_context *context, const struct plim_engine_options *options,
                                    const char *function, bool plan_only, struct plim_engine **out,
                                    struct plim_error *err)
{
    struct plim_engine_options o;
    if (!handle_is(context, HANDLE_CONTEXT, function, err)) return PLIM_BAD_INPUT;
    struct caller caller = {&context->context, function, true};
    enum plim_status status = options_take(&o, sizeof o, options, function, err);
    if (status == PLIM_OK) status = check_options(&caller, &o, plan_only, err);
    if (status != PLIM_OK) return status;
    struct plim_engine *e = handle_new(sizeof *e, HANDLE_ENGINE, context, err);
    if (!e) return PLIM_NO_MEMORY;
    init_locks(e);
    e->codec.eos = -1;
    e->model =
        (struct model_engine){.caller = caller,
                              .device = o.device ? o.device : "auto",
                              .threads = o.threads,
                              .line = {o.budget, o.budget > 0, device_line_default(), "options.budget"},
                              .log = context_log(&context->context)};
    if (o.scratch && !(e->scratch = strdup(o.scratch)))
        status = plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", function);
    model_name(o.model, e->name, sizeof e->name);
    if (status == PLIM_OK) status = open_text(e, &o, err);
    if (status == PLIM_OK) status = open_engine(e, &o, plan_only, err);
    e->model.device = "auto"; /* the caller's text is not ours to keep */
    if (status != PLIM_OK) return release(e), status;
    *out = e;
    return PLIM_OK;
}

enum plim_status plim_engine_open(struct plim_context *context, const struct plim_engine_options *options,
                                  struct plim_engine **out, struct plim_error *err)
{
    struct plim_error unheard;
    if (!err) err = &unheard;
    if (!out) return plim_fail(err, PLIM_BAD_INPUT, "plim_engine_open: out is NULL");
    *out = NULL;
    return engine_handle_open(context, options, "plim_engine_open", false, out, err);
}

/* --- stepping ----------------------------------------------------------------------------------------------- */

/* Invariant 1. */
static enum plim_status begin_stepping(struct plim_engine *e, const char *function, struct plim_error *err)
{
    const char *who = NULL;
    if (!handle_is(e, HANDLE_ENGINE, function, err)) return PLIM_BAD_INPUT;
    pthread_mutex_lock(&e->lock);
    if (e->started)
        who = "the engine has a thread of its own (plim_engine_start)";
    else if (e->stepping)
        who = pthread_equal(e->stepper, pthread_self()) ? "a handler may only submit and cancel"
                                                        : "another thread steps this engine";
    else
        e->stepping = true, e->stepper = pthread_self();
    pthread_mutex_unlock(&e->lock);
    return who ? plim_fail(err, PLIM_BAD_INPUT, "%s: %s", function, who) : PLIM_OK;
}

static void end_stepping(struct plim_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->stepping = false;
    pthread_cond_broadcast(&e->idle);
    pthread_mutex_unlock(&e->lock);
}

/* Invariant 2. On failure every request has ended. */
static enum plim_status recover(struct plim_engine *e, enum plim_status status, struct plim_error *err)
{
    pthread_mutex_lock(&e->gate);
    status = model_engine_recover(&e->model, status, err);
    if (status != PLIM_OK) {
        e->broken = *err;
        plim_error_prefix(&e->broken, "the engine has failed and can only be closed");
        engine_fail(e->model.engine, err->text);
        e->stop = 1;
    }
    pthread_mutex_unlock(&e->gate);
    return status;
}

static enum plim_status broken(struct plim_engine *e, struct plim_error *err)
{
    pthread_mutex_lock(&e->gate);
    enum plim_status status = e->broken.status;
    if (status != PLIM_OK) *err = e->broken;
    pthread_mutex_unlock(&e->gate);
    return status;
}

static enum plim_status step(struct plim_engine *e, struct plim_error *err)
{
    enum plim_status status = broken(e, err);
    if (status != PLIM_OK) return status;
    status = engine_step(e->model.engine, err);
    return status == PLIM_OK ? status : recover(e, status, err);
}

enum plim_status plim_engine_step(struct plim_engine *engine, int *busy, struct plim_error *err)
{
    struct plim_error unheard;
    if (!err) err = &unheard;
    enum plim_status status = begin_stepping(engine, "plim_engine_step", err);
    if (status != PLIM_OK) return status;
    status = step(engine, err);
    if (busy) *busy = engine_busy(engine->model.engine);
    end_stepping(engine);
    return status;
}

enum plim_status plim_engine_run(struct plim_engine *engine, struct plim_error *err)
{
    struct plim_error unheard;
    if (!err) err = &unheard;
    enum plim_status status = begin_stepping(engine, "plim_engine_run", err);
    if (status != PLIM_OK) return status;
    while (status == PLIM_OK && !engine->stop && engine_busy(engine->model.engine))
        status = step(engine, err);
    end_stepping(engine);
    return status;
}

static void *run_thread(void *arg)
{
    struct plim_engine *e = arg;
    struct plim_error err = {0};
    enum plim_status status = PLIM_OK;
    thread_name("plimsoll-engine");
    while (status == PLIM_OK && !e->stop) {
        status = engine_run(e->model.engine, &e->stop, &err);
        if (status != PLIM_OK) status = recover(e, status, &err);
    }
    return NULL;
}

enum plim_status plim_engine_start(struct plim_engine *engine, struct plim_error *err)
{
    struct plim_error unheard;
    if (!err) err = &unheard;
    enum plim_status status = begin_stepping(engine, "plim_engine_start", err);
    if (status != PLIM_OK) return status;
    pthread_mutex_lock(&engine->lock);
    int failed = thread_begin(&engine->stepper, 0, run_thread, engine);
    engine->started = !failed, engine->stepping = false;
    pthread_mutex_unlock(&engine->lock);
    return failed ? plim_fail(err, PLIM_NO_MEMORY, "plim_engine_start: no thread: %s", strerror(failed))
                  : PLIM_OK;
}

/* Waits until nobody steps. False: the caller is a handler. */
static bool stop_stepping(struct plim_engine *e)
{
    pthread_mutex_lock(&e->lock);
    bool started = e->started;
    bool inside = (started || e->stepping) && pthread_equal(e->stepper, pthread_self());
    if (!inside) e->stop = 1;
    while (!inside && e->stepping) pthread_cond_wait(&e->idle, &e->lock);
    pthread_mutex_unlock(&e->lock);
    if (!inside && started) engine_drain(e->model.engine), pthread_join(e->stepper, NULL);
    return !inside;
}

void plim_engine_close(struct plim_engine *engine)
{
    if (!handle_is(engine, HANDLE_ENGINE, "plim_engine_close", NULL)) return;
    if (!stop_stepping(engine)) {
        log_error(engine->model.log, "plim_engine_close: a handler cannot close its engine; it stays open");
        return;
    }
    plim_fail(&engine->broken, PLIM_BAD_INPUT, "the engine is being closed"); /* handlers may try to submit */
    release(engine);
}

/* --- requests ----------------------------------------------------------------------------------------------- */

enum plim_status plim_engine_submit(struct plim_engine *engine, const struct plim_request *request,
                                    int64_t *id, struct plim_error *err)
{
    struct plim_error unheard;
    if (!err) err = &unheard;
    if (!handle_is(engine, HANDLE_ENGINE, "plim_engine_submit", err)) return PLIM_BAD_INPUT;
    return answer_submit(engine, request, "plim_engine_submit", id, err);
}

void plim_engine_cancel(struct plim_engine *engine, int64_t id)
{
    if (!handle_is(engine, HANDLE_ENGINE, "plim_engine_cancel", NULL)) return;
    engine_cancel(engine->model.engine, id);
}

/* An answer that is collected, for generate. */
struct whole {
    answer_hear *hear; /* the caller's; may be NULL */
    void *arg;
    struct strbuf text;
    enum plim_finish finish;
    struct plim_error err;
};

static int collect(void *arg, const struct plim_engine_event *event)
{
    struct whole *w = arg;
    strbuf_addn(&w->text, event->text, event->text_bytes);
    w->finish = event->finish;
    if (event->why) plim_fail(&w->err, PLIM_IO, "plim_engine_generate: %s", event->why);
    return w->hear ? w->hear(w->arg, event) : 0;
}

enum plim_status plim_engine_generate(struct plim_engine *engine, const struct plim_request *request,
                                      char **text, struct plim_error *err)
{
    static const char me[] = "plim_engine_generate";
    struct plim_error unheard;
    struct plim_request r;
    struct whole w = {.text = STRBUF_INIT};
    if (!err) err = &unheard;
    if (!text) return plim_fail(err, PLIM_BAD_INPUT, "%s: text is NULL", me);
    *text = NULL;
    enum plim_status status = begin_stepping(engine, me, err);
    if (status != PLIM_OK) return status;
    status = options_take(&r, sizeof r, request, me, err);
    w.hear = r.hear, w.arg = r.arg, r.size = sizeof r, r.hear = collect, r.arg = &w;
    if (status == PLIM_OK) status = answer_submit(engine, &r, me, NULL, err);
    while (status == PLIM_OK && !w.finish && !engine->stop) status = step(engine, err);
    if (status == PLIM_OK && w.finish == PLIM_FINISH_FAILED) *err = w.err, status = w.err.status;
    if (status == PLIM_OK && w.finish == PLIM_FINISH_CANCELLED)
        status = plim_fail(err, PLIM_INTERRUPTED, "%s: cancelled", me);
    if (status == PLIM_OK || status == PLIM_INTERRUPTED) *text = text_give(&w.text);
    if (status == PLIM_OK && !*text) status = plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", me);
    strbuf_release(&w.text);
    end_stepping(engine);
    return status;
}

/* --- budget and figures --------------------------------------------------------------------------------------- */

/* Does a thread step that is not the caller's? Then it applies a budget soon. */
static bool steps_elsewhere(struct plim_engine *e)
{
    pthread_mutex_lock(&e->lock);
    bool elsewhere = e->started && !pthread_equal(e->stepper, pthread_self());
    pthread_mutex_unlock(&e->lock);
    return elsewhere;
}

enum plim_status plim_engine_set_budget(struct plim_engine *engine, uint64_t budget, struct plim_error *err)
{
    struct plim_error unheard;
    if (!err) err = &unheard;
    if (!handle_is(engine, HANDLE_ENGINE, "plim_engine_set_budget", err)) return PLIM_BAD_INPUT;
    if (budget > INT64_MAX)
        return plim_fail(err, PLIM_BAD_INPUT, "plim_engine_set_budget: more than there is");
    pthread_mutex_lock(&engine->gate);
    enum plim_status status = broken(engine, err);
    if (status == PLIM_OK) status = engine_set_budget(engine->model.engine, (int64_t)budget, err);
    pthread_mutex_unlock(&engine->gate);
    if (status != PLIM_OK || !steps_elsewhere(engine)) return status;
    if (engine_await_budget(engine->model.engine, &engine->stop)) return PLIM_OK;
    return plim_fail(err, PLIM_NO_MEMORY,
                     "plim_engine_set_budget: memory was refused (the log says why); the old budget stays");
}

enum plim_status plim_engine_load_adapter(struct plim_engine *engine, const char *name, const char *folder,
                                          struct plim_error *err)
{
    struct plim_error unheard;
    if (!err) err = &unheard;
    if (!handle_is(engine, HANDLE_ENGINE, "plim_engine_load_adapter", err)) return PLIM_BAD_INPUT;
    if (!name || !folder)
        return plim_fail(err, PLIM_BAD_INPUT, "plim_engine_load_adapter: give a name and a folder");
    pthread_mutex_lock(&engine->gate);
    enum plim_status status = broken(engine, err);
    if (status == PLIM_OK) status = engine_load_adapter(engine->model.engine, name, folder, false, err);
    pthread_mutex_unlock(&engine->gate);
    return status;
}

enum plim_status plim_engine_unload_adapter(struct plim_engine *engine, const char *name,
                                            struct plim_error *err)
{
    struct plim_error unheard;
    if (!err) err = &unheard;
    if (!handle_is(engine, HANDLE_ENGINE, "plim_engine_unload_adapter", err)) return PLIM_BAD_INPUT;
    if (!name) return plim_fail(err, PLIM_BAD_INPUT, "plim_engine_unload_adapter: give a name");
    pthread_mutex_lock(&engine->gate);
    enum plim_status status = broken(engine, err);
    if (status == PLIM_OK) status = engine_unload_adapter(engine->model.engine, name, err);
    pthread_mutex_unlock(&engine->gate);
    return status;
}

enum plim_status plim_engine_figures(struct plim_engine *engine, struct plim_engine_figures *out,
                                     struct plim_error *err)
{
    struct engine_stats s;
    if (!handle_is(engine, HANDLE_ENGINE, "plim_engine_figures", err)) return PLIM_BAD_INPUT;
    pthread_mutex_lock(&engine->gate);
    struct engine_plan p = engine_plan_now(engine->model.engine);
    engine_stats(engine->model.engine, &s);
    pthread_mutex_unlock(&engine->gate);
    struct plim_engine_figures ours = {.budget = (uint64_t)p.budget,
                                       .planned_bytes = (uint64_t)p.total,
                                       .used_bytes = (uint64_t)s.used,
                                       .parameter_bytes = (uint64_t)p.params,
                                       .kv_bytes = (uint64_t)p.pool,
                                       .streamed_bytes = (uint64_t)p.streamed,
                                       .context = p.context,
                                       .parallel = p.parallel,
                                       .running = s.running,
                                       .waiting = s.waiting,
                                       .steps = s.steps,
                                       .preemptions = s.preemptions,
                                       .prompt_tokens = s.prompt_tokens,
                                       .generated_tokens = s.generated_tokens,
                                       .prefill_rate = p.prefill_rate,
                                       .decode_rate = p.decode_rate};
    return figures_give(out, &ours, sizeof ours, "plim_engine_figures", err);
}
