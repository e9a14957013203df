/* generate_seq2seq.c - see generate_seq2seq.h.
 *
 * Two members of a forward family share one arena: a pass over one token of every row, which owns parameters and caches, and
 * one over the source (HEAD_SOURCE), which leaves the source's keys and values there. Both have a row per beam.
 *
 * Invariants
 *  1. Position p of the cache holds the keys and values of token p of the row's text for every p below those fed.
 *  2. When rows change places, the caches of targets follow before the next token is fed; the source's are equal in all rows.
 */
#include "serve/generate_seq2seq.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "model/hf.h"
#include "runtime/runtime.h"
#include "serve/beam.h"
#include "serve/source_weights.h"

#include <stdlib.h>
#include <string.h>

struct seq2seq {
    struct model_spec spec;
    struct runtime runtime; /* its plan is the pass over one token */
    struct forward source;
    struct seq2seq_plan plan;
    struct quantisation quantisation;
    int64_t beams, source_time;
    void *raw;      /* [beams,V] as the device has them */
    float *logits;  /* [beams,V] */
    int32_t *input; /* [beams,S] */
    char *cache;    /* one layer's keys or values */
};

const struct model_spec *seq2seq_spec(const struct seq2seq *s) { return &s->spec; }

const struct seq2seq_plan *seq2seq_plan(const struct seq2seq *s) { return &s->plan; }

/* --- planning --------------------------------------------------------------------------------------------- */

static enum plim_status build(const struct seq2seq *s, enum model_head head, struct tape *out,
                              struct plim_error *err)
{
    struct model_shape shape = {.batch = s->beams,
                                .time = 1,
                                .source_time = s->source_time,
                                .kv_length = s->plan.positions,
                                .head = head};
    tape_init(out);
    enum plim_status status = model_emit(&s->spec, &shape, out, err);
    if (status == PLIM_OK) status = pass_precision(out, s->plan.precision, err);
    if (status == PLIM_OK) quantise_tape(&s->quantisation, &s->spec, out);
    if (status == PLIM_OK) status = tape_verify(out, err);
    for (int i = 0; i < out->nops; i++) out->ops[i].attr.repeatable = true; /* same seed, same text */
    if (status != PLIM_OK) tape_release(out);
    return status;
}

static enum plim_status build_token(void *arg, int64_t size, struct tape *out, struct plim_error *err)
{
    (void)size;
    return build(arg, HEAD_LAST_LOGITS, out, err);
}

static enum plim_status build_source(void *arg, int64_t size, struct tape *out, struct plim_error *err)
{
    (void)size;
    return build(arg, HEAD_SOURCE, out, err);
}

/* Bytes of one layer's cache of keys, of the widest type. */
static int64_t cache_bytes(const struct seq2seq *s)
{
    return s->beams * s->plan.positions * s->spec.num_heads * s->spec.head_dim * (int64_t)sizeof(float);
}

/* Host bytes beside the arena. */
static int64_t own_bytes(const struct seq2seq *s)
{
    struct beam_options search = {
        .beams = (int)s->beams, .tokens = s->plan.positions, .eos_count = MODEL_MAX_EOS};
    return sampler_bytes(s->spec.vocab_size) + 2 * s->beams * s->spec.vocab_size * (int64_t)sizeof(float) +
           s->beams * s->source_time * (int64_t)sizeof(int32_t) + cache_bytes(s) + beam_bytes(&search) +
           source_weights_bytes(&s->quantisation, &s->spec, s->plan.precision);
}

static enum plim_status refuse(const struct seq2seq *s, const char *dir, struct plim_error *err)
{
    const struct seq2seq_plan *p = &s->plan;
    char need[BYTES_TEXT], have[BYTES_TEXT], missing[BYTES_TEXT];
    bytes_format(need, (uint64_t)p->total);
    bytes_format(have, (uint64_t)p->budget);
    bytes_format(missing, (uint64_t)(p->total - p->budget));
    return plim_fail(
        err, PLIM_NO_FIT,
        "%s: does not fit: parameters, caches of a source of %lld and an answer of %lld tokens in %lld rows, "
        "and one pass take %s, the budget is %s: %s (%lld bytes) missing; raise the budget, or ask for fewer "
        "tokens or beams",
        dir, (long long)s->source_time, (long long)p->positions, (long long)s->beams, need, have, missing,
        (long long)(p->total - p->budget));
}

static void sum_up(struct seq2seq *s)
{
    const struct runtime *rt = &s->runtime;
    s->plan.budget = rt->request.budget;
    s->plan.arena = rt->arena, s->plan.total = rt->plan.total;
    if (!rt->size) return;
    s->plan.params = rt->plan.layout.by_class[CLASS_PARAM];
    s->plan.cache = rt->plan.layout.by_class[CLASS_KV];
}

static enum plim_status make_plan(struct seq2seq *s, const char *dir, struct device *device,
                                  const struct seq2seq_room *room, struct plim_error *err)
{
    struct forward_family token = {.build = build_token, .arg = s},
                          source = {.build = build_source, .arg = s};
    struct forward_line line = {.budget = room->budget, .overhead = {.bytes = room->overhead}};
    enum plim_status status = weights_precision(dir, &s->plan.precision, err);
    if (status == PLIM_OK)
        status = source_weights_choose(&s->quantisation, device, room->weights, dir, &s->spec,
                                       s->plan.precision, err);
    if (status != PLIM_OK) return status;
    if (!room->overhead)
        line.overhead = runtime_overhead(device->facts.threads, NULL), line.overhead.bytes += own_bytes(s);
    status = runtime_plan_forward(&s->runtime, device, &s->spec, &line, &token, 1, err);
    if (status == PLIM_OK) status = runtime_forward(&s->runtime, &source, 1, 1, &s->source, err);
    sum_up(s);
    return status == PLIM_NO_FIT ? refuse(s, dir, err) : status;
}

/* --- opening ---------------------------------------------------------------------------------------------- */

static enum plim_status take_buffers(struct seq2seq *s, struct plim_error *err)
{
    size_t numbers = (size_t)(s->beams * s->spec.vocab_size);
    s->logits = malloc(numbers * sizeof *s->logits);
    s->raw = malloc(numbers * sizeof *s->logits); /* no type is wider */
    s->input = malloc((size_t)(s->beams * s->source_time) * sizeof *s->input);
    s->cache = malloc((size_t)cache_bytes(s));
    return s->logits && s->raw && s->input && s->cache
               ? PLIM_OK
               : plim_fail(err, PLIM_NO_MEMORY, "out of memory for the logits");
}

static enum plim_status check_room(const struct seq2seq_room *room, struct plim_error *err)
{
    if (room->source < 1 || room->tokens < 1)
        return plim_fail(err, PLIM_BAD_INPUT, "source and answer need at least one token each");
    if (room->beams < 1 || room->beams > SEQ2SEQ_MAX_BEAMS)
        return plim_fail(err, PLIM_BAD_INPUT, "%d beams: write a number from 1 to %d", room->beams,
                         SEQ2SEQ_MAX_BEAMS);
    return PLIM_OK;
}

enum plim_status seq2seq_open(const char *dir, struct device *device, const struct seq2seq_room *room,
                              struct seq2seq **out, struct plim_error *err)
{
    enum plim_status status = check_room(room, err);
    if (status != PLIM_OK) return status;
    struct seq2seq *s = calloc(1, sizeof *s);
    if (!s) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while a generator was set up");
    s->beams = room->beams, s->source_time = room->source, s->plan.positions = room->tokens;
    status = hf_config_load(dir, &s->spec, err);
    if (status == PLIM_OK) status = make_plan(s, dir, device, room, err);
    if (status == PLIM_OK) status = take_buffers(s, err);
    if (status == PLIM_OK) status = runtime_commit(&s->runtime, err);
    if (status == PLIM_OK) status = forward_start(&s->runtime, &s->source, err);
    if (status == PLIM_OK)
        status = source_weights_load(&s->quantisation, &s->runtime.exec, &s->spec, s->plan.precision, dir,
                                     room->log, err);
    if (status != PLIM_OK) {
        seq2seq_close(s);
        return status;
    }
    *out = s;
    return PLIM_OK;
}

void seq2seq_close(struct seq2seq *s)
{
    if (!s) return;
    forward_close(&s->source);
    runtime_close(&s->runtime);
    quantise_release(&s->quantisation);
    free(s->logits), free(s->raw), free(s->input), free(s->cache);
    free(s);
}

/* --- passes ----------------------------------------------------------------------------------------------- */

/* Writes an input of [beams,columns], every row of it alike where columns are those of `row`. */
static enum plim_status write_rows(struct seq2seq *s, struct exec *exec, const char *label,
                                   const int32_t *row, int64_t columns, struct plim_error *err)
{
    for (int64_t b = 0; b < s->beams; b++) memcpy(s->input + b * columns, row, (size_t)columns * sizeof *row);
    int64_t bytes = s->beams * columns * (int64_t)sizeof *row;
    return exec_write(exec, tape_find(exec->tape, label, -1), s->input, 0, bytes, err);
}

static enum plim_status read_source(struct seq2seq *s, const struct seq2seq_request *r,
                                    struct plim_error *err)
{
    struct exec *exec = &s->source.exec;
    int32_t length = (int32_t)r->count;
    int32_t *row = calloc((size_t)s->source_time, sizeof *row);
    if (!row) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the source");
    memcpy(row, r->source, (size_t)r->count * sizeof *row);
    enum plim_status status = write_rows(s, exec, "source.ids", row, s->source_time, err);
    for (int64_t i = 0; i < s->source_time; i++) row[i] = (int32_t)i;
    if (status == PLIM_OK) status = write_rows(s, exec, "source.pos", row, s->source_time, err);
    if (status == PLIM_OK) status = write_rows(s, exec, "source.lengths", &length, 1, err);
    free(row);
    return status == PLIM_OK ? exec_loop(exec, 0, err) : status;
}

/* One token of each row at this position; s->logits has what follows. */
static enum plim_status feed(struct seq2seq *s, const struct seq2seq_request *r, const int32_t *tokens,
                             int64_t at, struct plim_error *err)
{
    struct exec *exec = &s->runtime.exec;
    int32_t pos = (int32_t)at, length = (int32_t)r->count;
    int ids = tape_find(exec->tape, "ids", -1), logits = tape_find(exec->tape, "logits", -1);
    enum plim_status status = exec_write(exec, ids, tokens, 0, s->beams * (int64_t)sizeof *tokens, err);
    if (status == PLIM_OK) status = write_rows(s, exec, "pos", &pos, 1, err);
    if (status == PLIM_OK) status = write_rows(s, exec, "source.lengths", &length, 1, err);
    if (status == PLIM_OK) status = exec_loop(exec, 0, err);
    const struct tensor *t = &exec->tape->tensors[logits];
    if (status == PLIM_OK) status = exec_read(exec, logits, s->raw, 0, tensor_bytes(t), err);
    if (status == PLIM_OK) dtype_convert(s->logits, DT_F32, s->raw, t->type, tensor_count(t));
    return status;
}

/* Invariant 2, of one cache. */
static enum plim_status move_cache(struct seq2seq *s, int id, const int *parents, struct plim_error *err)
{
    const struct exec *exec = &s->runtime.exec;
    int64_t row = tensor_bytes(&exec->tape->tensors[id]) / s->beams;
    enum plim_status status = exec_read(exec, id, s->cache, 0, row * s->beams, err);
    for (int64_t b = 0; b < s->beams && status == PLIM_OK; b++)
        if (parents[b] != b) status = exec_write(exec, id, s->cache + parents[b] * row, b * row, row, err);
    return status;
}

static enum plim_status move_rows(struct seq2seq *s, const int *parents, struct plim_error *err)
{
    const struct tape *tape = s->runtime.exec.tape;
    enum plim_status status = PLIM_OK;
    bool stay = true;
    for (int b = 0; b < s->beams; b++) stay = stay && parents[b] == b;
    for (int i = 0; i < tape->ntensors && status == PLIM_OK && !stay; i++) {
        const struct tensor *t = &tape->tensors[i];
        bool target = t->cls == CLASS_KV && t->view_of < 0 && !strncmp(t->label, "kv.", 3);
        if (target) status = move_cache(s, i, parents, err);
    }
    return status;
}

/* --- answers ---------------------------------------------------------------------------------------------- */

static bool is_end(const struct model_spec *spec, int32_t token)
{
    for (int i = 0; i < spec->eos_count; i++)
        if (spec->eos_token_ids[i] == token) return true;
    return false;
}

static int64_t usable(const struct seq2seq *s, const struct seq2seq_request *r)
{
    return r->vocab && r->vocab < s->spec.vocab_size ? r->vocab : s->spec.vocab_size;
}

/* True when the answer ends with this token. */
static bool hand_out(const struct seq2seq *s, const struct seq2seq_request *r, int32_t token,
                     struct seq2seq_result *result)
{
    if (is_end(&s->spec, token)) return result->stop = SEQ2SEQ_END, true;
    bool go_on = !r->hear || r->hear(r->arg, token);
    result->tokens++;
    if (!go_on || (r->stop && *r->stop)) return result->stop = SEQ2SEQ_ASKED, true;
    return result->stop = SEQ2SEQ_ENOUGH, result->tokens >= r->tokens;
}

static enum plim_status answer_drawn(struct seq2seq *s, const struct seq2seq_request *r,
                                     struct seq2seq_result *result, struct plim_error *err)
{
    struct sampler sampler;
    int32_t token = (int32_t)s->spec.start_token_id;
    enum plim_status status = sampler_init(&sampler, usable(s, r), &r->sampling, err);
    if (status != PLIM_OK) return status;
    sampler.team = s->runtime.device->team;
    for (int64_t at = 0; status == PLIM_OK; at++) {
        status = feed(s, r, &token, at, err);
        if (status == PLIM_OK) token = sampler_draw(&sampler, s->logits, (uint64_t)result->tokens);
        if (status == PLIM_OK && hand_out(s, r, token, result)) break;
    }
    sampler_release(&sampler);
    return status;
}

static enum plim_status answer_searched(struct seq2seq *s, const struct seq2seq_request *r,
                                        struct seq2seq_result *result, struct plim_error *err)
{
    struct beam_options options = {.beams = (int)s->beams,
                                   .vocab = s->spec.vocab_size,
                                   .usable = usable(s, r),
                                   .tokens = r->tokens,
                                   .length_penalty = r->length_penalty,
                                   .eos = s->spec.eos_token_ids,
                                   .eos_count = s->spec.eos_count};
    int32_t first[SEQ2SEQ_MAX_BEAMS];
    const int32_t *tokens = first;
    struct beam_search *search = NULL;
    int64_t count = 0;
    for (int64_t b = 0; b < s->beams; b++) first[b] = (int32_t)s->spec.start_token_id;
    enum plim_status status = beam_open(&options, &search, err);
    for (int64_t at = 0; status == PLIM_OK; at++) {
        status = feed(s, r, tokens, at, err);
        if (status != PLIM_OK || !beam_step(search, s->logits) || (r->stop && *r->stop)) break;
        status = move_rows(s, beam_parents(search), err);
        tokens = beam_tokens(search);
    }
    tokens = status == PLIM_OK ? beam_best(search, &count) : NULL;
    for (int64_t i = 0; i < count; i++)
        if (hand_out(s, r, tokens[i], result)) break;
    beam_close(search);
    return status;
}

static enum plim_status check_request(const struct seq2seq *s, const struct seq2seq_request *r,
                                      struct plim_error *err)
{
    if (r->count < 1 || r->count > s->source_time || r->tokens < 1 || r->tokens > s->plan.positions)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "a source of %lld tokens and an answer of %lld do not fit caches of %lld and %lld",
                         (long long)r->count, (long long)r->tokens, (long long)s->source_time,
                         (long long)s->plan.positions);
    for (int64_t i = 0; i < r->count; i++)
        if (r->source[i] < 0 || r->source[i] >= s->spec.vocab_size)
            return plim_fail(err, PLIM_BAD_INPUT, "token %d of the source is outside the vocabulary of %lld",
                             r->source[i], (long long)s->spec.vocab_size);
    return PLIM_OK;
}

enum plim_status seq2seq_run(struct seq2seq *s, const struct seq2seq_request *request,
                             struct seq2seq_result *result, struct plim_error *err)
{
    *result = (struct seq2seq_result){0};
    enum plim_status status = check_request(s, request, err);
    double start = clock_seconds();
    if (status == PLIM_OK) status = read_source(s, request, err);
    result->source_seconds = clock_seconds() - start;
    start = clock_seconds();
    if (status == PLIM_OK)
        status =
            s->beams > 1 ? answer_searched(s, request, result, err) : answer_drawn(s, request, result, err);
    result->seconds = clock_seconds() - start;
    return status;
}
