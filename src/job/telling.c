/* telling.c - see telling.h. */
#include "job/job.h"
#include "net/post.h"

#include <stdio.h>
#include <string.h>

static const char *const variables[HOOK_KINDS] = {
    [HOOK_JSON] = "PLIMSOLL_WEBHOOK", [HOOK_DISCORD] = "DISCORD_WEBHOOK", [HOOK_SLACK] = "SLACK_WEBHOOK"};
static const char *const notice_names[NOTICES] = {[NOTICE_START] = "start",
                                                  [NOTICE_PROGRESS] = "progress",
                                                  [NOTICE_WARNING] = "warning",
                                                  [NOTICE_ERROR] = "error",
                                                  [NOTICE_END] = "end"};

const char *hook_variable(enum hook_kind kind) { return variables[kind]; }
const char *notice_name(enum notice notice) { return notice_names[notice]; }

static enum plim_status settle_reports(struct job *job, struct plim_error *err)
{
    struct job_telling *t = &job->telling;
    t->tensorboard = t->wandb = false;
    for (size_t i = 0; i < t->report_to.count; i++) {
        const char *word = t->report_to.items[i];
        bool all = !strcmp(word, "all"), board = all || !strcmp(word, "tensorboard"),
             wandb = all || !strcmp(word, "wandb");
        t->tensorboard |= board, t->wandb |= wandb;
        if (!board && !wandb && strcmp(word, "none"))
            return plim_fail(
                err, PLIM_UNSUPPORTED,
                "%s: key 'training.report_to': '%.80s' is not supported; write tensorboard, wandb, all or "
                "none (plimsoll train --log FILE writes every step as a line of JSON)",
                job->name, word);
    }
    return PLIM_OK;
}

static enum plim_status settle_notices(struct job *job, struct plim_error *err)
{
    struct job_telling *t = &job->telling;
    memset(t->notices, 0, sizeof t->notices);
    for (size_t i = 0; i < t->notify.count; i++) {
        const char *word = t->notify.items[i];
        int n = 0;
        while (n < NOTICES && strcmp(notice_names[n], word)) n++;
        if (n < NOTICES) t->notices[n] = true;
        if (n == NOTICES && strcmp(word, "none"))
            return plim_fail(err, PLIM_BAD_INPUT,
                             "%s: key 'monitoring.notify': '%.80s' is not known; write start, progress, "
                             "warning, error, end or none",
                             job->name, word);
    }
    return PLIM_OK;
}

enum plim_status job_settle_telling(struct job *job, struct plim_error *err)
{
    enum plim_status status = settle_reports(job, err);
    return status == PLIM_OK ? settle_notices(job, err) : status;
}

static bool is_given(const char *text) { return text && *text; }

void job_telling_folder(const struct job *job, enum told_folder which, char *path, size_t size)
{
    static const char *const names[] = {[TOLD_TENSORBOARD] = "tensorboard", [TOLD_WANDB] = "wandb"};
    if (which == TOLD_TENSORBOARD && is_given(job->telling.logging_dir))
        snprintf(path, size, "%s", job->telling.logging_dir);
    else
        snprintf(path, size, "%s/%s", job->output_dir, names[which]);
}

const char *job_run_name(const struct job *job)
{
    const char *slash = strrchr(job->output_dir, '/');
    if (is_given(job->telling.run_name)) return job->telling.run_name;
    return slash && slash[1] ? slash + 1 : job->output_dir;
}

int64_t job_telling_bytes(const struct job *job)
{
    int64_t hooks = 0;
    bool wanted = false;
    for (int i = 0; i < NOTICES; i++) wanted |= job->telling.notices[i];
    for (int i = 0; i < HOOK_KINDS && wanted; i++) hooks += job->telling.hook[i] != NULL;
    return hooks ? POST_LIBRARY_BYTES + hooks * POST_BYTES : 0;
}
