/* trainer_skip.c - steps that are not taken because their loss or a gradient is not finite. See trainer.h.
 *
 * The update of such a step is not made, so weights and moments stay those of the last good step, and a checkpoint of them is
 * good. The first one in a row is told at once. A loss scale that still falls is given the chance to; after
 * training.max_skipped_steps in a row without that, the run ends.
 *
 * Where the optimizer of several ranks runs inside backward, weights are gone by the time the loss of all is known: the run
 * ends, and saves nothing. One rank's updates look at the loss themselves (tape/pass_update.c). */
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>

/* Advice for a loss scale that does not help. */
static const char *scale_advice(const struct scaler *s)
{
    if (!s->options.window)
        return "the scale is fixed: lower training.loss_scale, or let it move with "
               "training.loss_scale_window";
    if (s->scale > s->options.least)
        return "training.loss_scale_hysteresis keeps the scale up: lower it, or training.loss_scale";
    if (s->options.least > 1)
        return "training.min_loss_scale allows no smaller scale: lower it, or use mixed_precision: bf16";
    return "no smaller scale is left: lower training.learning_rate, set training.max_grad_norm, or use "
           "mixed_precision: bf16";
}

static const char *advice(const struct trainer *t)
{
    return t->scaler.active ? scale_advice(&t->scaler)
                            : "lower training.learning_rate or set training.max_grad_norm";
}

/* "the loss is not finite (nan)", "a gradient overflowed at loss scale 65536" */
static void describe(const struct trainer *t, const struct train_event *event, char *text, size_t size)
{
    if (t->scaler.active)
        snprintf(text, size, "gradients overflowed at loss scale %g", event->scale);
    else if (isfinite(event->loss))
        snprintf(text, size, "a gradient is not finite (loss %g)", event->loss);
    else
        snprintf(text, size, "the loss is not finite (%g)", event->loss);
}

static void tell_skipped(struct trainer *t, const char *what, bool falls)
{
    char text[320], then[96];
    int64_t left = t->job->training.max_skipped - t->stuck;
    if (falls)
        snprintf(then, sizeof then, "the scale is %g from now on", t->scaler.scale);
    else
        snprintf(then, sizeof then, "%lld more in a row end the run", (long long)left);
    snprintf(text, sizeof text, "step %lld is skipped, weights stay as they were: %s; %s", (long long)t->step,
             what, then);
    trainer_tell(t,
                 &(struct train_event){.kind = TRAIN_NOTE, .step = t->step, .text = text, .warns = !falls});
}

enum plim_status trainer_skipped(struct trainer *t, const struct train_event *event, struct plim_error *err)
{
    char what[96];
    bool falls = t->scaler.scale < event->scale;
    describe(t, event, what, sizeof what);
    if (t->runtime.plan.knobs.optimizer_in_backward && t->job->ranks > 1)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "step %lld: %s, and the optimizer has run inside backward: the weights are lost; go on "
            "from the last checkpoint with a lower training.learning_rate, or set "
            "training.optimizer_in_backward: false",
            (long long)t->step, what);
    t->stuck = falls ? 0 : t->stuck + 1;
    t->skipped_row++;
    if (t->stuck >= t->job->training.max_skipped) {
        t->diverged = true;
        return plim_fail(err, PLIM_BAD_INPUT, "step %lld: %s; %lld step%s in a row could not be taken; %s",
                         (long long)t->step, what, (long long)t->stuck, t->stuck == 1 ? "" : "s", advice(t));
    }
    if (t->stuck == 1 || t->skipped_row == 1) tell_skipped(t, what, falls);
    return PLIM_OK;
}

enum plim_status trainer_check_taken(const struct trainer *t, struct plim_error *err)
{
    if (t->updates || !t->step) return PLIM_OK;
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "none of the %lld steps could be taken, as no loss or gradient was finite; nothing is saved; "
        "%s",
        (long long)t->step, advice(t));
}
