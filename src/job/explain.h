/* explain.h - explains one key or a section for people: values, meaning, other names, effect on a plan. */
#pragma once

#include "job/job.h"

/* With a job, also shows its value and origin. PLIM_BAD_INPUT: unknown key. */
enum plim_status job_explain(const char *key, const struct job *job, struct strbuf *out,
                             struct plim_error *err);
