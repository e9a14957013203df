/* trainer_clip.c - updates before the norm (tape/offload_pairs.c) only pay where clipping seldom binds.
 *
 *     the plan has them      where CLIP_PATIENCE more steps were clipped than not, the run re-plans without them
 *     it gave them up        where clipping has not bound for CLIP_REST steps in a row, it re-plans with the choice open again; each
 *                            time that takes twice as many steps
 *
 * A plan that was kept, a pin, and memory pressure leave things as they are. The work stays cut as it is, so losses keep their bits. */
#include "train/trainer.h"

void trainer_clip_open(struct trainer *t)
{
    bool open = t->runtime.request.pins.before_norm_share == KNOB_OPEN && !t->options.kept;
    t->clipping = (struct clip_watch){.open = open, .patience = CLIP_PATIENCE, .rest = CLIP_REST};
}

void trainer_clip_note(struct trainer *t, const float clip[CLIP_COUNT])
{
    struct clip_watch *w = &t->clipping;
    bool binds = clip[CLIP_MULTIPLIER] != t->step_scalars[SCALAR_UNSCALE];
    w->bound = binds ? w->bound + 1 : w->bound > 0 ? w->bound - 1 : 0;
    w->free = binds ? 0 : w->free + 1;
}

/* With or without them, the work cut as it is. Where there is no such plan the present one stands, and nothing is tried again. */
static enum plim_status replan(struct trainer *t, int64_t before_norm, const char *why,
                               struct plim_error *err)
{
    struct knobs *pins = &t->runtime.request.pins, had = *pins;
    const struct knobs *now = &t->runtime.plan.knobs;
    t->stage = STAGE_REPLAN, t->wanted = t->runtime.request.budget;
    pins->before_norm_share = before_norm;
    pins->micro_batch = now->micro_batch, pins->loss_chunks = now->loss_chunks;
    trainer_tell(t, &(struct train_event){.kind = TRAIN_NOTE, .step = t->step, .text = why});
    enum plim_status status = trainer_replan_as(t, &(struct replan){.budget = t->wanted}, err);
    t->clipping.open = status == PLIM_OK;
    t->clipping.bound = t->clipping.free = 0;
    *pins = had;
    if (status == PLIM_OK) pins->before_norm_share = before_norm;
    return status == PLIM_NO_FIT && !t->runtime.torn ? PLIM_OK : status;
}

enum plim_status trainer_clip_mind(struct trainer *t, struct plim_error *err)
{
    struct clip_watch *w = &t->clipping;
    bool guesses = t->runtime.plan.knobs.before_norm_share > 0;
    if (!w->open || t->watch.adapt.level != ADAPT_FULL) return PLIM_OK;
    if (guesses && w->bound >= w->patience) {
        w->given_up = true;
        return replan(t, 0,
                      "clipping binds in most steps: updates wait for the norm (training.update_before_norm)",
                      err);
    }
    if (!w->given_up || w->free < w->rest) return PLIM_OK;
    w->given_up = false, w->rest *= 2;
    return replan(t, KNOB_OPEN, "clipping does not bind any more: updates need not wait for the norm", err);
}
