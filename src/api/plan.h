/* plan.h - a device for a job of the public API, as plan and train want it. */
#pragma once

#include "api/device.h"
#include "api/job.h"

/* Where a job is planned or run. */
struct job_place {
    struct device *device; /* NULL: a preset */
    bool own;              /* job_place_close closes it */
    struct preset preset;  /* facts are those of the device, or of the preset */
};

/* `given` NULL: the job's own device. The job meets it. */
enum plim_status job_place_open(const struct context *context, struct job *job, struct plim_device *given,
                                struct job_place *out, struct plim_error *err);
void job_place_close(struct job_place *place);
