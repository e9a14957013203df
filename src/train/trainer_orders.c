/* trainer_orders.c - what a run is told to do from outside, done between two optimizer steps: control socket and SIGUSR1.
 *
 * Several ranks do it together: before each step they tell each other what was asked of them and how short of memory they are. */
#include "base/bytes.h"
#include "train/trainer.h"

#include <stdio.h>
#include <stdlib.h>

/* The text says what came of it. */
typedef enum plim_status order_do(struct trainer *t, const struct run_order *order, char *text, size_t size,
                                  struct plim_error *err);

/* A budget that no plan fits is refused and the run goes on as it was. */
static enum plim_status do_budget(struct trainer *t, const struct run_order *order, char *text, size_t size,
                                  struct plim_error *err)
{
    char total[BYTES_TEXT], budget[BYTES_TEXT];
    const struct plan *plan = &t->runtime.plan;
    enum plim_status status = budget_check_next(t->job->name, "budget", t->runtime.request.budget,
                                                order->bytes, &t->runtime.device->facts, err);
    status = comm_agree(t->runtime.device->comm, status, err);
    if (status == PLIM_OK) status = trainer_replan(t, order->bytes, err);
    if (status == PLIM_OK)
        snprintf(text, size, "planned %s of %s: micro-batch %lld x %lld",
                 bytes_format(total, (uint64_t)plan->total), bytes_format(budget, (uint64_t)order->bytes),
                 (long long)plan->knobs.micro_batch, (long long)plan->knobs.accumulation);
    return status;
}

static enum plim_status do_checkpoint(struct trainer *t, const struct run_order *, char *text, size_t size,
                                      struct plim_error *err)
{
    if (!trainer_may_save(t))
        return plim_fail(err, PLIM_BAD_INPUT, "this run saves nothing, as --no-checkpoint asks");
    enum plim_status status = trainer_save(t, err);
    if (status == PLIM_OK) snprintf(text, size, "saved after step %lld", (long long)t->step);
    return status;
}

static order_do *const orders[] = {[ORDER_BUDGET] = do_budget, [ORDER_CHECKPOINT] = do_checkpoint};

/* --- ranks ------------------------------------------------------------------------------------------------------ */

/* A rank's requests before a step. Orders reach rank 0 alone; signals may reach any rank. */
struct word {
    int64_t saves, looks, used;
    int64_t ordered;
    struct run_order order;
    struct adapt_look look;
};

/* The worst that ranks see; it is as new as what rank 0 sees. */
static void add_look(struct adapt_look *sum, const struct adapt_look *one)
{
    if (one->status > sum->status) sum->status = one->status;
    if (one->over > sum->over) sum->over = one->over;
    if (one->room < sum->room) sum->room = one->room;
}

/* Combines the words of all ranks. */
static enum plim_status share_word(struct comm *comm, struct word *word, int64_t *rank_used,
                                   struct plim_error *err)
{
    struct word *all = comm ? calloc((size_t)comm_ranks(comm), sizeof *all) : NULL;
    if (!comm) return PLIM_OK;
    if (!all) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while ranks agreed");
    enum plim_status status =
        comm_gather(comm, word, sizeof *word, all, (size_t)comm_ranks(comm) * sizeof *all, err);
    *word = all[0];
    for (int r = 0; r < comm_ranks(comm) && rank_used; r++) rank_used[r] = all[r].used;
    for (int r = 1; r < comm_ranks(comm) && status == PLIM_OK; r++) {
        word->saves |= all[r].saves, word->looks &= all[r].looks;
        add_look(&word->look, &all[r].look);
    }
    free(all);
    return status;
}

/* Collects the requests for the next step, from this rank or from all ranks. */
static enum plim_status next_word(struct trainer *t, struct word *word, struct plim_error *err)
{
    struct run_watch *w = &t->watch;
    *word = (struct word){.saves = t->options.save_now && *t->options.save_now};
    if (word->saves) *t->options.save_now = 0;
    word->looks = trainer_look(t, &word->look);
    word->ordered = w->control && run_control_next(w->control, &word->order);
    word->used = t->runtime.device->comm ? trainer_used(t) : 0;
    enum plim_status status = share_word(t->runtime.device->comm, word, w->rank_used, err);
    w->looks = word->looks, w->look = word->look;
    return status;
}

/* An order that fails leaves the run as it was. A snapshot is rank 0's, done when a step has been measured. */
static enum plim_status obey(struct trainer *t, const struct run_order *order, struct plim_error *err)
{
    struct plim_error why = {0};
    char text[512] = "";
    if (order->kind == ORDER_SNAPSHOT) {
        if (t->watch.control) trainer_trace_order(t, order);
        return PLIM_OK;
    }
    enum plim_status done = orders[order->kind](t, order, text, sizeof text, &why);
    trainer_note_step(t, NULL);
    if (t->watch.control) run_control_done(t->watch.control, order, done, done == PLIM_OK ? text : why.text);
    if (done == PLIM_OK || !t->runtime.torn) return PLIM_OK;
    *err = why;
    return done;
}

enum plim_status trainer_obey(struct trainer *t, struct plim_error *err)
{
    struct word word;
    enum plim_status status;
    do {
        status = next_word(t, &word, err);
        if (status == PLIM_OK && word.saves) status = trainer_save(t, err);
        if (status == PLIM_OK && word.ordered) status = obey(t, &word.order, err);
    } while (status == PLIM_OK && word.ordered && word.order.kind != ORDER_SNAPSHOT);
    return status;
}
