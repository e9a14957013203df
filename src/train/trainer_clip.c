/* trainer_clip.c - updates before the norm (tape/offload_pairs.c) only pay where clipping seldom binds.
 *
 *     the first plan         has none, so what it predicts holds where clipping binds, too
 *     clipping has not bound for CLIP_REST steps in a row
 *                            the run re-plans with the choice open; each further time takes twice as many steps
 *     CLIP_PATIENCE more steps were clipped than not
 *                            it re-plans without them
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

/* The work cut as it is. Where there is no such plan the present one stands, and nothing is tried again. */
static enum plim_status replan(struct trainer *t, bool seldom, const char *why, struct plim_error *err)
{
    struct plan_request *r = &t->runtime.request;
    const struct knobs *now = &t->runtime.plan.knobs, had = r->pins;
    t->stage = STAGE_REPLAN, t->wanted = r->budget;
    r->clips_seldom = seldom;
    r->pins.micro_batch = now->micro_batch, r->pins.loss_chunks = now->loss_chunks;
    trainer_tell(t, &(struct train_event){.kind = TRAIN_NOTE, .step = t->step, .text = why});
    enum plim_status status = trainer_replan_as(t, &(struct replan){.budget = t->wanted}, err);
    t->clipping.open = status == PLIM_OK;
    t->clipping.bound = t->clipping.free = 0;
    r->pins = had;
    if (status != PLIM_OK) r->clips_seldom = !seldom;
    return status == PLIM_NO_FIT && !t->runtime.torn ? PLIM_OK : status;
}

enum plim_status trainer_clip_mind(struct trainer *t, struct plim_error *err)
{
    struct clip_watch *w = &t->clipping;
    const struct knobs *knobs = &t->runtime.plan.knobs;
    if (!w->open || t->watch.adapt.level != ADAPT_FULL) return PLIM_OK;
    if (knobs->before_norm_share > 0 && w->bound >= w->patience)
        return replan(t, false,
                      "clipping binds in most steps: updates wait for the norm (training.update_before_norm)",
                      err);
    bool may_gain =
        knobs->state_tier == TIER_HOST && knobs->accumulation == 1 && t->runtime.request.host_updates;
    if (t->runtime.request.clips_seldom || !may_gain || w->free < w->rest) return PLIM_OK;
    w->rest *= 2;
    return replan(t, true,
                  "clipping does not bind: updates need not wait for the norm (training.update_before_norm)",
                  err);
}
