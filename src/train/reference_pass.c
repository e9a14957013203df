/* reference_pass.c - see reference_pass.h. Windows of the data go through a forward-only tape, as in an evaluation; ranks share
 * the rows of a window and tell each other the results. Samples of kto are paired within a batch by all ranks alike: sample i
 * gets the completion of the one before it, the first that of the last. */
#include "train/reference_pass.h"
#include "base/clock.h"
#include "base/hash.h"
#include "train/evaluate.h"
#include "train/fingerprint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_NAME    "reference.logps"
#define TELL_SECONDS 10

/* Numbers about a sample that ranks exchange. */
enum { KEY_HIGH, KEY_LOW, FIRST, SECOND, KNOWN, NUMBERS };

struct pass {
    struct trainer *trainer;
    struct reference_writer writer;
    bool writes; /* this rank has the file */
    struct forward forward;
    struct feed feed;
    int sums;
    bool single;     /* kto */
    float *sum;      /* [B] of a pass */
    int32_t *other;  /* [B/2][1 + T] kto: of each second row its completion, after its number of tokens */
    double *numbers; /* [rows of a window on all ranks][NUMBERS] */
    int64_t most;    /* those rows */
    int64_t samples; /* done */
    double told;
};

static void path_of(const struct job *job, char *path, size_t size)
{
    snprintf(path, size, "%s/" FILE_NAME, job->output_dir);
}

/* A hash of the weights that a run starts from, of its data and of what else decides the numbers. */
static enum plim_status fingerprint_of(const struct trainer *t, uint64_t *out, struct plim_error *err)
{
    const struct job *job = t->job;
    const char *paths[] = {job->model.path, job->adapter.path};
    int count = !job->model.path ? 0 : job->adapting && job->adapter.path ? 2 : 1;
    uint64_t model = 0;
    struct inputs files = {0};
    enum plim_status status = count ? inputs_find(paths, count, &files, err) : PLIM_OK;
    if (count && status == PLIM_OK) {
        status = fingerprint_inputs(&files, &model, err);
        inputs_release(&files);
    }
    uint64_t numbers[] = {model,
                          count ? 0 : (uint64_t)job->training.seed,
                          (uint64_t)job->training.precision,
                          job_whole_passes(job) ? (uint64_t)job->training.batch_size : 0,
                          dataset_identity(t->corpus.train),
                          t->corpus.validation ? dataset_identity(t->corpus.validation) : 0};
    *out = hash64(numbers, sizeof numbers, 0);
    STRBUF_AUTO value = STRBUF_INIT;
    for (int i = 0; model_spec_field(&job->spec, i, &value); i++) strbuf_addc(&value, ';');
    *out = hash64(strbuf_text(&value), value.len, *out);
    return status;
}

static void use_reference(struct trainer *t)
{
    dataset_set_reference(t->corpus.train, t->reference);
    if (t->corpus.validation) dataset_set_reference(t->corpus.validation, t->reference);
}

enum plim_status reference_wanted(struct trainer *t, bool *wanted, struct plim_error *err)
{
    struct comm *comm = t->runtime.device->comm;
    char path[4200];
    uint64_t number;
    *wanted = false;
    if (!job_needs_reference(t->job)) return PLIM_OK;
    path_of(t->job, path, sizeof path);
    enum plim_status status = fingerprint_of(t, &number, err);
    if (status == PLIM_OK) status = reference_open(path, number, &t->reference, err);
    double missing = status == PLIM_NOT_FOUND;
    if (status == PLIM_NOT_FOUND) status = PLIM_OK;
    status = comm_agree(comm, status, err);
    if (status == PLIM_OK) status = comm_sum_numbers(comm, &missing, 1, err);
    *wanted = missing > 0;
    if (*wanted) reference_close(t->reference), t->reference = NULL;
    use_reference(t);
    return status;
}

enum plim_status reference_check(const struct rows *rows, int64_t n, struct plim_error *err)
{
    int64_t half = rows->count / 2;
    for (int64_t i = 0; rows->reference && i < 2 * n; i++) {
        float logp;
        memcpy(&logp, &rows->reference[i < n ? i : half + i - n], sizeof logp);
        if (isnan(logp))
            return plim_fail(
                err, PLIM_BAD_INPUT,
                "a sample has no log-probabilities of the reference model; train computes them before "
                "step 1, or records have them as ref_chosen_logps and ref_rejected_logps");
    }
    return PLIM_OK;
}

static void tell(struct trainer *t, const char *text)
{
    trainer_tell(t, &(struct train_event){.kind = TRAIN_NOTE, .step = t->step, .text = text});
}

static void tell_progress(struct pass *p)
{
    char text[160];
    if (clock_seconds() - p->told < TELL_SECONDS) return;
    p->told = clock_seconds();
    snprintf(text, sizeof text, "reference: %lld samples", (long long)p->samples);
    tell(p->trainer, text);
}

/* --- one window ---------------------------------------------------------------------------------------------------- */

/* Positions of a row up to its last target. */
static int64_t length_of(const struct rows *row)
{
    int64_t n = row->time;
    while (n > 0 && row->targets[n - 1] < 0) n--;
    return n;
}

static uint64_t key_of(const struct pass *p, const struct rows *rows, int64_t i)
{
    struct rows both[] = {rows_from(rows, i), rows_from(rows, rows->count / 2 + i)};
    int64_t lengths[] = {length_of(&both[0]), length_of(&both[1])};
    return objective_key(both, lengths, p->single ? 1 : 2);
}

/* The second rows of kto, among n samples of the pass. */
static void mismatch(const struct pass *p, int64_t n)
{
    const struct rows *rows = &p->feed.rows;
    for (int64_t i = 0; i < n && p->single; i++) {
        struct rows from = rows_from(rows, i), other = rows_from(rows, i ? i - 1 : n - 1),
                    to = rows_from(rows, rows->count / 2 + i);
        const int32_t *tokens;
        int32_t count;
        objective_mismatch(&from, &other, &to, &tokens, &count);
    }
}

/* `other`: the completion that kto's second row has, in the place of sample i of the pass. */
static enum plim_status write_sample(struct pass *p, const double *n, const int32_t *other,
                                     struct plim_error *err)
{
    struct reference_entry e = {.key = (uint64_t)n[KEY_HIGH] << 32 | (uint64_t)n[KEY_LOW],
                                .logp = {(float)n[FIRST], (float)n[SECOND]},
                                .count = other ? other[0] : 0};
    return reference_add(&p->writer, &e, other ? other + 1 : NULL, err);
}

/* Where this rank's row b of a window has its numbers. */
static double *numbers_of(const struct pass *p, const struct loader *loader, int64_t b)
{
    int64_t ranks = loader_ranks(loader), rank = ranks > 1 ? comm_rank(p->trainer->runtime.device->comm) : 0;
    return p->numbers + (b * ranks + rank) * NUMBERS;
}

/* Notes what identifies sample i of a pass. Its rows are gone once the pass has run. */
static void note_sample(const struct pass *p, int64_t i, double *to)
{
    const struct rows *rows = &p->feed.rows;
    uint64_t key = key_of(p, rows, i);
    float known;
    memcpy(&known, &rows->reference[i], sizeof known);
    to[KEY_HIGH] = (double)(key >> 32), to[KEY_LOW] = (double)(key & 0xffffffff);
    to[KNOWN] = !isnan(known);
    if (!p->single) return;
    struct rows row = rows_from(rows, rows->count / 2 + i);
    int32_t *other = p->other + i * (rows->time + 1);
    int64_t first = 0, end = length_of(&row);
    while (first < end && row.targets[first] < 0) first++;
    other[0] = (int32_t)(end - first);
    memcpy(other + 1, row.targets + first, (size_t)(end - first) * sizeof *other);
}

/* Log-probabilities of the pass over n samples of this rank, whose first one is row `first` of the window. */
static enum plim_status take_sums(struct pass *p, const struct loader *loader, int64_t first, int64_t n,
                                  struct plim_error *err)
{
    int64_t rows = p->feed.rows.count;
    enum plim_status status =
        exec_read(&p->forward.exec, p->sums, p->sum, 0, rows * (int64_t)sizeof *p->sum, err);
    for (int64_t i = 0; i < n && status == PLIM_OK; i++) {
        double *to = numbers_of(p, loader, first + i);
        to[FIRST] = (double)p->sum[i], to[SECOND] = (double)p->sum[rows / 2 + i];
        if (p->single && p->writes) status = write_sample(p, to, p->other + i * (p->feed.rows.time + 1), err);
    }
    return status;
}

static enum plim_status run_window(struct pass *p, struct loader *loader, const struct loader_window *w,
                                   struct plim_error *err)
{
    int64_t per = p->feed.rows.count / 2;
    enum plim_status status = PLIM_OK;
    memset(p->numbers, 0, (size_t)(p->most * NUMBERS) * sizeof *p->numbers);
    for (int64_t first = 0; first < w->slots && status == PLIM_OK; first += per) {
        int64_t left = w->rows - first, n = left < 0 ? 0 : left < per ? left : per;
        status = loader_fill(loader, n, &p->feed.rows, err);
        if (status == PLIM_OK) mismatch(p, n);
        for (int64_t i = 0; i < n && status == PLIM_OK; i++)
            note_sample(p, i, numbers_of(p, loader, first + i));
        if (status == PLIM_OK) status = feed_send(&p->feed, err);
        if (status == PLIM_OK) status = exec_loop(&p->forward.exec, 0, err);
        if (status == PLIM_OK) status = take_sums(p, loader, first, n, err);
    }
    struct comm *comm = loader_ranks(loader) > 1 ? p->trainer->runtime.device->comm : NULL;
    if (status == PLIM_OK) status = comm_sum_numbers(comm, p->numbers, (int)(w->all_rows * NUMBERS), err);
    for (int64_t i = 0; i < w->all_rows && status == PLIM_OK && p->writes && !p->single; i++)
        if (p->numbers[i * NUMBERS + KNOWN] == 0)
            status = write_sample(p, p->numbers + i * NUMBERS, NULL, err);
    p->samples += w->all_rows;
    return status;
}

/* All windows of a loader, unless opening it failed. Ranks agree before each: they stop together. */
static enum plim_status run_data(struct pass *p, struct loader *loader, int64_t rows, enum plim_status status,
                                 struct plim_error *err)
{
    struct comm *comm = p->trainer->runtime.device->comm;
    const atomic_int *stop = p->trainer->options.stop;
    for (bool more = true; more; tell_progress(p)) {
        struct loader_window window = {0};
        if (status == PLIM_OK && stop && *stop)
            status =
                plim_fail(err, PLIM_INTERRUPTED, "stopped while the reference was computed, before step 1");
        if (status == PLIM_OK) status = loader_window(loader, rows, &window, err);
        status = comm_agree(comm, status, err);
        more = status == PLIM_OK && window.all_rows > 0;
        if (more) status = run_window(p, loader, &window, err);
    }
    return status;
}

/* --- the pass -------------------------------------------------------------------------------------------------------- */

static enum plim_status build(void *arg, int64_t rows, struct tape *out, struct plim_error *err)
{
    struct trainer *t = arg;
    return job_build_eval(t->job, &t->runtime.device->facts, &t->runtime.plan.knobs, rows, t->job->max_length,
                          out, err);
}

static enum plim_status open_pass(struct pass *p, struct plim_error *err)
{
    struct trainer *t = p->trainer;
    struct forward_family family = {.build = build, .arg = t, .adds = true};
    int64_t rows = job_rows(t->job), ranks = comm_ranks(t->runtime.device->comm);
    if (p->single) rows = t->job->training.batch_size;
    enum plim_status status = runtime_forward(
        &t->runtime, &family, eval_rows_most(t->job, t->job->max_length, rows), 1, &p->forward, err);
    if (status == PLIM_NO_FIT)
        return plim_fail(err, PLIM_NO_FIT,
                         "the reference's pass over one sample does not fit the training plan; "
                         "raise the budget");
    if (status == PLIM_OK) status = feed_open(&p->feed, &p->forward.exec, err);
    if (status != PLIM_OK) return status;
    p->sums = tape_find(p->forward.exec.tape, "sums", -1);
    p->most = rows * ranks;
    p->numbers = calloc((size_t)(p->most * NUMBERS), sizeof *p->numbers);
    p->sum = calloc((size_t)p->feed.rows.count, sizeof *p->sum);
    if (p->single)
        p->other = calloc((size_t)(p->feed.rows.count / 2 * (p->feed.rows.time + 1)), sizeof *p->other);
    return p->numbers && p->sum && (p->other || !p->single)
               ? PLIM_OK
               : plim_fail(err, PLIM_NO_MEMORY, "out of memory for the reference");
}

/* Training data with a loader in the memory of training's, then validation data. */
static enum plim_status read_all(struct pass *p, struct plim_error *err)
{
    struct trainer *t = p->trainer;
    struct loader *reader = NULL;
    int64_t rows = p->single ? t->job->training.batch_size : job_rows(t->job);
    loader_close(t->loader), t->loader = NULL;
    enum plim_status status = corpus_reader(&t->corpus, t->corpus.train, &reader, err);
    status = run_data(p, reader, rows, status, err);
    loader_close(reader);
    if (status == PLIM_OK && t->evaluator) {
        int64_t window = eval_window(t->job);
        status = run_data(p, t->evaluator, window < rows ? window : rows, PLIM_OK, err);
        if (status == PLIM_OK) status = loader_seek(t->evaluator, &(struct loader_state){0}, err);
    }
    return status == PLIM_OK ? corpus_loader(&t->corpus, t->corpus.train, &t->loader, err) : status;
}

enum plim_status reference_make(struct trainer *t, struct plim_error *err)
{
    struct pass p = {.trainer = t, .single = job_objective(t->job) == OBJECTIVE_KTO};
    struct comm *comm = t->runtime.device->comm;
    char path[4200], text[4400];
    uint64_t number = 0;
    double start = p.told = clock_seconds();
    path_of(t->job, path, sizeof path);
    tell(t, "reference: computing log-probabilities of the data with the starting weights");
    enum plim_status status = fingerprint_of(t, &number, err);
    p.writes = comm_rank(comm) == 0;
    if (status == PLIM_OK && p.writes) status = file_make_dirs(t->job->output_dir, err);
    if (status == PLIM_OK && p.writes) status = reference_begin(&p.writer, path, number, err);
    bool begun = status == PLIM_OK && p.writes;
    if (status == PLIM_OK) status = open_pass(&p, err);
    status = comm_agree(comm, status, err);
    if (status == PLIM_OK) status = read_all(&p, err);
    if (status == PLIM_OK && p.writes) status = reference_commit(&p.writer, err);
    if (status != PLIM_OK && begun) reference_abandon(&p.writer);
    feed_close(&p.feed);
    forward_close(&p.forward);
    free(p.numbers), free(p.sum), free(p.other);
    status = comm_agree(comm, status, err);
    if (status != PLIM_OK) return status;
    status = reference_open(path, number, &t->reference, err);
    if (status == PLIM_NOT_FOUND)
        status = plim_fail(err, PLIM_IO,
                           "%s: cannot be read here; output.dir must be a folder that all ranks share", path);
    use_reference(t);
    snprintf(text, sizeof text, "reference: %lld samples in %.1f s, kept in %s", (long long)p.samples,
             clock_seconds() - start, path);
    if (status == PLIM_OK) tell(t, text);
    return comm_agree(comm, status, err);
}
