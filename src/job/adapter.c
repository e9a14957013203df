/* adapter.c - the adapter of a job: its settings from keys or from PEFT's folder. See job.h. */
#include "job/job.h"
#include "model/peft.h"

#include <string.h>

/* A folder brings all settings: keys beside it would be ignored. */
static enum plim_status read_folder(struct job *job, struct plim_error *err)
{
    const char *dir = job->adapter.path;
    for (size_t i = 0; i < job_schema.count; i++) {
        const struct schema_row *row = &job_schema.rows[i];
        bool own = !row->alias && !strncmp(row->path, "adapter.", sizeof "adapter." - 1);
        if (own && strcmp(row->path, "adapter.path") && strcmp(row->path, "adapter.type") &&
            job_key_given(job, row->path))
            return plim_fail(
                err, PLIM_BAD_INPUT,
                "%s: key '%s': %s/adapter_config.json has the adapter's settings; remove the key", job->name,
                row->path, dir);
    }
    enum plim_status status = peft_read_config(dir, &job->store, &job->adapter, err);
    if (status != PLIM_OK) plim_error_prefix(err, "%s: key 'adapter.path'", job->name);
    return status;
}

/* Settings of an adapter that nobody asked for would be ignored: the whole model would be trained. */
static enum plim_status check_type_given(const struct job *job, struct plim_error *err)
{
    for (size_t i = 0; i < job_schema.count && !job_key_given(job, "adapter.type"); i++) {
        const struct schema_row *row = &job_schema.rows[i];
        bool own = !row->alias && !strncmp(row->path, "adapter.", sizeof "adapter." - 1);
        if (own && job_key_given(job, row->path))
            return plim_fail(err, PLIM_BAD_INPUT,
                             "%s: key '%s' needs adapter.type: write lora, rslora or dora", job->name,
                             row->path);
    }
    return PLIM_OK;
}

enum plim_status job_settle_adapter(struct job *job, struct plim_error *err)
{
    struct adapter_options *o = &job->adapter;
    const char *rate = "training.learning_rate";
    enum plim_status status = PLIM_OK;
    job->adapting = NULL;
    if (o->path && !*o->path) o->path = NULL;
    if (o->path) status = read_folder(job, err);
    if (status == PLIM_OK && o->type == ADAPTER_NONE) return check_type_given(job, err);
    if (status != PLIM_OK) return status;
    if (job->training.freeze.count || job->training.train_only.count)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: adapter.type and training.freeze exclude each other: an adapter freezes the model; "
            "write adapter.modules_to_save to train more of it",
            job->name);
    if (o->alpha == 0) o->alpha = 2 * (double)o->r;
    if (!job_key_given(job, rate)) {
        job->schedule.learning_rate = ADAPTER_LEARNING_RATE;
        job_origin_follow(job, rate, "adapter.type");
    }
    status = adapter_open(o, &job->spec, job_head(job), &job->store, &job->adapting, err);
    if (status != PLIM_OK) plim_error_prefix(err, "%s", job->name);
    return status;
}
