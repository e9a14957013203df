/* engine_plan.c - a decoder's plan made real, and moved to another budget. See engine_size.h. */
#include "plan/cost.h"
#include "runtime/load.h"
#include "serve/engine_size.h"

#include <stdlib.h>
#include <string.h>

/* Positions of the requests that predicted rates are for: the same for every offer but the last resorts, so that rates of two
 * budgets can be compared. */
enum { RATE_CONTEXT = 256 };

/* --- what stands ------------------------------------------------------------------------------------------ */

/* The part of the plan that changes with the budget. */
static void note_line(struct engine *e, int64_t blocks)
{
    const struct runtime *rt = &e->family.runtime;
    struct engine_plan *p = &e->plan;
    LOCKED(&e->lock);
    p->budget = rt->request.budget, p->total = rt->plan.total, p->arena = rt->arena;
    p->blocks = blocks, p->pool = blocks * e->block_bytes;
    p->transient = rt->arena - rt->plan.layout.kept_bytes;
}

/* Bytes of all parameters, or of those on a lower tier. */
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

/* Predictions are for requests of a usual length: a full context would tell of nobody's requests. */
static int64_t rate_context(const struct sizes *s) { return s->seen < RATE_CONTEXT ? s->seen : RATE_CONTEXT; }

/* Predicted tokens a second of a step with so many tokens and rows, of requests with RATE_CONTEXT positions; 0: unknown. */
static double rate_of(const struct engine *e, const struct sizes *s, int64_t tokens, int64_t rows)
{
    int64_t context = rate_context(s);
    struct engine_tape arg = {.e = e, .share = s->offer.share};
    struct tape tape;
    struct tape_time time;
    double rate = 0;
    arg.size = (struct model_flat){.tokens = tokens,
                                   .seen = s->penalised,
                                   .rows = rows,
                                   .blocks = s->blocks,
                                   .reach = blocks_for(context),
                                   .length = context,
                                   .coded = s->offer.coded,
                                   .e4m3 = s->e4m3};
    if (engine_tape_build(&arg, 0, &tape, NULL) != PLIM_OK) return 0;
    if (tape_time_of(&tape, &e->device->facts, true, &time, NULL) == PLIM_OK && time.loop_seconds > 0)
        rate = (double)tokens / time.loop_seconds;
    tape_release(&tape);
    return rate;
}

void engine_note_plan(struct engine *e, const struct sizes *s)
{
    const struct plan *plan = &e->family.runtime.plan;
    struct engine_plan p = {.context = s->offer.context,
                            .step_tokens = s->offer.step,
                            .parallel = (int)s->offer.requests,
                            .precision = e->plan.precision,
                            .window = s->offer.window,
                            .kv_type = e->kv_type,
                            .rung = e->options.rung ? e->options.rung : offer_rung_name(s->offer.rung),
                            .offer_rung = s->offer.rung,
                            .remembered = e->plan.remembered,
                            .params = parameter_bytes(&plan->tape, false),
                            .streamed = parameter_bytes(&plan->tape, true),
                            .overhead = plan->overhead,
                            .requests = e->bytes_room == INT64_MAX ? 0 : e->bytes_room,
                            .rate_context = rate_context(s),
                            .host = e->device->facts.unified_memory ? 0 : plan->host};
    memcpy(p.missed, e->plan.missed, sizeof p.missed);
    adapters_note(e, &p);
    p.queue = e->options.queue ? e->options.queue : 4 * p.parallel;
    int64_t each = s->offer.window ? s->seen : 1; /* with a window every token costs a step of it */
    p.prefill_rate = rate_of(e, s, s->offer.step, 1);
    p.decode_rate = rate_of(e, s, each, 1) / (double)each;
    p.full_rate = rate_of(e, s, each * p.parallel, p.parallel) / (double)each;
    pthread_mutex_lock(&e->lock);
    e->plan = p;
    pthread_mutex_unlock(&e->lock);
    note_line(e, s->blocks);
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
    for (int i = 0; i < f->count && status == PLIM_OK; i++)
        status = exec_prepare(f->member[i].exec, false, err);
    return status;
}

enum plim_status engine_commit(struct engine *e, struct plim_error *err)
{
    struct family *f = &e->family;
    enum plim_status status = runtime_commit(&f->runtime, err);
    if (status != PLIM_OK) return status;
    engine_tell(e, "inputs_on_device");
    status = weights_from_directory(&f->runtime.exec, &e->spec, e->model, e->options.log, err);
    if (status == PLIM_OK && e->options.adapter)
        status = weights_merge(&f->runtime.exec, &e->spec, e->options.adapter, err);
    if (status == PLIM_OK) status = adapters_fill(e, err);
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
    struct engine_tape arg = {.e = e, .share = e->offer.share};
    struct forward_family family = {.build = engine_tape_build, .arg = &arg};
    f->count = 1;
    struct family *listed = calloc(1, sizeof *listed);
    struct sizes s = sizes_now(e);
    if (listed) family_list(listed, &s, e->device->facts.whole_programs);
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
    enum plim_status status = family_plan(e, &s, e->options.budget, next, err);
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
