/* engine_source_plan.c - an encoder-decoder's plan: the largest offer that fits, committed, and moved to another budget.
 * See engine_source.h and plan/offer.h. */
#include "base/minmax.h"
#include "runtime/load.h"
#include "serve/engine_source.h"
#include "serve/plan_steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS_HOST = 8, /* where nobody says */
    ROWS_DEVICE = 64,
    ROWS_MODEST = 8,
    USUAL_LENGTH = 512, /* of sources and answers: what such models are trained on */
    LEAST_LENGTH = 16,
};

/* --- weights in blocks --------------------------------------------------------------------------------------- */

/* One pass reads the source and another generates tokens; neither reads every parameter. So weights are chosen and loaded by
 * a tape that is in no plan: the whole model over one token of each. */
static enum plim_status build_whole(const struct quantisation *q, const struct model_spec *spec,
                                    enum precision precision, struct tape *out, struct plim_error *err)
{
    struct model_shape shape = {.batch = 1, .time = 1, .source_time = 1, .head = HEAD_LAST_LOGITS};
    return plan_tape(spec, &shape, precision, q, NULL, out, err);
}

/* WEIGHTS_AS_IS chooses nothing. Errors are those of weights_choose. */
static enum plim_status source_weights_choose(struct quantisation *out, const struct device *device,
                                              enum weights_kind kind, const char *dir,
                                              const struct model_spec *spec, enum precision precision,
                                              struct plim_error *err)
{
    struct tape whole;
    *out = (struct quantisation){0};
    if (kind == WEIGHTS_AS_IS) return PLIM_OK;
    enum plim_status status = build_whole(out, spec, precision, &whole, err);
    if (status != PLIM_OK) return status;
    status = weights_choose(out, device, kind, dir, spec, &whole, err);
    tape_release(&whole);
    return status;
}

/* exec is that of the pass which owns all parameters. */
static enum plim_status source_weights_load(const struct quantisation *q, struct exec *exec,
                                            const struct model_spec *spec, enum precision precision,
                                            const char *dir, const struct log *log, struct plim_error *err)
{
    struct tape whole;
    if (!q->count) return weights_from_directory(exec, spec, dir, log, err);
    enum plim_status status = build_whole(q, spec, precision, &whole, err);
    if (status != PLIM_OK) return status;
    status = weights_from_directory_by(&whole, exec, spec, dir, log, err);
    tape_release(&whole);
    return status;
}

/* Host bytes that source_weights_load takes on the way. */
static int64_t source_weights_bytes(const struct quantisation *q, const struct model_spec *spec,
                                    enum precision precision)
{
    struct tape whole;
    if (!q->count || build_whole(q, spec, precision, &whole, NULL) != PLIM_OK) return 0;
    int64_t bytes = whole.nops * (int64_t)sizeof *whole.ops + whole.ntensors * (int64_t)sizeof *whole.tensors;
    tape_release(&whole);
    return bytes;
}

/* --- planning --------------------------------------------------------------------------------------------- */

struct pass {
    const struct engine *e;
    const struct sources *s;
    int64_t rows, length; /* rows 0: reads a source of `length` */
};

static enum plim_status build(void *arg, int64_t, struct tape *out, struct plim_error *err)
{
    const struct pass *p = arg;
    struct model_shape shape = {.batch = p->rows * p->s->beams,
                                .time = 1,
                                .source_time = p->s->length,
                                .kv_length = p->s->answer,
                                .head = HEAD_LAST_LOGITS};
    if (!p->rows) {
        shape.batch = 1, shape.head = HEAD_SOURCE, shape.source_time = p->length;
        shape.source_cache = p->s->rows * p->s->beams * p->s->length;
    }
    return plan_tape(&p->e->spec, &shape, p->e->plan.precision, &p->e->quantisation, NULL, out, err);
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

static void set_sizes(const struct engine *e, struct sources *s, int64_t rows, int64_t length)
{
    const struct engine_options *o = &e->options;
    s->rows = rows, s->beams = o->beams > 1 ? o->beams : 1;
    s->length = length, s->answer = o->max_answer ? o->max_answer : length;
}

static int64_t request_bytes(const struct sources *s)
{
    int64_t most = s->length + s->answer;
    return (int64_t)sizeof(struct request) + (most + blocks_for(most)) * (int64_t)sizeof(int32_t) +
           s->answer * (int64_t)sizeof(struct seen_token);
}

static void note_sizes(struct engine *e, const struct sources *s)
{
    e->plan.parallel = (int)s->rows, e->plan.queue = 4 * e->plan.parallel;
    e->plan.context = s->length, e->plan.answer = s->answer, e->plan.step_tokens = s->rows * s->beams;
    engine_set_room(e, request_bytes(s), ENGINE_ROOM);
}

static int64_t logits_bytes(const struct engine *e, int64_t rows)
{
    return rows * e->spec.vocab_size * (int64_t)sizeof(float); /* no type is wider */
}

/* One request's rows of the larger cache. */
static int64_t cache_bytes(const struct engine *e, const struct sources *s)
{
    int64_t positions = s->beams * max64(s->length, s->answer);
    return positions * e->spec.num_heads * e->spec.head_dim * (int64_t)sizeof(float);
}

static int64_t search_bytes(const struct engine *e, const struct sources *s)
{
    struct beam_options search = {.beams = (int)s->beams, .tokens = s->answer, .eos_count = MODEL_MAX_EOS};
    if (s->beams == 1) return 0;
    return logits_bytes(e, s->beams) + cache_bytes(e, s) + s->rows * beam_bytes(&search);
}

/* Host bytes beside the arena: the process, requests, logits and the sampler; tape_bytes are the tapes of all passes. */
static int64_t overhead_of(const struct engine *e, const struct sources *s)
{
    bool own = e->device->facts.unified_memory;
    int64_t logits = own ? 0 : logits_bytes(e, s->rows * s->beams);
    if (e->options.overhead) return e->overhead.bytes;
    return e->overhead.bytes + e->tape_bytes + e->bytes_room + (int64_t)(sizeof *e + sizeof *s) + logits +
           search_bytes(e, s) + engine_drawer_room(e) +
           s->rows * (int64_t)(sizeof(struct draw) + sizeof *s->row);
}

static enum plim_status plan_passes(struct engine *e, struct sources *s, int64_t budget,
                                    struct plim_error *err)
{
    struct pass pass = {e, s, s->rows, 0};
    struct forward_family family = {.build = build, .arg = &pass};
    struct forward_line line = {.budget = budget,
                                .host_budget = e->options.host_budget,
                                .overhead = {.bytes = overhead_of(e, s)},
                                .op_by_op = e->options.op_by_op};
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

/* The part of the plan that changes with the budget. */
static void note_line(struct engine *e, const struct sources *s)
{
    const struct runtime *rt = &s->runtime;
    struct engine_plan *p = &e->plan;
    LOCKED(&e->lock);
    p->budget = rt->request.budget, p->total = rt->plan.total, p->arena = rt->arena;
    p->params = rt->plan.layout.by_class[CLASS_PARAM], p->pool = rt->plan.layout.by_class[CLASS_KV];
    p->transient = rt->arena - rt->plan.layout.kept_bytes, p->overhead = rt->plan.overhead;
    p->host = e->device->facts.unified_memory ? 0 : rt->plan.host;
    p->blocks = s->rows, p->kv_type = precision_type(p->precision);
}

/* --- the offer -------------------------------------------------------------------------------------------- */

static int64_t tapes_of(const struct sources *s)
{
    int64_t bytes = engine_tape_bytes(&s->runtime.plan.tape, &s->runtime.plan.layout);
    for (int i = 0; i + 1 < s->token_count; i++)
        bytes += engine_tape_bytes(&s->tokens[i].tape, &s->tokens[i].layout);
    for (int i = 0; i < s->read_count; i++)
        bytes += engine_tape_bytes(&s->reads[i].tape, &s->reads[i].layout);
    return bytes;
}

static enum plim_status need(void *arg, const struct offer *offer, const struct offer_bytes *,
                             struct offer_bytes *out, struct plim_error *err)
{
    struct engine *e = arg;
    struct sources *s = calloc(1, sizeof *s);
    if (!s) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an engine was planned");
    set_sizes(e, s, offer->requests, offer->context);
    note_sizes(e, s);
    e->tape_bytes = 0;
    enum plim_status status = plan_passes(e, s, 0, err);
    if (status == PLIM_OK) {
        struct runtime *rt = &s->runtime;
        e->tape_bytes = e->options.overhead ? 0 : tapes_of(s);
        rt->request.overhead = overhead_of(e, s);
        plan_sum(&rt->plan, &rt->request, rt->arena, 0);
        *out = (struct offer_bytes){rt->plan.total, e->device->facts.unified_memory ? 0 : rt->plan.host};
    }
    drop_plan(s);
    free(s);
    return status;
}

static struct offer_wish wish_of(const struct engine *e)
{
    const struct engine_options *o = &e->options;
    struct offer most = {.context = o->max_context ? o->max_context : USUAL_LENGTH};
    most.requests = o->parallel ? o->parallel : e->device->facts.unified_memory ? ROWS_HOST : ROWS_DEVICE;
    most.step = most.requests;
    struct offer_wish w = {.most = most,
                           .least = {.context = LEAST_LENGTH, .requests = 1},
                           .usual_context = USUAL_LENGTH,
                           .modest = {.context = USUAL_LENGTH, .requests = ROWS_MODEST},
                           .shortest_context = LEAST_LENGTH};
    if (o->max_context) w.least.context = w.shortest_context = most.context;
    if (o->parallel && !o->fewer) w.least.requests = most.requests;
    return w;
}

static enum plim_status refuse(const struct engine *e, const struct offer_bytes *need, struct plim_error *err)
{
    const struct engine_plan *p = &e->plan;
    char what[192];
    snprintf(
        what, sizeof what,
        "parameters, caches of %lld rows for sources of %lld and answers of %lld tokens, one pass and the "
        "process",
        (long long)p->step_tokens, (long long)p->context, (long long)p->answer);
    return engine_refuse(e, what, need, engine_caller_bytes, err);
}

/* Bytes of one row of this length: no budget goes below them. */
static enum plim_status measure_smallest(struct engine *e, struct plim_error *err)
{
    struct offer one = e->offer;
    struct offer_bytes none = {0}, bytes = {0};
    int64_t tapes = e->tape_bytes;
    one.requests = 1;
    enum plim_status status = need(e, &one, &none, &bytes, err);
    e->smallest = bytes.device, e->tape_bytes = tapes;
    return status;
}

static enum plim_status choose(struct engine *e, struct plim_error *err)
{
    struct offer_wish wish = wish_of(e);
    struct offer_oracle oracle = {need, e};
    struct offer_choice choice;
    enum plim_status status = engine_choose(e, &wish, &oracle, &choice, err);
    if (status == PLIM_NO_FIT) return refuse(e, &choice.need, err);
    e->plan.offer_rung = e->offer.rung;
    e->plan.rung = e->options.rung ? e->options.rung : offer_rung_name(e->offer.rung);
    return status;
}

/* runtime_measure of all passes. */
static enum plim_status measure_passes(struct engine *e, const struct sources *s, bool *again,
                                       struct plim_error *err)
{
    struct device_facts *facts = &e->device->facts;
    const struct runtime *rt = &s->runtime;
    bool more;
    enum plim_status status = runtime_measure(facts, &rt->plan.tape, &rt->plan.layout, rt->arena, again, err);
    for (int i = 0; i < 2 * SOURCE_PASSES && status == PLIM_OK; i++) {
        const struct forward *f = i < SOURCE_PASSES ? &s->tokens[i] : &s->reads[i - SOURCE_PASSES];
        if (!f->tape.nops) continue;
        status = runtime_measure(facts, &f->tape, &f->layout, rt->arena, &more, err);
        *again |= more;
    }
    return status;
}

/* *again: programs need more than was known, and nothing is planned. */
static enum plim_status plan_offer(struct engine *e, struct sources *s, bool *again, struct plim_error *err)
{
    *again = false;
    enum plim_status status = choose(e, err);
    if (status == PLIM_OK) status = measure_smallest(e, err);
    if (status != PLIM_OK) return status;
    set_sizes(e, s, e->offer.requests, e->offer.context);
    note_sizes(e, s);
    status = plan_passes(e, s, e->options.budget, err);
    if (status == PLIM_OK) status = measure_passes(e, s, again, err);
    if (*again) drop_plan(s);
    return status;
}

static enum plim_status make_plan(struct engine *e, struct sources *s, struct plim_error *err)
{
    const struct engine_options *o = &e->options;
    bool again = true;
    enum plim_status status = engine_choose_precision(e, err);
    if (status == PLIM_OK)
        status = source_weights_choose(&e->quantisation, e->device, o->weights, e->model, &e->spec,
                                       e->plan.precision, err);
    if (status != PLIM_OK) return status;
    engine_measure_process(e);
    e->overhead.bytes += source_weights_bytes(&e->quantisation, &e->spec, e->plan.precision);
    struct overhead process = e->overhead;
    e->device->facts.beyond_bytes = 0;
    while (again && status == PLIM_OK) {
        e->overhead = process, e->tape_bytes = 0;
        status = plan_offer(e, s, &again, err);
    }
    if (status == PLIM_OK) note_line(e, s);
    return status;
}

/* Requests in rows from `first` on wait again, before all others; those below it have nothing in the caches. */
static void wait_again(struct engine *e, struct sources *s, int64_t first)
{
    for (int64_t i = s->rows - 1; i >= 0; i--) {
        struct request *r = s->row[i].request;
        if (r && i >= first) engine_put_back(e, r);
        source_row_set(&s->row[i], i < first ? r : NULL);
    }
}

/* --- opening ---------------------------------------------------------------------------------------------- */

static enum plim_status take_buffers(struct engine *e, struct sources *s, struct plim_error *err)
{
    size_t rows = (size_t)s->rows, numbers = (size_t)max64(s->rows * s->beams, s->length);
    int64_t vocab = e->spec.vocab_size;
    e->step[0].draws = calloc(rows, sizeof *e->step[0].draws);
    s->row = calloc(rows, sizeof *s->row);
    s->input = malloc(numbers * sizeof *s->input);
    bool good = e->step[0].draws && s->row && s->input;
    if (!e->device->facts.unified_memory)
        good = (e->raw = malloc((size_t)logits_bytes(e, s->rows * s->beams))) && good;
    if (s->beams > 1) {
        s->logits = malloc((size_t)logits_bytes(e, s->beams)), s->cache = malloc((size_t)cache_bytes(e, s));
        good = good && s->logits && s->cache;
    }
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
    status = source_weights_load(&e->quantisation, &s->runtime.exec, &e->spec, e->plan.precision, e->model,
                                 e->options.log, err);
    if (status == PLIM_OK && e->options.adapter)
        status = weights_merge(&s->runtime.exec, &e->spec, e->options.adapter, err);
    if (status == PLIM_OK) engine_tell(e, "model_on_device");
    return status;
}

enum plim_status source_open(struct engine *e, struct plim_error *err)
{
    struct sources *s = e->own = calloc(1, sizeof *s);
    if (!s) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an engine was set up");
    enum plim_status status = make_plan(e, s, err);
    if (status == PLIM_OK) engine_tell(e, "weights_mapped");
    if (status != PLIM_OK || e->options.plan_only) return status;
    status = take_buffers(e, s, err);
    return status == PLIM_OK ? start(e, s, err) : status;
}

void source_close(struct engine *e)
{
    struct sources *s = e->own;
    if (!s) return;
    if (s->row && e->live) wait_again(e, s, 0); /* another plan comes */
    for (int64_t i = 0; s->row && i < s->rows; i++) source_row_set(&s->row[i], NULL);
    close_passes(s);
    if (e->options.plan_only)
        plan_release(&s->runtime.plan);
    else
        runtime_close(&s->runtime);
    free(s->row);
    free(s->input);
    free(s->logits);
    free(s->cache);
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
    set_sizes(e, next, s->rows, s->length);
    enum plim_status status = plan_rows(e, next, err);
    if (status == PLIM_OK) status = stand_on(e, s, next, err);
    if (status == PLIM_OK) note_line(e, s);
    drop_plan(next);
    free(next);
    return status;
}
