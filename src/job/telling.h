/* telling.h - where a run reports to: files for TensorBoard and W&B, webhook addresses.
 *
 *     if (job.telling.hook[HOOK_DISCORD]) ...            // its address, a secret from the environment or .env only
 *     job_telling_folder(&job, TOLD_TENSORBOARD, path, sizeof path);
 *
 * Addresses are not configuration keys, so no output shows them: neither settings nor manifests include them.
 */
#pragma once

#include "base/bump.h"
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct job;

/* The message format of an address. */
enum hook_kind { HOOK_JSON, HOOK_DISCORD, HOOK_SLACK, HOOK_KINDS };
/* The variable with the address: "DISCORD_WEBHOOK". */
const char *hook_variable(enum hook_kind kind);

/* Events that webhook addresses receive. */
enum notice { NOTICE_START, NOTICE_PROGRESS, NOTICE_WARNING, NOTICE_ERROR, NOTICE_END, NOTICES };
const char *notice_name(enum notice notice);

struct job_telling {
    struct string_list report_to, notify; /* words of training.report_to and monitoring.notify */
    bool tensorboard, wandb;              /* from report_to */
    bool notices[NOTICES];                /* from notify */
    const char *logging_dir;              /* NULL or empty: below output.dir */
    const char *run_name;                 /* NULL or empty: the last part of output.dir */
    const char *project;                  /* of W&B */
    double progress_seconds, timeout;
    const char *hook[HOOK_KINDS]; /* secrets; NULL: not set */
};

/* For job_finish: converts words to flags. PLIM_BAD_INPUT and PLIM_UNSUPPORTED name an unknown one. */
enum plim_status job_settle_telling(struct job *job, struct plim_error *err);

/* The folder of event files, or of W&B. */
enum told_folder { TOLD_TENSORBOARD, TOLD_WANDB };
void job_telling_folder(const struct job *job, enum told_folder which, char *path, size_t size);
const char *job_run_name(const struct job *job);

/* Host memory that reporting needs during a run; part of its overhead. */
int64_t job_telling_bytes(const struct job *job);
