/* savings.h - bytes that each technique saves for this job, and its cost; and, if nothing fits, the cheapest changes that
 * would make the job fit.
 *
 *     struct saving savings[SAVINGS_MAX];
 *     int n;
 *     job_savings(&job, &request, &plan, savings, &n, &err);
 *
 * Neither is an estimate: a saving is the difference between the bounds of two tapes, and a remedy is a plan that the
 * search found.
 */
#pragma once

#include "job/job.h"

#define SAVINGS_MAX  14
#define REMEDIES_MAX 24
#define REMEDY_KEYS  16

/* Bytes saved if the technique is on, or that it would save if it is off. At least one of the two numbers is
 * positive. The other may be negative: moving tensors off the device takes memory of the tier below. */
struct saving {
    const char *name;
    bool on;          /* part of this plan */
    int64_t bytes;    /* of the memory the budget counts: the device, or the process on a CPU */
    int64_t far;      /* of the tier below: the host of a GPU, the disk of a CPU */
    double time_cost; /* share of the predicted step time it adds (negative: faster) */
};

/* Lists techniques that save something, or would. */
enum plim_status job_savings(const struct job *job, const struct plan_request *request,
                             const struct plan *plan, struct saving *out, int *count, struct plim_error *err);

/* Seconds of a step of this plan with updates inside the next step's forward (training.optimizer_in_forward), if that fits and is
 * predicted to be faster; else 0. The search does not look for such plans by itself. */
enum plim_status job_forward_seconds(const struct plan_request *request, const struct plan *plan, double *out,
                                     struct plim_error *err);

struct remedy_key {
    const char *key; /* "training.optimizer"; for a server an option: "--weights" */
    char value[24];  /* "adamw8bit"; empty: remove the key, it pins a knob */
};

struct remedy {
    struct remedy_key keys[REMEDY_KEYS]; /* changes that together make the job fit */
    int nkeys;
    char cost[160];      /* its cost, for people */
    int64_t total, host; /* bytes the job then needs */
    double step_seconds;
};

/* "training.mixed_precision: bf16", "unpin training.recompute". Returns buf. */
const char *remedy_text(const struct remedy *remedy, char *buf, size_t size);

/* Changes that make the job fit its budget, the least harmful to the results first: single changes or, if
 * none is enough, combinations. Raising the exceeded budget comes last, as far as the device has the
 * memory. */
enum plim_status job_remedies(const struct job *job, const struct plan_request *request,
                              const struct plan *smallest, struct remedy *out, int *count,
                              struct plim_error *err);

/* Collects the keys of this job that pin a knob, at most KNOB_COUNT. Returns their number. */
int report_pins(const struct job *job, const char **keys);
