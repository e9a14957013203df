/* trainer_orders.c - what a run is told to do from outside, done between two optimizer steps: control socket and SIGUSR1. */
#include "base/bytes.h"
#include "train/trainer.h"

#include <stdio.h>

/* The text says what came of it. */
typedef enum plim_status order_do(struct trainer *t, const struct run_order *order, char *text, size_t size,
                                  struct plim_error *err);

/* A budget that no plan fits is refused and the run goes on as it was. */
static enum plim_status do_budget(struct trainer *t, const struct run_order *order, char *text, size_t size,
                                  struct plim_error *err)
{
    char total[BYTES_TEXT], budget[BYTES_TEXT];
    const struct plan *plan = &t->runtime.plan;
    enum plim_status status =
        job_check_memory(t->job, "budget", order->bytes, &t->runtime.device->facts, err);
    if (status == PLIM_OK) status = trainer_replan(t, order->bytes, err);
    if (status == PLIM_OK)
        snprintf(text, size, "planned %s of %s: micro-batch %lld x %lld",
                 bytes_format(total, (uint64_t)plan->total), bytes_format(budget, (uint64_t)order->bytes),
                 (long long)plan->knobs.micro_batch, (long long)plan->knobs.accumulation);
    return status;
}

static enum plim_status do_checkpoint(struct trainer *t, const struct run_order *order, char *text,
                                      size_t size, struct plim_error *err)
{
    (void)order;
    if (!trainer_may_save(t))
        return plim_fail(err, PLIM_BAD_INPUT, "this run saves nothing, as --no-checkpoint asks");
    enum plim_status status = trainer_save(t, err);
    if (status == PLIM_OK) snprintf(text, size, "saved after step %lld", (long long)t->step);
    return status;
}

static order_do *const orders[] = {[ORDER_BUDGET] = do_budget, [ORDER_CHECKPOINT] = do_checkpoint};

enum plim_status trainer_obey(struct trainer *t, struct plim_error *err)
{
    struct run_watch *w = &t->watch;
    struct run_order order;
    enum plim_status status = PLIM_OK;
    bool alone = !t->runtime.device->comm; /* ranks save together */
    if (alone && t->options.save_now && *t->options.save_now) {
        *t->options.save_now = 0;
        status = trainer_save(t, err);
    }
    while (status == PLIM_OK && w->control && run_control_next(w->control, &order)) {
        struct plim_error why = {0};
        char text[512] = "";
        if (order.kind == ORDER_SNAPSHOT) { /* done when a step has been measured */
            trainer_trace_order(t, &order);
            break;
        }
        enum plim_status done = orders[order.kind](t, &order, text, sizeof text, &why);
        if (done != PLIM_OK && t->runtime.torn) status = done, *err = why;
        trainer_note_step(t, NULL);
        run_control_done(w->control, &order, done, done == PLIM_OK ? text : why.text);
    }
    return status;
}
