/* metrics.c - see metrics.h. */
#include "serve/metrics.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Upper bounds of buckets; 0 ends the list. */
static const double seconds[METRIC_BUCKETS + 1] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
                                                   0.75,  1,     2.5,  5,    7.5,  10,   20,   40,  80};
static const double short_seconds[METRIC_BUCKETS + 1] = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10};
static const double long_seconds[METRIC_BUCKETS + 1] = {0.1, 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,
                                                        15,  20,  30,  40,  50, 60,  120, 240, 480, 960};
static const double token_counts[METRIC_BUCKETS + 1] = {
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};

static const struct {
    const char *name, *help;
    const double *bounds;
} histograms[METRIC_HISTOGRAMS] = {
    [METRIC_FIRST_TOKEN] = {"time_to_first_token_seconds", "From the request to its first token.", seconds},
    [METRIC_INTER_TOKEN] = {"inter_token_latency_seconds", "Between two tokens of a request.", short_seconds},
    [METRIC_E2E] = {"e2e_request_latency_seconds", "From the request to its last token.", long_seconds},
    [METRIC_QUEUE] = {"request_queue_time_seconds", "Waiting before the first step.", long_seconds},
    [METRIC_PREFILL] = {"request_prefill_time_seconds", "Reading the prompt.", long_seconds},
    [METRIC_DECODE] = {"request_decode_time_seconds", "Making the answer.", long_seconds},
    [METRIC_PROMPT_TOKENS] = {"request_prompt_tokens", "Tokens of a prompt.", token_counts},
    [METRIC_ANSWER_TOKENS] = {"request_generation_tokens", "Tokens of an answer.", token_counts},
};

void metrics_init(struct metrics *m)
{
    *m = (struct metrics){0};
    pthread_mutex_init(&m->lock, NULL);
}

void metrics_release(struct metrics *m) { pthread_mutex_destroy(&m->lock); }

void metrics_observe(struct metrics *m, enum metric_histogram which, double value)
{
    const double *bounds = histograms[which].bounds;
    int b = 0;
    while (bounds[b] > 0 && value > bounds[b]) b++;
    LOCKED(&m->lock);
    m->histogram[which].bucket[b]++;
    m->histogram[which].sum += value;
    m->histogram[which].count++;
}

void metrics_ended(struct metrics *m, enum metric_end end)
{
    LOCKED(&m->lock);
    m->ended[end]++;
}

void metrics_answered(struct metrics *m, int status)
{
    LOCKED(&m->lock);
    int i = 0;
    while (i < METRIC_CODES - 1 && m->code[i].status && m->code[i].status != status) i++;
    m->code[i].status = status;
    m->code[i].count++;
}

double metrics_mean(struct metrics *m, enum metric_histogram which)
{
    pthread_mutex_lock(&m->lock);
    double n = (double)m->histogram[which].count, sum = m->histogram[which].sum;
    pthread_mutex_unlock(&m->lock);
    return n > 0 ? sum / n : 0;
}

/* --- text -------------------------------------------------------------------------------------------------- */

struct writer {
    struct strbuf *out;
    const char *prefix;
    struct strbuf model; /* model_name="..." */
};

static void add_label(struct strbuf *out, const char *value)
{
    for (; *value; value++) {
        if (*value == '\n')
            strbuf_add(out, "\\n");
        else if (*value == '"' || *value == '\\')
            strbuf_addc(out, '\\'), strbuf_addc(out, *value);
        else
            strbuf_addc(out, *value);
    }
}

static void put_head(struct writer *w, const char *name, const char *type, const char *help)
{
    strbuf_addf(w->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", w->prefix, name, help, w->prefix, name, type);
}

static void put_value(struct writer *w, const char *name, const char *label, const char *value, double number)
{
    strbuf_addf(w->out, "%s%s{%s", w->prefix, name, strbuf_text(&w->model));
    if (label) strbuf_addf(w->out, ",%s=\"%s\"", label, value);
    if (fabs(number) < 9e15 && number == floor(number))
        strbuf_addf(w->out, "} %.0f\n", number);
    else
        strbuf_addf(w->out, "} %.17g\n", number);
}

static void put_one(struct writer *w, const char *name, const char *type, const char *help, double number)
{
    put_head(w, name, type, help);
    put_value(w, name, NULL, NULL, number);
}

static void put_histogram(struct writer *w, const struct metrics *m, int which)
{
    const double *bounds = histograms[which].bounds;
    char name[64], bound[32];
    int64_t so_far = 0;
    put_head(w, histograms[which].name, "histogram", histograms[which].help);
    snprintf(name, sizeof name, "%s_bucket", histograms[which].name);
    for (int b = 0; b <= METRIC_BUCKETS; b++) {
        bool last = !(bounds[b] > 0);
        so_far += m->histogram[which].bucket[b];
        snprintf(bound, sizeof bound, "%g", bounds[b]);
        put_value(w, name, "le", last ? "+Inf" : bound, (double)so_far);
        if (last) break;
    }
    snprintf(name, sizeof name, "%s_sum", histograms[which].name);
    put_value(w, name, NULL, NULL, m->histogram[which].sum);
    snprintf(name, sizeof name, "%s_count", histograms[which].name);
    put_value(w, name, NULL, NULL, (double)m->histogram[which].count);
}

static void put_engine(struct writer *w, const struct engine_stats *e)
{
    double share = e->blocks ? (double)e->blocks_used / (double)e->blocks : 0;
    put_one(w, "num_requests_running", "gauge", "Requests that are computed.", e->running);
    put_one(w, "num_requests_waiting", "gauge", "Requests that wait for their turn.", e->waiting);
    put_one(w, "kv_cache_usage_perc", "gauge", "Share of the cache's blocks in use; 1 is all.", share);
    put_one(w, "num_preemptions_total", "counter", "Requests that were preempted.", (double)e->preemptions);
    put_one(w, "prompt_tokens_total", "counter", "Tokens of prompts read.", (double)e->prompt_tokens);
    put_one(w, "generation_tokens_total", "counter", "Tokens made.", (double)e->generated_tokens);
    put_one(w, "prefix_cache_hits_total", "counter", "Prompt tokens found in blocks of other requests.",
            (double)e->shared_tokens);
    put_one(w, "engine_steps_total", "counter", "Steps of the engine.", (double)e->steps);
    put_one(w, "engine_steps_ahead_total", "counter", "Steps launched before the previous result was read.",
            (double)e->ahead);
    put_one(w, "kv_blocks", "gauge", "Blocks of the cache.", (double)e->blocks);
    put_one(w, "kv_blocks_used", "gauge", "Blocks in use.", (double)e->blocks_used);
    put_one(w, "kv_blocks_shared", "gauge", "Blocks that several requests use.", (double)e->blocks_shared);
    put_one(w, "budget_bytes", "gauge", "The budget, or the container's limit less a reserve; 0: none.",
            (double)e->budget);
    put_one(w, "ledger_bytes", "gauge", "Bytes on the ledger.", (double)e->used);
}

static void put_counts(struct writer *w, const struct metrics *m)
{
    static const char *const ends[METRIC_ENDS] = {"stop", "length", "abort", "error"};
    char code[16];
    put_head(w, "request_success_total", "counter", "Requests by how they ended.");
    for (int i = 0; i < METRIC_ENDS; i++)
        put_value(w, "request_success_total", "finished_reason", ends[i], (double)m->ended[i]);
    put_head(w, "http_responses_total", "counter", "Answers by HTTP status.");
    for (int i = 0; i < METRIC_CODES && m->code[i].status; i++) {
        snprintf(code, sizeof code, "%d", m->code[i].status);
        put_value(w, "http_responses_total", "code", code, (double)m->code[i].count);
    }
}

void metrics_write(struct metrics *m, const struct metrics_now *now, const char *prefix, const char *model,
                   struct strbuf *out)
{
    struct writer w = {.out = out, .prefix = prefix, .model = STRBUF_INIT};
    strbuf_add(&w.model, "model_name=\"");
    add_label(&w.model, model);
    strbuf_addc(&w.model, '"');
    pthread_mutex_lock(&m->lock);
    put_engine(&w, &now->engine);
    put_one(&w, "http_connections", "gauge", "Open connections.", now->connections);
    put_one(&w, "http_requests_active", "gauge", "Requests not yet answered to their end.", now->active);
    put_one(&w, "server_bytes_most", "gauge", "Maximum memory of connections and requests.",
            (double)now->server_bytes);
    put_one(&w, "process_resident_bytes", "gauge", "Resident memory of the process.",
            (double)now->process_bytes);
    put_counts(&w, m);
    for (int i = 0; i < METRIC_HISTOGRAMS; i++) put_histogram(&w, m, i);
    pthread_mutex_unlock(&m->lock);
    strbuf_release(&w.model);
}
