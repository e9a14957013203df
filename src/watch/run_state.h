/* run_state.h - how a run is, from its events: what the terminal view and /metrics show.
 *
 *     struct run_state state = {0};
 *     run_log_read(&log, run_state_hear, &state);           // run_log.h
 *     run_state_ask(&state, "runs/small", NULL);            // a run that is under way tells of itself, between its steps too
 *     run_frame_draw(&state, &frame, &out);                 // run_frame.h
 *     run_metrics(&state, "small", &out);
 *
 * Its size is fixed: of curves and of what was told the newest are kept.
 */
#ifndef PLIM_WATCH_RUN_STATE_H
#define PLIM_WATCH_RUN_STATE_H

#include "base/json.h"
#include "tape/tape.h"
#include "watch/status.h"

enum { RUN_CURVE = 240, RUN_TOLD = 32, RUN_GAUGES = 4, RUN_CLASSES = CLASS_COUNT + 1, RUN_TEXT = 240 };

/* One memory against its lines; the name is kept here, gauge.name is not used. */
struct run_gauge {
    char name[16];
    struct gauge gauge;
};

struct run_state {
    bool begun;    /* a plan stands */
    bool ended;    /* the run has told its end */
    bool refused;  /* because memory was refused */
    int64_t pid;   /* of the last that began */
    char host[72]; /* where it runs */
    char device[96];
    double time, started;        /* of the last event and of the plan, seconds since 1970; 0: unknown */
    int64_t step, steps, tokens; /* tokens: of all steps that were told */
    double loss, lr, grad_norm, tokens_per_s, step_seconds, eval_loss;
    bool has_eval;
    int64_t planned, host_bytes, disk_bytes, micro_batch, accumulation;
    int64_t plans, checkpoints;
    double share[LINES]; /* thresholds of the profile */
    char status[16], level[16], strain[16];
    struct run_gauge gauge[RUN_GAUGES]; /* the job's own line first */
    int gauges;
    struct {
        char name[16];
        int64_t bytes;
    } by_class[RUN_CLASSES];
    int classes;
    double losses[RUN_CURVE], speeds[RUN_CURVE]; /* the last `curve` steps' */
    int curve;
    struct {
        double time;
        char text[RUN_TEXT];
    } told[RUN_TOLD]; /* oldest first */
    int ntold;
    bool answers; /* the run has answered the last question */
};

/* A run_event_hear; arg is the run_state. */
void run_state_hear(void *state, const struct node *event);

/* Asks the run through the socket in its folder, for a moment at most. The whole reply goes to `reply` where that is given; it
 * stays empty where nobody answers. */
void run_state_ask(struct run_state *state, const char *folder, struct strbuf *reply);

/* Is somebody still at work? The run answers, or its process is there and has not told its end. */
bool run_state_live(const struct run_state *state);

/* An event in one line for people; nothing for those that have nothing to say. `steps` 0: unknown. */
void run_event_text(const struct node *event, int64_t steps, struct strbuf *out);

#endif
