/* engine_plan.c - the largest step, the largest request and the most blocks that fit a line. See engine_part.h.
 *
 * Parameters are the same under every plan; the transient bytes of a step grow with its tokens and rows, the pool takes
 * what is left. Where not even one request of the wanted length fits, the step shrinks first, then how many run at once
 * and, when nobody asked for a length, the length.
 */
#include "base/bytes.h"
#include "runtime/load.h"
#include "serve/engine_part.h"

#include <stdlib.h>
#include <string.h>

enum {
    STEP_HOST = 256, /* tokens of a step where nobody says: enough for products to be fast */
    STEP_DEVICE = 2048,
    PARALLEL_MOST = 256,
    PARALLEL_HOST = 16,   /* where nobody says */
    FEW_ROWS = 8,         /* of members for prompts: few of their tokens end one */
    USUAL_CONTEXT = 2048, /* without a line, what each request has blocks for */
};

/* --- tapes ------------------------------------------------------------------------------------------------ */

struct build_arg {
    const struct engine *e;
    struct model_flat size;
};

static enum plim_status build(void *arg, int64_t unused, struct tape *out, struct plim_error *err)
{
    const struct build_arg *b = arg;
    struct model_shape shape = {
        .batch = 1, .time = b->size.tokens, .head = HEAD_LAST_LOGITS, .flat = b->size};
    (void)unused;
    tape_init(out);
    enum plim_status status = model_emit(&b->e->spec, &shape, out, err);
    if (status == PLIM_OK) status = pass_precision(out, b->e->plan.precision, err);
    if (status == PLIM_OK) quantise_tape(&b->e->quantisation, &b->e->spec, out);
    if (status == PLIM_OK) status = tape_verify(out, err);
    for (int i = 0; i < out->nops; i++) out->ops[i].attr.repeatable = true; /* same seed, same text */
    if (status != PLIM_OK) tape_release(out);
    return status;
}

/* Which weights are in blocks. A device without kernels for them has all of them as numbers. */
static enum plim_status choose_weights(struct engine *e, struct plim_error *err)
{
    struct build_arg arg = {e, {1, 1, 1, 1, 1}};
    struct tape tape;
    if (!e->device->kernels[OP_LINEAR_Q].run) {
        if (e->options.weights == WEIGHTS_AS_IS) return PLIM_OK;
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "this device has no kernels for %s weights; use the CPU, or as-is",
                         weights_kind_name(e->options.weights));
    }
    enum plim_status status = build(&arg, 0, &tape, err);
    if (status != PLIM_OK) return status;
    status = quantise_choose(&e->quantisation, e->options.weights, e->model, &e->spec, &tape, err);
    tape_release(&tape);
    return status;
}

/* --- sizes ------------------------------------------------------------------------------------------------ */

/* A plan in numbers. */
struct sizes {
    int64_t step, parallel, context, blocks;
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static void add_size(struct family *f, const struct sizes *s, int64_t tokens, int64_t rows)
{
    if (f->count == ENGINE_MEMBERS) return;
    f->size[f->count++] = (struct model_flat){tokens, rows, s->blocks, blocks_for(s->context), s->context};
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
    struct forward_line line = {budget, e->options.host_budget, e->overhead};
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

/* Frees a plan that nobody committed. */
static void drop_plan(struct family *f)
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
    drop_plan(f);
    free(f);
    return status;
}

int64_t engine_blocks_within(const struct engine *e, int64_t budget)
{
    if (!budget) return e->most_blocks;
    return least((budget - e->base) / e->block_bytes, e->most_blocks);
}

/* --- fitting ---------------------------------------------------------------------------------------------- */

/* The next smaller plan; false: there is none. */
static bool shrink(const struct engine *e, struct sizes *s)
{
    bool free_parallel = !e->options.parallel, free_context = !e->options.max_context;
    if (s->step > 32 && s->step / 2 >= s->parallel)
        s->step /= 2;
    else if (free_parallel && s->parallel > 1)
        s->parallel /= 2;
    else if (free_context && s->context > 16)
        s->context = s->context / 2 > 16 ? s->context / 2 : 16;
    else if (s->step > s->parallel)
        s->step = s->step / 2 > s->parallel ? s->step / 2 : s->parallel;
    else
        return false;
    s->blocks = blocks_for(s->context);
    return true;
}

static enum plim_status refuse(const struct engine *e, const struct sizes *s, int64_t total,
                               struct plim_error *err)
{
    char need[BYTES_TEXT], have[BYTES_TEXT], missing[BYTES_TEXT];
    bytes_format(need, (uint64_t)total);
    bytes_format(have, (uint64_t)e->options.budget);
    bytes_format(missing, (uint64_t)(total - e->options.budget));
    return plim_fail(
        err, PLIM_NO_FIT,
        "%s: does not fit: parameters, a cache of %lld positions and one pass take %s, the budget is %s: "
        "%s (%lld bytes) missing; raise the budget or ask for fewer tokens",
        e->model, (long long)s->context, need, have, missing, (long long)(total - e->options.budget));
}

/* Sizes whose smallest pool is below the line; *total is what they take. The process's reserve is used up last. */
static enum plim_status fit(struct engine *e, struct sizes *s, int64_t *total, struct plim_error *err)
{
    int64_t budget = e->options.budget;
    for (;;) {
        enum plim_status status = measure(e, s, total, err);
        if (status != PLIM_OK) return status;
        if (!budget || *total <= budget) return PLIM_OK;
        struct sizes smaller = *s;
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
    struct sizes s = {.step = o->step_tokens ? o->step_tokens : host ? STEP_HOST : STEP_DEVICE};
    s.parallel = o->parallel ? o->parallel : host ? PARALLEL_HOST : PARALLEL_MOST;
    s.context = o->max_context ? o->max_context : e->spec.max_positions;
    s.context = least(s.context, e->spec.max_positions);
    if (s.step > s.context * s.parallel) s.step = s.context * s.parallel; /* no step can be fuller */
    if (s.step < s.parallel) s.step = s.parallel;
    s.blocks = blocks_for(s.context);
    return s;
}

/* Host bytes beside the arena: requests, blocks, logits and what draws from them, tapes and layouts of all members. */
static enum plim_status own_bytes(struct engine *e, const struct sizes *s, int64_t *out,
                                  struct plim_error *err)
{
    struct family *f = calloc(1, sizeof *f);
    if (!f) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an engine was planned");
    struct sizes one = {1, 1, s->context, s->blocks};
    enum plim_status status = plan_family(e, &one, 0, true, f, err);
    int64_t tape = 0;
    if (status == PLIM_OK) {
        struct plan_own own = plan_own_bytes(&f->runtime.plan.tape, &f->runtime.plan.layout);
        tape = own.loop + own.update;
    }
    drop_plan(f);
    list_sizes(f, s);
    e->bytes_room = s->parallel * s->context * 5;
    if (e->bytes_room > (4 << 20)) e->bytes_room = 4 << 20;
    if (e->bytes_room < s->context * 5 + 4096) e->bytes_room = s->context * 5 + 4096;
    *out = f->count * tape + (int64_t)sizeof(struct engine) + e->bytes_room +
           drawer_bytes(e->device->team, e->spec.vocab_size) + blocks_bytes(s->blocks) +
           s->parallel * (int64_t)(sizeof(struct draw) + sizeof(struct step_row));
    if (!e->device->facts.unified_memory)
        *out += 4 * (s->parallel * (e->spec.vocab_size + s->blocks + 4) + 3 * s->step);
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
    pthread_mutex_unlock(&e->lock);
}

static void note_plan(struct engine *e, const struct sizes *s)
{
    struct engine_plan *p = &e->plan;
    note_line(e, s->blocks);
    p->params = e->family.runtime.plan.layout.by_class[CLASS_PARAM];
    p->context = s->context, p->step_tokens = s->step, p->parallel = (int)s->parallel;
    p->queue = e->options.queue ? e->options.queue : 4 * p->parallel;
}

static struct sizes sizes_now(const struct engine *e)
{
    return (struct sizes){e->plan.step_tokens, e->plan.parallel, e->plan.context, e->plan.blocks};
}

enum plim_status engine_make_plan(struct engine *e, struct plim_error *err)
{
    const struct model_spec *spec = &e->spec;
    int64_t own = 0, total = 0;
    enum plim_status status = weights_precision(e->model, &e->plan.precision, err);
    if (status == PLIM_OK) status = choose_weights(e, err);
    if (status != PLIM_OK) return status;
    enum dtype type = precision_type(e->plan.precision), kv = e->options.kv_type;
    if (kv != DT_F32 && kv != DT_COUNT && kv != type)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "keys and values in %s are not supported; the type of the weights, %s, is",
                         dtype_name(kv), dtype_name(type));
    struct sizes s = wanted(e);
    e->block_bytes = (int64_t)2 * spec->num_layers * spec->num_kv_heads * spec->head_dim * KV_BLOCK *
                     (int64_t)dtype_size(type);
    if (e->options.overhead) {
        e->overhead = (struct overhead){.bytes = e->options.overhead};
    } else {
        status = own_bytes(e, &s, &own, err);
        if (status != PLIM_OK) return status;
        e->overhead = runtime_overhead(), e->overhead.bytes += own;
    }
    e->overhead.bytes += e->options.beside;
    if (!e->bytes_room) e->bytes_room = INT64_MAX;
    status = fit(e, &s, &total, err);
    if (status != PLIM_OK) {
        e->plan.total = total, e->plan.context = s.context;
        return status;
    }
    e->base = total - s.blocks * e->block_bytes;
    e->least_blocks = s.blocks;
    int64_t usual = e->options.budget ? s.context : least(s.context, USUAL_CONTEXT);
    e->most_blocks = s.parallel * blocks_for(usual);
    if (e->most_blocks < e->least_blocks) e->most_blocks = e->least_blocks;
    s.blocks = engine_blocks_within(e, e->options.budget);
    status = plan_family(e, &s, e->options.budget, false, &e->family, err);
    if (status == PLIM_OK) note_plan(e, &s);
    return status;
}

/* --- making it real --------------------------------------------------------------------------------------- */

static void find_ends(struct family *f, int i, struct exec *exec)
{
    f->member[i] =
        (struct member){exec, tape_find(exec->tape, "flat", -1), tape_find(exec->tape, "logits", -1)};
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
    if (status == PLIM_OK) engine_tell(e, "inputs_on_device"), status = start_members(f, err);
    if (status != PLIM_OK) return status;
    status = weights_from_directory(&f->runtime.exec, &e->spec, e->model, e->options.log, err);
    if (status == PLIM_OK) engine_tell(e, "model_on_device");
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
    drop_plan(next);
    free(next);
    return status;
}
