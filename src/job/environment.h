/* environment.h - settings from environment variables and from a .env file next to the job.
 *
 *     job_take_environment(&job, &context, "jobs", &err);            // after the file, --set and flags, which are stronger
 *     for (int i = 0; i < job.environment->count; i++) ... // each variable, what it set, or why it is ignored
 *
 * Variables known from other programs set a key that nothing else has set. An invalid value is PLIM_BAD_INPUT and names the
 * variable, even if a stronger setting exists. Secret values are never shown; webhook addresses are kept outside all keys
 * (telling.h).
 */
#pragma once

#include "base/context.h"
#include "job/origin.h"

struct variable_seen {
    const char *name;  /* "MAX_BATCH_SIZE" */
    const char *where; /* "environment MAX_BATCH_SIZE", "jobs/.env:3" */
    const char *key;   /* the key that it set; NULL: none */
    const char *does;  /* another effect: "is told of the run"; NULL: none */
    const char *why;   /* why it is ignored; NULL: it has an effect */
    bool note;         /* print a line at the start of a run */
};

enum { VARIABLES_SEEN = 64 };
struct job_environment {
    struct variable_seen seen[VARIABLES_SEEN];
    int count;
};

/* Reads the process's environment, then dir/.env. */
enum plim_status job_take_environment(struct job *job, const struct context *context, const char *dir,
                                      struct plim_error *err);

/* Only the process's environment: for programs without a job. */
enum plim_status job_take_process_environment(struct job *job, const struct context *context,
                                              struct plim_error *err);

/* A Markdown table of all known variables, for docs. */
void environment_markdown(struct strbuf *out);
