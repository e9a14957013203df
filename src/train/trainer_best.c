/* trainer_best.c - a run that compares its evaluations: see best_model.h. */
#include "train/trainer.h"

static void note(struct trainer *t, const struct strbuf *text)
{
    trainer_tell(t, &(struct train_event){.kind = TRAIN_NOTE, .step = t->step, .text = strbuf_text(text)});
}

enum plim_status trainer_best_open(struct trainer *t, struct plim_error *err)
{
    enum plim_status status = best_model_init(&t->best, t->job, err);
    if (status == PLIM_OK && t->job->training.load_best && !trainer_may_save(t))
        status = plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key 'training.load_best_model_at_end' needs checkpoints, but --no-checkpoint saves "
            "none; remove one of the two",
            t->job->name);
    return status;
}

bool trainer_best_hear(struct trainer *t, double loss)
{
    bool best = best_model_observe(&t->best, t->step, loss, &t->scores);
    return best && t->job->training.load_best;
}

static void tell_stop(struct trainer *t)
{
    STRBUF_AUTO text = STRBUF_INIT;
    strbuf_addf(&text, "early stopping after step %lld: no improvement in %lld evaluation%s; the best is ",
                (long long)t->step, (long long)t->best.bad, t->best.bad == 1 ? "" : "s");
    best_model_text(&t->best, &text);
    note(t, &text);
}

enum plim_status trainer_best_end(struct trainer *t, struct plim_error *err)
{
    STRBUF_AUTO text = STRBUF_INIT;
    struct comm *comm = t->runtime.device->comm;
    if (best_model_stops(&t->best)) tell_stop(t);
    if (!t->job->training.load_best || !t->best.step) return PLIM_OK;
    enum plim_status status = comm_rank(comm) ? PLIM_OK : best_model_link(&t->best, err);
    status = comm_agree(comm, status, err);
    if (status != PLIM_OK) return status;
    strbuf_addf(&text, "%s/" BEST_MODEL_LINK " is the best checkpoint: ", t->job->output_dir);
    best_model_text(&t->best, &text);
    note(t, &text);
    return PLIM_OK;
}
