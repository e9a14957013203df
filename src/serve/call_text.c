/* call_text.c - tokens that were put down become text, up to a stop string or the end. See call.h. */
#include "serve/call.h"
#include "base/clock.h"
#include "net/http_answers.h"

#include <stdlib.h>
#include <string.h>

static void finish(struct choice *ch, enum choice_end end)
{
    static const enum metric_end ends[] = {
        [CHOICE_LENGTH] = END_LENGTH, [CHOICE_EOS] = END_STOP,        [CHOICE_STOP] = END_STOP,
        [CHOICE_FAILED] = END_FAILED, [CHOICE_CANCELLED] = END_ABORT, [CHOICE_RUNS] = END_ABORT};
    struct metrics *m = &ch->call->server->metrics;
    ch->end = end;
    metrics_ended(m, ends[end]);
    metrics_observe(m, METRIC_E2E, clock_seconds() - ch->call->began);
    metrics_observe(m, METRIC_ANSWER_TOKENS, (double)ch->tokens);
}

/* Finished by us before the engine has: it need not go on. */
static void finish_early(struct choice *ch, enum choice_end end)
{
    finish(ch, end);
    engine_cancel(ch->call->server->model.engine, ch->id);
}

static bool echo_goes_on(const struct choice *ch, const char *text, size_t len)
{
    const struct strbuf *echoed = &ch->call->prompts[ch->prompt].text;
    size_t at = ch->echo.bytes;
    return at <= echoed->len && echoed->len - at >= len && !memcmp(strbuf_text(echoed) + at, text, len);
}

/* A prompt's text is echoed as it came. A special token is part of it where it was written there, not where the tokenizer
 * put it; the blank that some tokenizers put behind one is not. `came`: what was decoded of the token. */
static void follow_echo(struct choice *ch, int32_t token, const struct strbuf *came)
{
    struct prompt_place *p = &ch->echo;
    const struct tokenizer *tok = ch->call->server->model.codec->tokenizer;
    bool special = tok && tokenizer_is_special(tok, token), first = p->after_mark;
    size_t len = 0;
    p->after_mark = special;
    if (special) {
        const char *text = tokenizer_text(tok, token, &len);
        if (!echo_goes_on(ch, text, len)) return;
        size_t characters = token_place_behind(text, len).made;
        p->bytes += len, p->place.made += characters, p->place.begun += characters;
    } else if (first && came->len && *came->data == ' ' && !echo_goes_on(ch, " ", 1)) {
        p->bytes += came->len - 1, p->place.made--, p->place.begun--;
    } else {
        p->bytes += came->len;
    }
}

/* A token of the prompt: they come before any of the answer, while all of the echoed text is there already. */
static bool add_prompt_token(struct choice *ch, int32_t token, size_t *at)
{
    struct call *c = ch->call;
    struct prompt_place *p = &ch->echo;
    strbuf_clear(&c->piece);
    if (token_place_add(&p->place, &p->decoder, token, &c->piece, at, NULL) != PLIM_OK) return false;
    if (!p->decoder.special) follow_echo(ch, token, &c->piece);
    if (*at > ch->place.made) *at = ch->place.made;
    return true;
}

static bool add_mark(struct choice *ch, const struct call_event *e, const struct engine_logprob *top,
                     size_t offset)
{
    struct call *c = ch->call;
    size_t ntop = (size_t)e->ntop;
    if (c->ask.logprobs < 0 && !c->form->marks) return true;
    if (!call_room(&ch->marks, ch->mark_count, 1, &ch->mark_cap, sizeof *ch->marks) ||
        !call_room(&ch->tops, ch->top_count, ntop, &ch->top_cap, sizeof *ch->tops))
        return false;
    if (ntop) memcpy(ch->tops + ch->top_count, top, ntop * sizeof *top);
    ch->marks[ch->mark_count++] = (struct mark){.token = e->token,
                                                .logprob = e->logprob,
                                                .prompt = e->prompt,
                                                .offset = offset,
                                                .ntop = e->ntop,
                                                .top = (int)ch->top_count};
    ch->top_count += ntop;
    return true;
}

static void note_time(struct choice *ch, double when)
{
    struct metrics *m = &ch->call->server->metrics;
    if (!ch->tokens)
        metrics_observe(m, METRIC_FIRST_TOKEN, when - ch->call->began);
    else
        metrics_observe(m, METRIC_INTER_TOKEN, when - ch->last);
    ch->last = when;
}

/* Bytes that a text in JSON has beside its own, at most. */
static size_t escapes(const char *text, size_t len)
{
    size_t more = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)text[i];
        more += byte < ' ' || byte == 0x7f ? 5 : byte == '"' || byte == '\\';
    }
    return more;
}

static void add_token(struct choice *ch, const struct call_event *e, const struct engine_logprob *top)
{
    struct call *c = ch->call;
    const struct codec *codec = c->server->model.codec;
    if (!e->prompt && !c->ask.max_tokens) return; /* only the prompt was asked for */
    if (!e->prompt && codec->eos >= 0 && e->token == codec->eos && !c->ask.ignore_eos)
        return finish_early(ch, CHOICE_EOS);
    size_t at = 0;
    strbuf_clear(&c->piece);
    bool good = e->prompt
                    ? add_prompt_token(ch, e->token, &at)
                    : token_place_add(&ch->place, &ch->decoder, e->token, &c->piece, &at, NULL) == PLIM_OK;
    if (!good || !add_mark(ch, e, top, at)) return finish_early(ch, CHOICE_FAILED);
    if (e->prompt) return;
    note_time(ch, e->when);
    ch->tokens++;
    ch->escapes += escapes(strbuf_text(&c->piece), c->piece.len);
    if (ch->dropped + ch->text.len - ch->echoed + c->piece.len + ch->escapes > ch->text_most)
        return finish_early(ch, CHOICE_LENGTH);
    if (stop_text_add(&ch->stop, strbuf_text(&c->piece), c->piece.len, &ch->text) >= 0)
        finish_early(ch, CHOICE_STOP);
}

/* Adds the text that was still uncertain; it may complete a stop string. */
static enum choice_end add_rest(struct choice *ch, enum choice_end end)
{
    struct call *c = ch->call;
    strbuf_clear(&c->piece);
    token_text_end(&ch->decoder, &c->piece, NULL);
    if (stop_text_add(&ch->stop, strbuf_text(&c->piece), c->piece.len, &ch->text) >= 0) return CHOICE_STOP;
    stop_text_end(&ch->stop, &ch->text);
    return end;
}

static void hear_end(struct choice *ch, enum engine_finish how)
{
    static const enum choice_end ends[] = {[FINISH_NONE] = CHOICE_RUNS,
                                           [FINISH_LENGTH] = CHOICE_LENGTH,
                                           [FINISH_EOS] = CHOICE_EOS,
                                           [FINISH_CANCELLED] = CHOICE_CANCELLED,
                                           [FINISH_FAILED] = CHOICE_FAILED};
    enum choice_end end = ends[how];
    if (end == CHOICE_EOS && !ch->call->ask.max_tokens)
        end = CHOICE_LENGTH; /* of a token that nobody wanted */
    if (ch->end == CHOICE_RUNS) finish(ch, add_rest(ch, end));
}

static void read_event(struct choice *ch, const struct call_event *e, const struct engine_logprob *top)
{
    ch->shared = e->shared;
    if (ch->end == CHOICE_RUNS && e->token >= 0 && e->finish != FINISH_EOS) add_token(ch, e, top);
    if (e->finish != FINISH_NONE) hear_end(ch, e->finish);
}

enum { EVENTS = CALL_EVENTS };

/* Drops events that were read, but only now and then, so that the cost stays proportional to the events. */
static void forget_read(struct choice *ch)
{
    if (ch->taken < ch->count && ch->taken < EVENTS * EVENTS) return;
    ch->count -= ch->taken, ch->event_top_count -= ch->tops_taken;
    if (ch->count) memmove(ch->events, ch->events + ch->taken, ch->count * sizeof *ch->events);
    if (ch->event_top_count)
        memmove(ch->event_tops, ch->event_tops + ch->tops_taken,
                ch->event_top_count * sizeof *ch->event_tops);
    ch->taken = ch->tops_taken = 0;
}

/* Some of the events that wait, copied so that the engine does not; true: there are more. */
static bool read_events(struct choice *ch)
{
    struct call *c = ch->call;
    struct call_event events[EVENTS];
    struct engine_logprob tops[EVENTS * ENGINE_LOGPROBS];
    size_t n = 0, ntop = 0;
    pthread_mutex_lock(&c->lock);
    for (; n < EVENTS && ch->taken < ch->count; n++, ch->taken++) {
        events[n] = ch->events[ch->taken];
        for (int i = 0; i < events[n].ntop; i++) tops[ntop++] = ch->event_tops[ch->tops_taken++];
    }
    forget_read(ch);
    bool overrun = ch->overrun, left = ch->taken < ch->count;
    pthread_mutex_unlock(&c->lock);
    const struct engine_logprob *top = tops;
    for (size_t i = 0; i < n; top += events[i].ntop, i++) read_event(ch, &events[i], top);
    if (overrun && !left && ch->end == CHOICE_RUNS) finish_early(ch, CHOICE_FAILED);
    return left;
}

static bool has_news(const struct choice *ch)
{
    return ch->text.len > ch->told || ch->mark_count > ch->marks_told ||
           (ch->end != CHOICE_RUNS && !ch->end_told);
}

/* Why a request that the engine gave up is not answered. */
static bool broken(struct call *c, struct refusal *why)
{
    for (int i = 0; i < c->count; i++) {
        struct choice *ch = &c->choices[i];
        if (ch->end == CHOICE_CANCELLED)
            return refuse(why, 503, NULL, "shutting_down", "the server is shutting down"), true;
        if (ch->end != CHOICE_FAILED) continue;
        pthread_mutex_lock(&c->lock);
        refuse(why, 500, NULL, "engine_failed", "%s",
               ch->why[0]    ? ch->why
               : ch->overrun ? "the client reads too slowly"
                             : "the answer could not be made");
        pthread_mutex_unlock(&c->lock);
        return true;
    }
    return false;
}

static void stream(struct call *c, bool over)
{
    struct strbuf *out = http_stream(c->exchange);
    struct refusal why = {0};
    for (int i = 0; i < c->count; i++) {
        struct choice *ch = &c->choices[i];
        bool failed = ch->end == CHOICE_FAILED || ch->end == CHOICE_CANCELLED;
        if (!failed && has_news(ch)) c->form->piece(c, ch, out);
        ch->told = ch->text.len, ch->marks_told = ch->mark_count;
        if (!c->form->ends_with_all) ch->dropped += ch->told, ch->told = 0, strbuf_clear(&ch->text);
        if (ch->end != CHOICE_RUNS) ch->end_told = true;
    }
    if (!over) return;
    bool fails = broken(c, &why);
    if (fails) {
        strbuf_clear(&c->piece);
        refusal_write(&why, &c->piece);
        sse_event(out, strbuf_text(&c->piece), c->piece.len);
    } else {
        c->form->close(c, out);
    }
    http_stream_end(c->exchange, fails);
}

void call_more(struct call *c)
{
    bool over = true;
    for (int i = 0; i < c->count; i++) {
        bool left;
        do left = read_events(&c->choices[i]);
        while (left && !c->streams);
        if (left) http_wake(c->exchange); /* when these were sent */
    }
    for (int i = 0; i < c->count; i++) over = over && c->choices[i].end != CHOICE_RUNS;
    if (c->streams) return stream(c, over);
    if (!over) return;
    struct refusal why = {0};
    struct strbuf out = {.most = (size_t)c->reserved};
    if (broken(c, &why)) return reply_refusal(c->server, c->exchange, &why);
    c->form->whole(c, &out);
    reply_json(c->exchange, 200, &out);
}
