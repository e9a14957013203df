/* run_state.h - a run's state, collected from its events; shown by the terminal view and /metrics.
 *
 *     struct run_state state = {0};
 *     run_log_read(&log, run_state_hear, &state);           // run_log.h
 *     run_state_ask(&state, "runs/small", NULL);            // asks a running job, also between its steps
 *     run_frame_draw(&state, &frame, &out);                 // run_frame.h
 *     run_metrics(&state, "small", &out);
 *
 * Its size is fixed: it keeps the newest points of curves and the newest messages.
 */
#pragma once

#include "base/json.h"
#include "tape/tape.h"
#include "watch/status.h"

enum { RUN_CURVE = 240, RUN_TOLD = 32, RUN_GAUGES = 4, RUN_CLASSES = CLASS_COUNT + 1, RUN_TEXT = 240 };

/* One memory with its thresholds; the name is stored here, gauge.name is not used. */
struct run_gauge {
    char name[16];
    struct gauge gauge;
};

struct run_state {
    bool begun;    /* there is a plan */
    bool ended;    /* the run has reported its end */
    bool refused;  /* it ended because memory was refused */
    int64_t pid;   /* of the latest start */
    char host[72]; /* where it runs */
    char device[96];
    double time, started;        /* of the last event and of the plan, in seconds since 1970; 0: unknown */
    int64_t step, steps, tokens; /* tokens: of all reported steps */
    double loss, lr, grad_norm, tokens_per_s, step_seconds, eval_loss;
    bool has_eval;
    int64_t planned, host_bytes, disk_bytes, micro_batch, accumulation;
    int64_t plans, checkpoints;
    double share[LINES]; /* thresholds as shares */
    char status[16], level[16], strain[16];
    struct run_gauge gauge[RUN_GAUGES]; /* the job's budget comes first */
    int gauges;
    struct {
        char name[16];
        int64_t bytes;
    } by_class[RUN_CLASSES];
    int classes;
    double losses[RUN_CURVE], speeds[RUN_CURVE]; /* of the last `curve` steps */
    int curve;
    struct {
        double time;
        char text[RUN_TEXT];
    } told[RUN_TOLD]; /* oldest first */
    int ntold;
    bool answers; /* the run answered the last query */
};

/* A run_event_hear; arg is the run_state. */
void run_state_hear(void *state, const struct node *event);

/* Queries the run through the socket in its folder, with a short time limit. Copies the whole reply to
 * `reply` if given; it stays empty if nobody answers. */
void run_state_ask(struct run_state *state, const char *folder, struct strbuf *reply);

/* True if the run still works: it answers, or its process exists and has not reported its end. */
bool run_state_live(const struct run_state *state);

/* Appends one line for people about an event; nothing for events of no interest. `steps` 0: unknown. */
void run_event_text(const struct node *event, int64_t steps, struct strbuf *out);
