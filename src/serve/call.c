/* call.c - see call.h. Life and events of a call; call_text.c makes text of them. */
#include "serve/call.h"
#include "base/clock.h"
#include "net/http_answers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tokens that may wait for a client which does not read; a stream beyond it is cut off. */
enum { BACKLOG = 65536 };
/* Without a stream nobody is waiting for single tokens: the front is woken for so many at once. */
enum { BATCH = 64 };

static struct call *call_new(struct server *s, struct http_exchange *x, const struct call_form *form)
{
    struct call *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->server = s, c->exchange = x, c->form = form, c->holders = 1;
    c->began = clock_seconds(), c->created = (int64_t)clock_wall();
    pthread_mutex_init(&c->lock, NULL);
    snprintf(c->id, sizeof c->id, "%s-%016llx", form->prefix, (unsigned long long)server_number(s));
    LOCKED(&s->lock);
    c->after = s->calls;
    if (s->calls) s->calls->before = c;
    s->calls = c;
    return c;
}

static void choice_release(struct choice *ch)
{
    token_text_release(&ch->decoder);
    token_text_release(&ch->echo.decoder);
    stop_text_release(&ch->stop);
    strbuf_release(&ch->text);
    free(ch->vector);
    free(ch->events);
    free(ch->event_tops);
    free(ch->marks);
    free(ch->tops);
}

static void call_free(struct call *c)
{
    struct server *s = c->server;
    pthread_mutex_lock(&s->lock);
    s->answers -= c->reserved;
    *(c->before ? &c->before->after : &s->calls) = c->after;
    if (c->after) c->after->before = c->before;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < c->count; i++) choice_release(&c->choices[i]);
    for (int i = 0; i < c->prompt_count; i++) {
        token_list_release(&c->prompts[i].ids);
        strbuf_release(&c->prompts[i].text);
    }
    free(c->choices);
    free(c->prompts);
    strbuf_release(&c->piece);
    strbuf_release(&c->head);
    strbuf_release(&c->stops);
    label_job_free(c->labels);
    doc_free(c->doc);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* The exchange lets go: what still runs is cancelled, and the engine's last event of it frees the call. */
static void let_go(struct call *c)
{
    struct engine *engine = c->server->model.engine;
    for (int i = 0; i < c->count; i++) {
        struct choice *ch = &c->choices[i];
        pthread_mutex_lock(&c->lock);
        c->exchange = NULL;
        bool runs = ch->submitted && !ch->heard_end;
        pthread_mutex_unlock(&c->lock);
        if (runs) engine_cancel(engine, ch->id);
    }
    pthread_mutex_lock(&c->lock);
    c->exchange = NULL;
    bool last = --c->holders == 0;
    pthread_mutex_unlock(&c->lock);
    if (last) call_free(c);
}

static void call_refuse(struct call *c, const struct refusal *why)
{
    reply_refusal(c->server, c->exchange, why);
    http_set_user(c->exchange, NULL);
    let_go(c);
}

void call_end(struct call *c)
{
    for (int i = 0; i < c->count; i++)
        if (c->choices[i].end == CHOICE_RUNS) metrics_ended(&c->server->metrics, END_ABORT);
    let_go(c);
}

/* --- the engine's thread ------------------------------------------------------------------------------------ */

bool call_room(void *array, size_t count, size_t more, size_t *cap, size_t size)
{
    void *items;
    if (count + more <= *cap) return true;
    size_t want = *cap * 2 > count + more ? *cap * 2 : count + more + 16;
    memcpy(&items, array, sizeof items); /* a pointer to any type: read and written as bytes */
    if (!(items = realloc(items, want * size))) return false;
    memcpy(array, &items, sizeof items);
    *cap = want;
    return true;
}

static bool wants_prompt(const struct call *c) { return c->ask.echo && c->ask.logprobs >= 0; }

static bool put_down(struct choice *ch, const struct engine_event *e)
{
    size_t ntop = e->ntop > ENGINE_LOGPROBS ? ENGINE_LOGPROBS : e->ntop > 0 ? (size_t)e->ntop : 0;
    if (!call_room(&ch->events, ch->count, 1, &ch->cap, sizeof *ch->events)) return false;
    if (!call_room(&ch->event_tops, ch->event_top_count, ntop, &ch->event_top_cap, sizeof *ch->event_tops))
        return false;
    if (ntop) memcpy(ch->event_tops + ch->event_top_count, e->top, ntop * sizeof *e->top);
    ch->event_top_count += ntop;
    ch->events[ch->count++] = (struct call_event){.token = e->token,
                                                  .logprob = e->logprob,
                                                  .ntop = (int)ntop,
                                                  .prompt = wants_prompt(ch->call) && !e->tokens,
                                                  .shared = e->shared_tokens,
                                                  .finish = e->finish,
                                                  .when = clock_seconds()};
    return true;
}

static bool keep_vector(struct choice *ch, const float *vector)
{
    const struct engine_plan *plan = engine_plan(ch->call->server->model.engine);
    int64_t times = plan->per_token ? ch->call->prompts[ch->prompt].count : 1;
    size_t bytes = (size_t)(plan->width * times) * sizeof *vector;
    ch->vector = malloc(bytes);
    if (ch->vector) memcpy(ch->vector, vector, bytes);
    return ch->vector;
}

static void note_end(struct choice *ch, const struct engine_event *e)
{
    struct metrics *m = &ch->call->server->metrics;
    ch->heard_end = true;
    metrics_observe(m, METRIC_QUEUE, e->queue_seconds);
    metrics_observe(m, METRIC_PREFILL, e->prefill_seconds);
    metrics_observe(m, METRIC_DECODE, e->decode_seconds);
    metrics_observe(m, METRIC_PROMPT_TOKENS, (double)e->prompt_tokens);
    snprintf(ch->why, sizeof ch->why, "%s", e->why ? e->why : "");
}

/* The lock is held. */
static void wake_later(struct call *c)
{
    if (c->waking) return;
    c->waking = true, c->holders++;
    c->wakes_next = c->server->waking, c->server->waking = c;
}

void call_wake_all(void *server)
{
    struct server *s = server;
    while (s->waking) {
        struct call *c = s->waking;
        s->waking = c->wakes_next;
        pthread_mutex_lock(&c->lock);
        c->waking = false;
        if (c->exchange) http_wake(c->exchange);
        bool last = --c->holders == 0;
        pthread_mutex_unlock(&c->lock);
        if (last) call_free(c);
    }
}

static bool hear(void *arg, const struct engine_event *e)
{
    struct choice *ch = arg;
    struct call *c = ch->call;
    bool end = e->finish != FINISH_NONE;
    pthread_mutex_lock(&c->lock);
    bool wanted = c->exchange && !ch->overrun;
    if (wanted && (!put_down(ch, e) || (c->streams && ch->count - ch->taken > BACKLOG)))
        ch->overrun = true, wanted = false;
    if (wanted && e->vector && !keep_vector(ch, e->vector)) ch->overrun = true;
    if (end) note_end(ch, e);
    bool wake = c->streams || c->ask.stops || ch->count - ch->taken >= BATCH;
    if (c->exchange && (end || !wanted))
        http_wake(c->exchange);
    else if (c->exchange && wake)
        wake_later(c);
    bool last = end && --c->holders == 0;
    pthread_mutex_unlock(&c->lock);
    if (last) call_free(c);
    return wanted;
}

static void fail_call(struct call *c, const char *why)
{
    struct engine_event event = {.token = -1, .finish = FINISH_FAILED};
    LOCKED(&c->lock);
    for (int i = 0; i < c->count && c->exchange; i++) {
        struct choice *ch = &c->choices[i];
        if (!ch->submitted || ch->heard_end) continue;
        snprintf(ch->why, sizeof ch->why, "%s", why);
        if (!put_down(ch, &event)) ch->overrun = true;
    }
    if (c->exchange) http_wake(c->exchange);
}

void call_fail_all(struct server *s, const char *why)
{
    LOCKED(&s->lock);
    for (struct call *c = s->calls; c; c = c->after) fail_call(c, why);
}

/* --- starting ----------------------------------------------------------------------------------------------- */

bool call_take_bytes(struct call *c, int64_t bytes, struct refusal *why)
{
    struct server *s = c->server;
    int64_t most = s->options.answer_bytes;
    if (c->reserved + bytes > most)
        return refuse(
            why, 400, NULL, "answer_too_large",
            "the answer may take %lld bytes, and answers have %lld: ask for fewer tokens, choices or "
            "log-probabilities",
            (long long)(c->reserved + bytes), (long long)most);
    pthread_mutex_lock(&s->lock);
    bool fits = s->answers + bytes <= most;
    if (fits) s->answers += bytes, c->reserved += bytes;
    pthread_mutex_unlock(&s->lock);
    return fits || refuse(why, 429, NULL, "answers_full",
                          "running requests may fill %lld bytes; try again later", (long long)most);
}

/* A choice, and the tokens of a prompt as far as they are few: those of long ones are counted with the text. What turns tokens
 * into text is there where text is made. */
enum { CHOICE_BYTES = sizeof(struct choice) + 256, DECODER_BYTES = 1024 };

bool call_take_prompts(struct call *c, int64_t count, struct refusal *why)
{
    struct engine_plan plan = engine_plan_now(c->server->model.engine);
    int64_t choices = count * c->ask.n, most = plan.parallel + plan.queue;
    int64_t of_form = c->form->most ? c->form->most : ASK_CHOICES;
    if (most > of_form) most = of_form;
    if (choices > most)
        return refuse(why, 422,
                      c->ask.n > 1 ? "n"
                      : plan.width ? "input"
                                   : "prompt",
                      "invalid_value", "%lld answers at once are more than the %lld that this server takes",
                      (long long)choices, (long long)most);
    return call_take_bytes(c, choices * (CHOICE_BYTES + (plan.width ? 0 : DECODER_BYTES)), why);
}

bool call_add_prompt(struct call *c, struct token_list *ids, struct refusal *why)
{
    if (c->prompt_tokens + (int64_t)ids->count > c->server->options.limits.body_bytes)
        return refuse(why, 400, NULL, "context_length_exceeded", "all prompts together have too many tokens");
    struct call_prompt *more = realloc(c->prompts, (size_t)(c->prompt_count + 1) * sizeof *more);
    if (!more) {
        token_list_release(ids);
        return refuse(why, 503, NULL, "out_of_memory", "out of memory for %d prompts", c->prompt_count + 1);
    }
    c->prompts = more;
    more[c->prompt_count++] =
        (struct call_prompt){.ids = *ids, .count = (int64_t)ids->count, .text = STRBUF_INIT};
    c->prompt_tokens += (int64_t)ids->count;
    *ids = (struct token_list){0};
    return true;
}

/* Tokens of the answer that prompt and context leave; the numbers when they are too few. */
static bool count_tokens(const struct call *c, const struct call_prompt *p, int64_t *tokens,
                         struct refusal *why)
{
    struct engine_plan plan = engine_plan_now(c->server->model.engine);
    int64_t count = (int64_t)p->ids.count, room = engine_answer_room(&plan, count),
            wanted = c->ask.max_tokens;
    if (!count) return refuse(why, 422, "prompt", "invalid_value", "the prompt has no tokens");
    if (plan.width) wanted = 0;
    if (wanted < 0) wanted = room <= 0 ? 1 : room < c->tokens_most ? room : c->tokens_most;
    *tokens = wanted > 0 ? wanted : !plan.width; /* the engine draws one even where none is wanted */
    if (wanted <= room) return true;
    if (plan.width)
        return refuse(why, 400, "input", "context_length_exceeded",
                      "this server's context is %lld tokens; a text of the input has %lld: %lld too many",
                      (long long)plan.context, (long long)count, (long long)(count - plan.context));
    if (plan.answer)
        return refuse(
            why, 400, "max_tokens", "context_length_exceeded",
            "this server takes a prompt of %lld tokens and an answer of %lld; the prompt has %lld and "
            "the answer may have %lld",
            (long long)plan.context, (long long)plan.answer, (long long)count, (long long)wanted);
    return refuse(
        why, 400, c->ask.max_tokens < 0 ? "messages" : "max_tokens", "context_length_exceeded",
        "this server's context is %lld tokens; the prompt has %lld and the answer may have %lld: %lld "
        "too many",
        (long long)plan.context, (long long)count, (long long)wanted, (long long)(wanted - room));
}

static bool make_choices(struct call *c, struct refusal *why)
{
    int64_t count = c->prompt_count * c->ask.n;
    c->choices = calloc((size_t)count, sizeof *c->choices);
    if (!c->choices)
        return refuse(why, 503, NULL, "out_of_memory", "out of memory for %lld answers", (long long)count);
    for (int i = 0; i < (int)count; i++, c->count++) {
        struct choice *ch = &c->choices[i];
        *ch = (struct choice){.call = c, .index = i, .prompt = i / (int)c->ask.n};
        ch->stop = (struct stop_text){.strings = c->ask.stop, .count = c->ask.stops};
        token_text_init(&ch->decoder, c->server->model.codec);
        token_text_init(&ch->echo.decoder, c->server->model.codec);
        ch->echo.decoder.special = c->prompts[ch->prompt].listed;
    }
    return true;
}

/* Bytes per token of an answer: its event, and its text twice, once as JSON. With logprobs, also a mark, the
 * alternatives and their JSON. A stream holds text and JSON of only a few tokens at a time. */
enum {
    MARK_BYTES = sizeof(struct mark),
    TOP_BYTES = 2 * sizeof(struct engine_logprob),
    JSON_BYTES = 128,
    ANSWER_BYTES = 1024, /* around the texts */
    NUMBER_BYTES = 40    /* of a vector: itself and its JSON */
};

static bool has_marks(const struct call *c) { return c->ask.logprobs >= 0 || c->form->marks; }
static int64_t tops(const struct call *c) { return c->ask.logprobs > 0 ? c->ask.logprobs : 0; }
static int64_t json_bytes(const struct call *c) { return has_marks(c) ? (1 + tops(c)) * JSON_BYTES : 0; }

static int64_t text_bytes(const struct call *c) { return 2 * (int64_t)c->server->piece_most; }
static bool drops_text(const struct call *c) { return c->ask.stream && !c->form->ends_with_all; }

static int64_t token_bytes(const struct call *c)
{
    int64_t bytes = (int64_t)sizeof(struct call_event);
    if (!drops_text(c)) bytes += text_bytes(c);
    if (!has_marks(c)) return bytes;
    return bytes + MARK_BYTES + tops(c) * TOP_BYTES + (c->ask.stream ? 0 : json_bytes(c));
}

/* Bytes per choice apart from its tokens: the echo of its prompt, twice, and for a stream the part that is sent at
 * once. */
static int64_t choice_bytes(const struct call *c, const struct call_prompt *p)
{
    int64_t at_once = c->ask.stream ? CALL_EVENTS * json_bytes(c) : 0;
    if (drops_text(c)) at_once += CALL_EVENTS * text_bytes(c);
    return ANSWER_BYTES + 2 * (int64_t)p->text.len + at_once;
}

/* Tokens that an answer may have where nobody says how many: what the memory for answers leaves, for all alike. */
static int64_t tokens_left(const struct call *c)
{
    int64_t left = c->server->options.answer_bytes - c->reserved, each = token_bytes(c);
    for (int i = 0; i < c->prompt_count; i++) {
        const struct call_prompt *p = &c->prompts[i];
        left -= c->ask.n * choice_bytes(c, p);
        if (wants_prompt(c)) left -= c->ask.n * (int64_t)p->ids.count * each;
    }
    left /= each * c->ask.n * c->prompt_count;
    return left > 1 ? left : 1;
}

/* All that the answers may come to, counted before anything is queued. */
static bool reserve(struct call *c, struct refusal *why)
{
    struct server *s = c->server;
    struct engine_plan plan = engine_plan_now(s->model.engine);
    int64_t each = token_bytes(c), bytes = 0;
    c->tokens_most = tokens_left(c);
    for (int i = 0; i < c->prompt_count; i++) {
        const struct call_prompt *p = &c->prompts[i];
        int64_t tokens;
        if (!count_tokens(c, p, &tokens, why)) return false;
        if (wants_prompt(c)) tokens += (int64_t)p->ids.count;
        bytes += c->form->bytes ? c->form->bytes(c, p)
                 : plan.width   ? plan.width * NUMBER_BYTES
                                : (tokens * each + choice_bytes(c, p)) * c->ask.n;
    }
    return call_take_bytes(c, bytes, why);
}

static bool submit(struct call *c, struct choice *ch, uint64_t seed, struct refusal *why)
{
    struct call_prompt *p = &c->prompts[ch->prompt];
    struct plim_error err = {0};
    struct engine_request r = {
        .prompt = p->ids.id, .count = (int64_t)p->ids.count, .second = p->second, .hear = hear, .arg = ch};
    if (!count_tokens(c, p, &r.tokens, why)) return false;
    ch->text_most = (size_t)r.tokens * c->server->piece_most + ANSWER_BYTES / 2;
    /* The answer of an encoder-decoder is a text of its own. */
    struct engine_plan plan = engine_plan_now(c->server->model.engine);
    bool follows = !plan.answer && !plan.width;
    if (follows && token_text_follow(&ch->decoder, p->ids.id, p->ids.count, &err) != PLIM_OK)
        return refuse_error(why, "prompt", &err);
    r.sampling = ask_sampling(&c->ask, seed);
    r.sampling.seed += (uint64_t)(ch->index % (int)c->ask.n);
    r.logprobs = (int)c->ask.logprobs;
    r.prompt_logprobs = wants_prompt(c);
    r.ignore_eos = c->ask.ignore_eos;
    r.adapter = *c->adapter ? c->adapter : NULL;
    pthread_mutex_lock(&c->lock);
    c->holders++, ch->submitted = true; /* before the engine can have ended it, or all of them failed */
    pthread_mutex_unlock(&c->lock);
    int64_t id = 0;
    enum plim_status status = engine_submit(c->server->model.engine, &r, &id, &err);
    pthread_mutex_lock(&c->lock);
    ch->id = id;
    if (status != PLIM_OK) c->holders--, ch->submitted = false;
    pthread_mutex_unlock(&c->lock);
    if (status == PLIM_BUSY && server_is_draining(c->server, why)) return false;
    return status == PLIM_OK || refuse_error(why, status == PLIM_NO_FIT ? "max_tokens" : NULL, &err);
}

static void echo_prompts(struct call *c)
{
    for (int i = 0; i < c->count && c->ask.echo; i++) {
        const struct strbuf *text = &c->prompts[c->choices[i].prompt].text;
        strbuf_addn(&c->choices[i].text, strbuf_text(text), text->len);
        c->choices[i].echoed = text->len;
        c->choices[i].place = token_place_behind(strbuf_text(text), text->len);
    }
}

/* Copies the parts of the body that are still needed, so that its tree can be freed. */
static bool leave_body(struct call *c, struct refusal *why)
{
    for (int i = 0; i < c->ask.stops; i++) strbuf_addn(&c->stops, c->ask.stop[i].text, c->ask.stop[i].len);
    if (c->ask.model && strcmp(c->ask.model, c->server->model.name))
        snprintf(c->adapter, sizeof c->adapter, "%s", c->ask.model);
    if (c->stops.failed) return refuse(why, 503, NULL, "out_of_memory", "out of memory for stop strings");
    const char *at = strbuf_text(&c->stops);
    for (int i = 0; i < c->ask.stops; i++) c->ask.stop[i].text = at, at += c->ask.stop[i].len;
    doc_free(c->doc);
    c->doc = NULL, c->ask.model = NULL, c->ask.input = c->ask.variables = c->ask.parameters = NULL;
    http_drop_body(c->exchange);
    return true;
}

static bool call_start(struct call *c, struct refusal *why)
{
    uint64_t seed = server_number(c->server);
    if (!leave_body(c, why) || !reserve(c, why) || !make_choices(c, why)) return false;
    c->streams = c->ask.stream;
    echo_prompts(c);
    for (int i = 0; i < c->count; i++)
        if (!submit(c, &c->choices[i], seed, why)) return false;
    for (int i = 0; i < c->prompt_count; i++) token_list_release(&c->prompts[i].ids);
    http_set_user(c->exchange, c);
    if (!c->streams) return true;
    http_set_header(c->exchange, "Cache-Control", "no-cache");
    http_set_header(c->exchange, "X-Accel-Buffering", "no");
    http_stream_begin(c->exchange, 200, SSE_TYPE);
    if (c->form->open) c->form->open(c, http_stream(c->exchange));
    return true;
}

int64_t call_answer_tokens(const struct call *c)
{
    int64_t n = 0;
    for (int i = 0; i < c->count; i++) n += c->choices[i].tokens;
    return n;
}

int64_t call_shared_tokens(const struct call *c)
{
    int64_t n = 0;
    for (int i = 0; i < c->count; i += (int)c->ask.n) n += c->choices[i].shared;
    return n;
}

void call_answer(struct server *s, struct http_exchange *x, const struct call_form *form)
{
    struct refusal why = {.status = 503, .message = "out of memory"};
    struct call *c = call_new(s, x, form);
    if (!c) return reply_refusal(s, x, &why);
    bool asked = !form->ask || body_ask(s, x, form->ask, &c->doc, &c->ask, &why);
    if (!asked || !form->read(c, &why) || !call_start(c, &why)) call_refuse(c, &why);
}
