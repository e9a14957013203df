/* adapt.h - how a run reacts to the monitored memory: a small, pure state machine.
 *
 *     struct adapt adapt = {.rules = rules};
 *     switch (adapt_decide(&adapt, &look)) { ... }          // between two optimizer steps
 *     adapt_done(&adapt, act, step, sample, worked, whole);
 *
 * States and what a status asks for in each (the table in adapt.c):
 *
 *                normal    warning   critical  emergency
 *     full       stay      stay      shrink    tighten      the plan of the job's own line
 *     reduced    restore   stay      shrink    tighten      smaller micro-batches, all else as planned
 *     tight      restore   stay      tighten   tighten      planned anew under a lower line: more recomputation, more offload
 *
 * A run that cannot shrink (micro-batches are pinned, or no smaller one saves memory) tightens instead. With a budget
 * that follows the machine (`budget: auto`) it answers a warning with tighten: the run keeps the target distance from
 * other processes' use.
 *
 * Invariants, which keep a run from swinging to and fro
 *  1. Nothing is decided twice on one sample, nor on a sample taken before the last change settled.
 *  2. Between two changes lie `every` steps, except in an emergency.
 *  3. Restoring waits for `calm` samples in a row that are normal and have room: with the full plan back the memory would
 *     still be below the warning line. So what was just given back does not bring the run back into what made it give.
 *  4. A change that could not be made is not tried again before things are worse, or have been normal.
 *  5. A run gives way only where that helps: what it has is at least an eighth of what is too much.
 */
#ifndef PLIM_TRAIN_ADAPT_H
#define PLIM_TRAIN_ADAPT_H

#include "watch/status.h"

enum adapt_act { ADAPT_STAY, ADAPT_SHRINK, ADAPT_TIGHTEN, ADAPT_RESTORE, ADAPT_ACTS };
enum adapt_level { ADAPT_FULL, ADAPT_REDUCED, ADAPT_TIGHT, ADAPT_LEVELS };

/* training.dynamic_batching as it is meant. */
struct adapt_rules {
    bool enabled;
    bool smooth;   /* micro-batches go one divisor at a time */
    bool follows;  /* the budget follows the machine: auto */
    bool pinned;   /* the job pins the micro-batch */
    int64_t every; /* steps between two changes, at least */
    int64_t least; /* smallest micro-batch that the run may use */
    int calm;      /* normal samples before it restores */
};

struct adapt_look {
    int64_t step, sample;
    enum memory_status status; /* of the gauge that the plan can ease */
    int64_t over;              /* its bytes above the target line; below 0: under it */
    int64_t room;              /* and under the warning line */
    int64_t ours;              /* bytes of the present plan */
    int64_t more;              /* bytes that the full plan takes beyond it */
};

struct adapt {
    struct adapt_rules rules;
    enum adapt_level level;
    int64_t sample;            /* decided on, or waited for */
    int64_t next;              /* before this step only an emergency causes a change */
    int calm;                  /* such samples in a row (invariant 3) */
    enum memory_status status; /* decided on */
    enum memory_status spent;  /* a change failed at this status; normal: none did */
};

enum adapt_act adapt_decide(struct adapt *adapt, const struct adapt_look *look);

/* Records that the act was tried after this many steps; `sample` is the newest now. `whole`: after restoring, the
 * full plan is active again. */
void adapt_done(struct adapt *adapt, enum adapt_act act, int64_t step, int64_t sample, bool worked,
                bool whole);

/* Call it when a user sets the budget: its plan becomes the full one. */
void adapt_reset(struct adapt *adapt, int64_t sample);

/* The next micro-batch below `now`, a divisor of rows and not below `least`: the largest that is no more than `share` of it
 * (1: the next one), else the smallest. 0: there is none. */
int64_t adapt_smaller(int64_t rows, int64_t now, int64_t least, double share);
/* The next divisor above, at most `most`. */
int64_t adapt_larger(int64_t rows, int64_t now, int64_t most);

/* For the step line: "reducing batch size", "batch size restored"; empty: nothing is done. */
const char *adapt_act_text(enum adapt_act act);
const char *adapt_level_name(enum adapt_level level);

#endif
