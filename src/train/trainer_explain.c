/* trainer_explain.c - a run that ends because memory was refused says why. See watch/explain.h. */
#include "train/trainer.h"

/* Bytes of an arena in which one row of an evaluation fits above the plan's kept tensors; 0: unknown. */
static int64_t arena_for_evaluation(const struct trainer *t)
{
    const struct plan *plan = &t->runtime.plan;
    struct tape tape;
    struct layout layout = {0};
    struct layout_options options = {.facts = &t->runtime.device->facts,
                                     .accumulation = 1,
                                     .above = &plan->layout,
                                     .above_tape = &plan->tape};
    int64_t bytes = 0;
    if (job_build_eval(t->job, options.facts, &plan->knobs, 1, t->job->max_length, &tape, NULL) != PLIM_OK)
        return 0;
    if (layout_make(&tape, &options, &layout, NULL) == PLIM_OK) bytes = layout.arena_bytes;
    layout_release(&layout);
    tape_release(&tape);
    return bytes;
}

/* Plans are compared when the arena has been given back; the plan that the run had is still there to be named. */
static void give_memory_back(struct trainer *t)
{
    struct device *device = t->runtime.device;
    trainer_watch_close(t);
    trainer_unbind(t);
    exec_close(&t->runtime.exec);
    device->ops->commit(device, 0, NULL);
}

void trainer_explain(struct trainer *t, const struct plim_error *err)
{
    struct plan_request request = t->runtime.request;
    struct watch_reading reading;
    struct explanation why;
    bool of_memory = err && (err->status == PLIM_NO_FIT || err->status == PLIM_NO_MEMORY);
    bool alone = !t->runtime.device || !t->runtime.device->comm;
    if (!of_memory || !alone || !t->options.listener.hear || !request.facts) return;
    watch_read(watch_readers, &(struct watch_source){.root = os_machine_root(), .device = t->runtime.device},
               &reading);
    struct refusal refusal = {.status = err->status,
                              .error = err->text,
                              .stage = t->stage,
                              .step = t->step,
                              .budget = t->stage == STAGE_REPLAN ? t->wanted : request.budget,
                              .budget_given = t->job->budget > 0,
                              .job = t->job,
                              .request = &request,
                              .plan = t->stage == STAGE_REPLAN ? NULL : &t->runtime.plan,
                              .reading = &reading,
                              .leak = &t->watch.seen.leak};
    if (t->stage == STAGE_REPLAN) request.budget = t->wanted;
    if (t->stage == STAGE_EVALUATION) refusal.arena = arena_for_evaluation(t);
    give_memory_back(t);
    explain(&refusal, &why);
    struct train_event event = {
        .kind = TRAIN_REFUSED, .step = t->step, .why = &why, .plan = &t->runtime.plan};
    t->options.listener.hear(t->options.listener.arg, &event);
}
