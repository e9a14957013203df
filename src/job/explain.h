/* explain.h - one key, or a section of them, for people: what it takes, means, is also called, and does to a plan. */
#ifndef PLIM_JOB_EXPLAIN_H
#define PLIM_JOB_EXPLAIN_H

#include "job/job.h"

/* job may be NULL; else its value, and where that came from, is told, too. PLIM_BAD_INPUT: nobody knows such a key. */
enum plim_status job_explain(const char *key, const struct job *job, struct strbuf *out,
                             struct plim_error *err);

#endif
