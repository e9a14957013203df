/* engine_source_plan.c - the most rows of an encoder-decoder that fit a line. See engine_source.h. */
#include "serve/engine_source.h"
#include "base/bytes.h"
#include "runtime/load.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROWS_HOST = 8, /* where nobody says */
    ROWS_DEVICE = 64,
    USUAL_LENGTH = 512, /* of sources and answers: what such models are trained on */
    LEAST_LENGTH = 16,
};

/* --- planning --------------------------------------------------------------------------------------------- */

struct pass {
    const struct engine *e;
    const struct sources *s;
    int64_t rows, length; /* rows 0: reads a source of `length` */
};

static enum plim_status build(void *arg, int64_t unused, struct tape *out, struct plim_error *err)
{
    const struct pass *p = arg;
    struct model_shape shape = {.batch = p->rows,
                                .time = 1,
                                .source_time = p->s->length,
                                .kv_length = p->s->length,
                                .head = HEAD_LAST_LOGITS};
    (void)unused;
    if (!p->rows) {
        shape.batch = 1, shape.head = HEAD_SOURCE, shape.source_time = p->length;
        shape.source_cache = p->s->rows * p->s->length;
    }
    tape_init(out);
    enum plim_status status = model_emit(&p->e->spec, &shape, out, err);
    if (status == PLIM_OK) status = pass_precision(out, p->e->plan.precision, err);
    if (status == PLIM_OK) status = tape_verify(out, err);
    for (int i = 0; i < out->nops; i++) out->ops[i].attr.repeatable = true; /* same seed, same text */
    if (status != PLIM_OK) tape_release(out);
    return status;
}

/* Doubled from `least` up to `most`, which is the last. */
static int list_sizes(int64_t least, int64_t most, int64_t *out)
{
    int n = 0;
    for (int64_t size = least; size < most && n < SOURCE_PASSES - 1; size *= 2) out[n++] = size;
    out[n++] = most;
    return n;
}

/* Passes of fewer rows, and of each length, beside the largest one that was planned. */
static enum plim_status join_passes(struct engine *e, struct sources *s, struct plim_error *err)
{
    struct pass pass = {e, s, 0, 0};
    struct forward_family family = {.build = build, .arg = &pass};
    enum plim_status status = PLIM_OK;
    for (int i = 0; i + 1 < s->token_count && status == PLIM_OK; i++) {
        pass.rows = s->token_rows[i];
        status = runtime_forward(&s->runtime, &family, 1, 1, &s->tokens[i], err);
    }
    pass.rows = 0;
    for (int i = 0; i < s->read_count && status == PLIM_OK; i++) {
        pass.length = s->read_length[i];
        status = runtime_forward(&s->runtime, &family, 1, 1, &s->reads[i], err);
    }
    return status;
}

static enum plim_status plan_passes(struct engine *e, struct sources *s, int64_t budget,
                                    struct plim_error *err)
{
    struct pass pass = {e, s, s->rows, 0};
    struct forward_family family = {.build = build, .arg = &pass};
    struct forward_line line = {budget, e->options.host_budget, {.bytes = e->overhead.bytes}};
    s->token_count = list_sizes(1, s->rows, s->token_rows);
    s->read_count = list_sizes(LEAST_LENGTH, s->length, s->read_length);
    enum plim_status status = runtime_plan_forward(&s->runtime, e->device, &e->spec, &line, &family, 1, err);
    return status == PLIM_OK ? join_passes(e, s, err) : status;
}

static void close_passes(struct sources *s)
{
    for (int i = 0; i < SOURCE_PASSES; i++) forward_close(&s->tokens[i]), forward_close(&s->reads[i]);
}

static void drop_plan(struct sources *s)
{
    close_passes(s);
    plan_release(&s->runtime.plan);
    s->runtime = (struct runtime){0};
}

static int64_t request_bytes(int64_t length)
{
    return (int64_t)sizeof(struct request) +
           (2 * length + blocks_for(2 * length)) * (int64_t)sizeof(int32_t) +
           length * (int64_t)sizeof(struct seen_token);
}

static void note_sizes(struct engine *e, const struct sources *s)
{
    e->plan.parallel = (int)s->rows, e->plan.queue = 4 * e->plan.parallel;
    e->plan.context = e->plan.answer = s->length, e->plan.step_tokens = s->rows;
    engine_set_room(e, request_bytes(s->length));
}

/* What changes with the line. */
static void note_line(struct engine *e, const struct sources *s)
{
    const struct runtime *rt = &s->runtime;
    struct engine_plan *p = &e->plan;
    pthread_mutex_lock(&e->lock);
    p->budget = rt->request.budget, p->total = rt->plan.total, p->arena = rt->arena;
    p->params = rt->plan.layout.by_class[CLASS_PARAM], p->pool = rt->plan.layout.by_class[CLASS_KV];
    p->blocks = s->rows;
    pthread_mutex_unlock(&e->lock);
}

/* Host bytes beside the arena: requests, logits and what draws of them, tapes and layouts of all passes. */
static enum plim_status add_own_bytes(struct engine *e, struct sources *s, struct plim_error *err)
{
    int64_t logits =
        e->device->facts.unified_memory ? 0 : s->rows * e->spec.vocab_size * (int64_t)sizeof(float);
    enum plim_status status = plan_passes(e, s, 0, err);
    if (status != PLIM_OK) return status;
    struct plan_own own = plan_own_bytes(&s->runtime.plan.tape, &s->runtime.plan.layout);
    struct plan_own read = plan_own_bytes(&s->reads[0].tape, &s->reads[0].layout);
    e->overhead = runtime_overhead();
    e->overhead.bytes += s->token_count * (own.loop + own.update) +
                         s->read_count * (read.loop + read.update) + (int64_t)(sizeof *e + sizeof *s) +
                         e->bytes_room + logits + drawer_bytes(e->device->team, e->spec.vocab_size) +
                         s->rows * (int64_t)(sizeof(struct draw) + sizeof *s->row);
    drop_plan(s);
    return PLIM_OK;
}

/* Fewer rows, then shorter ones; false: nothing smaller is left. */
static bool shrink(const struct engine *e, struct sources *s)
{
    if (!e->options.parallel && s->rows > 1) return s->rows /= 2, true;
    if (e->options.max_context || s->length <= LEAST_LENGTH) return false;
    s->length = s->length / 2 > LEAST_LENGTH ? s->length / 2 : LEAST_LENGTH;
    return true;
}

static enum plim_status refuse(struct engine *e, struct sources *s, struct plim_error *err)
{
    char need[BYTES_TEXT], have[BYTES_TEXT], missing[BYTES_TEXT];
    int64_t budget = e->options.budget;
    enum plim_status status = plan_passes(e, s, 0, err);
    if (status != PLIM_OK) return status;
    int64_t total = s->runtime.plan.total;
    e->plan.total = total;
    return plim_fail(
        err, PLIM_NO_FIT,
        "%s: does not fit: parameters, caches of %lld rows for sources and answers of %lld tokens "
        "and one pass take %s, the budget is %s: %s (%lld bytes) missing; raise the budget or ask "
        "for fewer tokens",
        e->model, (long long)s->rows, (long long)s->length, bytes_format(need, (uint64_t)total),
        bytes_format(have, (uint64_t)budget), bytes_format(missing, (uint64_t)(total - budget)),
        (long long)(total - budget));
}

/* What the plan takes with one row. */
static enum plim_status measure_smallest(struct engine *e, struct sources *s, int64_t *out,
                                         struct plim_error *err)
{
    struct sources one = {.rows = 1, .length = s->length};
    enum plim_status status = plan_passes(e, &one, 0, err);
    *out = one.runtime.plan.total;
    drop_plan(&one);
    return status;
}

/* The largest sizes below the line; the process's reserve is used up last. */
static enum plim_status fit(struct engine *e, struct sources *s, struct plim_error *err)
{
    for (;;) {
        enum plim_status status = plan_passes(e, s, e->options.budget, err);
        if (status != PLIM_NO_FIT) return status;
        drop_plan(s);
        if (shrink(e, s)) continue;
        if (!e->overhead.reserve) return refuse(e, s, err);
        e->overhead.bytes -= e->overhead.reserve, e->overhead.reserve = 0;
    }
}

static enum plim_status make_plan(struct engine *e, struct sources *s, struct plim_error *err)
{
    const struct engine_options *o = &e->options;
    bool host = e->device->facts.unified_memory;
    s->rows = o->parallel ? o->parallel : host ? ROWS_HOST : ROWS_DEVICE;
    s->length = o->max_context ? o->max_context : USUAL_LENGTH;
    enum plim_status status = weights_precision(e->model, &e->plan.precision, err);
    if (status != PLIM_OK) return status;
    note_sizes(e, s);
    if (o->overhead)
        e->overhead = (struct overhead){.bytes = o->overhead};
    else
        status = add_own_bytes(e, s, err);
    e->overhead.bytes += o->beside;
    if (status == PLIM_OK) status = fit(e, s, err);
    if (status != PLIM_OK) return status;
    note_sizes(e, s);
    note_line(e, s);
    return measure_smallest(e, s, &e->smallest, err);
}

/* Requests in rows from `first` on wait again, before all others; those below it have nothing in the caches. */
static void wait_again(struct engine *e, struct sources *s, int64_t first)
{
    for (int64_t i = s->rows - 1; i >= 0; i--) {
        if (s->row[i].request && i >= first) engine_put_back(e, s->row[i].request);
        s->row[i] = (struct source_row){.request = i < first ? s->row[i].request : NULL};
    }
}

/* --- opening ---------------------------------------------------------------------------------------------- */

static enum plim_status take_buffers(struct engine *e, struct sources *s, struct plim_error *err)
{
    size_t rows = (size_t)s->rows, numbers = (size_t)(s->rows > s->length ? s->rows : s->length);
    int64_t vocab = e->spec.vocab_size;
    e->step[0].draws = calloc(rows, sizeof *e->step[0].draws);
    s->row = calloc(rows, sizeof *s->row);
    s->input = malloc(numbers * sizeof *s->input);
    bool good = e->step[0].draws && s->row && s->input;
    if (!e->device->facts.unified_memory)
        good = (e->raw = malloc(rows * (size_t)vocab * sizeof(float))) && good; /* no type is wider */
    if (!good) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the rows of a step");
    if (e->options.vocab && e->options.vocab < vocab) vocab = e->options.vocab;
    return drawer_init(&e->drawer, e->device->team, vocab, err);
}

static enum plim_status start_passes(struct sources *s, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int i = 0; i + 1 < s->token_count && status == PLIM_OK; i++)
        status = forward_start(&s->runtime, &s->tokens[i], err);
    for (int i = 0; i < s->read_count && status == PLIM_OK; i++)
        status = forward_start(&s->runtime, &s->reads[i], err);
    return status;
}

static enum plim_status start(struct engine *e, struct sources *s, struct plim_error *err)
{
    enum plim_status status = runtime_commit(&s->runtime, err);
    if (status == PLIM_OK) engine_tell(e, "inputs_on_device");
    if (status == PLIM_OK) status = start_passes(s, err);
    if (status != PLIM_OK) return status;
    status = weights_from_directory(&s->runtime.exec, &e->spec, e->model, e->options.log, err);
    if (status == PLIM_OK) engine_tell(e, "model_on_device");
    return status;
}

enum plim_status source_open(struct engine *e, struct plim_error *err)
{
    struct sources *s = e->own = calloc(1, sizeof *s);
    if (!s) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an engine was set up");
    enum plim_status status = make_plan(e, s, err);
    if (status == PLIM_OK) engine_tell(e, "weights_mapped");
    if (status == PLIM_OK) status = take_buffers(e, s, err);
    return status == PLIM_OK ? start(e, s, err) : status;
}

void source_close(struct engine *e)
{
    struct sources *s = e->own;
    if (!s) return;
    if (s->row && e->live) wait_again(e, s, 0); /* another plan comes */
    close_passes(s);
    runtime_close(&s->runtime);
    free(s->row);
    free(s->input);
    free(s);
    e->own = NULL;
}

/* --- another line ------------------------------------------------------------------------------------------- */

/* Passes of the plan that stands, after another one could not. */
static enum plim_status rejoin_passes(struct engine *e, struct sources *s, struct plim_error *err)
{
    return s->runtime.torn ? PLIM_NO_MEMORY : join_passes(e, s, err);
}

/* The most rows that fit, halved from those there were at first; `next` is planned. */
static enum plim_status plan_rows(struct engine *e, struct sources *next, struct plim_error *err)
{
    for (next->rows = e->plan.parallel;; next->rows /= 2) {
        enum plim_status status = plan_passes(e, next, e->options.budget, err);
        if (status != PLIM_NO_FIT || next->rows == 1) return status;
        drop_plan(next);
    }
}

/* Caches lie elsewhere with another number of rows, so all of them are made again. */
static enum plim_status stand_on(struct engine *e, struct sources *s, struct sources *next,
                                 struct plim_error *err)
{
    close_passes(s);
    wait_again(e, s, next->rows < s->rows ? next->rows : s->rows);
    enum plim_status status = runtime_adopt(&s->runtime, &next->runtime, err);
    if (status != PLIM_OK) {
        rejoin_passes(e, s, NULL);
        return status;
    }
    memcpy(s->tokens, next->tokens, sizeof s->tokens), memset(next->tokens, 0, sizeof next->tokens);
    memcpy(s->reads, next->reads, sizeof s->reads), memset(next->reads, 0, sizeof next->reads);
    memcpy(s->token_rows, next->token_rows, sizeof s->token_rows);
    memcpy(s->read_length, next->read_length, sizeof s->read_length);
    s->token_count = next->token_count, s->read_count = next->read_count, s->rows = next->rows;
    return start_passes(s, err);
}

enum plim_status source_move(struct engine *e, struct plim_error *err)
{
    struct sources *s = e->own, *next = calloc(1, sizeof *next);
    if (!next) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an engine was planned");
    next->length = s->length;
    enum plim_status status = plan_rows(e, next, err);
    if (status == PLIM_OK) status = stand_on(e, s, next, err);
    if (status == PLIM_OK) note_line(e, s);
    drop_plan(next);
    free(next);
    return status;
}
