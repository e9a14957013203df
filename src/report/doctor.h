/* doctor.h - what is probably wrong with a job that can be read: settings that contradict what they are for.
 *
 *     struct doctor_case c = {.job = &job, .length = &length, .report = &report, .facts = &device->facts};
 *     struct strbuf problems = STRBUF_INIT;
 *     int n = doctor_examine(&c, &problems);             // one line each: the key, what is wrong, what to do
 *
 * What cannot be read or planned at all is an error before, and the caller's to tell. A job without a problem gets no line.
 */
#ifndef PLIM_REPORT_DOCTOR_H
#define PLIM_REPORT_DOCTOR_H

#include "base/context.h"
#include "report/report.h"

struct doctor_case {
    const struct job *job;
    const struct job_length *length;
    const struct plan_report *report; /* of its plan; NULL: there is none */
    const struct device_facts *facts;
    const struct context *context; /* whose variables are looked at */
    int64_t checkpoints;           /* that are in output.dir already */
    int cpus;                      /* of this machine */
    bool gpu_here;                 /* a GPU is, whatever device the job uses */
};

/* The number of lines it added. */
int doctor_examine(const struct doctor_case *c, struct strbuf *problems);

#endif
