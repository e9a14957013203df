/* doctor.h - finds probable mistakes in a valid job: settings that defeat their purpose.
 *
 *     struct doctor_case c = {.job = &job, .length = &length, .report = &report, .facts = &device->facts};
 *     struct strbuf problems = STRBUF_INIT;
 *     int n = doctor_examine(&c, &problems);             // one line each: the key, the problem, the fix
 *
 * A job that cannot be read or planned fails earlier, and the caller reports that. A job without problems gives no lines.
 */
#pragma once

#include "base/context.h"
#include "report/report.h"

struct doctor_case {
    const struct job *job;
    const struct job_length *length;
    const struct plan_report *report; /* of its plan; NULL: none */
    const struct device_facts *facts;
    const struct context *context; /* its environment variables are examined */
    int64_t checkpoints;           /* number already in output.dir */
    int cpus;                      /* of this machine */
    bool gpu_here;                 /* there is a GPU, whichever device the job uses */
};

/* Returns the number of lines added. */
int doctor_examine(const struct doctor_case *c, struct strbuf *problems);
