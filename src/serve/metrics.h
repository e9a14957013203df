/* metrics.h - the server's counters, in Prometheus' text format.
 *
 *     struct metrics m;
 *     metrics_init(&m);
 *     metrics_observe(&m, METRIC_FIRST_TOKEN, 0.012);
 *     metrics_write(&m, &gauges, "vllm:", "my-model", &out);
 *
 * Names and buckets are those of vLLM's dashboards, without their prefix unless one is given. Thread-safe.
 */
#pragma once

#include "base/locked.h"
#include "base/strbuf.h"
#include "serve/engine.h"

enum metric_histogram {
    METRIC_FIRST_TOKEN,
    METRIC_INTER_TOKEN,
    METRIC_E2E,
    METRIC_QUEUE,
    METRIC_PREFILL,
    METRIC_DECODE,
    METRIC_PROMPT_TOKENS,
    METRIC_ANSWER_TOKENS,
    METRIC_HISTOGRAMS
};

enum metric_end { END_STOP, END_LENGTH, END_ABORT, END_FAILED, METRIC_ENDS };

enum { METRIC_BUCKETS = 22, METRIC_CODES = 16 };

struct metrics {
    pthread_mutex_t lock;
    struct {
        int64_t bucket[METRIC_BUCKETS + 1]; /* the last: above all bounds */
        double sum;
        int64_t count;
    } histogram[METRIC_HISTOGRAMS];
    int64_t ended[METRIC_ENDS];
    struct {
        int status;
        int64_t count;
    } code[METRIC_CODES]; /* answers by HTTP status, in order of first occurrence */
};

void metrics_init(struct metrics *m);
void metrics_release(struct metrics *m);
void metrics_observe(struct metrics *m, enum metric_histogram which, double value);
void metrics_ended(struct metrics *m, enum metric_end end);
void metrics_answered(struct metrics *m, int status);
/* Mean of the observations; 0: none. */
double metrics_mean(struct metrics *m, enum metric_histogram which);

/* Values read when metrics are requested. */
struct metrics_now {
    struct engine_stats engine;
    int connections, active;
    int64_t server_bytes, process_bytes;
};
void metrics_write(struct metrics *m, const struct metrics_now *now, const char *prefix, const char *model,
                   struct strbuf *out);
