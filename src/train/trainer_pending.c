/* trainer_pending.c - updates that wait for the next step's forward (knob optimizer_in_forward, tape/pass_update.c).
 *
 *     finish of a step    trainer_leave_pending: gradients, clip values and scalars wait
 *     next first pass     trainer_begin_pending: the pass makes the updates, each before its parameter is read
 *     anything else       trainer_settle: the updates alone are made, with the same ops on the same operands
 *
 * What the host updates before the norm (knob before_norm_share, tape/offload_pairs.c) is in the other half of its pairs from then on.
 * Behind a skipped step that half stays valid, and its weights are the parameters; trainer_settle makes the kept half valid.
 */
#include "train/trainer.h"

enum plim_status trainer_begin_pending(struct trainer *t, struct plim_error *err)
{
    const float nothing[CLIP_COUNT] = {0}; /* CLIP_FINITE is 0: updates change nothing */
    bool pending = t->pending;
    t->pending = false;
    if (pending) exec_turn_pairs(&t->runtime.exec);
    if (t->update_scalars < 0 || pending) return PLIM_OK;
    enum plim_status status = exec_prime(&t->runtime.exec, err);
    return status == PLIM_OK ? exec_write(&t->runtime.exec, t->clip, nothing, 0, sizeof nothing, err)
                             : status;
}

enum plim_status trainer_leave_pending(struct trainer *t, struct plim_error *err)
{
    if (t->update_scalars < 0) return PLIM_OK;
    t->pending = true;
    return exec_write(&t->runtime.exec, t->update_scalars, t->step_scalars, 0, sizeof t->step_scalars, err);
}

enum plim_status trainer_settle(struct trainer *t, struct plim_error *err)
{
    struct exec *exec = &t->runtime.exec;
    if (!t->pending) return exec_pairs_home(exec, err);
    t->pending = false;
    exec_turn_pairs(exec);
    enum plim_status status = exec_pending(exec, err);
    if (status == PLIM_OK) status = exec_pairs_home(exec, err);
    if (status != PLIM_OK) t->runtime.torn = true; /* some parameters are updated, others are not */
    return status;
}
