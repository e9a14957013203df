/* telling.h - whom a run tells of itself: files for TensorBoard and W&B, addresses that people listen at.
 *
 *     if (job.telling.hook[HOOK_DISCORD]) ...            // its address: a secret, of the environment or .env alone
 *     job_telling_folder(&job, TOLD_TENSORBOARD, path, sizeof path);
 *
 * Addresses are in no configuration key, so that no output can show them: neither settings nor manifests have them.
 */
#ifndef PLIM_JOB_TELLING_H
#define PLIM_JOB_TELLING_H

#include "base/bump.h"
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct job;

/* Whose format an address takes. */
enum hook_kind { HOOK_JSON, HOOK_DISCORD, HOOK_SLACK, HOOK_KINDS };
/* The variable that has the address: "DISCORD_WEBHOOK". */
const char *hook_variable(enum hook_kind kind);

/* Events that webhook addresses receive. */
enum notice { NOTICE_START, NOTICE_PROGRESS, NOTICE_WARNING, NOTICE_ERROR, NOTICE_END, NOTICES };
const char *notice_name(enum notice notice);

struct job_telling {
    struct string_list report_to, notify; /* words of training.report_to and monitoring.notify */
    bool tensorboard, wandb;              /* of report_to */
    bool notices[NOTICES];                /* of notify */
    const char *logging_dir;              /* NULL or empty: below output.dir */
    const char *run_name;                 /* likewise: the last part of output.dir */
    const char *project;                  /* of W&B */
    double progress_seconds, timeout;
    const char *hook[HOOK_KINDS]; /* secrets; NULL: nobody listens */
};

/* For job_finish: words become flags. PLIM_BAD_INPUT and PLIM_UNSUPPORTED name one that is not known. */
enum plim_status job_settle_telling(struct job *job, struct plim_error *err);

/* Where event files go, or W&B's folders. */
enum told_folder { TOLD_TENSORBOARD, TOLD_WANDB };
void job_telling_folder(const struct job *job, enum told_folder which, char *path, size_t size);
const char *job_run_name(const struct job *job);

/* Bytes of the host that telling takes beside a run: part of its overhead. */
int64_t job_telling_bytes(const struct job *job);

#endif
