/* evaluate.c - rows through forward-only tapes with a loss, and evaluation inside the training arena: there the tapes are
 * laid out above the kept tensors, with as many rows as fit below the training plan's mark. It can therefore never be the
 * one that runs out. */
#include "train/evaluate.h"
#include "base/fault.h"
#include "train/reference_pass.h"
#include "train/trainer.h"

int64_t eval_window(const struct job *job)
{
    int64_t most = EVAL_TOKENS / job->max_length;
    if (job->training.eval_rows > most) most = job->training.eval_rows;
    if (job_whole_passes(job)) most = job->training.batch_size;
    return most;
}

/* A window of pairs is a batch, and no pass is longer than a window. */
static int64_t whole_rows(const struct job *job, int64_t rows)
{
    return job_whole_passes(job) && rows > job->training.batch_size ? job->training.batch_size : rows;
}

int64_t eval_rows_most(const struct job *job, int64_t time, int64_t rows)
{
    int64_t most = EVAL_TOKENS / time;
    rows = whole_rows(job, rows);
    if (job->training.eval_batch && most > job->training.eval_batch) most = job->training.eval_batch;
    return most > rows ? rows : most < 1 ? 1 : most;
}

void eval_programs_close(struct eval_programs *p)
{
    for (int i = 0; i < p->count; i++) {
        feed_close(&p->feed[i]);
        forward_close(&p->forward[i]);
    }
    scoring_close(&p->scoring);
    *p = (struct eval_programs){0};
}

enum plim_status eval_programs_start(struct eval_programs *p, const struct job *job, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    int64_t positions = 0;
    for (int i = 0; i < p->count && status == PLIM_OK; i++) {
        if (p->count > 1) status = exec_prepare(p->exec[i], false, err);
        if (status == PLIM_OK) status = feed_open(&p->feed[i], p->exec[i], err);
        int64_t here = p->feed[i].rows.count * p->feed[i].rows.time;
        if (here > positions) positions = here;
    }
    if (status == PLIM_OK) status = scoring_open(&p->scoring, job, positions, err);
    for (int i = 0; i < p->count && status == PLIM_OK; i++) scoring_attach(&p->scoring, &p->feed[i]);
    return status;
}

/* One pass over the next rows of the window; the rest of its rows count nothing. A rank that has none left takes part all the
 * same: what is gathered is gathered by all. */
static enum plim_status run_pass(struct eval_programs *p, int program, int64_t rows, struct loader *loader,
                                 bool first, struct plim_error *err)
{
    struct feed *feed = &p->feed[program];
    enum plim_status status = loader_fill(loader, rows, &feed->rows, err);
    if (status == PLIM_OK) status = reference_check(&feed->rows, rows, err);
    if (status == PLIM_OK) status = feed_send(feed, err);
    if (status == PLIM_OK) status = exec_loop(p->exec[program], !first, err);
    if (status != PLIM_OK) return status;
    return scoring_take(&p->scoring, p->exec[program], feed, rows, err);
}

/* Sums that evaluation programs accumulate. */
struct eval_sums {
    double loss, count, hits;
    bool counts_hits, prefers;
    double preference[PREFERENCE_STATS];
};

static enum plim_status take_preference(struct exec *exec, struct eval_sums *sum, struct plim_error *err)
{
    int id = tape_find(exec->tape, "preference", -1);
    double stat[PREFERENCE_STATS];
    if (id < 0) return PLIM_OK;
    enum plim_status status = exec_read(exec, id, stat, 0, sizeof stat, err);
    for (int i = 0; i < PREFERENCE_STATS && status == PLIM_OK; i++) sum->preference[i] += stat[i];
    sum->prefers = true;
    return status;
}

/* Adds what a program has summed up; one that is scored sums up nothing. */
static enum plim_status take_loss(struct exec *exec, struct eval_sums *sum, struct plim_error *err)
{
    int loss_id = tape_find(exec->tape, "loss", -1), hits_id = tape_find(exec->tape, "hits", -1);
    double loss[2] = {0}, hits = 0;
    enum plim_status status = PLIM_OK;
    if (loss_id >= 0) status = exec_read(exec, loss_id, loss, 0, sizeof loss, err);
    if (status == PLIM_OK && hits_id >= 0) status = exec_read(exec, hits_id, &hits, 0, sizeof hits, err);
    sum->loss += loss[0], sum->count += loss[1], sum->hits += hits;
    sum->counts_hits = hits_id >= 0;
    return status == PLIM_OK ? take_preference(exec, sum, err) : status;
}

/* The passes of one window. One program sums up by itself; several share their bytes, so each pass is read. */
static enum plim_status run_window(struct eval_programs *p, struct loader *loader, int64_t rows,
                                   const struct cutting *cutting, struct evaluation *e, struct eval_sums *sum,
                                   struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int64_t i = 0; i < cutting->count && status == PLIM_OK; i++) {
        const struct length_cut *cut = &cutting->cuts[i];
        int64_t here = rows < cut->rows ? rows : cut->rows;
        status = run_pass(p, cut->program, here, loader, p->count > 1 || e->positions == 0, err);
        if (status == PLIM_OK && p->count > 1) status = take_loss(p->exec[cut->program], sum, err);
        e->positions += p->shape[cut->program].rows *
                        (p->shape[cut->program].time + p->feed[cut->program].rows.source_time);
        rows -= here;
    }
    return status == PLIM_OK ? scoring_end_window(&p->scoring, err) : status;
}

/* A window is one pass where rows have one length; else it is sorted, and the more rows the better. Ranks begin each together:
 * a signal that one of them got ends it for all. */
static enum plim_status run_windows(struct eval_programs *p, struct loader *loader, int64_t rows,
                                    int64_t most, struct cutting *cutting, struct evaluation *e,
                                    struct eval_sums *sum, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    int64_t all = most * loader_ranks(loader);
    while (e->rows < rows && status == PLIM_OK) {
        struct loader_window window;
        status = loader_window_of(loader, rows - e->rows < all ? rows - e->rows : all, &window, err);
        status = comm_agree(p->exec[0]->device->comm, status, err);
        if (status != PLIM_OK || !window.all_rows) break;
        lengths_cut(cutting, p->shape, p->count, window.lengths, window.slots);
        status = run_window(p, loader, window.rows, cutting, e, sum, err);
        e->padding -= window.positions, e->rows += window.all_rows;
    }
    if (status == PLIM_OK && !e->rows)
        status = plim_fail(err, PLIM_BAD_INPUT, "the data to evaluate hold no sample with a target");
    return status;
}

/* Sums of all ranks' rows, in the order of ranks. */
static enum plim_status sum_ranks(struct comm *comm, struct eval_sums *sum, struct scoring *s,
                                  struct plim_error *err)
{
    struct entity_score *n = &s->entities;
    double numbers[] = {sum->loss,
                        sum->count,
                        sum->hits,
                        s->loss,
                        (double)s->count,
                        (double)n->right,
                        (double)n->predicted,
                        (double)n->wanted,
                        (double)n->labels,
                        (double)n->labels_right};
    enum plim_status status = comm_sum_numbers(comm, numbers, (int)(sizeof numbers / sizeof *numbers), err);
    if (status == PLIM_OK) status = comm_sum_numbers(comm, sum->preference, PREFERENCE_STATS, err);
    if (status != PLIM_OK) return status;
    sum->loss = numbers[0], sum->count = numbers[1], sum->hits = numbers[2];
    s->loss = numbers[3], s->count = (int64_t)numbers[4];
    *n = (struct entity_score){(int64_t)numbers[5], (int64_t)numbers[6], (int64_t)numbers[7],
                               (int64_t)numbers[8], (int64_t)numbers[9]};
    return PLIM_OK;
}

enum plim_status evaluate_rows(struct eval_programs *p, struct loader *loader, const struct job *job,
                               struct evaluation *e, struct plim_error *err)
{
    struct cutting cutting = {0};
    bool window = p->count > 1 || job_whole_passes(job);
    int64_t rows = e->rows, most = window ? eval_window(job) : p->shape[0].rows;
    struct eval_sums sum = {0};
    e->rows = e->positions = e->padding = 0;
    enum plim_status status = cutting_open(&cutting, most, err);
    if (status == PLIM_OK) status = run_windows(p, loader, rows, most, &cutting, e, &sum, err);
    if (status == PLIM_OK && p->count == 1) status = take_loss(p->exec[0], &sum, err);
    if (status == PLIM_OK && loader_ranks(loader) > 1)
        status = sum_ranks(p->exec[0]->device->comm, &sum, &p->scoring, err);
    cutting_close(&cutting);
    e->padding += e->positions;
    if (sum.prefers) {
        double loss[2] = {sum.loss, sum.count};
        struct preference_rule rule = job_preference(job);
        e->scores = (struct scores){.kind = SCORE_PREFERENCES};
        preferences_of(&rule, sum.preference, loss, &e->scores.preferences);
        sum.loss = loss[0];
    }
    e->loss = sum.count > 0 ? sum.loss / sum.count : 0;
    e->tokens = (int64_t)sum.count;
    if (sum.counts_hits && sum.count > 0)
        e->scores = (struct scores){.kind = SCORE_TOKENS, .accuracy = sum.hits / sum.count};
    if (status == PLIM_OK && p->scoring.kind != SCORE_LOSS)
        status = scoring_result(&p->scoring, &e->loss, &e->tokens, &e->scores, err);
    scoring_clear(&p->scoring);
    return status;
}

/* --- inside training ---------------------------------------------------------------------------------------- */

struct eval_length {
    struct trainer *trainer;
    int64_t time;
};

static enum plim_status build(void *arg, int64_t rows, struct tape *out, struct plim_error *err)
{
    const struct eval_length *l = arg;
    struct trainer *t = l->trainer;
    return job_build_eval(t->job, &t->runtime.device->facts, &t->runtime.plan.knobs, rows, l->time, out, err);
}

enum plim_status trainer_open_eval(struct trainer *t, struct eval_programs *p, struct plim_error *err)
{
    int64_t ladder[LENGTHS_LADDER], rows = corpus_rows(t->corpus.validation, t->job->training.eval_rows);
    int steps = t->lengths.count > 1 ? lengths_ladder(t->job->max_length, ladder) : 1;
    enum plim_status status = PLIM_OK;
    *p = (struct eval_programs){0};
    for (int i = 0; i < steps && status == PLIM_OK; i++) {
        struct eval_length length = {t, i ? ladder[i] : t->job->max_length};
        struct forward_family family = {.build = build, .arg = &length, .adds = true};
        int64_t most = t->job->training.eval_batch || steps > 1 ? eval_rows_most(t->job, length.time, rows)
                                                                : whole_rows(t->job, rows);
        status = runtime_forward(&t->runtime, &family, most, 1, &p->forward[p->count], err);
        if (status == PLIM_NO_FIT) break; /* shorter rows have more of them: only the first may be missed */
        if (status != PLIM_OK) continue;
        p->shape[p->count] = (struct pass_shape){p->forward[p->count].size, length.time};
        p->exec[p->count] = &p->forward[p->count].exec;
        p->count++;
    }
    if (status == PLIM_OK) status = eval_programs_start(p, t->job, err);
    if (status != PLIM_OK) eval_programs_close(p);
    return status;
}

enum plim_status trainer_evaluate(struct trainer *t, double *loss, int64_t *tokens, struct plim_error *err)
{
    struct eval_programs once = {0}, *p = t->eval.count ? &t->eval : &once;
    struct evaluation e = {.rows = corpus_rows(t->corpus.validation, t->job->training.eval_rows)};
    enum plim_status status = trainer_settle(t, err);
    if (status == PLIM_OK && !p->count) status = trainer_open_eval(t, p, err);
    if (fault_hit(NULL, FAULT_EVAL)) status = PLIM_NO_FIT, eval_programs_close(&once);
    if (status == PLIM_NO_FIT)
        return plim_fail(err, PLIM_NO_FIT,
                         "evaluation of one row does not fit the training plan; raise the budget");
    if (status == PLIM_OK) status = loader_seek(t->evaluator, &(struct loader_state){0}, err);
    if (status == PLIM_OK) status = evaluate_rows(p, t->evaluator, t->job, &e, err);
    eval_programs_close(&once);
    *loss = e.loss, *tokens = e.tokens, t->scores = e.scores;
    return status;
}
