/* job.c - see job.h and plimsoll/plan.h. */
#include "api/job.h"
#include "job/origin.h"
#include <plimsoll/plan.h>

#include <stdlib.h>
#include <string.h>

static void note(void *arg, const char *where, const char *path, const char *text)
{
    log_info(arg, "%s: '%s' is accepted: %s", where, path, text);
}

static void wrong(void *arg, const char *text) { log_warn(arg, "%s", text); }

/* Reads file or text and applies the assignments. */
static enum plim_status read_job(const struct plim_job *job, struct job *out, struct plim_error *err)
{
    struct schema_listener notes = {
        .say = note, .wrong = wrong, .arg = (void *)context_log(handle_context(&job->handle))};
    job_init(out);
    enum plim_status status =
        job->path ? job_load(out, job->path, &notes, err) : job_parse(out, job->text, "job", &notes, err);
    for (size_t i = 0; i < job->count && status == PLIM_OK; i++)
        status = job_set(out, job->sets[i], &notes, err);
    return status;
}

enum plim_status job_make(const struct plim_job *job, struct job *out, struct plim_error *err)
{
    char *dir = job->path ? strdup(job->path) : NULL, *slash = dir ? strrchr(dir, '/') : NULL;
    if (slash) slash[slash == dir] = '\0'; /* "/job.yaml" is in "/" */
    enum plim_status status = read_job(job, out, err);
    if (status == PLIM_OK)
        status = job_take_environment(out, handle_context(&job->handle), slash ? dir : "", err);
    if (status == PLIM_OK) status = job_finish(out, err);
    free(dir);
    return status;
}

/* Reads the job once, so that its errors are told now. */
static enum plim_status check(const struct plim_job *job, struct plim_error *err)
{
    struct job read;
    enum plim_status status = read_job(job, &read, err);
    job_release(&read);
    return status;
}

static enum plim_status open_job(struct plim_context *context, const char *path, const char *text,
                                 struct plim_job **out, struct plim_error *err)
{
    struct plim_job *job = handle_new(sizeof *job, HANDLE_JOB, context, err);
    if (!job) return PLIM_NO_MEMORY;
    job->path = path ? strdup(path) : NULL;
    job->text = text ? strdup(text) : NULL;
    enum plim_status status =
        job->path || job->text ? check(job, err) : plim_fail(err, PLIM_NO_MEMORY, "out of memory for a job");
    if (status != PLIM_OK) return plim_job_close(job), status;
    *out = job;
    return PLIM_OK;
}

enum plim_status plim_job_open(struct plim_context *context, const char *path, struct plim_job **out,
                               struct plim_error *err)
{
    if (!out) return plim_fail(err, PLIM_BAD_INPUT, "plim_job_open: out is NULL");
    *out = NULL;
    if (!handle_is(context, HANDLE_CONTEXT, "plim_job_open", err)) return PLIM_BAD_INPUT;
    return open_job(context, path, path ? NULL : "{}", out, err);
}

enum plim_status plim_job_parse(struct plim_context *context, const char *text, struct plim_job **out,
                                struct plim_error *err)
{
    if (!out || !text) return plim_fail(err, PLIM_BAD_INPUT, "plim_job_parse: text or out is NULL");
    *out = NULL;
    if (!handle_is(context, HANDLE_CONTEXT, "plim_job_parse", err)) return PLIM_BAD_INPUT;
    return open_job(context, NULL, text, out, err);
}

void plim_job_close(struct plim_job *job)
{
    if (!handle_is(job, HANDLE_JOB, "plim_job_close", NULL)) return;
    for (size_t i = 0; i < job->count; i++) free(job->sets[i]);
    free(job->sets), free(job->path), free(job->text);
    handle_free(job);
}

enum plim_status plim_job_set(struct plim_job *job, const char *assignment, struct plim_error *err)
{
    if (!handle_is(job, HANDLE_JOB, "plim_job_set", err)) return PLIM_BAD_INPUT;
    if (!assignment) return plim_fail(err, PLIM_BAD_INPUT, "plim_job_set: assignment is NULL");
    char **sets = realloc(job->sets, (job->count + 1) * sizeof *sets), *copy = strdup(assignment);
    if (sets) job->sets = sets;
    if (!sets || !copy) return free(copy), plim_fail(err, PLIM_NO_MEMORY, "out of memory for a job");
    job->sets[job->count++] = copy;
    enum plim_status status = check(job, err);
    if (status != PLIM_OK) free(job->sets[--job->count]); /* the job stays as it was */
    return status;
}

char *plim_job_yaml(struct plim_job *job)
{
    struct job made;
    struct strbuf out = STRBUF_INIT;
    if (!handle_is(job, HANDLE_JOB, "plim_job_yaml", NULL)) return NULL;
    enum plim_status status = read_job(job, &made, NULL);
    if (status == PLIM_OK) status = job_take_environment(&made, handle_context(&job->handle), "", NULL);
    if (status == PLIM_OK) job_settings_yaml(&made, true, &out);
    job_release(&made);
    if (status == PLIM_OK) return text_give(&out);
    return strbuf_release(&out), NULL;
}
