/* plan_text.c - see plan_text.h. */
#include "serve/plan_text.h"
#include "base/bytes.h"

#include <stdio.h>

/* Positions of a request in the pool, at most. */
static int64_t seen(const struct engine_plan *p, int64_t length)
{
    return p->window && p->window < length ? p->window : length;
}

/* Requests of a length whose keys and values the pool has at once. */
static int64_t together(const struct engine_plan *p, int64_t length)
{
    int64_t blocks = (seen(p, length) + ENGINE_BLOCK - 1) / ENGINE_BLOCK;
    int64_t n = blocks ? p->blocks / blocks : 0;
    return n < p->parallel ? n : p->parallel;
}

void plan_text_json(const struct engine_plan *p, struct json_writer *w)
{
    json_int(w, "total", p->total);
    json_int(w, "arena", p->arena);
    json_int(w, "parameters", p->params);
    json_int(w, "streamed", p->streamed);
    if (p->adapter_slots) {
        json_begin_object(w, "adapters");
        json_int(w, "slots", p->adapter_slots);
        json_int(w, "rank", p->adapter_rank);
        json_int(w, "bytes", p->adapters);
        json_int(w, "in_host_memory", p->adapter_images);
        json_end_object(w);
    }
    json_int(w, "pool", p->pool);
    json_int(w, "transient", p->transient);
    json_int(w, "overhead", p->overhead);
    json_int(w, "requests", p->requests);
    json_int(w, "host", p->host);
    json_int(w, "blocks", p->blocks);
    json_int(w, "context", p->context);
    json_int(w, "window", p->window);
    json_int(w, "parallel", p->parallel);
    json_int(w, "queue", p->queue);
    json_int(w, "step_tokens", p->step_tokens);
    json_str(w, "precision", precision_name(p->precision));
    json_bool(w, "remembered", p->remembered);
    json_str(w, "kv_type", dtype_name(p->kv_type));
    json_int(w, "longest_at_once", together(p, p->context));
    json_int(w, "rate_context", p->rate_context);
    json_double(w, "prefill_tokens_per_second", p->prefill_rate);
    json_double(w, "decode_tokens_per_second", p->decode_rate);
    json_double(w, "decode_tokens_per_second_full", p->full_rate);
}

static void line(struct strbuf *out, const char *name, int64_t bytes, const char *what)
{
    char text[BYTES_TEXT];
    if (bytes) strbuf_addf(out, "  %-22s %12s  %s\n", name, bytes_format(text, (uint64_t)bytes), what);
}

static void bytes_part(const struct engine_plan *p, const struct device_facts *facts, int64_t server,
                       struct strbuf *out)
{
    bool own = !facts->unified_memory;
    char below[BYTES_TEXT];
    line(out, "parameters", p->params - p->streamed - p->adapters, precision_name(p->precision));
    if (p->adapter_slots) {
        char what[64];
        snprintf(what, sizeof what, "%d of rank %d", p->adapter_slots, p->adapter_rank);
        line(out, "adapters", p->adapters, what);
    }
    line(out, "keys and values", p->pool, dtype_name(p->kv_type));
    line(out, "a step", p->transient, "inputs, activations, logits");
    line(out, own ? "driver, libraries" : "process",
         own ? (int64_t)facts->overhead_bytes : p->overhead - server - p->requests, "");
    if (!own) line(out, "connections, requests", server + p->requests, "at most");
    line(out, "total", p->total,
         p->budget  ? ""
         : p->limit ? "no --budget: the container's limit holds it"
                    : "no --budget: may use the whole device");
    if (p->streamed)
        strbuf_addf(out, "  %s of parameters live %s and come for each step\n",
                    bytes_format(below, (uint64_t)p->streamed), own ? "on the host" : "on disk");
}

/* Encoders and encoder-decoders have rows instead of blocks. */
static void rows_part(const struct engine_plan *p, struct strbuf *out)
{
    if (p->labels)
        strbuf_addf(out, "  %lld labels of %s, texts of up to %lld tokens, %lld tokens a batch\n",
                    (long long)p->width, p->per_token ? "tokens" : "texts", (long long)p->context,
                    (long long)p->step_tokens);
    else if (p->width)
        strbuf_addf(out, "  vectors of %lld numbers, texts of up to %lld tokens, %lld tokens a batch\n",
                    (long long)p->width, (long long)p->context, (long long)p->step_tokens);
    else
        strbuf_addf(out,
                    "  up to %d requests at once, %d may wait; sources and answers of up to %lld tokens\n",
                    p->parallel, p->queue, (long long)p->context);
}

static void requests_part(const struct engine_plan *p, struct strbuf *out)
{
    if (p->width || p->answer) {
        rows_part(p, out);
        return;
    }
    strbuf_addf(out,
                "  %lld blocks of %d positions; up to %d requests at once, %d may wait, %lld tokens a step\n",
                (long long)p->blocks, ENGINE_BLOCK, p->parallel, p->queue, (long long)p->step_tokens);
    if (p->window)
        strbuf_addf(out, "  each token is computed from the last %lld, without a cache\n",
                    (long long)p->window);
    for (int64_t length = p->context, shown = 0; shown < 4 && length >= ENGINE_BLOCK; length /= 2, shown++)
        strbuf_addf(out, "  %8lld at once of %lld tokens, prompt and answer\n",
                    (long long)together(p, length), (long long)length);
}

void plan_text(const struct engine_plan *p, const struct device_facts *facts, int64_t server,
               struct strbuf *out)
{
    char budget[BYTES_TEXT], host[BYTES_TEXT];
    int64_t held = p->budget ? p->budget : p->limit;
    strbuf_addf(out, "serving on %s, %s%s, rung %s", facts->name,
                p->budget  ? "budget "
                : p->limit ? "no budget, limit "
                           : "no budget",
                held ? bytes_format(budget, (uint64_t)held) : "", p->rung);
    if (p->host) strbuf_addf(out, "; needs %s of host memory", bytes_format(host, (uint64_t)p->host));
    strbuf_addc(out, '\n');
    bytes_part(p, facts, server, out);
    strbuf_addf(out, "requests\n");
    requests_part(p, out);
    if (p->decode_rate > 0)
        strbuf_addf(out,
                    "predicted tokens/s, at %lld positions a request\n"
                    "  prompts %.0f, answers %.0f for one request, %.0f for %d\n",
                    (long long)p->rate_context, p->prefill_rate, p->decode_rate, p->full_rate, p->parallel);
}
