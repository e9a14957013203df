/* generate.c - see generate.h.
 *
 * Two tapes share one arena: a pass over one token, and one over a chunk of the prompt. Parameters, caches
 * and constants are kept tensors with the same offsets in both (the chunk's layout is made above the
 * other's), and what lies above them is dead between two passes.
 *
 * Invariants
 *  1. Position p of the cache holds the keys and values of token p for every p below `filled`.
 *  2. A pass may write positions again that are already filled: the same tokens give the same bits. The last
 *     chunk of a prompt therefore reaches back instead of leaving a rest of single tokens.
 */
#include "serve/generate.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "store/safetensors.h"
#include "exec/exec.h"
#include "mem/os.h"
#include "model/hf.h"
#include "runtime/load.h"

#include <stdlib.h>

/* What a run adds outside the arena after the measurement: stacks that are still to be touched, the read
 * buffer of the weights, libc's own buffers. */
#define RUN_ALLOWANCE (1536 << 10)

/* One tape with its place in the arena. */
struct pass {
    int64_t time; /* 0: there is no such pass */
    struct tape tape;
    struct layout layout;
    struct exec exec;
    int ids, pos, logits;
};

struct generator {
    struct model_spec spec;
    struct device *device;
    struct generate_plan plan;
    struct pass one, chunk;
    float *logits; /* [V] */
    int64_t reserved;
};

static const char *const stop_names[] = {"length", "end", "positions", "stopped"};

const char *generate_stop_name(enum generate_stop stop) { return stop_names[stop]; }

const struct model_spec *generator_spec(const struct generator *g) { return &g->spec; }

const struct generate_plan *generator_plan(const struct generator *g) { return &g->plan; }

/* --- planning ---------------------------------------------------------------------------------------------
 */

static void pass_release(struct pass *p)
{
    if (!p->time) return;
    layout_release(&p->layout);
    tape_release(&p->tape);
    *p = (struct pass){0};
}

/* Tape and layout of a pass over `time` tokens; below: the pass that owns the kept tensors, or NULL. */
static enum plim_status pass_plan(struct generator *g, struct pass *p, int64_t time, const struct pass *below,
                                  struct plim_error *err)
{
    struct model_shape shape = {
        .batch = 1, .time = time, .kv_length = g->plan.positions, .head = HEAD_LAST_LOGITS};
    struct layout_options options = {.facts = &g->device->facts, .accumulation = 1};
    if (below) options.above = &below->layout, options.above_tape = &below->tape;
    tape_init(&p->tape);
    enum plim_status status = model_emit(&g->spec, &shape, &p->tape, err);
    if (status == PLIM_OK) status = pass_precision(&p->tape, g->plan.precision, err);
    if (status == PLIM_OK) status = tape_verify(&p->tape, err);
    for (int i = 0; i < p->tape.nops; i++) p->tape.ops[i].attr.repeatable = true; /* same seed, same text */
    if (status == PLIM_OK) status = layout_make(&p->tape, &options, &p->layout, err);
    if (status != PLIM_OK) {
        tape_release(&p->tape);
        return status;
    }
    p->time = time;
    p->ids = tape_find(&p->tape, "ids", -1);
    p->pos = tape_find(&p->tape, "pos", -1);
    p->logits = tape_find(&p->tape, "logits", -1);
    return PLIM_OK;
}

/* The type most of the bytes of the files have, when we compute in it; fp32 otherwise. */
static enum plim_status choose_precision(const char *dir, enum precision *out, struct plim_error *err)
{
    struct safetensors set;
    uint64_t bytes[DT_COUNT + 1] = {0};
    enum plim_status status = safetensors_open(dir, &set, err);
    if (status != PLIM_OK) return status;
    for (size_t i = 0; i < set.count; i++) bytes[set.tensors[i].type] += set.tensors[i].bytes;
    *out = PRECISION_F32;
    for (enum precision p = 0; p < PRECISION_COUNT; p++)
        if (bytes[precision_type(p)] > bytes[precision_type(*out)]) *out = p;
    safetensors_close(&set);
    return PLIM_OK;
}

static int64_t measured_overhead(const struct generator *g)
{
    if (!g->device->facts.unified_memory) return (int64_t)g->device->facts.overhead_bytes;
    return (int64_t)os_process_counted() + RUN_ALLOWANCE + sampler_bytes(g->spec.vocab_size) +
           g->spec.vocab_size * (int64_t)sizeof(float);
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
    char need[BYTES_TEXT], have[BYTES_TEXT], missing[BYTES_TEXT], program[BYTES_TEXT];
    bytes_format(need, (uint64_t)p->total);
    bytes_format(have, (uint64_t)p->budget);
    bytes_format(program, (uint64_t)p->overhead);
    bytes_format(missing, (uint64_t)(p->total - p->budget));
    if (p->budget <= p->overhead)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "budget: %s is below what the program itself takes (%s); raise the budget", have,
                         program);
    return plim_fail(
        err, PLIM_NO_FIT,
        "%s: does not fit: parameters, a cache of %lld positions and one pass take %s, the budget is %s: "
        "%s (%lld bytes) missing; raise the budget or ask for fewer tokens",
        dir, (long long)p->positions, need, have, missing, (long long)(p->total - p->budget));
}

static void sum_up(struct generator *g)
{
    int64_t chunk = g->chunk.time ? g->chunk.layout.arena_bytes : 0, one = g->one.layout.arena_bytes;
    g->plan.arena = chunk > one ? chunk : one;
    g->plan.total = g->plan.overhead + g->plan.arena;
    g->plan.chunk = g->chunk.time ? g->chunk.time : 1;
    g->plan.params = g->one.layout.by_class[CLASS_PARAM];
    g->plan.cache = g->one.layout.by_class[CLASS_KV];
}

static bool fits(const struct generator *g) { return !g->plan.budget || g->plan.total <= g->plan.budget; }

/* Single tokens always; the largest chunk that the prompt can fill and the budget can bear. */
static enum plim_status make_plan(struct generator *g, const char *dir, const struct generate_room *room,
                                  struct plim_error *err)
{
    enum plim_status status = set_positions(g, room, err);
    if (status == PLIM_OK) status = choose_precision(dir, &g->plan.precision, err);
    if (status == PLIM_OK) status = pass_plan(g, &g->one, 1, NULL, err);
    if (status != PLIM_OK) return status;
    g->plan.budget = room->budget;
    g->plan.overhead = room->overhead ? room->overhead : measured_overhead(g);
    sum_up(g);
    if (!fits(g)) return refuse(g, dir, err);
    for (int64_t time = GENERATE_CHUNK; time > 1; time /= 2) {
        if (time > room->prompt) continue;
        status = pass_plan(g, &g->chunk, time, &g->one, err);
        if (status != PLIM_OK) return status;
        sum_up(g);
        if (fits(g)) break;
        pass_release(&g->chunk);
        sum_up(g);
    }
    return PLIM_OK;
}

/* --- opening ----------------------------------------------------------------------------------------------
 */

static enum plim_status commit(struct generator *g, struct plim_error *err)
{
    struct ledger *ledger = g->device->ledger;
    enum plim_status status = PLIM_OK;
    ledger_set_budget(ledger, g->plan.budget ? (uint64_t)g->plan.budget : LEDGER_UNLIMITED);
    status = ledger_reserve(ledger, DEVICE_LEDGER_OVERHEAD, (uint64_t)g->plan.overhead, err);
    if (status == PLIM_OK) g->reserved = g->plan.overhead;
    if (status == PLIM_OK) status = g->device->ops->commit(g->device, (size_t)g->plan.arena, err);
    return status;
}

/* The cache begins as zero: what is not visible yet must be numbers too. */
static enum plim_status learn(struct exec *exec, struct plim_error *err)
{
    exec_fresh(exec);
    return exec_tune(exec, err);
}

static enum plim_status start(struct generator *g, const char *dir, const struct generate_room *room,
                              struct plim_error *err)
{
    enum plim_status status = exec_open(&g->one.exec, g->device, &g->one.tape, &g->one.layout, NULL, err);
    if (status == PLIM_OK && g->chunk.time)
        status = exec_open(&g->chunk.exec, g->device, &g->chunk.tape, &g->chunk.layout, NULL, err);
    if (status == PLIM_OK) status = learn(&g->one.exec, err);
    if (status == PLIM_OK && g->chunk.time) status = learn(&g->chunk.exec, err);
    if (status == PLIM_OK) status = weights_write_constants(&g->one.exec, &g->spec, err);
    if (status == PLIM_OK) status = weights_from_directory(&g->one.exec, &g->spec, dir, room->log, err);
    return status;
}

enum plim_status generator_open(const char *dir, struct device *device, const struct generate_room *room,
                                struct generator **out, struct plim_error *err)
{
    struct generator *g = calloc(1, sizeof *g);
    if (!g) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while a generator was set up");
    g->device = device;
    enum plim_status status = hf_config_load(dir, &g->spec, err);
    if (status == PLIM_OK) status = make_plan(g, dir, room, err);
    if (status == PLIM_OK) {
        g->logits = malloc((size_t)g->spec.vocab_size * sizeof *g->logits);
        if (!g->logits) status = plim_fail(err, PLIM_NO_MEMORY, "out of memory for the logits");
    }
    if (status == PLIM_OK) status = commit(g, err);
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
    g->device->ops->commit(g->device, 0, NULL);
    if (g->reserved) ledger_release(g->device->ledger, DEVICE_LEDGER_OVERHEAD, (uint64_t)g->reserved);
    pass_release(&g->chunk);
    pass_release(&g->one);
    free(g->logits);
    free(g);
}

/* --- running ----------------------------------------------------------------------------------------------
 */

/* Tokens [first, first + p->time) through the model; the logits stay in the arena. */
static enum plim_status feed(struct pass *p, const int32_t *tokens, int64_t first, struct plim_error *err)
{
    int32_t pos[GENERATE_CHUNK];
    int64_t bytes = p->time * (int64_t)sizeof *pos;
    for (int64_t i = 0; i < p->time; i++) pos[i] = (int32_t)(first + i);
    enum plim_status status = exec_write(&p->exec, p->ids, tokens, 0, bytes, err);
    if (status == PLIM_OK) status = exec_write(&p->exec, p->pos, pos, 0, bytes, err);
    if (status == PLIM_OK) status = exec_loop(&p->exec, 0, err);
    return status;
}

/* The logits of the last token fed, widened. */
static enum plim_status read_logits(struct generator *g, struct pass *p, struct plim_error *err)
{
    const struct tensor *t = &p->tape.tensors[p->logits];
    char raw[4096];
    int64_t size = (int64_t)dtype_size(t->type), piece = (int64_t)sizeof raw / size;
    for (int64_t at = 0; at < g->spec.vocab_size; at += piece) {
        int64_t n = g->spec.vocab_size - at < piece ? g->spec.vocab_size - at : piece;
        enum plim_status status = exec_read(&p->exec, p->logits, raw, at * size, n * size, err);
        if (status != PLIM_OK) return status;
        dtype_convert(g->logits + at, DT_F32, raw, t->type, n);
    }
    return PLIM_OK;
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
    double start = clock_seconds();
    status = read_prompt(g, request, err);
    result->prompt_seconds = clock_seconds() - start;
    if (status == PLIM_OK) status = answer(g, request, &sampler, result, err);
    if (result->tokens > 1 && result->seconds > 0)
        result->tokens_per_s = (double)(result->tokens - 1) / result->seconds;
    sampler_release(&sampler);
    return status;
}
