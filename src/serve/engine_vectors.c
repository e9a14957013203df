/* engine_vectors.c - encoders behind the engine: a vector of each prompt, or logits of its labels, of many that wait in one batch.
 * See engine_part.h.
 *
 * serve/embed.h plans, sorts by length and computes; a step takes what waits, up to STEP_ROWS, and hands it over. Requests of
 * a step that failed are the next step's.
 */
#include "base/clock.h"
#include "base/minmax.h"
#include "serve/embed.h"
#include "serve/engine_part.h"

#include <stdio.h>
#include <stdlib.h>

enum { STEP_ROWS = 64, QUEUE = 2048 };
/* Results of a step: fewer rows where each has many. */
#define RESULTS_BYTES ((int64_t)8 << 20)

struct vectors {
    struct embedder *embedder;
    struct embed_row *rows;    /* [parallel] of a step */
    struct request **requests; /* whose they are */
    int count;
    float *vectors; /* of all rows, one after the other */
};

static int64_t request_bytes(int64_t length)
{
    return (int64_t)sizeof(struct request) + (length + blocks_for(length)) * (int64_t)sizeof(int32_t);
}

/* Host bytes of texts that are read or wait: a 64th of the line, within what a batch needs and a full queue takes. */
static int64_t requests_room(const struct engine *e, int64_t line)
{
    int64_t each = request_bytes(e->plan.context), rows = e->plan.parallel;
    if (e->options.queue) return (rows + e->options.queue) * each;
    int64_t room = min64((rows + QUEUE) * each, ENGINE_ROOM);
    if (e->options.budget) room = min64(room, line / 64);
    return max64(room, 2 * rows * each);
}

/* The part of the plan that follows the line. */
static int64_t following_bytes(const struct engine *e, int64_t line)
{
    return engine_caller_bytes(e, line) + requests_room(e, line);
}

static void note_plan(struct engine *e, const struct embedder *embedder)
{
    const struct embed_plan *p = embedder_plan(embedder);
    LOCKED(&e->lock);
    e->plan.budget = p->budget, e->plan.total = p->total, e->plan.arena = p->arena,
    e->plan.params = p->params;
    e->plan.precision = p->precision, e->plan.step_tokens = p->rows * p->time;
    e->plan.overhead = p->overhead, e->plan.transient = p->arena - p->params;
    e->plan.rung = e->options.rung ? e->options.rung : offer_rung_name(OFFER_FULL);
    e->smallest = embedder_smallest(embedder);
}

/* Numbers of one row's results, at most. */
static int64_t row_numbers(const struct engine_plan *p) { return p->width * (p->per_token ? p->context : 1); }

/* Sizes of the queue come first: their bytes are part of the plan. */
static enum plim_status set_sizes(struct engine *e, struct sentence_config *how, struct plim_error *err)
{
    int64_t asked = e->options.max_context, positions = e->spec.max_positions;
    enum plim_status status = sentence_config_load(e->model, how, err);
    if (status != PLIM_OK) return status;
    if (asked && (!how->max_length || asked < how->max_length)) how->max_length = asked;
    e->plan.context = how->max_length && how->max_length < positions ? how->max_length : positions;
    e->plan.labels = model_has_labels(&e->spec), e->plan.per_token = e->spec.task == TASK_LABELS;
    e->plan.width = e->plan.labels ? e->spec.num_labels : e->spec.hidden_size;
    int64_t rows =
        max64(1, min64(STEP_ROWS, RESULTS_BYTES / (row_numbers(&e->plan) * (int64_t)sizeof(float))));
    e->plan.parallel = e->options.parallel ? e->options.parallel : (int)rows;
    e->plan.requests = e->bytes_room = requests_room(e, engine_line(e, e->options.budget));
    e->plan.queue = (int)(e->bytes_room / request_bytes(e->plan.context)) - e->plan.parallel;
    return PLIM_OK;
}

static enum plim_status run_pass(void *engine, struct exec *exec, struct plim_error *err)
{
    return engine_loop(engine, exec, err);
}

static enum plim_status refuse(struct engine *e, const struct offer_bytes *need, struct plim_error *err)
{
    char what[96];
    snprintf(what, sizeof what, "parameters, a text of %lld tokens and the process",
             (long long)e->plan.context);
    e->plan.total = need->device;
    return engine_refuse(e, what, need, following_bytes, err);
}

static enum plim_status open_vectors(struct engine *e, struct plim_error *err)
{
    struct vectors *v = e->own = calloc(1, sizeof *v);
    struct embed_room room = {.budget = e->options.budget,
                              .limit = engine_line(e, 0),
                              .plan_only = e->options.plan_only,
                              .weights = e->options.weights,
                              .adapter = e->options.adapter,
                              .log = e->options.log};
    if (!v) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an engine was set up");
    enum plim_status status = set_sizes(e, &room.how, err);
    if (status != PLIM_OK) return status;
    size_t rows = (size_t)e->plan.parallel, width = (size_t)row_numbers(&e->plan);
    room.labels = e->plan.labels;
    room.caller_bytes =
        following_bytes(e, engine_line(e, e->options.budget)) +
        (int64_t)(rows * (sizeof *v->rows + sizeof *v->requests + width * sizeof *v->vectors));
    engine_tell(e, "weights_mapped");
    struct offer_bytes need = {0};
    room.need = &need.device;
    status = embedder_open(&room, e->device, &v->embedder, err);
    if (status == PLIM_NO_FIT && need.device) return refuse(e, &need, err);
    if (status != PLIM_OK) return status;
    embedder_pass_by(v->embedder, run_pass, e);
    note_plan(e, v->embedder);
    if (room.plan_only) return PLIM_OK;
    v->rows = calloc(rows, sizeof *v->rows);
    v->requests = calloc(rows, sizeof(struct request *));
    v->vectors = malloc(rows * width * sizeof *v->vectors);
    if (!v->rows || !v->requests || !v->vectors)
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the rows of a step");
    engine_tell(e, "model_on_device");
    return PLIM_OK;
}

static void close_vectors(struct engine *e)
{
    struct vectors *v = e->own;
    if (!v) return;
    for (int i = v->count - 1; i >= 0 && e->live; i--)
        engine_put_back(e, v->requests[i]); /* another plan comes */
    embedder_close(v->embedder);
    free(v->rows);
    free(v->requests);
    free(v->vectors);
    free(v);
    e->own = NULL;
}

/* Those that were cancelled since make place for those that wait. */
static void take_in(struct engine *e, struct vectors *v)
{
    struct request *r;
    int left = 0;
    engine_end_cancelled(e);
    for (int i = 0; i < v->count; i++) {
        if (engine_is_cancelled(e, v->requests[i]))
            engine_finish_cancelled(e, v->requests[i]);
        else
            v->requests[left++] = v->requests[i];
    }
    for (v->count = left; v->count < e->plan.parallel && (r = engine_next(e));) v->requests[v->count++] = r;
    for (int i = 0; i < v->count; i++) {
        r = v->requests[i];
        v->rows[i] = (struct embed_row){r->tokens, r->ask.count, r->ask.second};
        if (!r->seen) r->seen = true, r->started = clock_seconds();
    }
}

static enum plim_status step_vectors(struct engine *e, struct plim_error *err)
{
    struct vectors *v = e->own;
    int64_t tokens = 0;
    enum plim_status status = engine_take_line(e, err);
    if (status != PLIM_OK) return status;
    take_in(e, v);
    engine_note(e, v->count, 0);
    if (!v->count) return PLIM_OK;
    status = embedder_run(v->embedder, v->rows, v->count, v->vectors, err);
    if (status != PLIM_OK) return status;
    for (int i = 0; i < v->count; i++) tokens += v->rows[i].count;
    pthread_mutex_lock(&e->lock);
    e->stats.steps++, e->stats.prompt_tokens += tokens;
    pthread_mutex_unlock(&e->lock);
    const float *results = v->vectors;
    for (int i = 0; i < v->count; i++) {
        int64_t numbers = e->plan.width * (e->plan.per_token ? v->rows[i].count : 1);
        engine_finish(e, v->requests[i],
                      &(struct engine_event){.token = -1, .finish = FINISH_EOS, .vector = results});
        results += numbers;
    }
    v->count = 0;
    engine_note(e, 0, 0);
    return PLIM_OK;
}

static enum plim_status move_vectors(struct engine *e, struct plim_error *err)
{
    struct vectors *v = e->own;
    enum plim_status status = embedder_move(v->embedder, e->options.budget, err);
    note_plan(e, v->embedder);
    return status;
}

static void largest_vectors(const struct engine *e, const struct tape **tape, const struct layout **layout)
{
    const struct vectors *v = e->own;
    if (v && v->embedder) embedder_largest(v->embedder, tape, layout);
}

const struct engine_kind engine_vectors = {open_vectors, close_vectors, step_vectors, move_vectors,
                                           largest_vectors};
