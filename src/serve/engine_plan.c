/* engine_plan.c - the largest step, the largest request and the most blocks that fit a line. See engine_part.h.
 *
 * Parameters are the same under every plan; the transient bytes of a step grow with its tokens and rows, the pool takes
 * what is left. Where not even one request of the wanted length fits, the step shrinks first, then how many run at once
 * and, when nobody asked for a length, the length.
 */
#include "base/bytes.h"
#include "plan/cost.h"
#include "runtime/load.h"
#include "serve/engine_part.h"
#include "tensor/kv8.h"

#include <stdlib.h>
#include <string.h>

enum {
    STEP_HOST = 256, /* tokens of a step where nobody says: enough for products to be fast */
    STEP_DEVICE = 2048,
    PARALLEL_MOST = 256,
    PARALLEL_HOST = 16,     /* where nobody says */
    FEW_ROWS = 8,           /* of members for prompts: few of their tokens end one */
    USUAL_CONTEXT = 2048,   /* without a line, what each request has blocks for */
    SEEN_USUAL = 4096,      /* tokens that penalties go by, of all requests of a step */
    ROOM_USUAL = 8 << 20,   /* for requests, at most */
    ROOM_ASKED = 64 << 20,  /* and where the queue is as long as somebody wants it */
    BESIDE_EARLY = 1 << 20, /* of what the caller takes beside the engine, at most before it is measured */
};

/* --- tapes ------------------------------------------------------------------------------------------------ */

struct build_arg {
    const struct engine *e;
    struct model_flat size;
};

/* A gated unit whose result goes into the product behind it and nowhere else. */
static bool is_read_once(const struct tape *tape, int i)
{
    if (tape->ops[i].kind != OP_GLU || i + 1 == tape->nops) return false;
    int made = tape_root(tape, tape->ops[i].out[GLU_H]), reads = 0;
    for (int j = 0; j < tape->nops; j++)
        for (int k = 0; k < OP_MAX_IN; k++) {
            int in = tape->ops[j].in[k];
            reads += in >= 0 && tape_root(tape, in) == made;
        }
    return reads == 1 && tape->ops[i + 1].kind == OP_LINEAR &&
           tape_root(tape, tape->ops[i + 1].in[LINEAR_X]) == made;
}

/* Parameters of the last layers are on the tier below and are fetched before the ops that read them. */
static enum plim_status stream(const struct engine *e, struct tape *tape, struct plim_error *err)
{
    struct offload_options offload = {.param_tier = e->device->facts.lower_tier,
                                      .param_share = e->stream_share,
                                      .slice_bytes = 1 << 20}; /* nothing is updated */
    struct prefetch_options ahead = {.loop_lead = PREFETCH_AHEAD, .loop_lag = PREFETCH_AHEAD};
    enum plim_status status = pass_offload(tape, &offload, err);
    if (status != PLIM_OK || !e->device->facts.async_copies) return status;
    return pass_prefetch(tape, &ahead, err);
}

static enum plim_status build(void *arg, int64_t unused, struct tape *out, struct plim_error *err)
{
    const struct build_arg *b = arg;
    struct model_shape shape = {
        .batch = 1, .time = b->size.tokens, .head = HEAD_LAST_LOGITS, .flat = b->size};
    shape.flat.samples = !b->e->device->facts.unified_memory, shape.flat.top = ENGINE_LOGPROBS;
    (void)unused;
    tape_init(out);
    enum plim_status status = model_emit(&b->e->spec, &shape, out, err);
    if (status == PLIM_OK) status = pass_precision(out, b->e->plan.precision, err);
    if (status == PLIM_OK) quantise_tape(&b->e->quantisation, &b->e->spec, out);
    if (status == PLIM_OK && b->e->stream_share) status = stream(b->e, out, err);
    if (status == PLIM_OK) status = tape_verify(out, err);
    for (int i = 0; i < out->nops; i++) {
        out->ops[i].attr.repeatable = true; /* same seed, same text */
        out->ops[i].attr.read_once = is_read_once(out, i);
    }
    if (status != PLIM_OK) tape_release(out);
    return status;
}

/* Which weights are in blocks. A device without kernels for them has all of them as numbers. */
static enum plim_status choose_weights(struct engine *e, struct plim_error *err)
{
    struct build_arg arg = {e, {1, 1, 1, 1, 1}};
    struct tape tape;
    const struct kernel *kernels = e->device->kernels; /* NULL: the device is not here */
    if (kernels && !kernels[OP_LINEAR_Q].run) {
        if (e->options.weights == WEIGHTS_AS_IS) return PLIM_OK;
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "this device has no kernels for %s weights; use the CPU, or as-is",
                         weights_kind_name(e->options.weights));
    }
    enum plim_status status = build(&arg, 0, &tape, err);
    if (status != PLIM_OK) return status;
    struct quantise_wish wish = {e->options.weights, e->model, !kernels || kernels[OP_EXPERT_LINEAR_Q].run};
    status = quantise_choose(&e->quantisation, &wish, &e->spec, &tape, err);
    tape_release(&tape);
    return status;
}

/* --- sizes ------------------------------------------------------------------------------------------------ */

/* A plan in numbers. */
struct sizes {
    int64_t step, parallel, context, blocks;
    int64_t seen; /* positions of a request in the pool, at most: context, or the window */
    int64_t
        penalised; /* tokens that penalties of a step go by, at most, where the device draws: those of one request, or SEEN_USUAL */
    bool coded;    /* keys and values in 8 bits */
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void add_size(struct family *f, const struct sizes *s, int64_t tokens, int64_t rows)
{
    if (f->count == ENGINE_MEMBERS) return;
    f->size[f->count++] = (struct model_flat){.tokens = tokens,
                                              .seen = s->penalised,
                                              .rows = rows,
                                              .blocks = s->blocks,
                                              .reach = blocks_for(s->seen),
                                              .length = s->seen,
                                              .coded = s->coded};
}

/* Powers of two, from 32 on also the half-way ones; many rows only where many tokens can be the last of theirs. */
static void list_sizes(struct family *f, const struct sizes *s)
{
    f->count = 0;
    for (int64_t n = 1; n < s->step; n = n >= 32 && !(n & (n - 1)) ? n + n / 2
                                         : n & (n - 1)             ? n / 3 * 4
                                                                   : 2 * n) {
        if (n > FEW_ROWS && s->parallel > FEW_ROWS) add_size(f, s, n, FEW_ROWS);
        add_size(f, s, n, least(n, s->parallel));
    }
    if (f->count == ENGINE_MEMBERS) f->count--;
    if (s->step > FEW_ROWS && s->parallel > FEW_ROWS) add_size(f, s, s->step, FEW_ROWS);
    if (f->count == ENGINE_MEMBERS) f->count--;
    add_size(f, s, s->step, least(s->step, s->parallel));
}

/* Plans all members, or the first and the largest only. Without a line nothing is too large. */
static enum plim_status plan_family(const struct engine *e, const struct sizes *s, int64_t budget, bool ends,
                                    struct family *f, struct plim_error *err)
{
    struct build_arg arg = {.e = e};
    struct forward_family family = {.build = build, .arg = &arg};
    struct forward_line line = {budget, e->options.host_budget, e->overhead, e->options.scratch};
    memset(f, 0, sizeof *f);
    list_sizes(f, s);
    arg.size = f->size[0];
    enum plim_status status = runtime_plan_forward(&f->runtime, e->device, &e->spec, &line, &family, 1, err);
    for (int i = 1; i < f->count && status == PLIM_OK; i++) {
        if (ends && i + 1 < f->count) continue;
        arg.size = f->size[i];
        status = runtime_forward(&f->runtime, &family, 1, 1, &f->more[i - 1], err);
    }
    return status;
}

void family_drop(struct family *f)
{
    for (int i = 0; i < ENGINE_MEMBERS; i++) forward_close(&f->more[i]);
    plan_release(&f->runtime.plan);
    memset(f, 0, sizeof *f);
}

/* What sizes take in all. */
static enum plim_status measure(struct engine *e, const struct sizes *s, int64_t *total,
                                struct plim_error *err)
{
    struct family *f = malloc(sizeof *f);
    if (!f) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an engine was planned");
    enum plim_status status = plan_family(e, s, 0, true, f, err);
    *total = f->runtime.plan.total;
    e->plan.arena = f->runtime.arena;
    family_drop(f);
    free(f);
    return status;
}

int64_t engine_line(const struct engine *e, int64_t budget)
{
    const struct device_facts *facts = &e->device->facts;
    if (budget || facts->unified_memory) return budget;
    return (int64_t)(facts->free_bytes ? facts->free_bytes : facts->memory_bytes);
}

int64_t engine_blocks_within(const struct engine *e, int64_t budget)
{
    int64_t line = engine_line(e, budget);
    if (!line) return e->most_blocks;
    return least((line - e->base) / e->block_bytes, e->most_blocks);
}

/* --- fitting ---------------------------------------------------------------------------------------------- */

static void set_context(const struct engine *e, struct sizes *s, int64_t context)
{
    s->context = context;
    s->seen = e->options.window ? least(context, e->options.window) : context;
    s->blocks = blocks_for(s->seen);
    int64_t each = least(context, e->spec.vocab_size), most = each > SEEN_USUAL ? each : SEEN_USUAL;
    s->penalised = least(each * s->parallel, most);
}

/* The next smaller plan; false: there is none. */
static bool shrink(const struct engine *e, struct sizes *s)
{
    bool free_parallel = !e->options.parallel && !e->options.whole;
    bool free_context = !e->options.max_context && !e->options.whole && !e->options.window;
    int64_t floor = e->options.least_context ? e->options.least_context : KV_BLOCK;
    if (s->step > 32 && s->step / 2 >= s->parallel)
        s->step /= 2;
    else if (free_parallel && s->parallel > 1)
        s->parallel /= 2;
    else if (free_context && s->context > floor)
        s->context = s->context / 2 > floor ? s->context / 2 : floor;
    else if (s->step > s->parallel)
        s->step = s->step / 2 > s->parallel ? s->step / 2 : s->parallel;
    else
        return false;
    set_context(e, s, s->context);
    return true;
}

/* More parameters leave the device; false: all have left, or none may. */
static bool stream_more(struct engine *e)
{
    bool may = e->options.stream && (!e->device->facts.unified_memory || e->options.scratch);
    if (!may || e->stream_share == OFFLOAD_SHARES) return false;
    e->stream_share += OFFLOAD_SHARES / 8;
    return true;
}

static enum plim_status refuse(const struct engine *e, const struct sizes *s, int64_t total,
                               struct plim_error *err)
{
    char need[BYTES_TEXT], have[BYTES_TEXT], missing[BYTES_TEXT];
    bytes_format(need, (uint64_t)total);
    int64_t line = engine_line(e, e->options.budget);
    bytes_format(have, (uint64_t)line);
    bytes_format(missing, (uint64_t)(total - line));
    return plim_fail(err, PLIM_NO_FIT,
                     "%s: does not fit: parameters, a cache of %lld positions and one pass take %s, %s %s: "
                     "%s (%lld bytes) missing; raise the budget or ask for fewer tokens",
                     e->model, (long long)s->seen, need,
                     e->options.budget ? "the budget is" : "the device has", have, missing,
                     (long long)(total - line));
}

/* Sizes whose smallest pool is below the line; *total is what they take. The process's reserve is used up last. */
static enum plim_status fit(struct engine *e, struct sizes *s, int64_t *total, struct plim_error *err)
{
    int64_t budget = engine_line(e, e->options.budget);
    for (;;) {
        enum plim_status status = measure(e, s, total, err);
        if (status != PLIM_OK) return status;
        if (!budget || *total <= budget) return PLIM_OK;
        struct sizes smaller = *s;
        if (stream_more(e)) continue;
        if (shrink(e, &smaller)) {
            *s = smaller;
            continue;
        }
        if (*total - budget > e->overhead.reserve || !e->device->facts.unified_memory)
            return refuse(e, s, *total, err);
        e->overhead.bytes -= e->overhead.reserve, e->overhead.reserve = 0;
    }
}

static struct sizes wanted(const struct engine *e)
{
    const struct engine_options *o = &e->options;
    bool host = e->device->facts.unified_memory;
    struct sizes s = {.coded = o->kv_type == DT_U8,
                      .step = o->step_tokens ? o->step_tokens
                              : host         ? STEP_HOST
                                             : STEP_DEVICE};
    s.parallel = o->parallel ? o->parallel : host ? PARALLEL_HOST : PARALLEL_MOST;
    int64_t context = o->max_context ? o->max_context : e->spec.max_positions;
    set_context(e, &s, least(context, e->spec.max_positions));
    if (s.step > s.seen * s.parallel) s.step = s.seen * s.parallel; /* no step can be fuller */
    if (s.step < s.parallel) s.step = s.parallel;
    if (o->window && s.step < s.seen) s.step = s.seen;
    return s;
}

static int64_t own_drawer(const struct engine *e)
{
    if (e->device->team) return drawer_bytes(e->device->team, e->spec.vocab_size);
    return drawer_bytes(NULL, e->spec.vocab_size) * e->device->facts.threads; /* a device that is not here */
}

/* Requests that run or wait, each as long as can be; not more than a part of the budget, and a larger one where the queue's length
 * was asked for. */
static int64_t requests_room(const struct engine *e, const struct sizes *s)
{
    const struct engine_options *o = &e->options;
    int64_t each = (int64_t)sizeof(struct request) + s->context * 5 +
                   least(s->context, e->spec.vocab_size) * (int64_t)sizeof(struct seen_token);
    int64_t room = (s->parallel + (o->queue ? o->queue : 4 * s->parallel)) * each;
    int64_t most = o->queue ? ROOM_ASKED : ROOM_USUAL;
    if (o->budget) most = least(most, o->budget / (o->queue ? 4 : 16));
    return room < most ? room : most > each ? most : each;
}

/* Host bytes beside the arena: requests, blocks, logits and what draws from them, tapes and layouts of all members. */
static enum plim_status own_bytes(struct engine *e, const struct sizes *s, int64_t *out,
                                  struct plim_error *err)
{
    struct family *f = calloc(1, sizeof *f);
    if (!f) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an engine was planned");
    struct sizes one = *s;
    one.step = one.parallel = 1;
    enum plim_status status = plan_family(e, &one, 0, true, f, err);
    int64_t tape = 0;
    if (status == PLIM_OK) {
        struct plan_own own = plan_own_bytes(&f->runtime.plan.tape, &f->runtime.plan.layout);
        tape = own.loop + own.update;
    }
    family_drop(f);
    list_sizes(f, s);
    e->bytes_room = requests_room(e, s);
    *out = f->count * tape + (int64_t)sizeof(struct engine) + e->bytes_room + own_drawer(e) +
           blocks_bytes(s->blocks) +
           engine_steps(e) * s->parallel * (int64_t)(sizeof(struct draw) + sizeof(struct step_row));
    e->kept_room = engine_keep_room(e, s->blocks * e->block_bytes);
    *out += e->kept_room;
    if (!e->device->facts.unified_memory)
        *out += 4 * (s->parallel * (e->spec.vocab_size + s->blocks + 4 + SAMPLE_WORDS + DRAWN_NUMBERS) +
                     3 * s->step + 2 * s->penalised);
    free(f);
    return status;
}

/* What changes with the line. */
static void note_line(struct engine *e, int64_t blocks)
{
    const struct runtime *rt = &e->family.runtime;
    struct engine_plan *p = &e->plan;
    pthread_mutex_lock(&e->lock);
    p->budget = rt->request.budget, p->total = rt->plan.total, p->arena = rt->arena;
    p->blocks = blocks, p->pool = blocks * e->block_bytes;
    p->transient = rt->arena - rt->plan.layout.kept_bytes;
    pthread_mutex_unlock(&e->lock);
}

/* Bytes of parameters, wherever they live: all, or those on a lower tier. */
static int64_t parameter_bytes(const struct tape *tape, bool below)
{
    int64_t bytes = 0;
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        if (t->cls == CLASS_PARAM && t->view_of < 0 && (!below || t->tier != TIER_DEVICE))
            bytes += tensor_bytes(t);
    }
    return bytes;
}

/* Tokens a second of the smallest member for so many tokens and rows; 0: nobody knows. */
static double rate_of(const struct engine *e, int64_t tokens, int64_t rows)
{
    const struct family *f = &e->family;
    struct tape_time time;
    int i = 0;
    while (i + 1 < f->count && (f->size[i].tokens < tokens || f->size[i].rows < rows)) i++;
    const struct tape *tape = i ? &f->more[i - 1].tape : &f->runtime.plan.tape;
    if (tape_time_of(tape, &e->device->facts, true, &time, NULL) != PLIM_OK) return 0;
    return time.loop_seconds > 0 ? (double)tokens / time.loop_seconds : 0;
}

static void note_plan(struct engine *e, const struct sizes *s)
{
    const struct plan *plan = &e->family.runtime.plan;
    struct engine_plan p = {.context = s->context,
                            .step_tokens = s->step,
                            .parallel = (int)s->parallel,
                            .precision = e->plan.precision,
                            .window = e->options.window,
                            .kv_type = e->kv_type,
                            .rung = e->options.rung,
                            .remembered = e->remembered,
                            .params = parameter_bytes(&plan->tape, false),
                            .streamed = parameter_bytes(&plan->tape, true),
                            .overhead = plan->overhead,
                            .requests = e->bytes_room == INT64_MAX ? 0 : e->bytes_room,
                            .host = e->device->facts.unified_memory ? 0 : plan->host};
    p.queue = e->options.queue ? e->options.queue : 4 * p.parallel;
    /* With a window every token costs a step of it. */
    int64_t each = e->options.window ? s->seen : 1;
    p.prefill_rate = rate_of(e, s->step, 1);
    p.decode_rate = rate_of(e, each, 1) / (double)each;
    p.full_rate = rate_of(e, each * s->parallel, s->parallel) / (double)each;
    pthread_mutex_lock(&e->lock);
    e->plan = p;
    pthread_mutex_unlock(&e->lock);
    note_line(e, s->blocks);
}

static struct sizes sizes_now(const struct engine *e)
{
    struct sizes s = {
        .step = e->plan.step_tokens, .parallel = e->plan.parallel, .coded = e->kv_type == DT_U8};
    set_context(e, &s, e->plan.context);
    s.blocks = e->plan.blocks;
    return s;
}

/* Sizes of an earlier start come first, with the overhead that it stated: this process, which differs by some pages, then has
 * the very same plan. A server is asked for its health before it is measured: what that takes is both resident and part of
 * `beside`, so a plan that counts it once is as good. */
static void recall(struct engine *e, struct sizes *s)
{
    struct plan_key key;
    struct kept_plan kept;
    int64_t least_overhead = e->overhead.bytes - e->overhead.reserve, near = e->overhead.bytes / 16;
    plan_key_make(&key, e->model, &e->device->facts, &e->options);
    bool good = plan_cache_load(&key, &kept) &&
                kept.overhead >= least_overhead - least(e->options.beside, BESIDE_EARLY) &&
                kept.overhead <= e->overhead.bytes + near && kept.step <= s->step &&
                kept.parallel <= s->parallel && kept.context <= s->context && kept.share <= OFFLOAD_SHARES;
    plan_key_release(&key);
    if (!good) return;
    int64_t reserve = kept.overhead - least_overhead;
    e->overhead = (struct overhead){kept.overhead, reserve > 0 ? reserve : 0};
    s->step = kept.step, s->parallel = kept.parallel,
    e->stream_share = e->options.stream ? (int)kept.share : 0;
    set_context(e, s, kept.context);
    e->remembered = true;
}

void engine_remember(const struct engine *e)
{
    struct plan_key key;
    const struct engine_plan *p = &e->plan;
    struct engine_options asked = e->options;
    if (!e->options.remember || e->remembered) return;
    asked.budget = e->asked_budget;
    plan_key_make(&key, e->model, &e->device->facts, &asked);
    plan_cache_save(&key, &(struct kept_plan){e->stated_overhead, p->step_tokens, p->parallel, p->context,
                                              e->stream_share});
    plan_key_release(&key);
}

enum plim_status engine_make_plan(struct engine *e, struct plim_error *err)
{
    const struct model_spec *spec = &e->spec;
    int64_t own = 0, total = 0;
    enum plim_status status = weights_precision(e->model, &e->plan.precision, err);
    if (status == PLIM_OK) status = choose_weights(e, err);
    if (status != PLIM_OK) return status;
    engine_tell(e, "weights_mapped");
    if (e->options.exact) e->plan.precision = PRECISION_F32;
    e->stream_share = 0, e->overhead = (struct overhead){0}, e->bytes_room = e->kept_room = 0;
    enum dtype type = precision_type(e->plan.precision), kv = e->options.kv_type;
    if (kv != DT_F32 && kv != DT_COUNT && kv != DT_U8 && kv != type)
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "keys and values in %s are not supported; the type of the weights, %s, and 8 bits are",
            dtype_name(kv), dtype_name(type));
    struct sizes s = wanted(e);
    e->kv_type = kv == DT_U8 ? kv : type;
    int64_t head = KV_BLOCK * spec->head_dim * (int64_t)dtype_size(type);
    if (e->kv_type == DT_U8) head = kv8_bytes(KV_BLOCK, spec->head_dim);
    e->block_bytes = (int64_t)2 * spec->num_layers * spec->num_kv_heads * head;
    if (e->options.overhead) {
        e->overhead = (struct overhead){.bytes = e->options.overhead};
        e->kept_room = engine_keep_room(e, s.blocks * e->block_bytes);
        if (e->kept_room > e->options.overhead / 2) e->kept_room = e->options.overhead / 2;
    } else {
        status = own_bytes(e, &s, &own, err);
        if (status != PLIM_OK) return status;
        e->overhead = runtime_overhead(), e->overhead.bytes += own;
    }
    e->overhead.bytes += e->options.beside;
    if (!e->bytes_room) e->bytes_room = INT64_MAX;
    e->remembered = false, e->asked_budget = e->options.budget;
    if (e->options.remember) recall(e, &s);
    e->stated_overhead = e->overhead.bytes;
    status = fit(e, &s, &total, err);
    if (status != PLIM_OK) {
        e->plan.total = total, e->plan.context = s.context;
        return status;
    }
    int64_t usual = e->options.budget ? s.seen : least(s.seen, USUAL_CONTEXT);
    int64_t most = s.parallel * blocks_for(usual);
    pthread_mutex_lock(&e->lock);
    e->base = total - s.blocks * e->block_bytes;
    e->smallest = total;
    e->least_blocks = s.blocks, e->most_blocks = most < s.blocks ? s.blocks : most;
    pthread_mutex_unlock(&e->lock);
    s.blocks = engine_blocks_within(e, e->options.budget);
    status = plan_family(e, &s, e->options.budget, false, &e->family, err);
    if (status == PLIM_OK) note_plan(e, &s);
    return status;
}

/* --- making it real --------------------------------------------------------------------------------------- */

static void find_ends(struct family *f, int i, struct exec *exec)
{
    f->member[i] = (struct member){exec, tape_find(exec->tape, "flat", -1),
                                   tape_find(exec->tape, "logits", -1), tape_find(exec->tape, "drawn", -1)};
}

/* Members beyond the first, and programs of all of them. */
static enum plim_status start_members(struct family *f, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    find_ends(f, 0, &f->runtime.exec);
    for (int i = 1; i < f->count && status == PLIM_OK; i++) {
        status = forward_start(&f->runtime, &f->more[i - 1], err);
        find_ends(f, i, &f->more[i - 1].exec);
    }
    for (int i = 0; i < f->count && status == PLIM_OK; i++) exec_prepare(f->member[i].exec, false);
    return status;
}

enum plim_status engine_commit(struct engine *e, struct plim_error *err)
{
    struct family *f = &e->family;
    enum plim_status status = runtime_commit(&f->runtime, err);
    if (status != PLIM_OK) return status;
    engine_tell(e, "inputs_on_device");
    status = weights_from_directory(&f->runtime.exec, &e->spec, e->model, e->options.log, err);
    if (status != PLIM_OK) return status;
    engine_tell(e, "model_on_device");
    engine_tell(e, "compilation_started");
    status = start_members(f, err);
    if (status == PLIM_OK) engine_tell(e, "compilation_complete");
    return status;
}

void family_close(struct family *f)
{
    for (int i = 0; i < ENGINE_MEMBERS; i++) forward_close(&f->more[i]);
    runtime_close(&f->runtime);
}

const struct member *family_member(const struct family *f, int64_t tokens, int64_t rows,
                                   struct model_flat *size)
{
    int i = 0;
    while (i + 1 < f->count && (f->size[i].tokens < tokens || f->size[i].rows < rows)) i++;
    *size = f->size[i];
    return &f->member[i];
}

/* --- another line ----------------------------------------------------------------------------------------- */

/* Blocks change their places: what they hold goes through the host. */
static enum plim_status move_blocks(struct engine *e, const int32_t *to, int64_t count,
                                    struct plim_error *err)
{
    const struct exec *exec = &e->family.runtime.exec;
    int pool = tape_find(exec->tape, "kv.pool", -1);
    char *block = malloc((size_t)e->block_bytes);
    enum plim_status status = block ? PLIM_OK : plim_fail(err, PLIM_NO_MEMORY, "out of memory for one block");
    for (int64_t i = 0; i < count && status == PLIM_OK; i++) {
        if (to[i] < 0 || to[i] == i) continue;
        status = exec_read(exec, pool, block, i * e->block_bytes, e->block_bytes, err);
        if (status == PLIM_OK)
            status = exec_write(exec, pool, block, to[i] * e->block_bytes, e->block_bytes, err);
    }
    free(block);
    return status;
}

static enum plim_status resize_pool(struct engine *e, int64_t blocks, struct plim_error *err)
{
    int64_t had = e->blocks.count, most = had > blocks ? had : blocks;
    int32_t *to = malloc((size_t)most * sizeof *to);
    if (!to) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the list of blocks");
    schedule_shrink(&e->schedule, blocks);
    enum plim_status status = blocks_resize(&e->blocks, blocks, to, err);
    if (status == PLIM_OK) {
        schedule_renumber(&e->schedule, to);
        status = move_blocks(e, to, had, err);
    }
    free(to);
    return status;
}

/* Members over the plan that stands, after another one could not. */
static void rejoin_members(struct engine *e)
{
    struct family *f = &e->family;
    struct build_arg arg = {.e = e};
    struct forward_family family = {.build = build, .arg = &arg};
    f->count = 1;
    struct family *listed = calloc(1, sizeof *listed);
    struct sizes s = sizes_now(e);
    if (listed) list_sizes(listed, &s);
    for (int i = 1; listed && i < listed->count && !f->runtime.torn; i++) {
        arg.size = listed->size[i];
        if (runtime_forward(&f->runtime, &family, 1, 1, &f->more[i - 1], NULL) != PLIM_OK) break;
        find_ends(f, i, &f->more[i - 1].exec);
        f->count++;
    }
    find_ends(f, 0, &f->runtime.exec);
    free(listed);
}

/* Between two steps: nothing above the kept tensors holds anything. A smaller pool is packed before its pages go, a larger
 * one has its pages first. */
enum plim_status engine_move_line(struct engine *e, struct plim_error *err)
{
    struct sizes s = sizes_now(e);
    struct family *next = malloc(sizeof *next);
    if (!next) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an engine was planned");
    s.blocks = engine_blocks_within(e, e->options.budget);
    enum plim_status status = plan_family(e, &s, e->options.budget, false, next, err);
    bool less = s.blocks < e->blocks.count;
    if (status == PLIM_OK && less) status = resize_pool(e, s.blocks, err);
    if (status == PLIM_OK) {
        for (int i = 0; i < ENGINE_MEMBERS; i++) forward_close(&e->family.more[i]);
        status = runtime_adopt(&e->family.runtime, &next->runtime, err);
        if (status != PLIM_OK) rejoin_members(e);
    }
    if (status == PLIM_OK) {
        memcpy(e->family.more, next->more, sizeof next->more);
        memset(next->more, 0, sizeof next->more);
        memcpy(e->family.size, next->size, sizeof next->size);
        e->family.count = next->count;
        status = start_members(&e->family, err);
        note_line(e, s.blocks);
    }
    if (status == PLIM_OK && !less) status = resize_pool(e, s.blocks, err);
    family_drop(next);
    free(next);
    return status;
}
