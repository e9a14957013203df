/* engine_source.c - encoder-decoders behind the engine: a prompt is a source that is read once, then one token after the other. See
 * engine_source.h. */
#include "serve/engine_source.h"
#include "base/clock.h"

#include <stdio.h>
#include <string.h>

/* --- a step ----------------------------------------------------------------------------------------------- */

/* The request that waits longest; one that this plan no longer promises ends. */
static struct request *next_request(struct engine *e, const struct sources *s)
{
    struct request *r;
    char why[160];
    while ((r = engine_next(e)) && (r->ask.count > s->length || r->ask.tokens > s->length)) {
        snprintf(why, sizeof why,
                 "the device failed; what is left of the server takes sources and answers of %lld tokens",
                 (long long)s->length);
        engine_finish(e, r, &(struct engine_event){.token = -1, .finish = FINISH_FAILED, .why = why});
    }
    return r;
}

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
        if (!s->row[i].request && (r = next_request(e, s))) s->row[i] = (struct source_row){.request = r};
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

static enum plim_status read_source(struct engine *e, struct sources *s, int64_t row, struct plim_error *err)
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
    if (status == PLIM_OK) status = engine_loop(e, exec, err);
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
        enum plim_status status = read_source(e, s, i, err);
        if (status != PLIM_OK) return status;
        pthread_mutex_lock(&e->lock);
        e->stats.prompt_tokens += r->ask.count;
        pthread_mutex_unlock(&e->lock);
        return PLIM_OK;
    }
    return PLIM_OK;
}

/* The token of a row that is fed next. */
static int32_t token_of(const struct engine *e, const struct source_row *row)
{
    if (!row->read) return 0;
    const struct request *r = row->request;
    return row->fed ? r->tokens[r->ask.count + row->fed - 1] : (int32_t)e->spec.start_token_id;
}

/* Has the row fed all that it has made? */
static bool draws(const struct source_row *row) { return row->read && row->fed == row->request->made; }

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
    for (int64_t r = 0; r < n; r++) s->input[r] = (int32_t)s->row[r].fed;
    if (status == PLIM_OK) status = put(exec, "pos", s->input, n, err);
    for (int64_t r = 0; r < n; r++) s->input[r] = s->row[r].read ? (int32_t)s->row[r].request->ask.count : 1;
    if (status == PLIM_OK) status = put(exec, "source.lengths", s->input, n, err);
    return status == PLIM_OK ? engine_loop(e, exec, err) : status;
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
    struct draw *all = e->step[0].draws;
    int n = 0, k = 0;
    for (int64_t i = 0; i < rows; i++) {
        struct request *r = s->row[i].request;
        if (!draws(&s->row[i])) continue;
        all[n++] = (struct draw){.logits = logits + i * width,
                                 .type = type,
                                 .sampling = &r->ask.sampling,
                                 .step = (uint64_t)r->made,
                                 .seen = &r->so_far,
                                 .given = -1,
                                 .logprobs = r->ask.logprobs};
    }
    drawer_run(&e->drawer, all, n);
    for (int64_t i = 0; i < rows; i++) {
        struct source_row *row = &s->row[i];
        bool drew = draws(row);
        row->fed += row->read;
        if (drew && !engine_answer(e, row->request, &all[k++])) *row = (struct source_row){0};
    }
}

static enum plim_status step_source(struct engine *e, struct plim_error *err)
{
    struct sources *s = e->own;
    struct exec *exec = NULL;
    const char *logits = NULL;
    int64_t rows = 0;
    enum plim_status status = engine_take_line(e, err);
    if (status != PLIM_OK) return status;
    int running = fill_rows(e, s);
    engine_note(e, running, (int)s->rows);
    if (!running) return PLIM_OK;
    status = read_one(e, s, err);
    for (int64_t i = 0; i < s->rows; i++)
        if (s->row[i].read) rows = i + 1;
    if (status == PLIM_OK) status = feed(e, s, rows, &exec, err);
    if (status == PLIM_OK) status = read_logits(e, exec, rows, &logits, err);
    if (status != PLIM_OK) return status;
    pthread_mutex_lock(&e->lock);
    e->stats.steps++;
    pthread_mutex_unlock(&e->lock);
    int id = tape_find(exec->tape, "logits", -1);
    e->now = clock_seconds();
    draw_all(e, s, rows, exec->tape->tensors[id].type, logits);
    running = 0;
    for (int64_t i = 0; i < s->rows; i++) running += s->row[i].request != NULL;
    engine_note(e, running, (int)s->rows);
    return PLIM_OK;
}

static void largest_source(const struct engine *e, const struct tape **tape, const struct layout **layout)
{
    const struct sources *s = e->own;
    if (s) *tape = &s->runtime.plan.tape, *layout = &s->runtime.plan.layout;
}

const struct engine_kind engine_source = {source_open, source_close, step_source, source_move,
                                          largest_source};
