/* objective.c - what a job's model learns, and what follows from that: the task of its spec and the heads of its tapes. */
#include "job/job.h"
#include "model/sentence.h"

#include <string.h>

/* Requirements of each objective. */
static const struct {
    bool decoder, encoder, both; /* architectures that learn it; both: encoder-decoders */
    enum model_task task;        /* of the spec */
    enum model_head train,
        eval; /* HEAD_LOSS: an evaluation is its loss; else it is scored (train/scoring.h) */
} uses[OBJECTIVES] = {
    [OBJECTIVE_NEXT_TOKEN] = {true, false, false, TASK_TOKENS, HEAD_LOSS, HEAD_LOSS},
    [OBJECTIVE_MASKED_TOKENS] = {false, true, false, TASK_TOKENS, HEAD_LOSS, HEAD_LOSS},
    [OBJECTIVE_TOKEN_LABELS] = {false, true, false, TASK_LABELS, HEAD_LABELS, HEAD_LABEL_LOGITS},
    [OBJECTIVE_SENTENCE_PAIRS] = {false, true, false, TASK_EMBEDDING, HEAD_PAIRS, HEAD_EMBEDDING},
    [OBJECTIVE_SOURCE_TARGET] = {false, false, true, TASK_TOKENS, HEAD_LOSS, HEAD_LOSS},
};

static bool is_learned_by(enum objective objective, const struct model_spec *spec)
{
    if (model_has_source(spec)) return uses[objective].both;
    return model_is_encoder(spec) ? uses[objective].encoder : uses[objective].decoder;
}

/* An architecture's first objective for what the model is. */
static enum objective usual(const struct model_spec *spec)
{
    for (int i = 0; i < OBJECTIVES; i++)
        if (is_learned_by((enum objective)i, spec) && uses[i].task == spec->task) return (enum objective)i;
    return OBJECTIVE_NEXT_TOKEN;
}

enum objective job_objective(const struct job *job)
{
    int asked = job->training.objective;
    return asked ? (enum objective)(asked - 1) : usual(&job->spec);
}

enum model_head job_head(const struct job *job) { return uses[job_objective(job)].train; }
enum model_head job_eval_head(const struct job *job) { return uses[job_objective(job)].eval; }

static enum plim_status refuse_objective(const struct job *job, struct plim_error *err)
{
    STRBUF_AUTO known = STRBUF_INIT;
    for (int i = 0; i < OBJECTIVES; i++)
        if (is_learned_by((enum objective)i, &job->spec))
            strbuf_addf(&known, "%s%s", known.len ? ", " : "", objective_row((enum objective)i)->name);
    plim_fail(err, PLIM_UNSUPPORTED,
              "%s: key 'training.objective': %s learns %s and not %s; write auto or another model", job->name,
              model_architecture_name(job->spec.arch), strbuf_text(&known),
              objective_row(job_objective(job))->name);
    return PLIM_UNSUPPORTED;
}

/* A batch is what its pairs are told from, so no pass has another number of them. */
static enum plim_status check_pairs(const struct job *job, struct plim_error *err)
{
    const struct job_training *t = &job->training;
    if (t->batch_size < 2)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key 'training.batch_size': a pair must be compared with others; write 2 or more, "
            "e.g. 32",
            job->name);
    if (job_given(job, &t->micro_batch) && t->micro_batch != t->batch_size)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key 'training.micro_batch_size': all pairs of a batch are compared, so it must be "
            "training.batch_size, %lld; remove the key",
            job->name, (long long)t->batch_size);
    return PLIM_OK;
}

/* How vectors are made: as the key says, as the model's folder does, or the mean. */
static enum plim_status take_pooling(struct job *job, struct plim_error *err)
{
    struct sentence_config how = {.normalize = true};
    enum plim_status status = PLIM_OK;
    if (job->model.path) status = sentence_config_load(job->model.path, &how, err);
    job->spec.pooling = job->model.pooling_given ? (enum pooling)job->model.pooling : how.pooling;
    job->spec.normalize = how.normalize;
    job->spec.pair_scale = job->training.pair_scale;
    return status == PLIM_OK ? check_pairs(job, err) : status;
}

enum plim_status job_settle_objective(struct job *job, struct plim_error *err)
{
    enum objective objective = job_objective(job);
    if (job->spec.task == TASK_ROW_LABELS)
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "%s: key 'model.path': %s labels whole texts, which cannot be trained (plimsoll classify "
            "can run it); use the model that it was trained from",
            job->name, job->model.path ? job->model.path : "the model");
    if (!is_learned_by(objective, &job->spec)) return refuse_objective(job, err);
    if (!model_is_encoder(&job->spec)) return PLIM_OK;
    bool had_labels = job->spec.task == TASK_LABELS;
    job->spec.task = uses[objective].task;
    enum plim_status status = PLIM_OK;
    if (job->spec.task == TASK_LABELS)
        status = job_settle_labels(job, had_labels, err);
    else
        job->spec.num_labels = 0, job->spec.labels = NULL;
    if (status == PLIM_OK && job->spec.task == TASK_EMBEDDING) status = take_pooling(job, err);
    return status;
}
