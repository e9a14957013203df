/* engine_step.c - one step: who takes part, inputs, the pass, tokens, events. See engine_part.h. */
#include "base/clock.h"
#include "serve/engine_part.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct request *request_of(struct sequence *s) { return (struct request *)s; }

/* --- the end of a request --------------------------------------------------------------------------------- */

static void fill_event(const struct request *r, double now, struct engine_event *event)
{
    event->id = r->id;
    event->prompt_tokens = r->ask.count, event->tokens = r->made, event->shared_tokens = r->sequence.shared;
    event->queue_seconds = (r->seen ? r->started : now) - r->submitted;
    event->prefill_seconds = r->seen ? (r->made ? r->answered : now) - r->started : 0;
    event->decode_seconds = r->made ? now - r->answered : 0;
}

static void unlink_live(struct engine *e, const struct request *r)
{
    struct request **at = &e->live;
    while (*at && *at != r) at = &(*at)->next;
    if (*at) *at = r->next;
    e->live_count--, e->live_bytes -= r->bytes;
}

void engine_finish(struct engine *e, struct request *r, struct engine_event *event)
{
    fill_event(r, clock_seconds(), event);
    schedule_remove(&e->schedule, &r->sequence);
    pthread_mutex_lock(&e->lock);
    unlink_live(e, r);
    e->stats.finished[event->finish]++;
    pthread_mutex_unlock(&e->lock);
    if (r->ask.hear) r->ask.hear(r->ask.arg, event);
    free(r->tokens);
    free(r->sequence.table);
    free(r);
}

void engine_finish_cancelled(struct engine *e, struct request *r)
{
    engine_finish(e, r, &(struct engine_event){.token = -1, .finish = FINISH_CANCELLED});
}

/* --- before the pass -------------------------------------------------------------------------------------- */

/* New requests join the queue. */
static enum plim_status take_in(struct engine *e, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    pthread_mutex_lock(&e->lock);
    while (e->incoming && status == PLIM_OK) {
        struct request *r = e->incoming;
        status = schedule_add(&e->schedule, &r->sequence, err);
        if (status != PLIM_OK) break;
        e->incoming = r->after;
        if (!e->incoming) e->incoming_end = &e->incoming;
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

/* Numbers of a step, where the host writes them. */
struct inputs {
    int32_t *ids, *pos, *slots, *rows, *blocks, *last;
    int32_t *sampling; /* where the device samples */
};

static struct inputs inputs_at(int32_t *at, const struct model_flat *size)
{
    struct inputs in = {.ids = at};
    in.pos = in.ids + size->tokens;
    in.slots = in.pos + size->tokens;
    in.rows = in.slots + size->tokens;
    in.blocks = in.rows + 3 * size->rows;
    in.last = in.blocks + size->rows * size->reach;
    in.sampling = in.last + size->rows;
    return in;
}

static void put_row(const struct inputs *in, const struct model_flat *size, const struct step_row *row,
                    int64_t r, int64_t at)
{
    const struct sequence *q = row->sequence;
    for (int64_t i = 0; i < row->count; i++) {
        int64_t p = row->first + i;
        in->ids[at + i] = q->tokens[row->skipped + p], in->pos[at + i] = (int32_t)p;
        in->slots[at + i] = q->table[p / KV_BLOCK] * KV_BLOCK + (int32_t)(p % KV_BLOCK);
    }
    in->rows[3 * r] = (int32_t)at, in->rows[3 * r + 1] = (int32_t)row->count;
    in->rows[3 * r + 2] = (int32_t)row->first;
    memcpy(in->blocks + r * size->reach, q->table, (size_t)q->held * sizeof *q->table);
}

/* Rows and tokens behind those of the step do nothing and are stored nowhere. */
static void pad(const struct inputs *in, const struct model_flat *size, int64_t tokens, int64_t rows,
                int64_t lasts)
{
    for (int64_t i = tokens; i < size->tokens; i++) in->ids[i] = 0, in->pos[i] = 0, in->slots[i] = -1;
    for (int64_t r = rows; r < size->rows; r++)
        in->rows[3 * r] = in->rows[3 * r + 1] = in->rows[3 * r + 2] = 0;
    for (int64_t i = lasts; i < size->rows; i++) in->last[i] = 0;
}

/* Tokens whose logits are wanted: the last of all, and those of a prompt whose successor has not been told. */
static bool wants(const struct step_row *row, int64_t i)
{
    const struct request *r = request_of(row->sequence);
    int64_t next = row->skipped + row->first + i + 1;
    return (row->last && i + 1 == row->count) ||
           (row->sequence->every && next < r->ask.count && next >= r->told);
}

/* --- the pass --------------------------------------------------------------------------------------------- */

struct step {
    const struct member *member;
    struct model_flat size;
    int rows;
    int64_t tokens;
    int draws;
};

static void count_step(struct engine *e, struct step *s)
{
    int64_t lasts = 0;
    for (int r = 0; r < s->rows; r++) {
        s->tokens += e->rows[r].count;
        for (int64_t i = 0; i < e->rows[r].count; i++) lasts += wants(&e->rows[r], i);
    }
    s->member = family_member(&e->family, s->tokens, lasts > s->rows ? lasts : s->rows, &s->size);
}

static void add_draw(struct engine *e, struct step *s, struct request *r, int64_t position)
{
    const struct sequence *q = &r->sequence;
    bool of_prompt = position + 1 < r->ask.count;
    e->drawn[s->draws] = r;
    e->draws[s->draws++] = (struct draw){.sampling = &r->ask.sampling,
                                         .step = (uint64_t)r->made,
                                         .tokens = r->tokens,
                                         .prompt = r->ask.count,
                                         .known = q->known,
                                         .given = of_prompt ? q->tokens[position + 1] : -1,
                                         .logprobs = r->ask.logprobs};
}

/* What the device draws by itself, and rows without anything to draw behind it. */
static void put_sampling(struct engine *e, const struct step *s, int32_t *words)
{
    for (int i = 0; i < s->draws; i++)
        draw_words(&e->draws[i], e->drawer.vocab, words + (int64_t)i * SAMPLE_WORDS);
    memset(words + (int64_t)s->draws * SAMPLE_WORDS, 0,
           (size_t)((s->size.rows - s->draws) * SAMPLE_WORDS) * sizeof *words);
}

static enum plim_status run_pass(struct engine *e, struct step *s, struct plim_error *err)
{
    struct exec *exec = s->member->exec;
    int32_t *direct = exec_host(exec, s->member->flat);
    struct inputs in = inputs_at(direct ? direct : e->staged, &s->size);
    int64_t at = 0;
    for (int r = 0; r < s->rows; r++) {
        const struct step_row *row = &e->rows[r];
        put_row(&in, &s->size, row, r, at);
        for (int64_t i = 0; i < row->count; i++) {
            if (!wants(row, i)) continue;
            in.last[s->draws] = (int32_t)(at + i);
            add_draw(e, s, request_of(row->sequence), row->skipped + row->first + i);
        }
        at += row->count;
    }
    pad(&in, &s->size, s->tokens, s->rows, s->draws);
    if (s->member->tokens >= 0) put_sampling(e, s, in.sampling);
    const struct tensor *flat = &exec->tape->tensors[s->member->flat];
    enum plim_status status = PLIM_OK;
    if (!direct) status = exec_write(exec, s->member->flat, e->staged, 0, tensor_bytes(flat), err);
    return status == PLIM_OK ? engine_loop(e, exec, err) : status;
}

/* Tokens that the device has drawn. */
static enum plim_status read_tokens(struct engine *e, const struct step *s, struct plim_error *err)
{
    enum plim_status status = exec_read(s->member->exec, s->member->tokens, e->tokens, 0,
                                        s->draws * (int64_t)sizeof *e->tokens, err);
    for (int i = 0; i < s->draws && status == PLIM_OK; i++) {
        struct draw *d = &e->draws[i];
        d->done = e->tokens[i] >= 0;
        if (d->done) d->token = e->tokens[i];
    }
    return status;
}

/* Logits of the rows that are left to the host: those from the first to the last of them. */
static enum plim_status read_logits(struct engine *e, const struct step *s, struct plim_error *err)
{
    const struct exec *exec = s->member->exec;
    const struct tensor *t = &exec->tape->tensors[s->member->logits];
    int64_t row = e->spec.vocab_size * (int64_t)dtype_size(t->type);
    const char *from = exec_host(exec, s->member->logits);
    enum plim_status status = PLIM_OK;
    int first = 0, end = s->draws;
    while (first < end && e->draws[first].done) first++;
    while (end > first && e->draws[end - 1].done) end--;
    if (!from && first < end)
        status =
            exec_read(exec, s->member->logits, e->raw + first * row, first * row, (end - first) * row, err);
    for (int i = first; i < end; i++)
        e->draws[i].logits = (from ? from : e->raw) + i * row, e->draws[i].type = t->type;
    return status;
}

/* Tokens of all rows. */
static enum plim_status draw_tokens(struct engine *e, const struct step *s, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    int left = 0;
    if (!s->draws) return e->device->ops->sync(e->device, err);
    if (s->member->tokens >= 0) status = read_tokens(e, s, err);
    for (int i = 0; i < s->draws; i++) left += !e->draws[i].done;
    if (status == PLIM_OK && left) status = read_logits(e, s, err);
    if (status == PLIM_OK && left) drawer_run(&e->drawer, e->draws, s->draws);
    return status;
}

/* --- tokens ----------------------------------------------------------------------------------------------- */

static bool is_end(const struct model_spec *spec, int32_t token)
{
    for (int i = 0; i < spec->eos_count; i++)
        if (spec->eos_token_ids[i] == token) return true;
    return false;
}

static bool tell(const struct engine *e, struct request *r, const struct draw *d, int32_t token,
                 enum engine_finish finish)
{
    struct engine_event event = {
        .token = token, .finish = finish, .logprob = d->logprob, .ntop = d->ntop, .top = d->top};
    fill_event(r, e->now, &event);
    return !r->ask.hear || r->ask.hear(r->ask.arg, &event);
}

/* A token of the prompt; the first has nothing before it to be likely after. */
static void tell_prompt(struct engine *e, struct request *r, const struct draw *d)
{
    static const struct draw first = {.logprob = NAN};
    bool go_on = true;
    if (r->told == 0) go_on = tell(e, r, &first, r->tokens[0], FINISH_NONE), r->told = 1;
    if (go_on) go_on = tell(e, r, d, d->token, FINISH_NONE), r->told++;
    if (go_on) return;
    pthread_mutex_lock(&e->lock);
    r->cancelled = e->cancels = true;
    pthread_mutex_unlock(&e->lock);
}

bool engine_answer(struct engine *e, struct request *r, const struct draw *d)
{
    struct engine_event end = {.token = -1, .finish = FINISH_EOS};
    bool ends = !r->ask.ignore_eos && is_end(&e->spec, d->token);
    if (!r->made) r->answered = e->now;
    if (ends) return engine_finish(e, r, &end), false;
    r->tokens[r->sequence.known++] = d->token;
    r->made++, e->fresh_tokens++;
    if (r->made == r->ask.tokens) {
        end = (struct engine_event){.token = d->token,
                                    .finish = FINISH_LENGTH,
                                    .logprob = d->logprob,
                                    .ntop = d->ntop,
                                    .top = d->top};
        return engine_finish(e, r, &end), false;
    }
    if (tell(e, r, d, d->token, FINISH_NONE)) return true;
    return engine_finish_cancelled(e, r), false;
}

static void tell_all(struct engine *e, const struct step *s)
{
    for (int i = 0; i < s->draws; i++) {
        struct request *r = e->drawn[i];
        const struct draw *d = &e->draws[i];
        if (d->given >= 0)
            tell_prompt(e, r, d);
        else
            engine_answer(e, r, d);
    }
}

/* Requests that were cancelled, from outside or by whoever hears them. */
static void sweep(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->cancels = false;
    pthread_mutex_unlock(&e->lock);
    for (int i = e->schedule.count - 1; i >= 0; i--) {
        struct request *r = request_of(e->schedule.queue[i]);
        if (engine_is_cancelled(e, r)) engine_finish_cancelled(e, r);
    }
}

/* Under the lock. */
static void count_up(struct engine *e, const struct step *s)
{
    for (int r = 0; r < s->rows; r++) {
        struct request *q = request_of(e->rows[r].sequence);
        int64_t before = e->rows[r].first, prompt = q->ask.count - before;
        if (prompt > 0 && !(e->options.window && q->seen))
            e->stats.prompt_tokens += prompt < e->rows[r].count ? prompt : e->rows[r].count;
        if (q->seen) continue;
        q->seen = true, q->started = clock_seconds();
        e->stats.shared_tokens += q->sequence.shared;
    }
    e->stats.steps++;
}

/* Statistics, before a step (NULL: none comes) and after one with which requests have ended. */
static void note(struct engine *e, const struct step *s)
{
    int running = 0;
    for (int i = 0; i < e->schedule.count; i++) running += e->schedule.queue[i]->running;
    pthread_mutex_lock(&e->lock);
    if (s) count_up(e, s);
    e->stats.generated_tokens += e->fresh_tokens, e->fresh_tokens = 0;
    e->stats.running = running;
    e->stats.waiting = (int)e->live_count - running;
    e->stats.blocks = e->blocks.count, e->stats.blocks_used = e->blocks.count - blocks_left(&e->blocks);
    e->stats.blocks_shared = e->blocks.shared, e->stats.preemptions = e->schedule.preemptions;
    e->stats.budget = e->plan.budget;
    e->stats.used = (int64_t)ledger_current(e->device->ledger[TIER_DEVICE]);
    pthread_mutex_unlock(&e->lock);
}

enum plim_status engine_readmit(struct engine *e, struct plim_error *err)
{
    char why[160];
    enum plim_status status = take_in(e, err);
    for (int i = e->schedule.count - 1; i >= 0; i--) {
        struct request *r = request_of(e->schedule.queue[i]);
        if (r->ask.count + r->ask.tokens - 1 <= e->plan.context &&
            !(e->options.window && r->ask.prompt_logprobs))
            continue;
        snprintf(
            why, sizeof why,
            "the device failed; what is left of the server takes %lld positions, this request may need %lld",
            (long long)e->plan.context, (long long)(r->ask.count + r->ask.tokens - 1));
        engine_finish(e, r, &(struct engine_event){.token = -1, .finish = FINISH_FAILED, .why = why});
    }
    note(e, NULL);
    return status;
}

enum plim_status engine_take_line(struct engine *e, struct plim_error *err)
{
    pthread_mutex_lock(&e->lock);
    bool moved = e->budget_moved;
    int64_t had = e->options.budget;
    e->budget_moved = false;
    if (moved) e->options.budget = e->wanted_budget;
    pthread_mutex_unlock(&e->lock);
    if (!moved) return PLIM_OK;
    enum plim_status status = e->kind->move(e, err);
    if (status == PLIM_OK) return PLIM_OK;
    pthread_mutex_lock(&e->lock);
    e->options.budget = had;
    pthread_mutex_unlock(&e->lock);
    return status;
}

/* Has anybody outside done something since the last step? One look tells, for it is asked between any two of them. */
static bool has_news(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    bool news = e->incoming || e->cancels || e->budget_moved;
    pthread_mutex_unlock(&e->lock);
    return news;
}

static enum plim_status take_news(struct engine *e, struct plim_error *err)
{
    enum plim_status status = engine_take_line(e, err);
    if (status == PLIM_OK) status = take_in(e, err);
    if (status == PLIM_OK) sweep(e);
    return status;
}

enum plim_status engine_step_decoder(struct engine *e, struct plim_error *err)
{
    struct step s = {0};
    enum plim_status status = has_news(e) ? take_news(e, err) : PLIM_OK;
    if (status != PLIM_OK) return status;
    s.rows = schedule_step(&e->schedule, e->rows);
    if (!s.rows) return note(e, NULL), PLIM_OK;
    count_step(e, &s);
    note(e, &s);
    status = run_pass(e, &s, err);
    if (status == PLIM_OK) status = draw_tokens(e, &s, err);
    if (status != PLIM_OK) return status;
    int before = e->schedule.count;
    e->now = clock_seconds();
    schedule_done(&e->schedule, e->rows, s.rows);
    tell_all(e, &s);
    if (e->schedule.count != before) note(e, NULL);
    return PLIM_OK;
}
