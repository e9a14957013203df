/* adapt.h - how a run reacts to the monitored memory: a small, pure state machine.
 *
 *     struct adapt adapt = {.rules = rules};
 *     switch (adapt_decide(&adapt, &look)) { ... }          // between two optimizer steps
 *     adapt_done(&adapt, act, step, sample, worked, whole);
 *
 * States and what a status asks for in each (the table in adapt.c):
 *
 *                normal    warning   critical  emergency
 *     full       stay      stay      shrink    tighten      the plan for the job's own budget
 *     reduced    restore   stay      shrink    tighten      smaller micro-batches, otherwise the same plan
 *     tight      restore   stay      tighten   tighten      a plan for a lower budget: more recompute, more offload
 *
 * A run that cannot shrink (micro-batches are pinned, or no smaller one saves memory) tightens instead. With a budget
 * that follows the machine (`budget: auto`) it answers a warning with tighten: the run keeps the target distance from
 * other processes' use.
 *
 * Invariants that prevent oscillation
 *  1. No sample is used for two decisions, and none that was taken before the last change settled.
 *  2. At least `every` steps lie between two changes, except in an emergency.
 *  3. Restoring waits for `calm` consecutive samples that are normal and have room: memory would stay below the warning
 *     threshold even with the full plan. So restoring does not immediately cause the next concession.
 *  4. A change that failed is not tried again until things get worse or have been normal.
 *  5. A run frees memory only if that helps: its own memory is at least an eighth of the excess.
 */
#pragma once

#include "watch/status.h"

enum adapt_act { ADAPT_STAY, ADAPT_SHRINK, ADAPT_TIGHTEN, ADAPT_RESTORE, ADAPT_ACTS };
enum adapt_level { ADAPT_FULL, ADAPT_REDUCED, ADAPT_TIGHT, ADAPT_LEVELS };

/* Settings of training.dynamic_batching. */
struct adapt_rules {
    bool enabled;
    bool smooth;   /* micro-batches go one divisor at a time */
    bool follows;  /* the budget follows the machine: auto */
    bool pinned;   /* the job pins the micro-batch */
    int64_t every; /* minimum steps between two changes */
    int64_t least; /* smallest micro-batch that the run may use */
    int calm;      /* normal samples before it restores */
};

struct adapt_look {
    int64_t step, sample;
    enum memory_status status; /* of the gauge that the plan can relieve */
    int64_t over;              /* its bytes above the target threshold; negative: below it */
    int64_t room;              /* its bytes below the warning threshold */
    int64_t ours;              /* bytes of the current plan */
    int64_t more;              /* additional bytes of the full plan */
};

struct adapt {
    struct adapt_rules rules;
    enum adapt_level level;
    int64_t sample;            /* the last one used, or to wait for */
    int64_t next;              /* before this step only an emergency causes a change */
    int calm;                  /* consecutive calm samples (invariant 3) */
    enum memory_status status; /* at the last decision */
    enum memory_status spent;  /* status at which a change failed; normal: none did */
};

enum adapt_act adapt_decide(struct adapt *adapt, const struct adapt_look *look);

/* Records that the act was tried after this many steps; `sample` is the newest now. `whole`: after restoring, the
 * full plan is active again. */
void adapt_done(struct adapt *adapt, enum adapt_act act, int64_t step, int64_t sample, bool worked,
                bool whole);

/* Call it when a user sets the budget: its plan becomes the full one. */
void adapt_reset(struct adapt *adapt, int64_t sample);

/* The next micro-batch below `now`: a divisor of rows, at least `least`. The largest that is at most `share`
 * of `now` (1: the next one), else the smallest. 0: none. */
int64_t adapt_smaller(int64_t rows, int64_t now, int64_t least, double share);
/* The next divisor above, at most `most`. */
int64_t adapt_larger(int64_t rows, int64_t now, int64_t most);

/* For the step line: "reducing batch size", "batch size restored"; empty: no action. */
const char *adapt_act_text(enum adapt_act act);
const char *adapt_level_name(enum adapt_level level);
