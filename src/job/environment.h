/* environment.h - what environment variables, and a file .env beside the job, ask for.
 *
 *     job_take_environment(&job, &context, "jobs", &err);            // after the file, --set and flags: they are stronger
 *     for (int i = 0; i < job.environment->count; i++) ... // what was seen, what it set, or why it is ignored
 *
 * Variables people know from elsewhere set a key of ours where nobody else has. One whose value cannot be read is an error
 * that names it (PLIM_BAD_INPUT), also when something stronger is given. Values of secrets are never shown; addresses
 * that a run is told to are kept outside of all keys (telling.h).
 */
#ifndef PLIM_JOB_ENVIRONMENT_H
#define PLIM_JOB_ENVIRONMENT_H

#include "base/context.h"
#include "job/origin.h"

struct variable_seen {
    const char *name;  /* "MAX_BATCH_SIZE" */
    const char *where; /* "environment MAX_BATCH_SIZE", "jobs/.env:3" */
    const char *key;   /* that it set; NULL: none */
    const char *does;  /* what it does instead: "is told of the run"; NULL: nothing */
    const char *why;   /* it is ignored; NULL: it acts */
    bool note;         /* worth a line at the start of a run */
};

enum { VARIABLES_SEEN = 64 };
struct job_environment {
    struct variable_seen seen[VARIABLES_SEEN];
    int count;
};

/* Reads the process's environment, then dir/.env. */
enum plim_status job_take_environment(struct job *job, const struct context *context, const char *dir,
                                      struct plim_error *err);

/* The process's environment alone: for programs without a job. */
enum plim_status job_take_process_environment(struct job *job, const struct context *context,
                                              struct plim_error *err);

/* Every variable that is known, for docs: a Markdown table. */
void environment_markdown(struct strbuf *out);

#endif
