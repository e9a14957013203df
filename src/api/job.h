/* job.h - a job of the public API: what the caller said, from which each plan and each run makes a job of its own.
 *
 *     struct job own;
 *     job_make(job, &own, &err);            // reads, applies the assignments and the environment, finishes
 *     ...
 *     job_release(&own);
 */
#pragma once

#include "api/handle.h"
#include "job/job.h"

struct plim_job {
    struct handle handle;
    char *path, *text; /* one of them */
    char **sets;       /* "training.steps=20" */
    size_t count;
};

/* The finished job; released by the caller whatever is returned. */
enum plim_status job_make(const struct plim_job *job, struct job *out, struct plim_error *err);
