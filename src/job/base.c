/* base.c - the frozen matrices of an adapter's model that are stored in blocks. See job.h. */
#include "job/job.h"
#include "model/quantised_folder.h"
#include "store/gguf.h"

#include <string.h>

/* The model as it is trained, as small as can be: which op reads which parameter does not depend on its shape. */
static enum plim_status choose(const struct job *job, const struct adapter *adapter,
                               const struct quantise_wish *wish, struct quantisation *out,
                               struct plim_error *err)
{
    struct tape tape;
    struct model_shape shape = {.batch = objective_row(job_objective(job))->rows,
                                .time = 8,
                                .source_time = model_has_source(&job->spec) ? 8 : 0,
                                .head = job_head(job),
                                .training = true};
    tape_init(&tape);
    enum plim_status status = model_emit(&job->spec, &shape, &tape, err);
    if (status == PLIM_OK) status = adapter_apply(adapter, &job->spec, true, &tape, err);
    if (status == PLIM_OK) status = quantise_choose(out, wish, &job->spec, &tape, err);
    tape_release(&tape);
    return status;
}

enum plim_status job_base_of(const struct job *job, const struct adapter *adapter, enum weights_kind kind,
                             struct quantisation *out, struct plim_error *err)
{
    struct quantise_wish wish = {kind, NULL, .train = true};
    return choose(job, adapter, &wish, out, err);
}

/* Into the job's store, with which it is released. */
static enum plim_status keep(struct job *job, struct quantisation *chosen, struct plim_error *err)
{
    size_t bytes = (size_t)chosen->count * sizeof *chosen->param;
    job->base = *chosen;
    job->base.param = bump_alloc(&job->store, bytes + 1);
    if (job->base.param) memcpy(job->base.param, chosen->param, bytes);
    bool kept = job->base.param != NULL;
    if (!kept) job->base.count = 0;
    quantise_release(chosen);
    return kept ? PLIM_OK : plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", job->name);
}

enum plim_status job_settle_base(struct job *job, struct plim_error *err)
{
    enum weights_kind kind = (enum weights_kind)job->model.weights;
    const char *path = job->model.path;
    struct quantisation chosen;
    job->base = (struct quantisation){0};
    if (kind != WEIGHTS_AS_IS && (!job->adapting || !path))
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key 'model.weights': %s is for a model that is not trained itself; set adapter.type and "
            "model.path, or remove the key",
            job->name, weights_kind_name(kind));
    if (!job->adapting || !path) return PLIM_OK;
    bool blocks = gguf_is(path) || quantised_folder_is(path);
    if (kind == WEIGHTS_AS_IS && !blocks) return PLIM_OK;
    struct quantise_wish wish = {kind, blocks ? path : NULL, .train = true};
    enum plim_status status = choose(job, job->adapting, &wish, &chosen, err);
    return status == PLIM_OK ? keep(job, &chosen, err) : status;
}
