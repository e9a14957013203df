/* api_tokens.c - /tokenize and /detokenize. */
#include "serve/server_part.h"
#include "base/minmax.h"

static bool tokenize(struct server *s, const struct ask *ask, struct token_list *ids, struct refusal *why)
{
    STRBUF_AUTO text = STRBUF_INIT;
    int64_t most = min64(server_ids_most(&s->options), s->options.limits.bodies_bytes / SERVER_ID_BYTES);
    bool good;
    if (!ask->input) return refuse(why, 422, "prompt", "missing_parameter", "write a prompt, or messages");
    if (ask->input->kind == NODE_STRING)
        return server_encode(s, ask->input->as.string.text, ask->input->as.string.len,
                             server_prompt_flags(s, ask), "prompt", most, ids, why);
    if (ask->input->kind != NODE_LIST)
        return refuse(why, 422, "prompt", "invalid_value", "prompt: expected a text, got %s",
                      node_kind_name(ask->input->kind));
    good = server_render_chat(s, ask, &text, why) &&
           server_encode(s, strbuf_text(&text), text.len, 0, "messages", most, ids, why);
    return good;
}

/* An answer waits as long as its client does not read it. */
static bool book(struct http_exchange *x, int64_t bytes, struct refusal *why)
{
    return http_book(x, bytes) ||
           refuse(why, 503, NULL, "answers_full", "too many large answers at once; try again later");
}

void api_tokenize(struct server *s, struct http_exchange *x)
{
    struct doc *doc = NULL;
    struct ask ask;
    struct refusal why = {0};
    struct token_list ids = {0};
    struct strbuf out = STRBUF_INIT;
    bool good = body_ask(s, x, ASK_TOKENIZE, &doc, &ask, &why) && tokenize(s, &ask, &ids, &why);
    doc_free(doc), doc = NULL;
    http_drop_body(x); /* makes room for the answer */
    if (!good || !book(x, (int64_t)ids.count * SERVER_ID_BYTES, &why)) {
        reply_refusal(s, x, &why);
        goto out;
    }
    struct json_writer w = json_object(&out, 0);
    json_int(&w, "count", (int64_t)ids.count);
    json_int(&w, "max_model_len", engine_plan_now(s->model.engine).context);
    json_begin_array(&w, "tokens");
    for (size_t i = 0; i < ids.count; i++) json_int(&w, NULL, ids.id[i]);
    json_end_array(&w);
    json_end_object(&w);
    reply_json(x, 200, &out);
out:
    token_list_release(&ids);
    doc_free(doc);
}

void api_detokenize(struct server *s, struct http_exchange *x)
{
    struct doc *doc = NULL;
    struct ask ask;
    struct refusal why = {0};
    struct token_list ids = {0};
    struct strbuf out = {.most = 2 * (size_t)s->options.limits.body_bytes}, text = STRBUF_INIT;
    bool good = body_ask(s, x, ASK_DETOKENIZE, &doc, &ask, &why);
    if (good && (!ask.input || ask.input->kind != NODE_LIST))
        good = refuse(&why, 422, "tokens", ask.input ? "invalid_value" : "missing_parameter",
                      "tokens: write a list of token ids");
    if (!good || !server_read_ids(s, ask.input, "tokens", &ids, &why) ||
        !server_decode(s, &ids, "tokens", &text, &why)) {
        reply_refusal(s, x, &why);
        goto out;
    }
    struct json_writer w = json_object(&out, 0);
    json_strn(&w, "prompt", strbuf_text(&text), text.len);
    json_end_object(&w);
    if (book(x, (int64_t)out.len, &why))
        reply_json(x, 200, &out);
    else
        reply_refusal(s, x, &why);
out:
    strbuf_release(&out);
    strbuf_release(&text);
    token_list_release(&ids);
    doc_free(doc);
}
