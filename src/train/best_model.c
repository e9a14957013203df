/* best_model.c - see best_model.h. */
#include "train/best_model.h"
#include "base/file.h"
#include "train/checkpoint.h"
#include "train/checkpoint_folder.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Metrics by the names of transformers and sentence-transformers. */
static double of_loss(double loss, const struct scores *s) { return (void)s, loss; }
static double of_accuracy(double loss, const struct scores *s) { return (void)loss, s->accuracy; }
static double of_labels(double loss, const struct scores *s) { return (void)loss, s->entities.accuracy; }
static double of_f1(double loss, const struct scores *s) { return (void)loss, s->entities.f1; }
static double of_precision(double loss, const struct scores *s) { return (void)loss, s->entities.precision; }
static double of_recall(double loss, const struct scores *s) { return (void)loss, s->entities.recall; }
static double of_cosine(double loss, const struct scores *s) { return (void)loss, s->cosine; }
static double of_retrieval(double loss, const struct scores *s) { return (void)loss, s->retrieval; }
static double of_spearman(double loss, const struct scores *s)
{
    return (void)loss, s->scored ? s->spearman : NAN;
}
static double of_pearson(double loss, const struct scores *s)
{
    return (void)loss, s->scored ? s->pearson : NAN;
}

static const struct metric {
    const char *name;
    int kind; /* enum score_kind; SCORE_LOSS: every evaluation has it */
    double (*value)(double loss, const struct scores *s);
} metrics[] = {
    {"loss", SCORE_LOSS, of_loss},
    {"accuracy", SCORE_TOKENS, of_accuracy},
    {"accuracy", SCORE_ENTITIES, of_labels},
    {"f1", SCORE_ENTITIES, of_f1},
    {"precision", SCORE_ENTITIES, of_precision},
    {"recall", SCORE_ENTITIES, of_recall},
    {"cosine", SCORE_PAIRS, of_cosine},
    {"retrieval", SCORE_PAIRS, of_retrieval},
    {"spearman", SCORE_PAIRS, of_spearman},
    {"pearson", SCORE_PAIRS, of_pearson},
};
enum { METRICS = sizeof metrics / sizeof *metrics };

/* Names may begin with eval_, as people write them. */
static const char *metric_name(const struct job *job)
{
    const char *name =
        job->training.best_metric && *job->training.best_metric ? job->training.best_metric : "loss";
    return strncmp(name, "eval_", 5) ? name : name + 5;
}

static const struct metric *find_metric(const struct job *job)
{
    const char *name = metric_name(job);
    for (int i = 0; i < METRICS; i++)
        if (!strcmp(metrics[i].name, name) &&
            (metrics[i].kind == SCORE_LOSS || metrics[i].kind == (int)score_kind_of(job)))
            return &metrics[i];
    return NULL;
}

static enum plim_status refuse_metric(const struct job *job, struct plim_error *err)
{
    STRBUF_AUTO known = STRBUF_INIT;
    for (int i = 0; i < METRICS; i++)
        if (metrics[i].kind == SCORE_LOSS || metrics[i].kind == (int)score_kind_of(job))
            strbuf_addf(&known, "%s%s", known.len ? ", " : "", metrics[i].name);
    plim_fail(err, PLIM_BAD_INPUT,
              "%s: key 'training.metric_for_best_model': evaluations of this job have no '%.80s'; write %s",
              job->name, job->training.best_metric, strbuf_text(&known));
    return PLIM_BAD_INPUT;
}

enum plim_status best_model_init(struct best_model *best, const struct job *job, struct plim_error *err)
{
    const struct job_training *t = &job->training;
    *best = (struct best_model){.job = job};
    if (!find_metric(job)) return refuse_metric(job, err);
    const char *name = metric_name(job);
    size_t len = strlen(name);
    bool is_loss = len >= 4 && !strcmp(name + len - 4, "loss");
    best->greater = job_given(job, &t->greater_is_better) ? t->greater_is_better : !is_loss;
    const char *asks = t->load_best       ? "training.load_best_model_at_end"
                       : t->stop_patience ? "training.early_stopping_patience"
                                          : NULL;
    bool evaluates = job->validation.count && (t->eval_every > 0 || t->eval_strategy == EVERY_EPOCH);
    if (asks && !evaluates)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: key '%s' compares evaluations, but the run has none; write data.validation and "
                         "training.eval_steps, or eval_strategy: epoch",
                         job->name, asks);
    return PLIM_OK;
}

static bool is_better(const struct best_model *best, double value)
{
    return best->greater ? value > best->value : value < best->value;
}

bool best_model_observe(struct best_model *best, int64_t step, double loss, const struct scores *scores)
{
    double value = find_metric(best->job)->value(loss, scores);
    bool first = best->step == 0, better = isfinite(value) && (first || is_better(best, value));
    bool counts = better && (first || fabs(value - best->value) > best->job->training.stop_threshold);
    best->bad = counts ? 0 : best->bad + 1;
    if (better) best->value = value, best->step = step;
    return better;
}

bool best_model_stops(const struct best_model *best)
{
    int64_t patience = best->job->training.stop_patience;
    return patience > 0 && best->bad >= patience;
}

void best_model_text(const struct best_model *best, struct strbuf *out)
{
    strbuf_addf(out, "%s %.6g after step %lld", metric_name(best->job), best->value, (long long)best->step);
}

void best_model_save(const struct best_model *best, struct strbuf *out)
{
    strbuf_addf(out, "{\"step\":%lld,\"bad\":%lld", (long long)best->step, (long long)best->bad);
    if (best->step) strbuf_addf(out, ",\"value\":%.17g", best->value);
    strbuf_addf(out, ",\"metric\":\"%s\",\"greater\":%s}", metric_name(best->job),
                best->greater ? "true" : "false");
}

/* Values of another metric are not compared: the resumed run begins its own. */
void best_model_restore(struct best_model *best, const struct node *saved)
{
    const struct node *greater = node_get(saved, "greater");
    bool same = !strcmp(node_string(node_get(saved, "metric"), ""), metric_name(best->job)) && greater &&
                greater->kind == NODE_BOOL && greater->as.boolean == best->greater;
    if (!same) return;
    best->step = node_int(node_get(saved, "step"), 0);
    best->bad = node_int(node_get(saved, "bad"), 0);
    best->value = node_float(node_get(saved, "value"), 0);
}

/* ---- the link ---- */

enum plim_status best_model_link(const struct best_model *best, struct plim_error *err)
{
    char name[64], link[512], temp[512];
    const char *dir = best->job->output_dir;
    snprintf(name, sizeof name, CHECKPOINT_PREFIX "%08lld", (long long)best->step);
    snprintf(link, sizeof link, "%s/" BEST_MODEL_LINK, dir);
    snprintf(temp, sizeof temp, "%s/" CHECKPOINT_TEMP BEST_MODEL_LINK, dir);
    unlink(temp);
    if (symlink(name, temp) || rename(temp, link)) {
        int why = errno;
        unlink(temp);
        return plim_fail(err, PLIM_IO, "%s: cannot link the best checkpoint (%s): %s", link, name,
                         strerror(why));
    }
    return file_sync_parent(link, err);
}

void best_model_unlink(const char *output_dir)
{
    char link[512], name[16];
    snprintf(link, sizeof link, "%s/" BEST_MODEL_LINK, output_dir);
    if (readlink(link, name, sizeof name) > 0) unlink(link); /* a folder of that name is not ours */
}

/* The folder behind the link. */
static bool find_best(const char *output_dir, char *path, size_t size)
{
    char link[600], name[64];
    snprintf(link, sizeof link, "%s/" BEST_MODEL_LINK, output_dir);
    ssize_t len = readlink(link, name, sizeof name - 1);
    if (len <= 0) return false;
    name[len] = '\0';
    if (checkpoint_name_step(name) < 0) return false;
    snprintf(path, size, "%s/%s", output_dir, name);
    return file_exists(path);
}

bool best_model_or_newest(const char *output_dir, char *path, size_t size)
{
    return find_best(output_dir, path, size) || checkpoint_newest(output_dir, path, size) > 0;
}
