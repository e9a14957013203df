/* scoring.c - see scoring.h. */
#include "train/scoring.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum score_kind score_kind_of(const struct job *job)
{
    enum model_head head = job_eval_head(job);
    return head == HEAD_LABEL_LOGITS ? SCORE_ENTITIES : head == HEAD_EMBEDDING ? SCORE_PAIRS : SCORE_LOSS;
}

int64_t scoring_bytes(const struct job *job, int64_t rows)
{
    int64_t number = sizeof(float), batch = job->training.batch_size;
    if (score_kind_of(job) == SCORE_ENTITIES)
        return job->max_length * (job->spec.num_labels + 1 + rows) * number;
    if (score_kind_of(job) == SCORE_LOSS) return 0;
    return (2 * batch * job->spec.hidden_size + 3 * batch) * number + rows * 6 * (int64_t)sizeof(double);
}

static enum plim_status no_memory(struct plim_error *err)
{
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory for an evaluation's scores");
}

static float *numbers(int64_t count) { return calloc((size_t)count + 1, sizeof(float)); }

enum plim_status scoring_open(struct scoring *s, const struct job *job, int64_t positions,
                              struct plim_error *err)
{
    *s = (struct scoring){.job = job, .kind = score_kind_of(job), .batch = job->training.batch_size};
    if (s->kind == SCORE_LOSS) return PLIM_OK;
    s->most = positions;
    s->targets = calloc((size_t)positions + 1, sizeof *s->targets);
    if (s->kind == SCORE_ENTITIES) {
        s->width = job->spec.num_labels;
        s->logits = numbers(job->max_length * s->width);
        s->predicted = calloc((size_t)job->max_length + 1, sizeof *s->predicted);
        return s->targets && s->logits && s->predicted ? PLIM_OK : no_memory(err);
    }
    s->width = job->spec.hidden_size;
    s->scores = calloc((size_t)positions + 1, sizeof *s->scores);
    s->vectors = numbers(2 * s->batch * s->width);
    s->window_scores = numbers(s->batch);
    return s->targets && s->scores && s->vectors && s->window_scores ? PLIM_OK : no_memory(err);
}

void scoring_close(struct scoring *s)
{
    free(s->targets), free(s->scores);
    free(s->logits), free(s->predicted);
    free(s->vectors), free(s->window_scores);
    free(s->cosines), free(s->wanted);
    *s = (struct scoring){0};
}

void scoring_clear(struct scoring *s)
{
    s->here = s->count = 0, s->nscored = 0;
    s->loss = s->cosine = s->nearest = 0;
    s->entities = (struct entity_score){0};
}

void scoring_attach(struct scoring *s, struct feed *feed)
{
    if (s->kind == SCORE_ENTITIES) feed->rows.targets = s->targets;
    if (s->kind == SCORE_PAIRS) feed->rows.scores = s->scores;
}

/* --- labels ------------------------------------------------------------------------------------------------------ */

/* Numbers [first, first + count) of a floating tensor, as floats. */
static enum plim_status read_floats(struct exec *exec, int tensor, int64_t first, int64_t count, float *out,
                                    struct plim_error *err)
{
    enum dtype type = exec->tape->tensors[tensor].type;
    int64_t size = (int64_t)dtype_size(type);
    uint16_t *narrow =
        (uint16_t *)out + (size == 2 ? count : 0); /* widened from the front, they stay ahead */
    void *to = size == 2 ? (void *)narrow : (void *)out;
    enum plim_status status = exec_read(exec, tensor, to, first * size, count * size, err);
    for (int64_t i = 0; status == PLIM_OK && size == 2 && i < count; i++) {
        uint16_t bits = narrow[i];
        dtype_convert(&out[i], DT_F32, &bits, type, 1);
    }
    return status;
}

/* The best label, and what the wanted one costs. */
static int32_t choose(const float *logits, int64_t n, int32_t wanted, double *cost)
{
    int32_t best = 0;
    double sum = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    for (int64_t i = 0; i < n; i++) sum += exp((double)logits[i] - (double)logits[best]);
    *cost = log(sum) + (double)logits[best] - (double)logits[wanted];
    return best;
}

static enum plim_status take_labels(struct scoring *s, struct exec *exec, const struct feed *feed,
                                    int64_t rows, struct plim_error *err)
{
    int logits = tape_find(exec->tape, "logits", -1);
    int64_t time = feed->rows.time;
    enum plim_status status = PLIM_OK;
    for (int64_t r = 0; r < rows && status == PLIM_OK; r++) {
        const int32_t *wanted = s->targets + r * time;
        status = read_floats(exec, logits, r * time * s->width, time * s->width, s->logits, err);
        for (int64_t t = 0; t < time && status == PLIM_OK; t++) {
            double cost;
            if (wanted[t] < 0) continue;
            s->predicted[t] = choose(s->logits + t * s->width, s->width, wanted[t], &cost);
            s->loss += cost, s->count++;
        }
        entity_score_add(&s->entities, s->job->spec.labels, (int)s->width, s->predicted, wanted,
                         (size_t)time);
    }
    return status;
}

/* --- vectors ----------------------------------------------------------------------------------------------------- */

static enum plim_status take_vectors(struct scoring *s, struct exec *exec, const struct feed *feed,
                                     int64_t rows, struct plim_error *err)
{
    int embedding = tape_find(exec->tape, "embedding", -1);
    int64_t half = feed->rows.count / 2;
    enum plim_status status = PLIM_OK;
    for (int k = 0; k < 2 && status == PLIM_OK; k++)
        status = read_floats(exec, embedding, k * half * s->width, rows * s->width,
                             s->vectors + (k * s->batch + s->here) * s->width, err);
    memcpy(s->window_scores + s->here, s->scores, (size_t)rows * sizeof(float));
    s->here += rows;
    return status;
}

static bool keep_score(struct scoring *s, double cosine, double wanted)
{
    if (s->nscored == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 64;
        double *a = realloc(s->cosines, cap * sizeof *a);
        if (a) s->cosines = a;
        double *b = realloc(s->wanted, cap * sizeof *b);
        if (b) s->wanted = b;
        if (!a || !b) return false;
        s->cap = cap;
    }
    s->cosines[s->nscored] = cosine, s->wanted[s->nscored++] = wanted;
    return true;
}

/* One pair against the second texts of its batch. */
static bool score_pair(struct scoring *s, int64_t i)
{
    size_t width = (size_t)s->width;
    const float *first = s->vectors + i * s->width, *second = s->vectors + s->batch * s->width;
    double scale = s->job->spec.pair_scale, own = metric_cosine(first, second + i * s->width, width);
    double sum = 0;
    bool nearest = true;
    for (int64_t k = 0; k < s->here; k++) {
        double other = metric_cosine(first, second + k * s->width, width);
        sum += exp(scale * (other - own));
        nearest = nearest && other <= own;
    }
    s->loss += log(sum), s->cosine += own, s->nearest += nearest;
    s->count++;
    return isnan(s->window_scores[i]) || keep_score(s, own, (double)s->window_scores[i]);
}

enum plim_status scoring_end_window(struct scoring *s, struct plim_error *err)
{
    bool good = true;
    for (int64_t i = 0; i < s->here && good; i++) good = score_pair(s, i);
    s->here = 0;
    return good ? PLIM_OK : no_memory(err);
}

enum plim_status scoring_take(struct scoring *s, struct exec *exec, const struct feed *feed, int64_t rows,
                              struct plim_error *err)
{
    if (s->kind == SCORE_ENTITIES) return take_labels(s, exec, feed, rows, err);
    return s->kind == SCORE_PAIRS ? take_vectors(s, exec, feed, rows, err) : PLIM_OK;
}

enum plim_status scoring_result(const struct scoring *s, double *loss, int64_t *count, struct scores *out,
                                struct plim_error *err)
{
    double n = s->count ? (double)s->count : 1;
    *loss = s->loss / n, *count = s->count;
    *out = (struct scores){.kind = s->kind,
                           .entities = entity_f1(&s->entities),
                           .wanted = s->entities.wanted,
                           .predicted = s->entities.predicted,
                           .cosine = s->cosine / n,
                           .retrieval = s->nearest / n,
                           .scored = (int64_t)s->nscored};
    if (!s->nscored) return PLIM_OK;
    out->pearson = metric_pearson(s->cosines, s->wanted, s->nscored);
    return metric_spearman(s->cosines, s->wanted, s->nscored, &out->spearman) ? PLIM_OK : no_memory(err);
}
