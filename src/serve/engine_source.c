/* engine_source.c - encoder-decoders behind the engine: a prompt is a source that is read once, then one token after the other.
 *
 * Every running request has a row of its own in the caches of source and answer. Passes are members of a forward family over
 * one arena: one token of each of so many rows, and the source of one request, up to so many tokens. The second
 * writes keys and values of all layers where its row lies, as places of one long row. See engine_part.h.
 *
 * Invariants
 *  1. Row r of the caches belongs to row[r].request; nobody else's tokens are written there while it is there. Rows
 *     without a request compute what nobody reads.
 *  2. Position p of row r holds token p of the answer's beginning for p below `made`; the token that is fed next is the
 *     last one made, or the model's start.
 *  3. A step that fails has changed nothing that the next one does not do again.
 */
#include "base/bytes.h"
#include "base/clock.h"
#include "runtime/load.h"
#include "serve/engine_part.h"

#include <stdlib.h>
#include <string.h>

enum {
    PASSES = 24,   /* of tokens and of sources each, at most */
    ROWS_HOST = 8, /* where nobody says */
    ROWS_DEVICE = 64,
    USUAL_LENGTH = 512, /* of sources and answers: what such models are trained on */
    LEAST_LENGTH = 16,
};

struct sources {
    struct runtime runtime; /* its plan is the pass over a token of every row */
    struct forward tokens[PASSES], reads[PASSES];
    int64_t token_rows[PASSES], read_length[PASSES]; /* the smallest first */
    int token_count, read_count;
    int64_t rows, length; /* of the caches; length: of sources and of answers */
    struct source_row {
        struct request *request; /* NULL: free */
        bool read;               /* its source is in the cache */
    } * row;
    int32_t *input; /* [max(rows, length)] */
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
    for (int64_t size = least; size < most && n < PASSES - 1; size *= 2) out[n++] = size;
    out[n++] = most;
    return n;
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

static void close_passes(struct sources *s)
{
    for (int i = 0; i < PASSES; i++) forward_close(&s->tokens[i]), forward_close(&s->reads[i]);
}

static void drop_plan(struct sources *s)
{
    close_passes(s);
    plan_release(&s->runtime.plan);
    s->runtime = (struct runtime){0};
}

static int64_t request_bytes(int64_t length)
{
    return (int64_t)sizeof(struct request) + (2 * length + blocks_for(2 * length)) * (int64_t)sizeof(int32_t);
}

static void note_sizes(struct engine *e, const struct sources *s)
{
    e->plan.parallel = (int)s->rows, e->plan.queue = 4 * e->plan.parallel;
    e->plan.context = e->plan.answer = s->length, e->plan.step_tokens = s->rows;
    engine_set_room(e, request_bytes(s->length));
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
    const struct runtime *rt = &s->runtime;
    e->plan.budget = rt->request.budget, e->plan.total = rt->plan.total, e->plan.arena = rt->arena;
    e->plan.params = rt->plan.layout.by_class[CLASS_PARAM], e->plan.pool = rt->plan.layout.by_class[CLASS_KV];
    e->plan.blocks = s->rows;
    return PLIM_OK;
}

/* --- opening ---------------------------------------------------------------------------------------------- */

static enum plim_status take_buffers(struct engine *e, struct sources *s, struct plim_error *err)
{
    size_t rows = (size_t)s->rows, numbers = (size_t)(s->rows > s->length ? s->rows : s->length);
    int64_t vocab = e->spec.vocab_size;
    e->draws = calloc(rows, sizeof *e->draws);
    s->row = calloc(rows, sizeof *s->row);
    s->input = malloc(numbers * sizeof *s->input);
    bool good = e->draws && s->row && s->input;
    if (!e->device->facts.unified_memory)
        good = (e->raw = malloc(rows * (size_t)vocab * sizeof(float))) && good; /* no type is wider */
    if (!good) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the rows of a step");
    if (e->options.vocab && e->options.vocab < vocab) vocab = e->options.vocab;
    return drawer_init(&e->drawer, e->device->team, vocab, err);
}

static enum plim_status start(struct engine *e, struct sources *s, struct plim_error *err)
{
    enum plim_status status = runtime_commit(&s->runtime, err);
    if (status == PLIM_OK) engine_tell(e, "inputs_on_device");
    for (int i = 0; i + 1 < s->token_count && status == PLIM_OK; i++)
        status = forward_start(&s->runtime, &s->tokens[i], err);
    for (int i = 0; i < s->read_count && status == PLIM_OK; i++)
        status = forward_start(&s->runtime, &s->reads[i], err);
    if (status != PLIM_OK) return status;
    status = weights_from_directory(&s->runtime.exec, &e->spec, e->model, e->options.log, err);
    if (status == PLIM_OK) engine_tell(e, "model_on_device");
    return status;
}

static enum plim_status open_source(struct engine *e, struct plim_error *err)
{
    struct sources *s = e->own = calloc(1, sizeof *s);
    if (!s) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an engine was set up");
    enum plim_status status = make_plan(e, s, err);
    if (status == PLIM_OK) engine_tell(e, "weights_mapped");
    if (status == PLIM_OK) status = take_buffers(e, s, err);
    return status == PLIM_OK ? start(e, s, err) : status;
}

static void close_source(struct engine *e)
{
    struct sources *s = e->own;
    if (!s) return;
    close_passes(s);
    runtime_close(&s->runtime);
    free(s->row);
    free(s->input);
    free(s);
}

/* --- a step ----------------------------------------------------------------------------------------------- */

/* Rows of requests that were cancelled are free; the next that waits take what is free, the lowest first. */
static int fill_rows(struct engine *e, struct sources *s)
{
    int running = 0;
    struct request *r;
    for (int64_t i = 0; i < s->rows; i++) {
        if (!s->row[i].request || !engine_is_cancelled(e, s->row[i].request)) continue;
        r = s->row[i].request, s->row[i] = (struct source_row){0};
        engine_finish_cancelled(e, r);
    }
    for (int64_t i = 0; i < s->rows; i++) {
        if (!s->row[i].request && (r = engine_next(e))) s->row[i] = (struct source_row){.request = r};
        running += s->row[i].request != NULL;
    }
    return running;
}

static enum plim_status put(struct exec *exec, const char *label, const int32_t *values, int64_t count,
                            struct plim_error *err)
{
    return exec_write(exec, tape_find(exec->tape, label, -1), values, 0, count * (int64_t)sizeof *values,
                      err);
}

static enum plim_status read_source(struct sources *s, int64_t row, struct plim_error *err)
{
    const struct request *r = s->row[row].request;
    int32_t length = (int32_t)r->ask.count;
    int i = 0;
    while (s->read_length[i] < r->ask.count) i++;
    struct exec *exec = &s->reads[i].exec;
    int64_t time = s->read_length[i];
    memset(s->input, 0, (size_t)time * sizeof *s->input);
    memcpy(s->input, r->tokens, (size_t)r->ask.count * sizeof *s->input);
    enum plim_status status = put(exec, "source.ids", s->input, time, err);
    for (int64_t t = 0; t < time; t++) s->input[t] = (int32_t)(row * s->length + t);
    if (status == PLIM_OK) status = put(exec, "source.pos", s->input, time, err);
    if (status == PLIM_OK) status = put(exec, "source.lengths", &length, 1, err);
    if (status == PLIM_OK) status = exec_loop(exec, 0, err);
    if (status == PLIM_OK) s->row[row].read = true;
    return status;
}

/* One source a step: those that are being answered wait for no more than that. */
static enum plim_status read_one(struct engine *e, struct sources *s, struct plim_error *err)
{
    for (int64_t i = 0; i < s->rows; i++) {
        struct request *r = s->row[i].request;
        if (!r || s->row[i].read) continue;
        if (!r->seen) r->seen = true, r->started = clock_seconds();
        enum plim_status status = read_source(s, i, err);
        if (status != PLIM_OK) return status;
        pthread_mutex_lock(&e->lock);
        e->stats.prompt_tokens += r->ask.count;
        pthread_mutex_unlock(&e->lock);
        return PLIM_OK;
    }
    return PLIM_OK;
}

static int32_t token_of(const struct engine *e, const struct source_row *row)
{
    if (!row->read) return 0;
    const struct request *r = row->request;
    return r->made ? r->tokens[r->sequence.known - 1] : (int32_t)e->spec.start_token_id;
}

/* One token of each of the first `rows` rows; *exec has their logits. */
static enum plim_status feed(struct engine *e, struct sources *s, int64_t rows, struct exec **out,
                             struct plim_error *err)
{
    int i = 0;
    while (s->token_rows[i] < rows) i++;
    bool all = i + 1 == s->token_count;
    struct exec *exec = *out = all ? &s->runtime.exec : &s->tokens[i].exec;
    int64_t n = s->token_rows[i];
    for (int64_t r = 0; r < n; r++) s->input[r] = token_of(e, &s->row[r]);
    enum plim_status status = put(exec, "ids", s->input, n, err);
    for (int64_t r = 0; r < n; r++) s->input[r] = s->row[r].read ? (int32_t)s->row[r].request->made : 0;
    if (status == PLIM_OK) status = put(exec, "pos", s->input, n, err);
    for (int64_t r = 0; r < n; r++) s->input[r] = s->row[r].read ? (int32_t)s->row[r].request->ask.count : 1;
    if (status == PLIM_OK) status = put(exec, "source.lengths", s->input, n, err);
    return status == PLIM_OK ? exec_loop(exec, 0, err) : status;
}

/* The logits of row r, on the host. */
static enum plim_status read_logits(struct engine *e, struct exec *exec, int64_t rows, const char **out,
                                    struct plim_error *err)
{
    int id = tape_find(exec->tape, "logits", -1);
    int64_t row = e->spec.vocab_size * (int64_t)dtype_size(exec->tape->tensors[id].type);
    *out = exec_host(exec, id);
    if (*out) return PLIM_OK;
    *out = e->raw;
    return exec_read(exec, id, e->raw, 0, rows * row, err);
}

static void draw_all(struct engine *e, struct sources *s, int64_t rows, enum dtype type, const char *logits)
{
    int64_t width = e->spec.vocab_size * (int64_t)dtype_size(type);
    int n = 0, k = 0;
    for (int64_t i = 0; i < rows; i++) {
        struct request *r = s->row[i].request;
        if (!s->row[i].read) continue;
        e->draws[n++] = (struct draw){.logits = logits + i * width,
                                      .type = type,
                                      .sampling = &r->ask.sampling,
                                      .step = (uint64_t)r->made,
                                      .tokens = r->tokens + r->ask.count,
                                      .known = r->made,
                                      .given = -1,
                                      .logprobs = r->ask.logprobs};
    }
    drawer_run(&e->drawer, e->draws, n);
    for (int64_t i = 0; i < rows; i++)
        if (s->row[i].read && !engine_answer(e, s->row[i].request, &e->draws[k++]))
            s->row[i] = (struct source_row){0};
}

static enum plim_status step_source(struct engine *e, struct plim_error *err)
{
    struct sources *s = e->own;
    struct exec *exec = NULL;
    const char *logits = NULL;
    int64_t rows = 0;
    int running = fill_rows(e, s);
    engine_note(e, running, (int)s->rows);
    if (!running) return PLIM_OK;
    enum plim_status status = read_one(e, s, err);
    for (int64_t i = 0; i < s->rows; i++)
        if (s->row[i].read) rows = i + 1;
    if (status == PLIM_OK) status = feed(e, s, rows, &exec, err);
    if (status == PLIM_OK) status = read_logits(e, exec, rows, &logits, err);
    if (status != PLIM_OK) return status;
    pthread_mutex_lock(&e->lock);
    e->stats.steps++;
    pthread_mutex_unlock(&e->lock);
    int id = tape_find(exec->tape, "logits", -1);
    draw_all(e, s, rows, exec->tape->tensors[id].type, logits);
    running = 0;
    for (int64_t i = 0; i < s->rows; i++) running += s->row[i].request != NULL;
    engine_note(e, running, (int)s->rows);
    return PLIM_OK;
}

const struct engine_kind engine_source = {open_source, close_source, step_source, false};
