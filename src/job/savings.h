/* savings.h - what each trick saves for this job, in bytes, and what it costs; and, when nothing fits, the
 * cheapest changes that would make it fit.
 *
 *     struct saving savings[SAVINGS_MAX];
 *     int n;
 *     job_savings(&job, &request, &plan, savings, &n, &err);
 */
#ifndef PLIM_JOB_SAVINGS_H
#define PLIM_JOB_SAVINGS_H

#include "job/job.h"

#define SAVINGS_MAX  12
#define REMEDIES_MAX 12

struct saving {
    const char *name;
    bool on;          /* part of this plan: bytes is what it saves; otherwise what turning it on would save */
    int64_t bytes;    /* may be 0 or negative: then it would not help here */
    double time_cost; /* share of the step's predicted time it adds (negative: it is faster) */
};

enum plim_status job_savings(struct job *job, const struct plan_request *request, const struct plan *plan,
                             struct saving *out, int *count, struct plim_error *err);

struct remedy {
    char change[96]; /* "training.mixed_precision: bf16" */
    char cost[96];   /* what it costs, for people */
    int64_t total;   /* bytes the job would take */
    double step_seconds;
};

/* Changes after which the job fits its budget, cheapest first; raising the budget comes last and is always there. */
enum plim_status job_remedies(const struct job *job, const struct plan_request *request,
                              const struct plan *smallest, struct remedy *out, int *count,
                              struct plim_error *err);

#endif
