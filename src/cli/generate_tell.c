/* generate_tell.c - what was made, how fast, and in how much memory. See generate.h. */
#include "base/bytes.h"
#include "base/json.h"
#include "cli/generate.h"
#include "mem/os.h"

#include <stdio.h>

static double rate(const struct answer *a)
{
    return a->count > 1 && a->seconds > 0 ? (double)(a->count - 1) / a->seconds : 0;
}

static void tell_speed(const struct generation *g)
{
    const struct answer *a = g->answers;
    int64_t made = 0, read = 0;
    if (g->count == 1) {
        fprintf(stderr, "%lld tokens, %.1f tokens/s, after a prompt of %zu read in %.0f ms (%s)\n",
                (long long)a->count, rate(a), a->ids.count, a->prompt_seconds * 1e3,
                answer_stop_name(a->stop));
        return;
    }
    for (size_t i = 0; i < g->count; i++) made += a[i].count, read += (int64_t)a[i].ids.count;
    fprintf(stderr,
            "%lld tokens of %zu answers, after prompts of %lld, in %.1f s: %.1f tokens/s, %d at once\n",
            (long long)made, g->count, (long long)read, g->seconds,
            g->seconds > 0 ? (double)made / g->seconds : 0, g->plan.parallel);
}

/* Positions of the cache: of the longest answer, or of all answers at once. */
static int64_t positions_of(const struct generation *g)
{
    const struct engine_plan *p = &g->plan;
    if (p->answer) return g->count == 1 ? p->answer : p->answer * p->parallel;
    return g->count == 1 ? p->context : p->blocks * ENGINE_BLOCK;
}

void generation_tell(const struct generation *g)
{
    struct os_process me = {0};
    char total[BYTES_TEXT], params[BYTES_TEXT], cache[BYTES_TEXT], peak[BYTES_TEXT];
    os_process_memory(&me, NULL);
    uint64_t taken = g->device_used ? g->device_used : me.peak;
    tell_speed(g);
    fprintf(stderr, "planned %s: parameters %s in %s, cache %s for %lld positions; %s %s%s\n",
            bytes_format(total, (uint64_t)g->plan.total), bytes_format(params, (uint64_t)g->plan.params),
            precision_name(g->plan.precision), bytes_format(cache, (uint64_t)g->plan.pool),
            (long long)positions_of(g), g->device_used ? "the driver says" : "process",
            bytes_format(peak, taken), g->device_used ? "" : " at its peak");
}

static void write_answer(struct json_writer *w, const struct answer *a)
{
    json_str(w, "prompt", a->prompt);
    json_strn(w, "text", strbuf_text(&a->copy), a->copy.len);
    json_int(w, "prompt_tokens", (int64_t)a->ids.count);
    json_int(w, "generated_tokens", a->count);
    json_begin_array(w, "tokens");
    for (int64_t i = 0; i < a->count; i++) json_int(w, NULL, a->tokens[i]);
    json_end_array(w);
    json_str(w, "stop", answer_stop_name(a->stop));
    json_double(w, "prompt_ms", a->prompt_seconds * 1e3);
    json_double(w, "tokens_per_s", rate(a));
}

static void write_memory(struct json_writer *w, const struct generation *g)
{
    struct os_process me = {0};
    os_process_memory(&me, NULL);
    json_begin_object(w, "memory");
    if (g->plan.budget)
        json_int(w, "budget_bytes", g->plan.budget);
    else
        json_null(w, "budget_bytes");
    json_int(w, "planned_total", g->plan.total);
    json_int(w, "arena_bytes", g->plan.arena);
    json_int(w, "parameter_bytes", g->plan.params);
    json_int(w, "cache_bytes", g->plan.pool);
    json_int(w, "positions", g->plan.answer ? g->plan.answer : g->plan.context);
    json_int(w, "ledger_peak", (int64_t)g->ledger_peak);
    if (g->device_used) json_int(w, "device_used", (int64_t)g->device_used);
    json_int(w, "rss_peak", (int64_t)me.peak);
    json_end_object(w);
}

int generation_tell_json(const struct generation *g)
{
    struct strbuf out = STRBUF_INIT;
    struct json_writer w = json_object(&out, 0);
    json_str(&w, "model", g->dir);
    if (g->count == 1) {
        write_answer(&w, g->answers);
    } else {
        json_begin_array(&w, "answers");
        for (size_t i = 0; i < g->count; i++) {
            json_begin_object(&w, NULL);
            write_answer(&w, &g->answers[i]);
            json_end_object(&w);
        }
        json_end_array(&w);
        json_double(&w, "seconds", g->seconds);
        json_int(&w, "parallel", g->plan.parallel);
    }
    json_bool(&w, "chat", g->chat != NULL);
    json_str(&w, "precision", precision_name(g->plan.precision));
    json_str(&w, "device", g->device);
    write_memory(&w, g);
    json_end_object(&w);
    strbuf_addc(&out, '\n');
    return cli_print(&out);
}
