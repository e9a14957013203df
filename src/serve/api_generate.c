/* api_generate.c - /generate, in two forms: ours {prompt, max_tokens, ...} and TGI's {inputs, parameters}.
 *
 * Both answer {"generated_text": ...}; ours adds finish_reason and usage, TGI's its details when asked for. Streams are TGI's
 * in both forms: an event for each token, the last with the whole text. */
#include "serve/call.h"
#include "net/http_answers.h"

#include <string.h>

static const char *const reasons[] = {
    [CHOICE_RUNS] = "length",        [CHOICE_LENGTH] = "length", [CHOICE_EOS] = "eos_token",
    [CHOICE_STOP] = "stop_sequence", [CHOICE_FAILED] = "length", [CHOICE_CANCELLED] = "length"};

static void write_token(struct call *c, struct json_writer *w, const char *key, const struct mark *m)
{
    const struct codec *codec = c->server->model.codec;
    STRBUF_AUTO text = STRBUF_INIT;
    codec_piece(codec, m->token, 0, &text, NULL);
    json_begin_object(w, key);
    json_int(w, "id", m->token);
    json_strn(w, "text", strbuf_text(&text), text.len);
    if (c->ask.logprobs >= 0)
        json_double(w, "logprob", (double)m->logprob);
    else
        json_null(w, "logprob");
    json_bool(w, "special", codec->tokenizer && tokenizer_is_special(codec->tokenizer, m->token));
    json_end_object(w);
}

static void write_details(struct call *c, struct choice *ch, struct json_writer *w, bool tokens)
{
    json_begin_object(w, "details");
    json_str(w, "finish_reason", reasons[ch->end]);
    json_int(w, "generated_tokens", ch->tokens);
    if (c->ask.given_seed)
        json_int(w, "seed", c->ask.seed);
    else
        json_null(w, "seed");
    if (tokens) {
        json_begin_array(w, "prefill");
        json_end_array(w);
        json_begin_array(w, "tokens");
        for (size_t i = 0; i < ch->mark_count; i++) write_token(c, w, NULL, &ch->marks[i]);
        json_end_array(w);
    }
    json_end_object(w);
}

static void put_whole(struct call *c, struct strbuf *out)
{
    struct choice *ch = &c->choices[0];
    struct json_writer w = json_object(out, 0);
    json_strn(&w, "generated_text", strbuf_text(&ch->text), ch->text.len);
    if (c->ask.tgi) {
        if (c->ask.details) write_details(c, ch, &w, true);
    } else {
        json_str(&w, "finish_reason", reasons[ch->end]);
        json_begin_object(&w, "usage");
        json_int(&w, "prompt_tokens", c->prompt_tokens);
        json_int(&w, "completion_tokens", ch->tokens);
        json_int(&w, "total_tokens", c->prompt_tokens + ch->tokens);
        json_end_object(&w);
    }
    json_end_object(&w);
}

/* One event; the last has the whole text and the details. */
static void put_event(struct call *c, struct choice *ch, const struct mark *m, bool last, struct strbuf *out)
{
    STRBUF_AUTO json = STRBUF_INIT;
    struct json_writer w = json_object(&json, 0);
    json_int(&w, "index", m ? m - ch->marks + 1 : ch->tokens);
    if (m)
        write_token(c, &w, "token", m);
    else
        json_null(&w, "token");
    if (last)
        json_strn(&w, "generated_text", strbuf_text(&ch->text), ch->text.len),
            write_details(c, ch, &w, false);
    else
        json_null(&w, "generated_text"), json_null(&w, "details");
    json_end_object(&w);
    sse_event(out, strbuf_text(&json), json.len);
}

static void put_piece(struct call *c, struct choice *ch, struct strbuf *out)
{
    bool over = ch->end != CHOICE_RUNS;
    for (size_t i = ch->marks_told; i < ch->mark_count; i++)
        put_event(c, ch, &ch->marks[i], over && i + 1 == ch->mark_count, out);
    if (over && ch->marks_told == ch->mark_count) put_event(c, ch, NULL, true, out);
}

static void put_close(struct call *, struct strbuf *) {}

/* TGI's form has its parameters in an object of their own; what stands around it is kept. */
static bool read_tgi(struct call *c, struct refusal *why)
{
    static const struct node none = {.kind = NODE_MAP};
    struct ask outer;
    if (!ask_read(&c->doc->root, ASK_TGI_OUTER, &outer, why)) return false;
    const struct node *parameters = outer.parameters ? outer.parameters : &none;
    if (!ask_read(parameters, ASK_TGI, &c->ask, why)) return false;
    bool samples = c->ask.do_sample || c->ask.given_temperature || c->ask.given_top_p || c->ask.given_top_k;
    if (!samples) c->ask.temperature = 0;
    c->ask.input = outer.input, c->ask.stream = outer.stream, c->ask.model = outer.model;
    c->ask.tgi = true;
    return true;
}

static bool read_prompt(struct call *c, struct refusal *why)
{
    const struct node *text = c->ask.input;
    const char *name = c->ask.tgi ? "inputs" : "prompt";
    struct token_list ids = {0};
    if (!text)
        return refuse(why, 422, name, "missing_parameter", "%s is missing: the text to continue", name);
    if (text->kind != NODE_STRING)
        return refuse(why, 422, name, "invalid_value", "%s: expected a text, got %s", name,
                      node_kind_name(text->kind));
    if (!call_take_prompts(c, 1, why) ||
        !server_encode(c->server, text->as.string.text, text->as.string.len,
                       server_prompt_flags(c->server, &c->ask), name, server_tokens_most(c->server), &ids,
                       why) ||
        !call_add_prompt(c, &ids, why))
        return token_list_release(&ids), false;
    if (c->ask.echo) strbuf_addn(&c->prompts[0].text, text->as.string.text, text->as.string.len);
    return true;
}

/* Ours or TGI's, as the body's names say. */
static bool read_either(struct call *c, struct refusal *why)
{
    if (!body_parse(c->server, c->exchange, &c->doc, why)) return false;
    bool good = node_get(&c->doc->root, "inputs") ? read_tgi(c, why)
                                                  : ask_read(&c->doc->root, ASK_GENERATE, &c->ask, why);
    return good && model_is_ours(c->server, &c->ask, why) && read_prompt(c, why);
}

static const struct call_form form = {.piece = put_piece,
                                      .close = put_close,
                                      .whole = put_whole,
                                      .marks = true,
                                      .ends_with_all = true,
                                      .prefix = "gen",
                                      .read = read_either};

void api_generate(struct server *s, struct http_exchange *x) { call_answer(s, x, &form); }
