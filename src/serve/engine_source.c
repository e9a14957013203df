/* engine_source.c - encoder-decoders behind the engine: a prompt is a source that is read once, then one token after the other. See
 * engine_source.h. */
#include "serve/engine_source.h"
#include "base/clock.h"

#include <stdio.h>
#include <string.h>

void source_row_set(struct source_row *row, struct request *request)
{
    beam_close(row->search);
    *row = (struct source_row){.request = request};
}

/* --- a step ----------------------------------------------------------------------------------------------- */

/* The request that waits longest; one that this plan no longer promises ends. */
static struct request *next_request(struct engine *e, const struct sources *s)
{
    struct request *r;
    char why[160];
    while ((r = engine_next(e)) && (r->ask.count > s->length || r->ask.tokens > s->answer)) {
        snprintf(
            why, sizeof why,
            "the device failed; what is left of the server takes sources of %lld and answers of %lld tokens",
            (long long)s->length, (long long)s->answer);
        engine_finish(e, r, &(struct engine_event){.token = -1, .finish = FINISH_FAILED, .why = why});
    }
    return r;
}

/* Rows of requests that were cancelled are free; the next that waits take what is free, the lowest first. */
static int fill_rows(struct engine *e, struct sources *s)
{
    int running = 0;
    struct request *r;
    engine_end_cancelled(e);
    for (int64_t i = 0; i < s->rows; i++) {
        if (!s->row[i].request || !engine_is_cancelled(e, s->row[i].request)) continue;
        engine_finish_cancelled(e, s->row[i].request);
        source_row_set(&s->row[i], NULL);
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

/* --- beams ------------------------------------------------------------------------------------------------ */

/* Beam b of a request goes on from beam parents[b], in the caches whose labels begin with `prefix`. */
static enum plim_status move_beams(struct sources *s, int64_t row, const char *prefix, const int *parents,
                                   struct plim_error *err)
{
    const struct exec *exec = &s->runtime.exec;
    enum plim_status status = PLIM_OK;
    bool stay = true;
    for (int64_t b = 0; b < s->beams; b++) stay = stay && parents[b] == b;
    for (int i = 0; i < exec->tape->ntensors && status == PLIM_OK && !stay; i++) {
        const struct tensor *t = &exec->tape->tensors[i];
        if (t->cls != CLASS_KV || t->view_of >= 0 || strncmp(t->label, prefix, strlen(prefix))) continue;
        int64_t each = tensor_bytes(t) / (s->rows * s->beams), first = row * s->beams;
        status = exec_read(exec, i, s->cache, first * each, s->beams * each, err);
        for (int64_t b = 0; b < s->beams && status == PLIM_OK; b++)
            if (parents[b] != b)
                status = exec_write(exec, i, s->cache + parents[b] * each, (first + b) * each, each, err);
    }
    return status;
}

/* The first beam has read the source. */
static enum plim_status begin_search(struct engine *e, struct sources *s, int64_t row, struct plim_error *err)
{
    static const int first[ENGINE_BEAMS] = {0};
    const struct engine_request *ask = &s->row[row].request->ask;
    struct beam_options options = {.beams = (int)s->beams,
                                   .vocab = e->spec.vocab_size,
                                   .usable = e->options.vocab,
                                   .tokens = ask->tokens,
                                   .length_penalty = ask->length_penalty,
                                   .eos = e->spec.eos_token_ids,
                                   .eos_count = e->spec.eos_count};
    enum plim_status status = move_beams(s, row, "cross.", first, err);
    return status == PLIM_OK ? beam_open(&options, &s->row[row].search, err) : status;
}

/* The answer of a search that is over, told to its end. */
static void tell_best(struct engine *e, struct source_row *row)
{
    int64_t count = 0;
    const int32_t *tokens = beam_best(row->search, &count);
    bool more = true;
    for (int64_t i = 0; i < count && more; i++)
        more = engine_answer(e, row->request, &(struct draw){.token = tokens[i]});
    if (more) engine_finish(e, row->request, &(struct engine_event){.token = -1, .finish = FINISH_EOS});
    source_row_set(row, NULL);
}

/* A request whose caches could not be moved begins again with the next step. */
static enum plim_status search_all(struct engine *e, struct sources *s, int64_t rows, enum dtype type,
                                   const char *logits, struct plim_error *err)
{
    int64_t numbers = s->beams * e->spec.vocab_size;
    enum plim_status status = PLIM_OK;
    for (int64_t i = 0; i < rows && status == PLIM_OK; i++) {
        struct source_row *row = &s->row[i];
        if (!row->read) continue;
        dtype_convert(s->logits, DT_F32, logits + i * numbers * (int64_t)dtype_size(type), type, numbers);
        row->fed++;
        if (!row->request->answered) row->request->answered = e->now;
        if (!beam_step(row->search, s->logits))
            tell_best(e, row);
        else if ((status = move_beams(s, i, "kv.", beam_parents(row->search), err)) != PLIM_OK)
            source_row_set(row, row->request);
    }
    return status;
}

/* --- sources and tokens ----------------------------------------------------------------------------------- */

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
    for (int64_t t = 0; t < time; t++) s->input[t] = (int32_t)(row * s->beams * s->length + t);
    if (status == PLIM_OK) status = put(exec, "source.pos", s->input, time, err);
    if (status == PLIM_OK) status = put(exec, "source.lengths", &length, 1, err);
    if (status == PLIM_OK) status = engine_loop(e, exec, err);
    if (status == PLIM_OK && s->beams > 1) status = begin_search(e, s, row, err);
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

/* The token of a beam that is fed next. */
static int32_t token_of(const struct engine *e, const struct source_row *row, int64_t beam)
{
    if (!row->read) return 0;
    const struct request *r = row->request;
    if (!row->fed) return (int32_t)e->spec.start_token_id;
    return row->search ? beam_tokens(row->search)[beam] : r->tokens[r->ask.count + row->fed - 1];
}

/* Has the row fed all that it has made? */
static bool draws(const struct source_row *row) { return row->read && row->fed == row->request->made; }

/* One token of each beam of the first `rows` rows; *exec has their logits. */
static enum plim_status feed(struct engine *e, struct sources *s, int64_t rows, struct exec **out,
                             struct plim_error *err)
{
    int i = 0;
    while (s->token_rows[i] < rows) i++;
    bool all = i + 1 == s->token_count;
    struct exec *exec = *out = all ? &s->runtime.exec : &s->tokens[i].exec;
    int64_t k = s->beams, n = s->token_rows[i] * k;
    for (int64_t r = 0; r < n; r++) s->input[r] = token_of(e, &s->row[r / k], r % k);
    enum plim_status status = put(exec, "ids", s->input, n, err);
    for (int64_t r = 0; r < n; r++) s->input[r] = (int32_t)s->row[r / k].fed;
    if (status == PLIM_OK) status = put(exec, "pos", s->input, n, err);
    for (int64_t r = 0; r < n; r++)
        s->input[r] = s->row[r / k].read ? (int32_t)s->row[r / k].request->ask.count : 1;
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
        if (drew && !engine_answer(e, row->request, &all[k++])) source_row_set(row, NULL);
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
    if (status == PLIM_OK) status = read_logits(e, exec, rows * s->beams, &logits, err);
    if (status != PLIM_OK) return status;
    pthread_mutex_lock(&e->lock);
    e->stats.steps++;
    pthread_mutex_unlock(&e->lock);
    int id = tape_find(exec->tape, "logits", -1);
    e->now = clock_seconds();
    if (s->beams > 1)
        status = search_all(e, s, rows, exec->tape->tensors[id].type, logits, err);
    else
        draw_all(e, s, rows, exec->tape->tensors[id].type, logits);
    running = 0;
    for (int64_t i = 0; i < s->rows; i++) running += s->row[i].request != NULL;
    engine_note(e, running, (int)s->rows);
    return status;
}

static void largest_source(const struct engine *e, const struct tape **tape, const struct layout **layout)
{
    const struct sources *s = e->own;
    if (s) *tape = &s->runtime.plan.tape, *layout = &s->runtime.plan.layout;
}

const struct engine_kind engine_source = {source_open, source_close, step_source, source_move,
                                          largest_source};
