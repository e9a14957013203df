/* plan_job.h - the plan that a run would have, with everything a report shows of it. For plan and doctor. */
#pragma once

#include "report/report.h"

struct planned {
    bool known; /* plan and report are filled, whether it fits or not */
    struct plan_request request;
    struct plan plan;
    struct loader_sizes loader;
    struct job_length length; /* as far as the data could be read */
    struct plan_report report;
    bool no_data; /* the data are not on this machine and were not examined */
};

/* PLIM_NO_FIT: err says what is missing, and `known` whether there is a report. `here`: the device is one of this machine, so
 * that its disk counts, too, and the data must be here. To be released whatever is returned. */
enum plim_status plan_job(const struct context *context, const struct job *job, struct device_facts *facts,
                          bool here, struct planned *out, struct plim_error *err);
void planned_release(struct planned *p);
