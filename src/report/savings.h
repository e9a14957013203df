/* savings.h - what each trick saves for this job, in bytes, and what it costs; and, when nothing fits, the
 * cheapest changes that would make it fit.
 *
 *     struct saving savings[SAVINGS_MAX];
 *     int n;
 *     job_savings(&job, &request, &plan, savings, &n, &err);
 *
 * Both are asked of the planner, not estimated: a saving is the difference between the bounds of two tapes, a remedy is
 * a search that has found a plan.
 */
#ifndef PLIM_REPORT_SAVINGS_H
#define PLIM_REPORT_SAVINGS_H

#include "job/job.h"

#define SAVINGS_MAX  13
#define REMEDIES_MAX 24
#define REMEDY_KEYS  16

/* Bytes are what it saves where it is on, and what it would save where it is off. At least one of the two is above 0; the
 * other may be below: a trick that moves something off the device takes room on the tier below. */
struct saving {
    const char *name;
    bool on;          /* part of this plan */
    int64_t bytes;    /* of what the budget counts: the device, or the process on a CPU */
    int64_t far;      /* of the tier below: the host beside a GPU, the disk under a CPU */
    double time_cost; /* share of the step's predicted time it adds (negative: it is faster) */
};

/* Tricks that save something, or would. */
enum plim_status job_savings(const struct job *job, const struct plan_request *request,
                             const struct plan *plan, struct saving *out, int *count, struct plim_error *err);

struct remedy_key {
    const char *key; /* "training.optimizer"; of a server an option: "--weights" */
    char value[24];  /* "adamw8bit"; empty: the key pins something and is taken out */
};

struct remedy {
    struct remedy_key keys[REMEDY_KEYS]; /* all of them together make the job fit */
    int nkeys;
    char cost[160];      /* what it costs, for people */
    int64_t total, host; /* bytes the job then takes */
    double step_seconds;
};

/* "training.mixed_precision: bf16", "unpin training.recompute". Returns buf. */
const char *remedy_text(const struct remedy *remedy, char *buf, size_t size);

/* Changes after which the job fits its budget, cheapest for the results first: each alone or, where none is enough,
 * several together. Raising the line that is missed comes last, as far as the device has the memory. */
enum plim_status job_remedies(const struct job *job, const struct plan_request *request,
                              const struct plan *smallest, struct remedy *out, int *count,
                              struct plim_error *err);

/* Keys of this job that pin a knob, at most KNOB_COUNT; their number. */
int report_pins(const struct job *job, const char **keys);

#endif
