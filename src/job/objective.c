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
    [OBJECTIVE_DPO] = {true, false, false, TASK_TOKENS, HEAD_PREFERENCE, HEAD_PREFERENCE},
    [OBJECTIVE_KTO] = {true, false, false, TASK_TOKENS, HEAD_PREFERENCE, HEAD_PREFERENCE},
    [OBJECTIVE_ORPO] = {true, false, false, TASK_TOKENS, HEAD_PREFERENCE, HEAD_PREFERENCE},
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

struct preference_rule job_preference(const struct job *job)
{
    const struct job_training *t = &job->training;
    enum objective o = job_objective(job);
    struct preference_rule rule = {.loss = (enum preference_loss)t->loss_type,
                                   .beta = (float)t->beta,
                                   .smoothing = (float)t->label_smoothing,
                                   .desirable = (float)t->desirable_weight,
                                   .undesirable = (float)t->undesirable_weight,
                                   .nll = (float)t->sft_weight};
    if (o == OBJECTIVE_KTO) rule.loss = PREFERENCE_KTO, rule.nll = 0;
    if (o == OBJECTIVE_ORPO) rule.loss = PREFERENCE_ORPO, rule.nll = 1;
    return rule;
}

bool job_whole_passes(const struct job *job)
{
    return job_objective(job) == OBJECTIVE_SENTENCE_PAIRS || job_objective(job) == OBJECTIVE_KTO;
}

bool job_needs_reference(const struct job *job)
{
    return job_objective(job) == OBJECTIVE_DPO || job_objective(job) == OBJECTIVE_KTO;
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

/* A batch is what its samples are compared with, so no pass has another number of them. */
static enum plim_status check_whole(const struct job *job, struct plim_error *err)
{
    const struct job_training *t = &job->training;
    if (t->batch_size < 2)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key 'training.batch_size': a sample must be compared with others; write 2 or more, "
            "e.g. 32",
            job->name);
    if (job_given(job, &t->micro_batch) && t->micro_batch != t->batch_size)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key 'training.micro_batch_size': all samples of a batch are compared, so it must be "
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
    return status == PLIM_OK ? check_whole(job, err) : status;
}

/* Prompts that are computed once. */
static enum plim_status check_pair_length(const struct job *job, struct plim_error *err)
{
    const char *key = "data.pair_length";
    int64_t length = job->data.pair_length;
    enum objective o = job_objective(job);
    if (!length) return PLIM_OK;
    if (o != OBJECTIVE_DPO && o != OBJECTIVE_ORPO)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key '%s': objective %s has no pairs of completions of one prompt; remove the key", job->name,
            key, objective_row(o)->name);
    if (job->spec.num_experts)
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "%s: key '%s': routers count the tokens of both rows, so their prompts are computed twice; "
            "remove the key",
            job->name, key);
    if (length < job->max_length || length > 2 * job->max_length)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: key '%s': %lld positions; write %lld (data.max_length) to %lld (twice that)",
                         job->name, key, (long long)length, (long long)job->max_length,
                         (long long)(2 * job->max_length));
    return PLIM_OK;
}

int64_t job_pair_time(const struct job *job, int64_t time)
{
    return job->data.pair_length < 2 * time ? job->data.pair_length : 0;
}

/* Keys that only some of the preferences' losses read. */
static enum plim_status check_preference(const struct job *job, struct plim_error *err)
{
    const struct job_training *t = &job->training;
    enum objective o = job_objective(job);
    enum preference_loss loss = (enum preference_loss)t->loss_type;
    bool smooths = o == OBJECTIVE_DPO && (loss == PREFERENCE_SIGMOID || loss == PREFERENCE_SIGMOID_NORM ||
                                          loss == PREFERENCE_ROBUST);
    const struct {
        const char *key;
        bool given, read;
    } keys[] = {{"training.loss_type", t->loss_type != PREFERENCE_SIGMOID, o == OBJECTIVE_DPO},
                {"training.label_smoothing", t->label_smoothing > 0, smooths},
                {"training.sft_weight", t->sft_weight > 0, o == OBJECTIVE_DPO},
                {"training.desirable_weight", t->desirable_weight != 1, o == OBJECTIVE_KTO},
                {"training.undesirable_weight", t->undesirable_weight != 1, o == OBJECTIVE_KTO}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].given && !keys[i].read)
            return plim_fail(err, PLIM_BAD_INPUT,
                             "%s: key '%s': this loss of objective %s does not use it (docs/preference.md); "
                             "remove the key",
                             job->name, keys[i].key, objective_row(o)->name);
    if (o == OBJECTIVE_KTO && job->data.padding == PADDING_LONGEST)
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "%s: key 'data.padding': objective kto pairs prompts with completions of others, whose "
            "lengths are not known before; write max_length",
            job->name);
    return o == OBJECTIVE_KTO ? check_whole(job, err) : PLIM_OK;
}

/* A preference moves a model easily too far. */
static void take_rate(struct job *job)
{
    const char *rate = "training.learning_rate";
    bool adapts = job->adapter.type != ADAPTER_NONE || (job->adapter.path && *job->adapter.path);
    if (job_key_given(job, rate)) return;
    job->schedule.learning_rate = adapts ? PREFERENCE_ADAPTER_RATE : PREFERENCE_LEARNING_RATE;
    job_origin_follow(job, rate, "training.objective");
}

enum plim_status job_settle_objective(struct job *job, struct plim_error *err)
{
    enum objective objective = job_objective(job);
    enum plim_status status = check_pair_length(job, err);
    if (status != PLIM_OK) return status;
    if (job->spec.task == TASK_ROW_LABELS)
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "%s: key 'model.path': %s labels whole texts, which cannot be trained (plimsoll classify "
            "can run it); use the model that it was trained from",
            job->name, job->model.path ? job->model.path : "the model");
    if (!is_learned_by(objective, &job->spec)) return refuse_objective(job, err);
    if (objective_prefers(objective)) {
        take_rate(job);
        return check_preference(job, err);
    }
    if (!model_is_encoder(&job->spec)) return PLIM_OK;
    bool had_labels = job->spec.task == TASK_LABELS;
    job->spec.task = uses[objective].task;
    if (job->spec.task == TASK_LABELS)
        status = job_settle_labels(job, had_labels, err);
    else
        job->spec.num_labels = 0, job->spec.labels = NULL;
    if (status == PLIM_OK && job->spec.task == TASK_EMBEDDING) status = take_pooling(job, err);
    return status;
}
