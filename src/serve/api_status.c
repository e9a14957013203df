/* api_status.c - /health, /metrics, /hold and the page. */
#include "serve/server_part.h"
#include "serve/plan_text.h"
#include "net/http_answers.h"
#include "mem/os.h"

static const char *const states[] = {
    [SERVER_LOADING] = "loading", [SERVER_READY] = "ok", [SERVER_DRAINING] = "draining"};

void api_health(struct server *s, struct http_exchange *x)
{
    struct strbuf out = STRBUF_INIT;
    int state = atomic_load(&s->state);
    strbuf_addf(&out, "{\"status\":\"%s\"}", states[state]);
    if (state != SERVER_READY) http_set_header(x, "Retry-After", "1");
    reply_json(x, state == SERVER_READY ? 200 : 503, &out);
}

static void read_now(struct server *s, struct metrics_now *now)
{
    struct os_process me = {0};
    *now = (struct metrics_now){0};
    os_process_memory(&me, NULL);
    if (atomic_load(&s->state) != SERVER_LOADING) engine_stats(s->model.engine, &now->engine);
    now->connections = http_connections(s->http);
    now->active = http_active(s->http);
    now->server_bytes = server_bytes(&s->options);
    now->process_bytes = (int64_t)me.rss;
}

void api_metrics(struct server *s, struct http_exchange *x)
{
    struct strbuf out = STRBUF_INIT;
    struct metrics_now now;
    bool loading = atomic_load(&s->state) == SERVER_LOADING;
    read_now(s, &now);
    metrics_write(&s->metrics, &now, s->options.metrics_prefix ? s->options.metrics_prefix : "",
                  loading ? "" : s->model.name, &out);
    http_answer(x, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
}

void server_write_status(struct server *s, struct json_writer *w)
{
    struct metrics_now now;
    int state = atomic_load(&s->state);
    read_now(s, &now);
    json_str(w, "status", states[state]);
    json_str(w, "model", state == SERVER_LOADING ? NULL : s->model.name);
    json_bool(w, "chat", state != SERVER_LOADING && s->model.chat);
    json_int(w, "running", now.engine.running);
    json_int(w, "waiting", now.engine.waiting);
    json_int(w, "blocks", now.engine.blocks);
    json_int(w, "blocks_used", now.engine.blocks_used);
    json_int(w, "blocks_shared", now.engine.blocks_shared);
    json_int(w, "block_tokens", ENGINE_BLOCK);
    json_int(w, "budget", now.engine.budget);
    json_int(w, "used", now.engine.used);
    json_int(w, "generated_tokens", now.engine.generated_tokens);
    json_int(w, "prompt_tokens", now.engine.prompt_tokens);
    json_int(w, "preemptions", now.engine.preemptions);
    json_int(w, "swapped", now.engine.swapped);
    json_int(w, "process", now.process_bytes);
    if (state == SERVER_LOADING) return;
    struct engine_plan plan = engine_plan_now(s->model.engine);
    json_str(w, "rung", plan.rung);
    json_begin_object(w, "plan");
    plan_text_json(&plan, w);
    json_end_object(w);
}

void api_hold(struct server *s, struct http_exchange *x)
{
    struct strbuf out = STRBUF_INIT;
    http_set_header(x, "Cache-Control", "no-store");
    struct json_writer w = json_object(&out, 0);
    server_write_status(s, &w);
    json_end_object(&w);
    reply_json(x, 200, &out);
}

void api_page(struct server *, struct http_exchange *x)
{
    page_answer(x, "page", "text/html; charset=utf-8");
}
