/* engine_offer.c - which offer a decoder makes inside a budget. See plan/offer.h and engine_size.h.
 *
 * An offer's bytes are those of its parameters, the smallest pool that keeps its promise, the largest of all its members,
 * and what the process takes beside the arena. Every member counts: one with fewer rows may need more scratch than one with
 * more. After an offer is chosen, the pool takes what the budget has left.
 */
#include "base/minmax.h"
#include "runtime/load.h"
#include "serve/engine_size.h"
#include "serve/plan_steps.h"
#include "tensor/kv8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STEP_HOST = 256, /* tokens of a step that keep a CPU busy, and a card */
    STEP_DEVICE = 2048,
    STEP_MODEST_PART = 4, /* a quarter of them is nearly as fast */
    REQUESTS_HOST = 16,
    REQUESTS_DEVICE = 256,
    REQUESTS_MODEST = 8,
    FEW_ROWS = 8,      /* of members for prompts: few of their tokens end one */
    PROMPT_LEAST = 16, /* tokens of a prompt that are worth a member of their own */
    ROWS_MOST = 5,     /* members of one number of tokens */
    FINE_FROM = 256,   /* tokens and requests from which on sizes of steps lie closer together */
    CONTEXT_USUAL = 8192,
    CONTEXT_MODEST = 4096,
    CONTEXT_LEAST = 256, /* shorter requests help few; a window of the last tokens comes before them */
    WINDOW = 32,         /* tokens of OFFER_MINIMAL, and of the shortest step before it */
    POSITIONS_OF_A_REQUEST = 256,
    POOL_USUAL = 2048,         /* without a budget: positions of the pool for each request */
    PENALISED_USUAL = 4096,    /* tokens that the penalties of one step go by, of all its requests */
    REQUESTS_PART = 64,        /* one part in so many of the line is for requests that run or wait, */
    REQUESTS_ROOM = 8 << 20,   /* at most so many host bytes, */
    REQUESTS_ASKED = 64 << 20, /* and with a queue as long as somebody asked for; */
    REQUEST_ROOM = 64 << 10,   /* in any case so many of each that runs beside a device with its own memory */
    CALLER_EARLY = 1 << 20, /* of options.caller_bytes, what may be resident when the process is measured */
};

/* --- sizes ------------------------------------------------------------------------------------------------ */

struct sizes sizes_of(const struct engine *e, const struct offer *o)
{
    struct sizes s = {.offer = *o, .seen = o->window ? min64(o->context, o->window) : o->context};
    int64_t each = min64(o->context, e->spec.vocab_size);
    s.e4m3 = e->options.kv_type == DT_E4M3;
    s.penalised = min64(each * o->requests, max64(each, PENALISED_USUAL));
    s.blocks = max64(blocks_for(o->positions), blocks_for(s.seen));
    return s;
}

struct sizes sizes_now(const struct engine *e)
{
    struct sizes s = sizes_of(e, &e->offer);
    s.blocks = e->plan.blocks;
    return s;
}

int64_t engine_block_bytes(const struct engine *e, bool coded)
{
    const struct model_spec *spec = &e->spec;
    int64_t plain = KV_BLOCK * spec->head_dim * (int64_t)dtype_size(precision_type(e->plan.precision));
    int64_t head = coded ? kv8_bytes(KV_BLOCK, spec->head_dim) : plain;
    return (int64_t)2 * spec->num_layers * spec->num_kv_heads * head;
}

static void add_member(struct family *f, const struct sizes *s, int64_t tokens, int64_t rows)
{
    if (f->count == ENGINE_MEMBERS) return;
    f->size[f->count++] = (struct model_flat){.tokens = tokens,
                                              .seen = s->penalised,
                                              .rows = rows,
                                              .blocks = s->blocks,
                                              .reach = blocks_for(s->seen),
                                              .length = s->seen,
                                              .coded = s->offer.coded,
                                              .e4m3 = s->e4m3};
}

/* 1, 2, 4, ... 32, 48, 64, 96, ... */
static int64_t next_size(int64_t n)
{
    if (n & (n - 1)) return n / 3 * 4;
    return n >= 32 ? n + n / 2 : 2 * n;
}

static bool is_fine(const struct sizes *s, int64_t tokens, bool whole)
{
    return !whole && tokens >= FINE_FROM && s->offer.requests > FINE_FROM;
}

/* A step of prompts beside tokens of answers has fewer rows than tokens, and it should run as a member that has, too: logits cost by the row,
 * and a card reads rows of several tokens faster only where the shape says that there are some (attention_paged.cuh). With few requests nearly
 * all members have. */
static void add_members(struct family *f, const struct sizes *s, int64_t tokens, bool whole)
{
    const int64_t most = min64(tokens, s->offer.requests);
    const int64_t fewer[ROWS_MOST - 1] = {FEW_ROWS, tokens / 8, tokens / 2, tokens - PROMPT_LEAST};
    for (int i = 0, n = is_fine(s, tokens, whole) ? ROWS_MOST - 1 : 1; i < n; i++)
        if (fewer[i] < most) add_member(f, s, tokens, fewer[i]);
    add_member(f, s, tokens, most);
}

/* For the rows of another number of tokens, and of the largest. */
static bool has_room(const struct family *f) { return f->count <= ENGINE_MEMBERS - 2 * ROWS_MOST; }

/* With many requests the time of a step is that of its tokens, and rows that nobody needs cost as much as others: between the usual
 * sizes there are three more. */
static void add_between(struct family *f, const struct sizes *s, int64_t tokens, bool whole)
{
    int64_t end = min64(next_size(tokens), s->offer.step), apart = (next_size(tokens) - tokens) / 4;
    if (!is_fine(s, tokens, whole)) return;
    for (int64_t n = tokens + apart; n < end && has_room(f); n += apart) add_members(f, s, n, whole);
}

void family_list(struct family *f, const struct sizes *s, bool whole)
{
    f->count = 0;
    for (int64_t n = 1; n < s->offer.step && has_room(f); n = whole ? 8 * n : next_size(n)) {
        add_members(f, s, n, whole);
        add_between(f, s, n, whole);
    }
    add_members(f, s, s->offer.step, whole);
}

/* --- planning members ------------------------------------------------------------------------------------- */

static struct forward_line line_of(const struct engine *e, const struct sizes *s, int programs,
                                   int64_t budget)
{
    return (struct forward_line){.budget = budget,
                                 .host_budget = e->options.host_budget,
                                 .programs = e->options.op_by_op ? 0 : programs,
                                 .overhead = {.bytes = engine_overhead(e, s)},
                                 .scratch = e->options.scratch,
                                 .op_by_op = e->options.op_by_op};
}

enum plim_status family_plan(const struct engine *e, const struct sizes *s, int64_t budget, struct family *f,
                             struct plim_error *err)
{
    struct engine_tape tape = {.e = e, .share = s->offer.share};
    struct forward_family family = {.build = engine_tape_build, .arg = &tape};
    memset(f, 0, sizeof *f);
    family_list(f, s, e->device->facts.whole_programs);
    struct forward_line line = line_of(e, s, f->count, budget);
    tape.size = f->size[0];
    enum plim_status status = runtime_plan_forward(&f->runtime, e->device, &e->spec, &line, &family, 1, err);
    for (int i = 1; i < f->count && status == PLIM_OK; i++) {
        tape.size = f->size[i];
        status = runtime_forward(&f->runtime, &family, 1, 1, &f->more[i - 1], err);
    }
    return status;
}

enum plim_status family_measure(const struct engine *e, const struct family *f, bool *again,
                                struct plim_error *err)
{
    struct device_facts *facts = &e->device->facts;
    const struct plan *first = &f->runtime.plan;
    bool more;
    enum plim_status status =
        runtime_measure(facts, &first->tape, &first->layout, f->runtime.arena, again, err);
    for (int i = 1; i < f->count && status == PLIM_OK; i++) {
        const struct forward *m = &f->more[i - 1];
        status = runtime_measure(facts, &m->tape, &m->layout, f->runtime.arena, &more, err);
        *again |= more;
    }
    return status;
}

void family_drop(struct family *f)
{
    for (int i = 0; i < ENGINE_MEMBERS; i++) forward_close(&f->more[i]);
    plan_release(&f->runtime.plan);
    memset(f, 0, sizeof *f);
}

int64_t engine_tape_bytes(const struct tape *tape, const struct layout *layout)
{
    struct plan_own own = plan_own_bytes(tape, layout);
    return own.loop + own.update;
}

/* Counts the bytes of an offer. Members are planned, counted and dropped one at a time. */
struct count {
    const struct engine *e;
    const struct sizes *s;
    struct runtime runtime;
    struct engine_tape tape;
    struct forward_family family;
    int programs;
    int64_t tapes; /* bytes of the tapes and layouts so far */
};

static enum plim_status count_first(struct count *c, const struct model_flat *size, struct plim_error *err)
{
    struct forward_line none = line_of(c->e, c->s, c->programs, 0);
    c->tape = (struct engine_tape){c->e, *size, c->s->offer.share};
    c->family = (struct forward_family){.build = engine_tape_build, .arg = &c->tape};
    enum plim_status status =
        runtime_plan_forward(&c->runtime, c->e->device, &c->e->spec, &none, &c->family, 1, err);
    if (status == PLIM_OK) c->tapes = engine_tape_bytes(&c->runtime.plan.tape, &c->runtime.plan.layout);
    return status;
}

static enum plim_status count_next(struct count *c, const struct model_flat *size, struct plim_error *err)
{
    struct forward member = {0};
    c->tape.size = *size;
    enum plim_status status = runtime_forward(&c->runtime, &c->family, 1, 1, &member, err);
    if (status == PLIM_OK) c->tapes += engine_tape_bytes(&member.tape, &member.layout);
    forward_close(&member);
    return status;
}

static struct offer_bytes count_sum(struct count *c)
{
    struct runtime *rt = &c->runtime;
    rt->request.overhead = engine_overhead(c->e, c->s) + (c->e->options.overhead ? 0 : c->tapes);
    plan_sum(&rt->plan, &rt->request, rt->arena, 0);
    return (struct offer_bytes){rt->plan.total, c->e->device->facts.unified_memory ? 0 : rt->plan.host};
}

static bool above(const struct offer_bytes *need, const struct offer_bytes *line)
{
    return (line->device && need->device > line->device) || (line->host && need->host > line->host);
}

/* The largest member alone is a quick bound from below. */
static enum plim_status need(void *arg, const struct offer *offer, const struct offer_bytes *line,
                             struct offer_bytes *out, struct plim_error *err)
{
    struct engine *e = arg;
    struct sizes s = sizes_of(e, offer);
    struct family *list = calloc(1, sizeof *list);
    struct count bound = {.e = e, .s = &s}, all = bound;
    if (!list) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an engine was planned");
    e->tape_bytes = 0;
    family_list(list, &s, e->device->facts.whole_programs);
    bound.programs = all.programs = list->count;
    enum plim_status status = count_first(&bound, &list->size[list->count - 1], err);
    if (status == PLIM_OK) *out = count_sum(&bound);
    plan_release(&bound.runtime.plan);
    if (status == PLIM_OK && !above(out, line)) {
        status = count_first(&all, &list->size[0], err);
        for (int i = 1; i < list->count && status == PLIM_OK; i++)
            status = count_next(&all, &list->size[i], err);
        if (status == PLIM_OK) *out = count_sum(&all);
        plan_release(&all.runtime.plan);
        if (!e->options.overhead) e->tape_bytes = all.tapes;
    }
    free(list);
    return status;
}

/* --- host bytes ------------------------------------------------------------------------------------------- */

int64_t engine_drawer_room(const struct engine *e)
{
    if (e->device->team) return drawer_bytes(e->device->team, e->spec.vocab_size);
    return drawer_bytes(NULL, e->spec.vocab_size) * e->device->facts.threads; /* a device that is not here */
}

/* Requests that run or wait, each as long as it can be, as far as their part of the line goes: one in any case. */
static int64_t requests_room(const struct engine *e, const struct offer *offer, int64_t line)
{
    const struct engine_options *o = &e->options;
    int64_t each = (int64_t)sizeof(struct request) + offer->context * 5 +
                   min64(offer->context, e->spec.vocab_size) * (int64_t)sizeof(struct seen_token);
    int64_t all = (offer->requests + (o->queue ? o->queue : 4 * offer->requests)) * each;
    int64_t most = line ? min64(line / REQUESTS_PART, REQUESTS_ROOM) : REQUESTS_ROOM;
    if (o->queue) most = REQUESTS_ASKED;
    if (!e->device->facts.unified_memory) most = max64(most, offer->requests * REQUEST_ROOM);
    return max64(min64(all, most), each);
}

static int64_t kept_room(const struct engine *e, const struct sizes *s)
{
    int64_t room = engine_keep_room(e, blocks_for(s->seen) * engine_block_bytes(e, s->offer.coded));
    return e->options.overhead ? min64(room, e->options.overhead / 2) : room;
}

/* Buffers of one step beside a device with its own memory: logits, block tables and what the device draws. */
static int64_t staging_bytes(const struct engine *e, const struct sizes *s)
{
    if (e->device->facts.unified_memory) return 0;
    int64_t row = blocks_for(s->seen) + 4 + SAMPLE_WORDS + DRAWN_NUMBERS;
    int64_t token = 3 + (e->adapters.slots != NULL);
    int64_t raw = min64(s->offer.requests, ENGINE_RAW_ROWS) * e->spec.vocab_size;
    return 4 * (s->offer.requests * row + raw + token * s->offer.step + 2 * s->penalised);
}

int64_t engine_overhead(const struct engine *e, const struct sizes *s)
{
    if (e->options.overhead) return e->overhead.bytes;
    int64_t row = (int64_t)(sizeof(struct draw) + sizeof(struct step_row) + sizeof(struct request *));
    return e->overhead.bytes + e->tape_bytes + (int64_t)sizeof(struct engine) +
           requests_room(e, &s->offer, engine_line(e, e->asked_budget)) + kept_room(e, s) +
           engine_drawer_room(e) + blocks_bytes(s->blocks) + engine_steps(e) * s->offer.requests * row +
           staging_bytes(e, s) + adapters_overhead(e);
}

/* --- choosing --------------------------------------------------------------------------------------------- */

int64_t engine_line(const struct engine *e, int64_t budget)
{
    const struct device_facts *facts = &e->device->facts;
    int64_t all = (int64_t)facts->memory_bytes, free = (int64_t)facts->free_bytes;
    if (budget) return all ? min64(budget, all) : budget;
    if (e->options.limit) return e->options.limit;
    return free ? free : all;
}

int64_t engine_host_line(const struct engine *e)
{
    if (e->device->facts.unified_memory) return 0;
    return e->options.host_budget ? e->options.host_budget : (int64_t)e->device->facts.host_bytes;
}

/* On a CPU without a budget a server does not take all of the machine for a context nobody asked for. */
static int64_t context_most(const struct engine *e)
{
    const struct engine_options *o = &e->options;
    if (o->max_context) return min64(o->max_context, e->spec.max_positions);
    if (e->device->facts.unified_memory && !o->budget) return min64(CONTEXT_USUAL, e->spec.max_positions);
    return e->spec.max_positions;
}

static bool kv_is_coded(enum dtype type) { return type == DT_U8 || type == DT_E4M3; }

static struct offer_wish wish_of(const struct engine *e)
{
    const struct engine_options *o = &e->options;
    bool host = e->device->facts.unified_memory, asked_kv = o->kv_type != DT_F32 && o->kv_type != DT_COUNT;
    struct offer most = {.context = context_most(e), .window = o->window, .coded = kv_is_coded(o->kv_type)};
    most.requests = o->parallel ? o->parallel : host ? REQUESTS_HOST : REQUESTS_DEVICE;
    most.step = o->step_tokens ? o->step_tokens : host ? STEP_HOST : STEP_DEVICE;
    if (!o->step_tokens)
        most.step = max64(most.step, 2 * o->parallel); /* prompts go on beside all who write */
    struct offer_wish w = {.most = most,
                           .least = {.context = min64(CONTEXT_LEAST, most.context),
                                     .requests = 1,
                                     .step = min64(WINDOW, most.step)},
                           .usual_context = CONTEXT_USUAL,
                           .may_code = o->allow_kv8 && !asked_kv,
                           .may_stream = o->stream && e->device->facts.lower_tier != TIER_DEVICE &&
                                         (!host || o->scratch),
                           .stream_last = host && o->stream_last,
                           .window = o->allow_window && !o->window ? WINDOW : 0,
                           .window_last = host};
    w.modest = (struct offer){
        .context = CONTEXT_MODEST, .requests = REQUESTS_MODEST, .step = most.step / STEP_MODEST_PART};
    w.shortest_context = min64(KV_BLOCK, most.context);
    if (e->adapters.slots && e->adapters.slots->count < e->adapters.asked)
        most = w.most = w.least; /* fewer slots come after all that requests can do without */
    if (o->max_context || o->window) w.least.context = w.shortest_context = most.context;
    if (o->parallel && !o->fewer) w.least.requests = most.requests;
    if (!o->parallel) w.request_positions = POSITIONS_OF_A_REQUEST;
    return w;
}

int64_t engine_caller_bytes(const struct engine *e, int64_t line)
{
    bool follows = e->options.caller_bytes_under && e->device->facts.unified_memory && line;
    return follows ? e->options.caller_bytes_under(e->options.caller, line) : e->options.caller_bytes;
}

/* The part of the refused offer that follows the line. */
static int64_t following_bytes(const struct engine *e, int64_t line)
{
    bool counted = e->device->facts.unified_memory && !e->options.overhead;
    return engine_caller_bytes(e, line) + (counted ? requests_room(e, &e->offer, line) : 0);
}

/* The smallest line that holds a plan which takes `need` under this one. */
static int64_t smallest_line(const struct engine *e, int64_t line, int64_t need, engine_following *follows)
{
    int64_t bare = need - follows(e, line), low = line, high = need;
    while (high - follows(e, high) < bare) high *= 2;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (middle - follows(e, middle) < bare)
            low = middle;
        else
            high = middle;
    }
    return high;
}

enum plim_status engine_refuse(const struct engine *e, const char *what, const struct offer_bytes *need,
                               engine_following *follows, struct plim_error *err)
{
    const struct engine_options *o = &e->options;
    int64_t line = engine_line(e, o->budget);
    const char *context = o->max_context ? "lower --max-context" : NULL;
    struct no_fit n = {.model = e->model,
                       .what = what,
                       .advice = o->advice ? o->advice : context,
                       .budget = o->budget != 0,
                       .host = need->device <= line};
    n.takes = n.host ? need->host : smallest_line(e, line, need->device, follows);
    n.has = n.host ? engine_host_line(e) : line;
    if (o->refusal && !n.host) o->refusal->enough = n.takes;
    return plan_refuse(&n, err);
}

enum plim_status engine_choose(struct engine *e, const struct offer_wish *wish,
                               const struct offer_oracle *oracle, struct offer_choice *choice,
                               struct plim_error *err)
{
    struct offer_list list;
    struct offer_line line = {{engine_line(e, e->options.budget), engine_host_line(e)},
                              e->device->facts.unified_memory ? e->overhead.reserve : 0,
                              e->options.first_rung};
    offer_list_make(wish, &list);
    enum plim_status status = offer_choose(&list, oracle, &line, choice, err);
    if (status != PLIM_OK && status != PLIM_NO_FIT) return status;
    e->offer = list.offer[choice->at];
    if (choice->used_reserve) e->overhead.bytes -= e->overhead.reserve;
    LOCKED(&e->lock);
    e->plan.total = choice->need.device;
    memcpy(e->plan.missed, choice->missed, sizeof e->plan.missed);
    return status;
}

/* An earlier start of the same model with the same options measured a process that differs from this one by a few pages. With
 * its overhead this start comes to the same plan. False: there was none, or this process is another one. */
static bool recall(struct engine *e, struct kept_plan *kept)
{
    struct plan_key key;
    int64_t exact = e->overhead.bytes - e->overhead.reserve, near = e->overhead.bytes / 16;
    plan_key_make(&key, e->model, e->device, &e->options);
    bool good = plan_cache_load(&key, kept) &&
                kept->overhead >= exact - min64(e->options.caller_bytes, CALLER_EARLY) &&
                kept->overhead <= e->overhead.bytes + near;
    plan_key_release(&key);
    if (good) e->overhead = (struct overhead){kept->overhead, max64(kept->overhead - exact, 0)};
    return good;
}

static bool same_offer(const struct offer *a, const struct kept_plan *kept)
{
    const struct offer *b = &kept->offer;
    return a->context == b->context && a->requests == b->requests && a->step == b->step &&
           a->share == b->share && a->window == b->window && a->coded == (kept->coded != 0);
}

void engine_remember(const struct engine *e)
{
    struct plan_key key;
    struct engine_options asked = e->options;
    if (!e->options.remember || e->plan.remembered || e->kind != &engine_decoder) return;
    asked.budget = e->asked_budget;
    plan_key_make(&key, e->model, e->device, &asked);
    plan_cache_save(&key, &(struct kept_plan){e->stated_overhead, e->offer, e->offer.coded});
    plan_key_release(&key);
}

static enum plim_status choose(struct engine *e, struct offer_choice *choice, struct plim_error *err)
{
    struct offer_wish wish = wish_of(e);
    struct offer_oracle oracle = {need, e};
    struct kept_plan kept;
    bool known = e->options.remember && recall(e, &kept);
    e->stated_overhead = e->overhead.bytes;
    enum plim_status status = engine_choose(e, &wish, &oracle, choice, err);
    e->plan.remembered = status == PLIM_OK && known && same_offer(&e->offer, &kept);
    if (status != PLIM_NO_FIT) return status;
    char what[96];
    snprintf(what, sizeof what, "parameters, a cache of %lld positions, one step and the process",
             (long long)sizes_of(e, &e->offer).seen);
    return engine_refuse(e, what, &choice->need, following_bytes, err);
}

/* --- the plan --------------------------------------------------------------------------------------------- */

/* Bytes that a pool of so many blocks adds to the total; bookkeeping is the process's. */
static int64_t pool_bytes(const struct engine *e, int64_t blocks)
{
    bool counted = e->device->facts.unified_memory && !e->options.overhead;
    return blocks * e->block_bytes + (counted ? blocks_bytes(blocks) : 0);
}

int64_t engine_blocks_within(const struct engine *e, int64_t budget)
{
    int64_t line = engine_line(e, budget), blocks = e->most_blocks;
    if (!line) return blocks;
    blocks = min64(blocks, (line - e->base) / e->block_bytes);
    while (blocks > 0 && e->base + pool_bytes(e, blocks) > line) blocks -= max64(blocks / 1024, 1);
    return blocks;
}

static enum plim_status check_kv_type(const struct engine *e, struct plim_error *err)
{
    enum dtype type = precision_type(e->plan.precision), kv = e->options.kv_type;
    if (kv == DT_F32 || kv == DT_COUNT || kv == DT_U8 || kv == type) return PLIM_OK;
    if (kv == DT_E4M3 && e->device->facts.flops[DT_E4M3] > 0) return PLIM_OK;
    if (kv == DT_E4M3)
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "this device has no fp8 numbers: an NVIDIA card of capability 8.9 or newer, or a CPU has; "
            "use keys and values in i8");
    return plim_fail(err, PLIM_UNSUPPORTED,
                     "keys and values in %s are not supported; the type of the weights, %s, and 8 bits are",
                     dtype_name(kv), dtype_name(type));
}

/* Measures the memory of the process, which no offer changes. */
void engine_measure_process(struct engine *e)
{
    e->overhead = e->options.overhead ? (struct overhead){.bytes = e->options.overhead}
                                      : runtime_engine_overhead(e->device->context, e->device->facts.threads);
    e->overhead.bytes += engine_caller_bytes(e, engine_line(e, e->options.budget));
    e->tape_bytes = 0, e->asked_budget = e->options.budget;
}

/* How many positions of the pool are enough for a request. On a device with its own memory, where nobody else wants it, a given
 * --max-context is taken at its word. */
static int64_t pool_positions(const struct engine *e, const struct sizes *s)
{
    bool all = e->options.budget || (e->options.max_context && !e->device->facts.unified_memory);
    return all ? s->seen : min64(s->seen, POOL_USUAL);
}

/* The chosen offer and what follows from it, before its pool has grown. */
static void take_offer(struct engine *e, const struct offer_choice *choice, struct sizes *s)
{
    *s = sizes_of(e, &e->offer);
    e->kv_type = !e->offer.coded                 ? precision_type(e->plan.precision)
                 : e->options.kv_type == DT_E4M3 ? DT_E4M3
                                                 : DT_U8;
    e->block_bytes = engine_block_bytes(e, e->offer.coded);
    e->kept_room = kept_room(e, s);
    int64_t line = engine_line(e, e->asked_budget);
    e->bytes_room = e->options.overhead ? INT64_MAX : requests_room(e, &e->offer, line);
    int64_t least = blocks_for(s->seen), each = blocks_for(pool_positions(e, s));
    pthread_mutex_lock(&e->lock);
    e->base = choice->need.device - pool_bytes(e, s->blocks);
    e->smallest = e->base + pool_bytes(e, least);
    e->least_blocks = least, e->most_blocks = max64(e->offer.requests * each, s->blocks);
    pthread_mutex_unlock(&e->lock);
    s->blocks = engine_blocks_within(e, e->options.budget);
}

enum plim_status engine_choose_precision(struct engine *e, struct plim_error *err)
{
    enum plim_status status = weights_precision(e->model, &e->plan.precision, err);
    if (e->options.mixed && e->plan.precision == PRECISION_F32)
        e->plan.precision = (enum precision)job_automatic_precision(&e->device->facts);
    if (e->options.dtype_given) e->plan.precision = e->options.dtype;
    if (e->options.exact) e->plan.precision = PRECISION_F32;
    return status;
}

/* Chooses an offer and plans its members. *again: their programs need more than was known, and nothing is planned. */
static enum plim_status plan_offer(struct engine *e, struct sizes *s, bool *again, struct plim_error *err)
{
    struct offer_choice choice = {0};
    *again = false;
    enum plim_status status = choose(e, &choice, err);
    if (status != PLIM_OK) {
        e->plan.context = e->offer.context;
        return status;
    }
    take_offer(e, &choice, s);
    status = family_plan(e, s, e->options.budget, &e->family, err);
    if (status == PLIM_OK) status = family_measure(e, &e->family, again, err);
    if (*again) family_drop(&e->family);
    return status;
}

enum plim_status engine_make_plan(struct engine *e, struct plim_error *err)
{
    struct sizes s;
    bool again = true;
    enum plim_status status = engine_choose_precision(e, err);
    if (status == PLIM_OK) status = engine_choose_weights(e, err);
    if (status == PLIM_OK) status = adapters_measure(e, err);
    if (status != PLIM_OK) return status;
    engine_tell(e, "weights_mapped");
    status = check_kv_type(e, err);
    if (status != PLIM_OK) return status;
    e->device->facts.beyond_bytes = 0;
    engine_measure_process(e); /* before programs are compiled: their bytes are beyond_bytes */
    struct overhead process = e->overhead;
    while (again && status == PLIM_OK) {
        e->overhead = process, e->tape_bytes = 0;
        status = plan_offer(e, &s, &again, err);
        if (status == PLIM_NO_FIT && adapters_shrink(e)) status = PLIM_OK, again = true;
    }
    if (status == PLIM_OK) engine_note_plan(e, &s);
    return status;
}
