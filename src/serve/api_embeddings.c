/* api_embeddings.c - /v1/embeddings, as OpenAI's clients expect it: a vector of each text, as numbers or in base64. */
#include "serve/call.h"

/* Bytes of numbers in the machine's order, which is little-endian on every machine we run on, as clients expect. */
static void add_base64(struct strbuf *out, const unsigned char *bytes, size_t count)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < count; i += 3) {
        size_t n = count - i < 3 ? count - i : 3;
        unsigned v = (unsigned)bytes[i] << 16;
        if (n > 1) v |= (unsigned)bytes[i + 1] << 8;
        if (n > 2) v |= bytes[i + 2];
        char text[4] = {digits[v >> 18], digits[v >> 12 & 63], n > 1 ? digits[v >> 6 & 63] : '=',
                        n > 2 ? digits[v & 63] : '='};
        strbuf_addn(out, text, 4);
    }
}

static void write_vector(const struct call *c, struct json_writer *w, const float *vector, int64_t width)
{
    STRBUF_AUTO text = STRBUF_INIT;
    if (c->ask.base64) {
        add_base64(&text, (const unsigned char *)vector, (size_t)width * sizeof *vector);
        json_strn(w, "embedding", strbuf_text(&text), text.len);
    } else {
        json_begin_array(w, "embedding");
        for (int64_t i = 0; i < width; i++) json_float(w, NULL, vector[i]);
        json_end_array(w);
    }
}

static void put_whole(struct call *c, struct strbuf *out)
{
    int64_t width = engine_plan_now(c->server->model.engine).width;
    struct json_writer w = json_object(out, 0);
    json_str(&w, "object", "list");
    json_begin_array(&w, "data");
    for (int i = 0; i < c->count; i++) {
        json_begin_object(&w, NULL);
        json_str(&w, "object", "embedding");
        json_int(&w, "index", i);
        write_vector(c, &w, c->choices[i].vector, width);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_str(&w, "model", c->server->model.name);
    json_begin_object(&w, "usage");
    json_int(&w, "prompt_tokens", c->prompt_tokens);
    json_int(&w, "total_tokens", c->prompt_tokens);
    json_end_object(&w);
    json_end_object(&w);
}

static bool read_texts(struct call *c, struct refusal *why) { return call_read_prompts(c, "input", why); }

static const struct call_form form = {
    .whole = put_whole, .most = 2048, .prefix = "embd", .ask = ASK_EMBED, .read = read_texts};

void api_embeddings(struct server *s, struct http_exchange *x) { call_answer(s, x, &form); }
