/* trainer_open.c - from a job to a trainer that is ready for its next step: data, the run's folder, plan, weights. See
 * trainer.h. */
#include "base/bytes.h"
#include "base/schema_value.h"
#include "job/disk_line.h"
#include "train/checkpoint.h"
#include "train/epoch.h"
#include "train/manifest.h"
#include "train/reference_pass.h"
#include "train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- ranks of one run do the same ---------------------------------------------------------------------------- */

/* Keys that decide no bit of a run by itself, and what ranks do together. */
static const char *const together[] = {"training.steps",
                                       "training.epochs",
                                       "training.batch_size",
                                       "training.gradient_accumulation_steps",
                                       "training.eval_every",
                                       "training.eval_rows",
                                       "training.eval_strategy",
                                       "training.save_every",
                                       "training.save_strategy",
                                       "training.zero_stage",
                                       "training.zero.sum_gradients",
                                       "output.gather_weights"};

static enum plim_status list(const struct job *job, const struct doc *facts, struct strbuf *out,
                             struct plim_error *err)
{
    for (size_t i = 0; i < node_count(&facts->root); i++) {
        const struct node *n = node_item(&facts->root, i);
        strbuf_addf(out, "%s=%s\n", n->key, node_string(n, ""));
    }
    for (size_t i = 0; i < sizeof together / sizeof *together; i++) {
        strbuf_addf(out, "%s=", together[i]);
        schema_exact(schema_find(&job_schema, together[i]), job, out);
        strbuf_addf(out, "\n");
    }
    return strbuf_status(out, err);
}

/* The first line in which two lists differ. */
static enum plim_status compare(int rank, char *mine, char *theirs, struct plim_error *err)
{
    char *here, *there;
    while ((here = strsep(&mine, "\n")) && (there = strsep(&theirs, "\n"))) {
        if (!strcmp(here, there)) continue;
        char *value = strchr(here, '='), *other = strchr(there, '=');
        if (value) *value++ = '\0';
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "rank %d: %.96s is not that of rank 0 (%.120s, and %.120s there); start every rank with the "
            "same files",
            rank, here, value ? value : "absent", other ? other + 1 : "absent");
    }
    return PLIM_OK;
}

/* Rank 0 sends its list, a line for each key; everybody compares, and all agree. Devices, threads, budgets and folders may
 * differ. PLIM_BAD_INPUT on all ranks: the first rank that has something else than rank 0, and the first key. */
static enum plim_status run_same(struct comm *comm, const struct job *job, const struct doc *facts,
                                 struct plim_error *err)
{
    if (!comm) return PLIM_OK;
    STRBUF_AUTO mine = STRBUF_INIT;
    enum plim_status status = comm_agree(comm, list(job, facts, &mine, err), err);
    int64_t bytes = (int64_t)mine.len + 1;
    if (status == PLIM_OK) status = comm_broadcast(comm, &bytes, sizeof bytes, 0, err);
    char *theirs = status == PLIM_OK ? malloc((size_t)bytes) : NULL;
    if (theirs && comm->rank == 0) memcpy(theirs, strbuf_text(&mine), (size_t)bytes);
    if (status == PLIM_OK && !theirs)
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while ranks compared jobs");
    if (status == PLIM_OK) status = comm_broadcast(comm, theirs, (size_t)bytes, 0, err);
    if (status == PLIM_OK) status = compare(comm->rank, mine.data, theirs, err);
    free(theirs);
    return comm_agree(comm, status, err);
}

/* The loader is made for the lowest line of the run. */
static enum plim_status check_changes(struct trainer *t, const struct device_facts *facts,
                                      struct overhead overhead, struct plim_error *err)
{
    const struct job *job = t->job;
    const struct train_options *options = &t->options;
    enum plim_status status = budget_check(job->name, "key 'budget'", job_budget(job, facts), facts, err);
    for (int i = 0; i < options->nchanges && status == PLIM_OK; i++)
        status = budget_check_next(job->name, "option '--budget-at'",
                                   i ? options->changes[i - 1].bytes : job_budget(job, facts),
                                   options->changes[i].bytes, facts, err);
    for (int i = 0; i < options->nchanges && status == PLIM_OK; i++)
        if (options->changes[i].bytes < job_budget(job, facts))
            status =
                runtime_fit_loader(job, &t->corpus.sizes, facts, overhead, options->changes[i].bytes, err);
    return status;
}

static enum plim_status open_data(struct trainer *t, struct plim_error *err)
{
    struct job_epoch epoch = {0};
    if (t->job->adapting && !t->job->model.path)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key 'adapter.type': an adapter belongs to a model that exists; write model.path",
            t->job->name);
    enum plim_status status = corpus_open(t->job, CORPUS_TRAIN | CORPUS_VALIDATION, &t->corpus, err);
    t->corpus.stop = t->options.stop;
    if (status == PLIM_OK && job_counts_epochs(t->job))
        status = epoch_count(&t->corpus, &epoch, err);
    else if (status == PLIM_OK)
        epoch_known(&t->corpus, &epoch);
    t->length = job_length(t->job, &epoch);
    return status;
}

void trainer_unbind(struct trainer *t)
{
    for (int i = 0; i < t->lengths.count; i++) feed_close(&t->feed[i]);
    eval_programs_close(&t->eval);
    lengths_close(&t->lengths);
}

/* Everything is compiled before the first step where rows have several lengths: otherwise a length that comes late would
 * be then. */
static enum plim_status open_program(struct trainer *t, int i, struct plim_error *err)
{
    struct exec *exec = lengths_exec(&t->lengths, i);
    if (t->options.profile) exec->op_seconds = t->op_seconds;
    if (t->options.numerics) exec->inspect = numerics_inspect, exec->inspect_arg = &t->numerics;
    enum plim_status status = t->lengths.count > 1 ? exec_prepare(exec, true, err) : PLIM_OK;
    return status == PLIM_OK ? feed_open(&t->feed[i], exec, err) : status;
}

enum plim_status trainer_bind(struct trainer *t, struct plim_error *err)
{
    const struct tape *tape = &t->runtime.plan.tape;
    t->scalars = tape_find(tape, "step.scalars", -1);
    t->loss = tape_find(tape, "loss", -1);
    t->clip = tape_find(tape, "clip", -1);
    t->update_scalars = tape_find(tape, UPDATE_SCALARS, -1);
    t->pending = false;
    t->preference = tape_find(tape, "preference", -1);
    t->drops = tape_drops(tape);
    t->numerics.trainer = t;
    trainer_unbind(t);
    enum plim_status status = router_bind(&t->router, tape, err);
    if (status == PLIM_OK) status = lengths_open(&t->lengths, &t->runtime, err);
    for (int i = 0; i < t->lengths.count && status == PLIM_OK; i++) status = open_program(t, i, err);
    if (status == PLIM_OK && t->lengths.count > 1 && t->corpus.validation)
        status = trainer_open_eval(t, &t->eval, err);
    return status == PLIM_NO_FIT ? PLIM_OK : status; /* an evaluation will say so */
}

static void note_line(void *arg, enum log_level, const char *line)
{
    trainer_tell(arg, &(struct train_event){.kind = TRAIN_NOTE, .text = line});
}

/* Another cut of the work than the checkpoint's changes the order of sums. */
static void note_cut(struct trainer *t, int64_t saved, const char *why)
{
    strbuf_addf(&t->start.notes,
                "the checkpoint's micro-batch of %lld %s, %lld does: losses may differ in the last digits\n",
                (long long)saved, why, (long long)t->runtime.plan.knobs.micro_batch);
}

/* A plan that was kept stands as it is, after a resume, too. */
static enum plim_status take_kept(struct trainer *t, struct device *device, struct overhead overhead,
                                  struct plim_error *err)
{
    struct knobs pins;
    enum plim_status status =
        runtime_plan_kept(&t->runtime, device, t->job, &t->corpus.sizes, overhead, t->options.kept, err);
    run_start_pins(&t->start, t->job, &pins);
    if (status == PLIM_OK && pins.micro_batch > 0 && pins.micro_batch != t->runtime.plan.knobs.micro_batch)
        note_cut(t, pins.micro_batch, "is not the kept plan's");
    return status;
}

/* The plan; after a resume, first one that keeps the bits of the checkpoint's. A line that moves later is free to cut
 * the work anew, so the pins hold for this plan alone. */
static enum plim_status make_plan(struct trainer *t, struct device *device, struct overhead overhead,
                                  struct plim_error *err)
{
    const struct job *job = t->job;
    struct loader_sizes *loader = &t->corpus.sizes;
    int chosen = loader->chosen;
    struct knobs pins, open;
    knobs_open(&open);
    run_start_pins(&t->start, job, &pins);
    enum plim_status status = runtime_plan(&t->runtime, device, job, loader, overhead, &pins, err);
    for (int i = 0; i < KNOB_COUNT; i++)
        if (knob_get(&pins, i) != KNOB_OPEN) knob_set(&t->runtime.request.pins, i, KNOB_OPEN);
    if (status != PLIM_NO_FIT || knobs_equal(&pins, &open)) return status;
    loader->chosen = chosen;
    plan_release(&t->runtime.plan);
    status = runtime_plan(&t->runtime, device, job, loader, overhead, NULL, err);
    if (status == PLIM_OK) note_cut(t, pins.micro_batch, "does not fit this budget");
    return status;
}

/* Notes the kind of the disk tier and the speed that the plan assumes, measured or default. */
static void note_disk(struct trainer *t, bool measured)
{
    const struct runtime *rt = &t->runtime;
    const struct device_facts *f = &rt->device->facts;
    char bytes[BYTES_TEXT];
    if (!rt->disk) return;
    strbuf_addf(&t->start.notes, "disk tier: %s below %s, %s; planned with %.3g GB/s%s\n",
                bytes_format(bytes, (uint64_t)rt->plan.disk), job_disk_dir(t->job), disk_describe(rt->disk),
                1e-9 * (f->unified_memory ? f->lower_bandwidth : f->disk_bandwidth),
                measured ? "" : " (assumed; plimsoll calibrate --disk FOLDER measures it)");
}

/* Which command says more about a job that does not fit. */
static void name_plan(const struct job *job, struct plim_error *err)
{
    char ranks[32] = "";
    if (!err) return;
    if (job->ranks > 1) snprintf(ranks, sizeof ranks, " --ranks %d", job->ranks);
    plim_fail(err, PLIM_NO_FIT, "%s: %s; plimsoll plan %s%s lists what would help", job->name, err->text,
              job->name, ranks);
}

/* The plan, and with it everything but the weights. */
static enum plim_status open_runtime(struct trainer *t, struct device *device, struct overhead overhead,
                                     struct plim_error *err)
{
    const struct job *job = t->job;
    bool measured = runtime_recall_disk(device->context, job, &device->facts);
    enum plim_status status = check_changes(t, &device->facts, overhead, err);
    if (status == PLIM_OK) status = (t->options.kept ? take_kept : make_plan)(t, device, overhead, err);
    if (status == PLIM_NO_FIT) name_plan(job, err);
    struct disk_line disk;
    if (status == PLIM_OK)
        disk_line_of(job, &t->length, &t->runtime.plan, checkpoint_count(job->output_dir), &disk);
    if (status == PLIM_OK) status = disk_line_check(&disk, job, err);
    /* After the plan, which may have made the loader smaller. */
    if (status == PLIM_OK) status = corpus_loader(&t->corpus, t->corpus.train, &t->loader, err);
    if (status == PLIM_OK && t->corpus.validation)
        status = corpus_evaluator(&t->corpus, t->corpus.validation, &t->evaluator, err);
    if (status != PLIM_OK) return status;
    trainer_tell(t, &(struct train_event){.kind = TRAIN_PLANNED});
    trainer_clip_open(t);
    t->stage = STAGE_COMMIT;
    status = runtime_commit(&t->runtime, err);
    if (status == PLIM_OK) note_disk(t, measured);
    if (status == PLIM_OK) status = cutting_open(&t->cutting, job_rows(job), err);
    return status == PLIM_OK ? trainer_bind(t, err) : status;
}

/* Reports the notes of the start, one line each. */
static void tell_notes(struct trainer *t)
{
    char *rest = t->start.notes.data, *line;
    while (rest && (line = strsep(&rest, "\n")))
        if (*line) trainer_tell(t, &(struct train_event){.kind = TRAIN_NOTE, .text = line});
    strbuf_release(&t->start.notes);
}

/* Weights and everything else that a step needs: of the checkpoint, of model.path, or fresh. */
static enum plim_status fill(struct trainer *t, struct plim_error *err)
{
    struct log log = {LOG_LEVEL_INFO, note_line, t};
    struct checkpoint *saved = t->start.saved;
    const char *model = t->job->model.path;
    enum plim_status status = PLIM_OK;
    bool checked;
    bool wanted = false; /* the starting weights, for a reference */
    status = reference_wanted(t, &wanted, err);
    bool base = !saved || wanted || t->job->adapting; /* a checkpoint of an adapter has no base */
    if (status == PLIM_OK && base && model) status = checkpoint_check(model, MANIFEST_WEIGHTS, &checked, err);
    if (status == PLIM_OK && base) status = runtime_weights(&t->runtime, &log, err);
    if (status == PLIM_OK && (!saved || wanted)) status = runtime_adapter(&t->runtime, err);
    if (status == PLIM_OK && wanted) status = reference_make(t, err);
    if (status != PLIM_OK || !saved) return status;
    status = checkpoint_restore(saved, t, t->start.order_changed, err);
    if (status == PLIM_OK)
        trainer_tell(
            t, &(struct train_event){.kind = TRAIN_RESUMED, .step = t->step, .text = checkpoint_path(saved)});
    checkpoint_close(saved);
    t->start.saved = NULL;
    return status;
}

enum plim_status trainer_open(const struct job *job, struct device *device,
                              const struct train_options *options, struct trainer **out,
                              struct plim_error *err)
{
    struct trainer *t = calloc(1, sizeof *t);
    if (!t) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while training was set up");
    t->job = job, t->options = *options;
    t->start.lock = (struct run_lock)RUN_LOCK_NONE;
    job_thresholds(job, &t->thresholds);
    scaler_init(&t->scaler, job->training.precision == PRECISION_F16,
                &(struct scaler_options){job->training.loss_scale, job->training.min_loss_scale,
                                         job->training.loss_scale_window,
                                         job->training.loss_scale_hysteresis});
    struct overhead overhead =
        runtime_overhead(device->context, device->facts.threads,
                         device->comm); /* before the data: their bytes are a number of their own */
    overhead.bytes += job_telling_bytes(job);
    enum plim_status status = open_data(t, err);
    struct job_schedule schedule = job_schedule(job);
    lr_schedule_init(&t->schedule, &schedule, t->length.steps);
    struct run_options run = {options->resume, options->overwrite, trainer_may_save(t), options->accepted};
    if (status == PLIM_OK) status = trainer_best_open(t, err);
    status = comm_agree(device->comm, status, err);
    if (status == PLIM_OK)
        status = run_start_begin(&t->start, job, &t->length, &t->corpus, device, &run, err);
    status = comm_agree(device->comm, status, err);
    if (status == PLIM_OK) status = run_same(device->comm, job, t->start.facts, err);
    if (status == PLIM_OK && t->start.now) corpus_set_now(&t->corpus, t->start.now);
    if (status == PLIM_OK) status = open_runtime(t, device, overhead, err);
    if (status == PLIM_OK) tell_notes(t);
    if (status == PLIM_OK) status = comm_agree(device->comm, fill(t, err), err);
    if (status == PLIM_OK) trainer_watch_open(t);
    if (status != PLIM_OK) {
        trainer_explain(t, err);
        trainer_close(t);
        return status;
    }
    *out = t;
    return PLIM_OK;
}

void trainer_close(struct trainer *t)
{
    if (!t) return;
    trainer_watch_close(t);
    trainer_unbind(t);
    cutting_close(&t->cutting);
    router_release(&t->router);
    loader_close(t->loader);
    loader_close(t->evaluator);
    corpus_close(&t->corpus);
    reference_close(t->reference);
    runtime_close(&t->runtime);
    run_start_end(&t->start);
    free(t);
}
