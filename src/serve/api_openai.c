/* api_openai.c - /v1/completions, /v1/chat/completions and /v1/models, as OpenAI's clients expect them. */
#include "serve/call.h"
#include "base/utf8.h"
#include "net/http_answers.h"

#include <math.h>
#include <string.h>

static const char *const reasons[] = {
    [CHOICE_RUNS] = NULL,   [CHOICE_LENGTH] = "length", [CHOICE_EOS] = "stop",
    [CHOICE_STOP] = "stop", [CHOICE_FAILED] = NULL,     [CHOICE_CANCELLED] = NULL};

/* --- likelihoods ------------------------------------------------------------------------------------------- */

static void write_logprob(struct json_writer *w, const char *key, float value)
{
    json_double(w, key, isfinite(value) ? (double)value : -9999.0);
}

/* A token as completions name it: its text, or "bytes:\\xe2\\x82" where it is only a part of a character. */
static void add_name(struct call *c, int32_t token, struct strbuf *out)
{
    STRBUF_AUTO bytes = STRBUF_INIT;
    codec_piece(c->server->model.codec, token, 0, &bytes, NULL);
    const char *text = strbuf_text(&bytes);
    if (utf8_valid_prefix(text, bytes.len) == bytes.len && !memchr(text, 0, bytes.len)) {
        strbuf_addn(out, text, bytes.len);
    } else {
        strbuf_add(out, "bytes:");
        for (size_t i = 0; i < bytes.len; i++) strbuf_addf(out, "\\x%02x", (unsigned char)text[i]);
    }
}

static void write_name(struct call *c, struct json_writer *w, int32_t token)
{
    STRBUF_AUTO name = STRBUF_INIT;
    add_name(c, token, &name);
    json_strn(w, NULL, strbuf_text(&name), name.len);
}

/* Names of an object's fields are tokens here, and each may come once only. */
static void write_tops(struct call *c, struct choice *ch, struct json_writer *w, const struct mark *m)
{
    struct strbuf names[ENGINE_LOGPROBS + 1] = {{0}};
    json_begin_object(w, NULL);
    for (int i = 0; i < m->ntop && i < ENGINE_LOGPROBS; i++) {
        const struct engine_logprob *top = &ch->tops[m->top + i];
        bool twice = false;
        add_name(c, top->token, &names[i]);
        for (int k = 0; k < i; k++) twice = twice || !strcmp(strbuf_text(&names[k]), strbuf_text(&names[i]));
        if (!twice) write_logprob(w, strbuf_text(&names[i]), top->logprob);
    }
    json_end_object(w);
    for (int i = 0; i <= ENGINE_LOGPROBS; i++) strbuf_release(&names[i]);
}

/* Writes the logprobs of a completion: four parallel lists. */
static void write_lists(struct call *c, struct choice *ch, struct json_writer *w, size_t from)
{
    if (c->ask.logprobs < 0) return json_null(w, "logprobs");
    json_begin_object(w, "logprobs");
    json_begin_array(w, "tokens");
    for (size_t i = from; i < ch->mark_count; i++) write_name(c, w, ch->marks[i].token);
    json_end_array(w);
    json_begin_array(w, "token_logprobs");
    for (size_t i = from; i < ch->mark_count; i++)
        if (i == 0 && ch->marks[i].prompt)
            json_null(w, NULL); /* nothing comes before the first token */
        else
            write_logprob(w, NULL, ch->marks[i].logprob);
    json_end_array(w);
    json_begin_array(w, "top_logprobs");
    for (size_t i = from; i < ch->mark_count; i++)
        if (i == 0 && ch->marks[i].prompt)
            json_null(w, NULL);
        else
            write_tops(c, ch, w, &ch->marks[i]);
    json_end_array(w);
    json_begin_array(w, "text_offset");
    for (size_t i = from; i < ch->mark_count; i++) json_int(w, NULL, (int64_t)ch->marks[i].offset);
    json_end_array(w);
    json_end_object(w);
}

static void write_entry(struct call *c, struct json_writer *w, int32_t token, float logprob)
{
    STRBUF_AUTO text = STRBUF_INIT;
    codec_piece(c->server->model.codec, token, 0, &text, NULL);
    json_strn(w, "token", strbuf_text(&text), text.len);
    write_logprob(w, "logprob", logprob);
    json_begin_array(w, "bytes");
    for (size_t i = 0; i < text.len; i++) json_int(w, NULL, (unsigned char)text.data[i]);
    json_end_array(w);
}

/* Writes the logprobs of a chat: a list of entries. */
static void write_entries(struct call *c, struct choice *ch, struct json_writer *w, size_t from)
{
    if (c->ask.logprobs < 0) return json_null(w, "logprobs");
    json_begin_object(w, "logprobs");
    json_begin_array(w, "content");
    for (size_t i = from; i < ch->mark_count; i++) {
        const struct mark *m = &ch->marks[i];
        json_begin_object(w, NULL);
        write_entry(c, w, m->token, m->logprob);
        json_begin_array(w, "top_logprobs");
        for (int k = 0; k < m->ntop; k++) {
            json_begin_object(w, NULL);
            write_entry(c, w, ch->tops[m->top + k].token, ch->tops[m->top + k].logprob);
            json_end_object(w);
        }
        json_end_array(w);
        json_end_object(w);
    }
    json_end_array(w);
    json_null(w, "refusal");
    json_end_object(w);
}

/* --- what all answers have ---------------------------------------------------------------------------------- */

static void write_head(struct call *c, struct json_writer *w, const char *object)
{
    json_begin_object(w, NULL);
    json_str(w, "id", c->id);
    json_str(w, "object", object);
    json_int(w, "created", c->created);
    json_str(w, "model", *c->adapter ? c->adapter : c->server->model.name);
}

static void write_usage(struct call *c, struct json_writer *w)
{
    int64_t answer = call_answer_tokens(c);
    json_begin_object(w, "usage");
    json_int(w, "prompt_tokens", c->prompt_tokens);
    json_int(w, "completion_tokens", answer);
    json_int(w, "total_tokens", c->prompt_tokens + answer);
    json_begin_object(w, "prompt_tokens_details");
    json_int(w, "cached_tokens", call_shared_tokens(c));
    json_end_object(w);
    json_end_object(w);
}

/* The beginning of a stream's events is the same in all of them: it is written once. */
static void write_event_head(struct call *c, const char *object)
{
    strbuf_add(&c->head, SSE_DATA);
    json_writer_init(&c->behind_head, &c->head, 0);
    write_head(c, &c->behind_head, object);
    json_begin_array(&c->behind_head, "choices");
}

/* Events are written where they are sent from. JSON on one line has no line break that an event would have to split. */
static struct json_writer begin_event(struct call *c, const char *object, struct strbuf *out)
{
    if (!c->head.len) write_event_head(c, object);
    struct json_writer w = c->behind_head;
    if (c->head.failed) out->failed = true;
    strbuf_addn(out, strbuf_text(&c->head), c->head.len);
    w.out = out;
    return w;
}

static void end_event(struct call *c, struct json_writer *w, bool usage)
{
    json_end_array(w);
    if (usage)
        write_usage(c, w);
    else if (c->ask.usage_wanted)
        json_null(w, "usage");
    json_end_object(w);
    strbuf_add(w->out, SSE_END);
}

static void close_stream(struct call *c, const char *object, struct strbuf *out)
{
    if (c->ask.usage_wanted) {
        struct json_writer w = begin_event(c, object, out);
        end_event(c, &w, true);
    }
    sse_event(out, "[DONE]", 6);
}

/* --- completions --------------------------------------------------------------------------------------------- */

#define COMPLETION "text_completion"

static void write_text_choice(struct call *c, struct choice *ch, struct json_writer *w, size_t from,
                              size_t mark)
{
    json_begin_object(w, NULL);
    json_int(w, "index", ch->index);
    json_strn(w, "text", strbuf_text(&ch->text) + from, ch->text.len - from);
    write_lists(c, ch, w, mark);
    json_str(w, "finish_reason", reasons[ch->end]);
    json_end_object(w);
}

static void completion_piece(struct call *c, struct choice *ch, struct strbuf *out)
{
    struct json_writer w = begin_event(c, COMPLETION, out);
    write_text_choice(c, ch, &w, ch->told, ch->marks_told);
    end_event(c, &w, false);
}

static void completion_close(struct call *c, struct strbuf *out) { close_stream(c, COMPLETION, out); }

static void completion_whole(struct call *c, struct strbuf *out)
{
    struct json_writer w;
    json_writer_init(&w, out, 0);
    write_head(c, &w, COMPLETION);
    json_begin_array(&w, "choices");
    for (int i = 0; i < c->count; i++) write_text_choice(c, &c->choices[i], &w, 0, 0);
    json_end_array(&w);
    write_usage(c, &w);
    json_end_object(&w);
}

static bool read_completion(struct call *c, struct refusal *why)
{
    return call_read_prompts(c, "prompt", why);
}

static const struct call_form completion_form = {.piece = completion_piece,
                                                 .close = completion_close,
                                                 .whole = completion_whole,
                                                 .prefix = "cmpl",
                                                 .ask = ASK_COMPLETION,
                                                 .read = read_completion};

void api_completions(struct server *s, struct http_exchange *x) { call_answer(s, x, &completion_form); }

/* --- chats --------------------------------------------------------------------------------------------------- */

#define CHUNK "chat.completion.chunk"

static struct json_writer begin_delta(struct call *c, struct choice *ch, struct strbuf *out)
{
    struct json_writer w = begin_event(c, CHUNK, out);
    json_begin_object(&w, NULL);
    json_int(&w, "index", ch->index);
    json_begin_object(&w, "delta");
    return w;
}

static void end_delta(struct call *c, struct json_writer *w, const char *reason)
{
    json_str(w, "finish_reason", reason);
    json_end_object(w);
    end_event(c, w, false);
}

static void chat_open(struct call *c, struct strbuf *out)
{
    for (int i = 0; i < c->count; i++) {
        struct json_writer w = begin_delta(c, &c->choices[i], out);
        json_str(&w, "role", "assistant");
        json_str(&w, "content", "");
        json_end_object(&w);
        json_null(&w, "logprobs");
        end_delta(c, &w, NULL);
    }
}

static void chat_piece(struct call *c, struct choice *ch, struct strbuf *out)
{
    struct json_writer w;
    if (ch->text.len > ch->told || ch->mark_count > ch->marks_told) {
        w = begin_delta(c, ch, out);
        json_strn(&w, "content", strbuf_text(&ch->text) + ch->told, ch->text.len - ch->told);
        json_end_object(&w);
        write_entries(c, ch, &w, ch->marks_told);
        end_delta(c, &w, NULL);
    }
    if (ch->end == CHOICE_RUNS) return;
    w = begin_delta(c, ch, out);
    json_end_object(&w);
    json_null(&w, "logprobs");
    end_delta(c, &w, reasons[ch->end]);
}

static void chat_close(struct call *c, struct strbuf *out) { close_stream(c, CHUNK, out); }

static void chat_whole(struct call *c, struct strbuf *out)
{
    struct json_writer w;
    json_writer_init(&w, out, 0);
    write_head(c, &w, "chat.completion");
    json_begin_array(&w, "choices");
    for (int i = 0; i < c->count; i++) {
        struct choice *ch = &c->choices[i];
        json_begin_object(&w, NULL);
        json_int(&w, "index", ch->index);
        json_begin_object(&w, "message");
        json_str(&w, "role", "assistant");
        json_strn(&w, "content", strbuf_text(&ch->text), ch->text.len);
        json_end_object(&w);
        write_entries(c, ch, &w, 0);
        json_str(&w, "finish_reason", reasons[ch->end]);
        json_end_object(&w);
    }
    json_end_array(&w);
    write_usage(c, &w);
    json_end_object(&w);
}

static bool add_conversation(struct call *c, struct refusal *why)
{
    STRBUF_AUTO text = STRBUF_INIT;
    struct token_list ids = {0};
    bool good;
    if (!c->ask.input)
        return refuse(why, 422, "messages", "missing_parameter",
                      "messages is missing: the conversation so far");
    good = call_take_prompts(c, 1, why) && server_render_chat(c->server, &c->ask, &text, why) &&
           server_encode(c->server, strbuf_text(&text), text.len, 0, "messages",
                         server_tokens_most(c->server), &ids, why) &&
           call_add_prompt(c, &ids, why);
    token_list_release(&ids);
    return good;
}

static const struct call_form chat_form = {.open = chat_open,
                                           .piece = chat_piece,
                                           .close = chat_close,
                                           .whole = chat_whole,
                                           .prefix = "chatcmpl",
                                           .ask = ASK_CHAT,
                                           .read = add_conversation};

void api_chat(struct server *s, struct http_exchange *x) { call_answer(s, x, &chat_form); }

/* --- the rest ------------------------------------------------------------------------------------------------ */

struct models {
    struct server *server;
    struct json_writer w;
    int64_t context;
};

/* root and parent: of an adapter its folder and its model; else NULL. */
static void write_model(struct models *m, const char *name, const char *root, const char *parent)
{
    struct json_writer *w = &m->w;
    json_begin_object(w, NULL);
    json_str(w, "id", name);
    json_str(w, "object", "model");
    json_int(w, "created", m->server->created);
    json_str(w, "owned_by", "plimsoll");
    if (root) json_str(w, "root", root);
    if (parent) json_str(w, "parent", parent);
    json_int(w, "max_model_len", m->context);
    json_end_object(w);
}

static void write_adapter(void *arg, const char *name, const char *dir)
{
    struct models *m = arg;
    write_model(m, name, dir, m->server->model.name);
}

void api_models(struct server *s, struct http_exchange *x)
{
    struct strbuf out = STRBUF_INIT;
    struct models m = {s, json_object(&out, 0), engine_plan_now(s->model.engine).context};
    json_str(&m.w, "object", "list");
    json_begin_array(&m.w, "data");
    write_model(&m, s->model.name, NULL, NULL);
    engine_each_adapter(s->model.engine, write_adapter, &m);
    json_end_array(&m.w);
    json_end_object(&m.w);
    reply_json(x, 200, &out);
}
