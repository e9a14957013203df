/* embed.c - see embed.h.
 *
 * Invariants
 *  1. A batch's rows are neighbours in order of length: where it is large enough, it ends before rows that would be padded
 *     by more than an eighth.
 *  2. A member is made when a batch first asks for its time and rows, and lies in the arena there is. Where programs are
 *     compiled (GPUs) times are powers of two and rows halves of the most, so that few are made; elsewhere a tape costs
 *     nothing and has exactly the batch's rows. Rows of a member beyond the batch's have length 0.
 */
#include "serve/embed.h"
#include "base/clock.h"
#include "model/hf.h"
#include "plan/offer.h"
#include "runtime/load.h"
#include "runtime/runtime.h"
#include "serve/plan_steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Members that are kept; the oldest makes room for the next. */
enum { MEMBERS = 24 };

/* Positions of a batch that keep all cores busy: a larger one may end where lengths change. */
enum { ENOUGH = 512, ENOUGH_GPU = 8192 };

struct member {
    int64_t time, rows;
    struct exec *exec;
    struct forward forward; /* unused by the first, which is the runtime's plan */
};

struct embedder {
    struct model_spec spec;
    struct runtime runtime; /* its plan is the batch of the longest rows */
    struct embed_plan plan;
    struct quantisation quantisation;
    struct embed_count count;
    enum model_head head; /* what is read of a batch */
    struct member first, *members[MEMBERS];
    int next;                    /* of members, to be made or replaced */
    int64_t tokens, tokens_most; /* of a batch at most, now and under any line */
    struct overhead overhead;    /* of the process, and what is beside the arena */
    int64_t smallest, limit;
    bool exact, planned_only; /* as embed_room says */
    int32_t *feed;            /* [tokens] ids or positions of a batch */
    char *results;            /* of a batch, or of one row where tokens have results, in their own type */
    int64_t *order, cap;      /* rows of a call by length, and then where the results of each begin */
    embed_pass *pass;         /* NULL: exec_loop */
    void *pass_arg;
};

void embedder_pass_by(struct embedder *e, embed_pass *pass, void *arg) { e->pass = pass, e->pass_arg = arg; }

void embedder_largest(const struct embedder *e, const struct tape **tape, const struct layout **layout)
{
    *tape = &e->runtime.plan.tape, *layout = &e->runtime.plan.layout;
}

const struct model_spec *embedder_spec(const struct embedder *e) { return &e->spec; }
const struct embed_plan *embedder_plan(const struct embedder *e) { return &e->plan; }
bool embedder_per_token(const struct embedder *e) { return e->head == HEAD_LABEL_LOGITS; }
int64_t embedder_width(const struct embedder *e)
{
    return e->head == HEAD_EMBEDDING ? e->spec.hidden_size : e->spec.num_labels;
}
int64_t embedder_smallest(const struct embedder *e) { return e->smallest; }
const struct embed_count *embedder_count(const struct embedder *e) { return &e->count; }

/* --- shapes ----------------------------------------------------------------------------------------------- */

static bool compiles(const struct embedder *e) { return e->runtime.device->ops->compile != NULL; }

/* The time of a batch whose longest row has so many tokens. */
static int64_t length_up(const struct embedder *e, int64_t length)
{
    int64_t up = compiles(e) ? 16 : length;
    while (up < length) up *= 2;
    return up < e->plan.time ? up : e->plan.time;
}

/* Rows of a batch of that time, at most. */
static int64_t rows_most(const struct embedder *e, int64_t time)
{
    int64_t rows = e->tokens / time;
    return rows < 1 ? 1 : rows > e->plan.rows ? e->plan.rows : rows;
}

struct shape {
    const struct embedder *e;
    int64_t time;
};

static enum plim_status build(void *arg, int64_t rows, struct tape *out, struct plim_error *err)
{
    const struct shape *s = arg;
    struct model_shape shape = {.batch = rows, .time = s->time, .head = s->e->head};
    enum plim_status status =
        plan_tape(&s->e->spec, &shape, s->e->plan.precision, &s->e->quantisation, NULL, out, err);
    for (int i = 0; status == PLIM_OK && i < out->nops; i++) out->ops[i].attr.split = !s->e->exact;
    return status;
}

/* --- planning --------------------------------------------------------------------------------------------- */

static enum plim_status choose_weights(struct embedder *e, const struct embed_room *room,
                                       struct device *device, struct plim_error *err)
{
    struct tape tape;
    struct shape shape = {e, e->plan.time};
    if (room->weights == WEIGHTS_AS_IS) return PLIM_OK;
    enum plim_status status = build(&shape, 1, &tape, err);
    if (status != PLIM_OK) return status;
    status = weights_choose(&e->quantisation, device, room->weights, room->how.path, &e->spec, &tape, err);
    tape_release(&tape);
    return status;
}

/* Numbers that are read at once. */
static int64_t results_most(const struct embedder *e)
{
    return (embedder_per_token(e) ? e->plan.time : e->plan.rows) * embedder_width(e);
}

/* Host bytes beside the arena: a batch's tokens and results, and the members' tapes. */
static enum plim_status own_bytes(struct embedder *e, int64_t *out, struct plim_error *err)
{
    struct tape tape;
    struct shape shape = {e, e->plan.time};
    enum plim_status status = build(&shape, 1, &tape, err);
    if (status != PLIM_OK) return status;
    int64_t ops = tape.nops, tensors = tape.ntensors;
    tape_release(&tape);
    *out = MEMBERS * (ops * (int64_t)sizeof(struct op) + tensors * (int64_t)(sizeof(struct tensor) + 32)) +
           e->tokens * (int64_t)sizeof(int32_t) + results_most(e) * (int64_t)sizeof(float);
    return PLIM_OK;
}

static enum plim_status set_length(struct embedder *e, const struct embed_room *room, struct plim_error *err)
{
    int64_t asked = room->how.max_length;
    e->plan.time = asked && asked < e->spec.max_positions ? asked : e->spec.max_positions;
    e->tokens = e->runtime.device->facts.unified_memory ? EMBED_TOKENS : EMBED_TOKENS_GPU;
    if (e->tokens < e->plan.time) e->tokens = e->plan.time;
    if (!model_is_encoder(&e->spec))
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "%s: a %s model generates text and has no vectors; use an encoder (bert, roberta, "
                         "distilbert)",
                         room->how.path, model_architecture_name(e->spec.arch));
    if (room->labels && !model_has_labels(&e->spec))
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "%s: the model has no labels; take one for token or sequence classification, or train "
            "one (training.objective: token_labels)",
            room->how.path);
    if (room->labels) e->head = e->spec.task == TASK_LABELS ? HEAD_LABEL_LOGITS : HEAD_ROW_LOGITS;
    return PLIM_OK;
}

/* A batch of so many of the longest rows. */
static enum plim_status plan_batch(const struct embedder *e, struct runtime *rt, int64_t line_bytes,
                                   int64_t rows, struct plim_error *err)
{
    struct shape shape = {e, e->plan.time};
    struct forward_family family = {.build = build, .arg = &shape};
    struct forward_line line = {.budget = line_bytes, .overhead = e->overhead};
    return runtime_plan_forward(rt, e->runtime.device, &e->spec, &line, &family, rows, err);
}

/* Bytes of an offer: its requests are the rows of a batch. */
static enum plim_status need(void *arg, const struct offer *offer, const struct offer_bytes *,
                             struct offer_bytes *out, struct plim_error *err)
{
    struct runtime rt;
    enum plim_status status = plan_batch(arg, &rt, 0, offer->requests, err);
    out->device = rt.plan.total;
    plan_release(&rt.plan);
    return status;
}

static int64_t longest_most(const struct embedder *e)
{
    int64_t most = e->tokens_most / e->plan.time;
    return most > e->plan.rows ? e->plan.rows : most;
}

/* The largest batch that fits the budget, planned in *rt. PLIM_NO_FIT without a text: *total is that of one row. */
static enum plim_status plan_largest(struct embedder *e, int64_t budget, struct runtime *rt, int64_t *total,
                                     struct plim_error *err)
{
    struct offer most = {.context = e->plan.time, .requests = longest_most(e), .step = longest_most(e)},
                 least = most;
    least.requests = 1;
    struct offer_wish wish = {
        .most = most, .least = least, .usual_context = most.context, .shortest_context = most.context};
    struct offer_oracle oracle = {need, e};
    bool host = e->runtime.device->facts.unified_memory;
    struct offer_line line = {.bytes = {budget ? budget : e->limit, 0},
                              .reserve = host ? e->overhead.reserve : 0};
    struct offer_list list;
    struct offer_choice choice;
    *rt = (struct runtime){0};
    offer_list_make(&wish, &list);
    enum plim_status status = offer_choose(&list, &oracle, &line, &choice, err);
    *total = choice.need.device;
    if (status != PLIM_OK) return status;
    return plan_batch(e, rt, line.bytes.device, list.offer[choice.at].requests, err);
}

/* The part of the plan that changes with the budget: a small one asks for smaller batches. */
static void note_line(struct embedder *e, int64_t budget)
{
    const struct runtime *rt = &e->runtime;
    e->plan.budget = budget, e->plan.arena = rt->arena, e->plan.total = rt->plan.total;
    e->plan.overhead = e->plan.total - e->plan.arena;
    e->tokens = rt->size < longest_most(e) ? rt->size * e->plan.time : e->tokens_most;
}

static enum plim_status refuse(const struct embedder *e, const struct embed_room *room, int64_t total,
                               struct plim_error *err)
{
    char what[64];
    snprintf(what, sizeof what, "parameters and one row of %lld tokens", (long long)e->plan.time);
    return plan_refuse(&(struct no_fit){.model = room->how.path,
                                        .what = what,
                                        .advice = "lower --max-length",
                                        .takes = total,
                                        .has = room->budget ? room->budget : room->limit,
                                        .budget = room->budget != 0},
                       err);
}

static enum plim_status make_plan(struct embedder *e, const struct embed_room *room, struct device *device,
                                  struct plim_error *err)
{
    int64_t own = 0, total = 0;
    struct offer_bytes none = {0}, one = {0};
    e->plan.rows = room->rows ? room->rows : e->tokens / 8;
    e->tokens_most = e->tokens;
    enum plim_status status = weights_precision(room->how.path, &e->plan.precision, err);
    if (status == PLIM_OK) status = choose_weights(e, room, device, err);
    if (status == PLIM_OK) status = own_bytes(e, &own, err);
    if (status != PLIM_OK) return status;
    e->overhead = runtime_engine_overhead(device->context, device->facts.threads),
    e->overhead.bytes += own + room->caller_bytes;
    struct runtime largest;
    status = plan_largest(e, room->budget, &largest, &total, err);
    if (status == PLIM_NO_FIT && room->need) *room->need = total;
    if (status != PLIM_OK) return status == PLIM_NO_FIT ? refuse(e, room, total, err) : status;
    e->runtime = largest;
    note_line(e, room->budget);
    e->plan.params = e->runtime.plan.layout.by_class[CLASS_PARAM];
    status = need(e, &(struct offer){.requests = 1}, &none, &one, err);
    e->smallest = one.device;
    return status;
}

/* --- opening ---------------------------------------------------------------------------------------------- */

static enum plim_status start(struct embedder *e, const struct embed_room *room, struct plim_error *err)
{
    struct runtime *rt = &e->runtime;
    e->feed = malloc((size_t)e->tokens_most * sizeof *e->feed);
    e->results = malloc((size_t)results_most(e) * sizeof(float));
    if (!e->feed || !e->results) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for a batch of rows");
    enum plim_status status = runtime_commit(rt, err);
    if (status != PLIM_OK) return status;
    e->first = (struct member){.time = e->plan.time, .rows = rt->size, .exec = &rt->exec};
    status = weights_from_directory(&rt->exec, &e->spec, room->how.path, room->log, err);
    if (status == PLIM_OK && room->adapter) status = weights_merge(&rt->exec, &e->spec, room->adapter, err);
    return status;
}

enum plim_status embedder_open(const struct embed_room *room, struct device *device, struct embedder **out,
                               struct plim_error *err)
{
    struct embedder *e = calloc(1, sizeof *e);
    if (!e) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an embedder was set up");
    e->head = HEAD_EMBEDDING;
    e->runtime.device = device, e->exact = room->exact, e->limit = room->limit;
    enum plim_status status = hf_config_load(room->how.path, &e->spec, err);
    e->spec.pooling = room->how.pooling, e->spec.normalize = room->how.normalize;
    if (status == PLIM_OK) status = set_length(e, room, err);
    if (status == PLIM_OK) status = make_plan(e, room, device, err);
    if (status == PLIM_OK && !room->plan_only) status = start(e, room, err);
    e->planned_only = room->plan_only;
    if (status != PLIM_OK) {
        embedder_close(e);
        return status;
    }
    *out = e;
    return PLIM_OK;
}

static void close_member(struct member *m)
{
    if (m) forward_close(&m->forward);
    free(m);
}

void embedder_close(struct embedder *e)
{
    if (!e) return;
    for (int i = 0; i < MEMBERS; i++) close_member(e->members[i]);
    if (e->planned_only)
        plan_release(&e->runtime.plan);
    else if (e->runtime.state != RUNTIME_CLOSED)
        runtime_close(&e->runtime);
    free(e->feed);
    free(e->results);
    free(e->order);
    quantise_release(&e->quantisation);
    free(e);
}

/* --- another line ------------------------------------------------------------------------------------------- */

enum plim_status embedder_move(struct embedder *e, int64_t budget, struct plim_error *err)
{
    struct runtime next;
    int64_t total;
    enum plim_status status = plan_largest(e, budget, &next, &total, err);
    if (status == PLIM_NO_FIT)
        plim_fail(err, status, "parameters and one row take %lld bytes, the budget is %lld", (long long)total,
                  (long long)budget);
    if (status == PLIM_OK) {
        for (int i = 0; i < MEMBERS; i++) close_member(e->members[i]), e->members[i] = NULL;
        status = runtime_adopt(&e->runtime, &next, err);
    }
    plan_release(&next.plan);
    note_line(e, status == PLIM_OK ? budget : e->plan.budget);
    e->first.rows = e->runtime.size;
    return status;
}

/* --- running ---------------------------------------------------------------------------------------------- */

static enum plim_status make_member(struct embedder *e, int64_t time, int64_t rows, struct member **out,
                                    struct plim_error *err)
{
    struct shape shape = {e, time};
    struct forward_family family = {.build = build, .arg = &shape};
    struct member **slot = &e->members[e->next++ % MEMBERS], *m = calloc(1, sizeof *m);
    close_member(*slot), *slot = NULL;
    if (!m) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for a batch's tape");
    enum plim_status status = runtime_forward(&e->runtime, &family, rows, 1, &m->forward, err);
    if (status != PLIM_OK) free(m);
    if (status == PLIM_NO_FIT) return *out = &e->first, PLIM_OK; /* the arena is the longest rows' */
    if (status != PLIM_OK) return status;
    m->time = time, m->rows = m->forward.size, m->exec = &m->forward.exec;
    *slot = *out = m;
    return PLIM_OK;
}

/* The member for batches of so many rows that are so long, made when there is none. */
static enum plim_status find_member(struct embedder *e, int64_t time, int64_t rows, struct member **out,
                                    struct plim_error *err)
{
    int64_t most = compiles(e) ? rows_most(e, time) : rows;
    while (compiles(e) && most / 2 >= rows) most /= 2;
    if (time == e->first.time && most == e->first.rows) return *out = &e->first, PLIM_OK;
    for (int i = 0; i < MEMBERS; i++)
        if (e->members[i] && e->members[i]->time == time && e->members[i]->rows == most)
            return *out = e->members[i], PLIM_OK;
    return make_member(e, time, most, out, err);
}

static enum plim_status put(const struct member *m, const char *label, const int32_t *values,
                            struct plim_error *err)
{
    int id = tape_find(m->exec->tape, label, -1);
    if (id < 0) return PLIM_OK;
    return exec_write(m->exec, id, values, 0, tensor_bytes(&m->exec->tape->tensors[id]), err);
}

/* Tokens, positions, segments and lengths of rows order[0..count). */
static enum plim_status put_batch(struct embedder *e, struct member *m, const struct embed_row *rows,
                                  const int64_t *order, int64_t count, struct plim_error *err)
{
    int64_t all = m->rows * m->time;
    int32_t pad = e->spec.pad_token_id > 0 ? (int32_t)e->spec.pad_token_id : 0, *f = e->feed;
    for (int64_t i = 0; i < all; i++) f[i] = pad;
    for (int64_t b = 0; b < count; b++)
        memcpy(f + b * m->time, rows[order[b]].ids, (size_t)rows[order[b]].count * sizeof *f);
    enum plim_status status = put(m, "ids", f, err);
    for (int64_t i = 0; i < all; i++) f[i] = (int32_t)(i % m->time);
    if (status == PLIM_OK) status = put(m, "pos", f, err);
    memset(f, 0, (size_t)all * sizeof *f);
    for (int64_t b = 0; b < count && e->spec.token_types > 1; b++)
        for (int64_t i = rows[order[b]].second; i > 0 && i < rows[order[b]].count; i++)
            f[b * m->time + i] = 1;
    if (status == PLIM_OK) status = put(m, "types", f, err);
    for (int64_t b = 0; b < count; b++) f[b] = (int32_t)rows[order[b]].count;
    return status == PLIM_OK ? put(m, "lengths", f, err) : status;
}

/* Results of a batch in fp32, to where those of each row belong. Where tokens have results each row is read by itself. */
static enum plim_status take_results(struct embedder *e, const struct member *m, const struct embed_row *rows,
                                     const int64_t *order, int64_t count, float *out, struct plim_error *err)
{
    int id = tape_find(m->exec->tape, e->head == HEAD_EMBEDDING ? "embedding" : "logits", -1);
    enum dtype type = m->exec->tape->tensors[id].type;
    int64_t width = embedder_width(e), each = width * (int64_t)dtype_size(type);
    const int64_t *place = e->order + e->cap;
    bool single = embedder_per_token(e);
    enum plim_status status = PLIM_OK;
    if (!single) status = exec_read(m->exec, id, e->results, 0, count * each, err);
    for (int64_t b = 0; b < count && status == PLIM_OK; b++) {
        int64_t n = single ? rows[order[b]].count : 1;
        if (single) status = exec_read(m->exec, id, e->results, b * m->time * each, n * each, err);
        dtype_convert(out + place[order[b]] * width, DT_F32, e->results + (single ? 0 : b * each), type,
                      n * width);
    }
    return status;
}

static enum plim_status run_batch(struct embedder *e, struct member *m, const struct embed_row *rows,
                                  const int64_t *order, int64_t count, float *out, struct plim_error *err)
{
    enum plim_status status = put_batch(e, m, rows, order, count, err);
    if (status == PLIM_OK) status = e->pass ? e->pass(e->pass_arg, m->exec, err) : exec_loop(m->exec, 0, err);
    if (status == PLIM_OK) status = take_results(e, m, rows, order, count, out, err);
    for (int64_t b = 0; b < count && status == PLIM_OK; b++) e->count.tokens += rows[order[b]].count;
    e->count.rows += count, e->count.positions += m->rows * m->time;
    return status;
}

/* The longest first, and of equal ones the first: a stable order by counting lengths. */
static enum plim_status sort_rows(struct embedder *e, const struct embed_row *rows, int64_t count,
                                  struct plim_error *err)
{
    int64_t *first = calloc((size_t)e->plan.time + 2, sizeof *first);
    if (count > e->cap) {
        free(e->order);
        e->order = malloc(2 * (size_t)count * sizeof *e->order), e->cap = e->order ? count : 0;
    }
    if (!first || !e->order) {
        free(first);
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory while %lld rows were sorted", (long long)count);
    }
    int64_t *place = e->order + e->cap;
    for (int64_t i = 0, at = 0; i < count; i++) {
        place[i] = at, at += embedder_per_token(e) ? rows[i].count : 1;
        first[e->plan.time - rows[i].count + 1]++;
    }
    for (int64_t t = 1; t <= e->plan.time; t++) first[t] += first[t - 1];
    for (int64_t i = 0; i < count; i++) e->order[first[e->plan.time - rows[i].count]++] = i;
    free(first);
    return PLIM_OK;
}

static enum plim_status check_rows(const struct embedder *e, const struct embed_row *rows, int64_t count,
                                   struct plim_error *err)
{
    for (int64_t i = 0; i < count; i++) {
        if (rows[i].count < 1 || rows[i].count > e->plan.time)
            return plim_fail(err, PLIM_BUG, "a row of %lld tokens is not from 1 to %lld long",
                             (long long)rows[i].count, (long long)e->plan.time);
        for (int64_t k = 0; k < rows[i].count; k++)
            if (rows[i].ids[k] < 0 || rows[i].ids[k] >= e->spec.vocab_size)
                return plim_fail(err, PLIM_BAD_INPUT, "token %d is outside the model's vocabulary of %lld",
                                 rows[i].ids[k], (long long)e->spec.vocab_size);
    }
    return PLIM_OK;
}

/* How many of order[0..left) make up the next batch, which is `time` long. */
static int64_t batch_rows(const struct embedder *e, const struct embed_row *rows, const int64_t *order,
                          int64_t left, int64_t time)
{
    int64_t most = rows_most(e, time), n = 1, enough = compiles(e) ? ENOUGH_GPU : ENOUGH;
    if (most > left) most = left;
    while (n < most && (n * time < enough || rows[order[n]].count * 8 >= time * 7)) n++;
    return n;
}

enum plim_status embedder_run(struct embedder *e, const struct embed_row *rows, int64_t count, float *out,
                              struct plim_error *err)
{
    double begun = clock_seconds();
    enum plim_status status = check_rows(e, rows, count, err);
    if (status == PLIM_OK) status = sort_rows(e, rows, count, err);
    for (int64_t at = 0, n; at < count && status == PLIM_OK; at += n) {
        int64_t time = length_up(e, rows[e->order[at]].count);
        struct member *m = NULL;
        n = batch_rows(e, rows, e->order + at, count - at, time);
        status = find_member(e, time, n, &m, err);
        if (status != PLIM_OK) break;
        if (n > m->rows) n = m->rows;
        status = run_batch(e, m, rows, e->order + at, n, out, err);
    }
    e->count.seconds += clock_seconds() - begun;
    return status;
}
