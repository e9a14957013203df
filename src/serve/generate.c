/* generate.c - see generate.h.
 *
 * Two members of a forward family (runtime/runtime.h) share one arena: a pass over one token, which owns the parameters,
 * caches and constants, and one over a chunk of the prompt. A token costs the host one launch, one wait and one read of
 * its logits.
 *
 * Invariants
 *  1. Position p of the cache holds the keys and values of token p for every p below `filled`.
 *  2. A pass may write positions again that are already filled: the same tokens give the same bits. The last
 *     chunk of a prompt therefore reaches back instead of leaving a rest of single tokens.
 */
#include "serve/generate.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "model/hf.h"
#include "runtime/feed.h"
#include "runtime/load.h"
#include "runtime/runtime.h"

#include <stdlib.h>

/* One pass: what runs it, and where its tokens go in and its logits come out. */
struct pass {
    int64_t time; /* tokens; 0: there is no such pass */
    struct exec *exec;
    struct feed feed;
    int logits;
};

struct generator {
    struct model_spec spec;
    struct runtime runtime; /* its plan is the pass over one token */
    struct forward chunk_tape;
    struct generate_plan plan;
    struct pass one, chunk;
    void *raw;     /* [V] as a device with its own memory has them */
    float *logits; /* [V] */
};

static const char *const stop_names[] = {"length", "end", "positions", "stopped"};

const char *generate_stop_name(enum generate_stop stop) { return stop_names[stop]; }

const struct model_spec *generator_spec(const struct generator *g) { return &g->spec; }

const struct generate_plan *generator_plan(const struct generator *g) { return &g->plan; }

/* --- planning ---------------------------------------------------------------------------------------------
 */

/* The tape of a pass over `time` tokens. */
static enum plim_status build(void *arg, int64_t time, struct tape *out, struct plim_error *err)
{
    const struct generator *g = arg;
    struct model_shape shape = {
        .batch = 1, .time = time, .kv_length = g->plan.positions, .head = HEAD_LAST_LOGITS};
    tape_init(out);
    enum plim_status status = model_emit(&g->spec, &shape, out, err);
    if (status == PLIM_OK) status = pass_precision(out, g->plan.precision, err);
    if (status == PLIM_OK) status = tape_verify(out, err);
    for (int i = 0; i < out->nops; i++) out->ops[i].attr.repeatable = true; /* same seed, same text */
    if (status != PLIM_OK) tape_release(out);
    return status;
}

/* Host bytes beside the arena: logits as they come and widened, and what draws from them. */
static int64_t own_bytes(const struct generator *g)
{
    return sampler_bytes(g->spec.vocab_size) + 2 * g->spec.vocab_size * (int64_t)sizeof(float);
}

static enum plim_status set_positions(struct generator *g, const struct generate_room *room,
                                      struct plim_error *err)
{
    if (room->prompt < 1 || room->tokens < 1)
        return plim_fail(err, PLIM_BAD_INPUT, "prompt and answer need at least one token each");
    if (room->prompt > g->spec.max_positions)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "a prompt of %lld tokens is beyond the model's %lld positions; shorten it",
                         (long long)room->prompt, (long long)g->spec.max_positions);
    int64_t room_left = g->spec.max_positions - room->prompt;
    /* The last token is handed out and never read, so it needs no position. */
    g->plan.positions = room->prompt + (room->tokens - 1 < room_left ? room->tokens - 1 : room_left);
    return PLIM_OK;
}

static enum plim_status refuse(const struct generator *g, const char *dir, struct plim_error *err)
{
    const struct generate_plan *p = &g->plan;
    char need[BYTES_TEXT], have[BYTES_TEXT], missing[BYTES_TEXT];
    bytes_format(need, (uint64_t)p->total);
    bytes_format(have, (uint64_t)p->budget);
    bytes_format(missing, (uint64_t)(p->total - p->budget));
    return plim_fail(
        err, PLIM_NO_FIT,
        "%s: does not fit: parameters, a cache of %lld positions and one pass take %s, the budget is %s: "
        "%s (%lld bytes) missing; raise the budget or ask for fewer tokens",
        dir, (long long)p->positions, need, have, missing, (long long)(p->total - p->budget));
}

static void sum_up(struct generator *g)
{
    const struct runtime *rt = &g->runtime;
    g->plan.budget = rt->request.budget;
    g->plan.arena = rt->arena, g->plan.total = rt->plan.total;
    g->plan.overhead = g->plan.total - g->plan.arena;
    g->plan.chunk = g->chunk_tape.size ? g->chunk_tape.size : 1;
    if (!rt->size) return;
    g->plan.params = rt->plan.layout.by_class[CLASS_PARAM];
    g->plan.cache = rt->plan.layout.by_class[CLASS_KV];
}

/* The largest power of two that the prompt can fill. */
static int64_t chunk_most(int64_t prompt)
{
    int64_t most = GENERATE_CHUNK;
    while (most > prompt) most /= 2;
    return most;
}

/* Single tokens always; the largest chunk that the prompt can fill and the budget can bear. */
static enum plim_status make_plan(struct generator *g, const char *dir, struct device *device,
                                  const struct generate_room *room, struct plim_error *err)
{
    struct forward_family family = {.build = build, .arg = g};
    struct forward_line line = {.budget = room->budget, .overhead = {.bytes = room->overhead}};
    if (!room->overhead) line.overhead = runtime_overhead(), line.overhead.bytes += own_bytes(g);
    enum plim_status status = set_positions(g, room, err);
    if (status == PLIM_OK) status = weights_precision(dir, &g->plan.precision, err);
    if (status != PLIM_OK) return status;
    status = runtime_plan_forward(&g->runtime, device, &g->spec, &line, &family, 1, err);
    sum_up(g);
    if (status != PLIM_OK) return status == PLIM_NO_FIT ? refuse(g, dir, err) : status;
    status = runtime_forward(&g->runtime, &family, chunk_most(room->prompt), 2, &g->chunk_tape, err);
    sum_up(g);
    return status == PLIM_NO_FIT ? PLIM_OK : status;
}

/* --- opening ----------------------------------------------------------------------------------------------
 */

static enum plim_status pass_open(struct pass *p, int64_t time, struct exec *exec, struct plim_error *err)
{
    p->time = time, p->exec = exec;
    p->logits = tape_find(exec->tape, "logits", -1);
    return feed_open(&p->feed, exec, err);
}

static enum plim_status take_buffers(struct generator *g, struct plim_error *err)
{
    size_t vocab = (size_t)g->spec.vocab_size;
    g->logits = malloc(vocab * sizeof *g->logits);
    g->raw = malloc(vocab * sizeof *g->logits); /* no type is wider */
    return g->logits && g->raw ? PLIM_OK : plim_fail(err, PLIM_NO_MEMORY, "out of memory for the logits");
}

/* Tokens [first, first + p->time) through the model; the logits stay in the arena. */
static enum plim_status feed(struct pass *p, const int32_t *tokens, int64_t first, struct plim_error *err)
{
    const struct rows *rows = &p->feed.rows;
    for (int64_t i = 0; i < p->time; i++) rows->ids[i] = tokens[i], rows->pos[i] = (int32_t)(first + i);
    enum plim_status status = feed_send(&p->feed, err);
    return status == PLIM_OK ? exec_loop(p->exec, 0, err) : status;
}

/* The first pass compiles what later ones launch; it writes a position that the prompt writes again (invariant 2). */
static enum plim_status warm_up(struct generator *g, struct plim_error *err)
{
    int32_t token = 0;
    if (!g->runtime.device->ops->compile) return PLIM_OK;
    enum plim_status status = feed(&g->one, &token, 0, err);
    return status == PLIM_OK ? g->runtime.device->ops->sync(g->runtime.device, err) : status;
}

static enum plim_status start(struct generator *g, const char *dir, const struct generate_room *room,
                              struct plim_error *err)
{
    struct runtime *rt = &g->runtime;
    bool chunked = g->chunk_tape.size > 0;
    enum plim_status status = runtime_commit(rt, err);
    if (status == PLIM_OK && chunked) status = forward_start(rt, &g->chunk_tape, err);
    if (status == PLIM_OK) status = pass_open(&g->one, 1, &rt->exec, err);
    if (status == PLIM_OK && chunked)
        status = pass_open(&g->chunk, g->chunk_tape.size, &g->chunk_tape.exec, err);
    if (status == PLIM_OK) status = weights_from_directory(&rt->exec, &g->spec, dir, room->log, err);
    return status == PLIM_OK ? warm_up(g, err) : status;
}

enum plim_status generator_open(const char *dir, struct device *device, const struct generate_room *room,
                                struct generator **out, struct plim_error *err)
{
    struct generator *g = calloc(1, sizeof *g);
    if (!g) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while a generator was set up");
    enum plim_status status = hf_config_load(dir, &g->spec, err);
    if (status == PLIM_OK) status = make_plan(g, dir, device, room, err);
    if (status == PLIM_OK) status = take_buffers(g, err);
    if (status == PLIM_OK) status = start(g, dir, room, err);
    if (status != PLIM_OK) {
        generator_close(g);
        return status;
    }
    *out = g;
    return PLIM_OK;
}

void generator_close(struct generator *g)
{
    if (!g) return;
    feed_close(&g->chunk.feed);
    feed_close(&g->one.feed);
    forward_close(&g->chunk_tape);
    runtime_close(&g->runtime);
    free(g->logits);
    free(g->raw);
    free(g);
}

/* --- running ----------------------------------------------------------------------------------------------
 */

struct widen {
    float *to;
    const char *from;
    enum dtype type;
    int64_t count;
};
#define WIDEN_PIECE 16384

static void widen_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct widen *w = arg;
    int64_t first = begin * WIDEN_PIECE, last = end * WIDEN_PIECE < w->count ? end * WIDEN_PIECE : w->count;
    (void)worker;
    dtype_convert(w->to + first, DT_F32, w->from + first * (int64_t)dtype_size(w->type), w->type,
                  last - first);
}

/* The logits of the last token fed, widened: one read. */
static enum plim_status read_logits(struct generator *g, struct pass *p, struct plim_error *err)
{
    const struct tensor *t = &p->exec->tape->tensors[p->logits];
    int64_t vocab = g->spec.vocab_size;
    const void *raw = exec_host(p->exec, p->logits);
    enum plim_status status = PLIM_OK;
    if (!raw)
        raw = g->raw,
        status = exec_read(p->exec, p->logits, g->raw, 0, vocab * (int64_t)dtype_size(t->type), err);
    struct widen widen = {g->logits, raw, t->type, vocab};
    if (status == PLIM_OK)
        threads_each(g->runtime.device->team, (vocab + WIDEN_PIECE - 1) / WIDEN_PIECE, 1, widen_body, &widen);
    return status;
}

static enum plim_status read_prompt(struct generator *g, const struct generate_request *r,
                                    struct plim_error *err)
{
    int64_t chunk = g->chunk.time && r->count >= g->chunk.time ? g->chunk.time : 1;
    struct pass *p = chunk > 1 ? &g->chunk : &g->one;
    enum plim_status status = PLIM_OK;
    for (int64_t first = 0; first < r->count && status == PLIM_OK; first += chunk) {
        if (first + chunk > r->count) first = r->count - chunk; /* invariant 2 */
        status = feed(p, r->prompt + first, first, err);
    }
    return status == PLIM_OK ? read_logits(g, p, err) : status;
}

static bool is_end(const struct model_spec *spec, int32_t token)
{
    for (int i = 0; i < spec->eos_count; i++)
        if (spec->eos_token_ids[i] == token) return true;
    return false;
}

/* Draw, hand out, feed, until something says stop. */
static enum plim_status answer(struct generator *g, const struct generate_request *r, struct sampler *sampler,
                               struct generate_result *result, struct plim_error *err)
{
    double start = clock_seconds();
    for (int64_t at = r->count;; at++) {
        int32_t token = sampler_draw(sampler, g->logits, (uint64_t)result->tokens);
        if (is_end(&g->spec, token)) return result->stop = GENERATE_END, PLIM_OK;
        bool go_on = !r->hear || r->hear(r->arg, token);
        if (++result->tokens == 1) start = clock_seconds();
        result->seconds = clock_seconds() - start;
        if (!go_on || (r->stop && *r->stop)) return result->stop = GENERATE_ASKED, PLIM_OK;
        if (result->tokens >= r->tokens) return result->stop = GENERATE_ENOUGH, PLIM_OK;
        if (at >= g->plan.positions) return result->stop = GENERATE_FULL, PLIM_OK;
        enum plim_status status = feed(&g->one, &token, at, err);
        if (status == PLIM_OK) status = read_logits(g, &g->one, err);
        if (status != PLIM_OK) return status;
    }
}

static enum plim_status check_request(const struct generator *g, const struct generate_request *r,
                                      struct plim_error *err)
{
    if (r->count < 1 || r->count > g->plan.positions)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "a prompt of %lld tokens does not fit a cache of %lld positions",
                         (long long)r->count, (long long)g->plan.positions);
    for (int64_t i = 0; i < r->count; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= g->spec.vocab_size)
            return plim_fail(err, PLIM_BAD_INPUT, "token %d of the prompt is outside the vocabulary of %lld",
                             r->prompt[i], (long long)g->spec.vocab_size);
    return PLIM_OK;
}

enum plim_status generator_run(struct generator *g, const struct generate_request *request,
                               struct generate_result *result, struct plim_error *err)
{
    struct sampler sampler;
    *result = (struct generate_result){0};
    enum plim_status status = check_request(g, request, err);
    int64_t vocab =
        request->vocab && request->vocab < g->spec.vocab_size ? request->vocab : g->spec.vocab_size;
    if (status == PLIM_OK) status = sampler_init(&sampler, vocab, &request->sampling, err);
    if (status != PLIM_OK) return status;
    sampler.team = g->runtime.device->team;
    double start = clock_seconds();
    status = read_prompt(g, request, err);
    result->prompt_seconds = clock_seconds() - start;
    if (status == PLIM_OK) status = answer(g, request, &sampler, result, err);
    if (result->tokens > 1 && result->seconds > 0)
        result->tokens_per_s = (double)(result->tokens - 1) / result->seconds;
    sampler_release(&sampler);
    return status;
}
