/* run_control.c - see run_control.h. */
#include "train/run_control.h"
#include "base/locked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct run_control {
    struct control *socket;
    struct monitor *monitor;
    pthread_mutex_t lock; /* guards what follows */
    struct run_facts facts;
    bool waiting, stopped;
    struct run_order order; /* the newest */
    int64_t done;           /* number of the last that was carried out */
    bool good;
    char text[512]; /* what came of it */
};

/* --- answers, on the socket's thread ---------------------------------------------------------------------------- */

static void put_monitor(struct json_writer *w, struct monitor *monitor)
{
    struct monitor_state s;
    if (!monitor) return;
    monitor_look(monitor, &s);
    monitor_json(&s, w, "monitor");
}

static void put_orders(struct json_writer *w, const struct run_control *c)
{
    if (c->waiting) json_int(w, "order_waiting", c->order.number);
    if (!c->done) return;
    json_begin_object(w, "last_order");
    json_int(w, "number", c->done);
    json_bool(w, "ok", c->good);
    json_str(w, "text", c->text);
    json_end_object(w);
}

static enum plim_status say_status(struct run_control *c, const struct node *, struct json_writer *w,
                                   struct plim_error *)
{
    const struct run_facts *f = &c->facts;
    json_str(w, "what", "train");
    json_int(w, "pid", getpid());
    json_int(w, "step", f->step);
    json_int(w, "steps", f->steps);
    json_double(w, "loss", f->loss);
    json_double(w, "lr", f->lr);
    json_double(w, "tokens_per_s", f->tokens_per_s);
    json_double(w, "step_ms", 1e3 * f->step_seconds);
    json_int(w, "micro_batch", f->micro_batch);
    json_int(w, "accumulation", f->accumulation);
    json_str(w, "level", adapt_level_name(f->level));
    json_int(w, "changes", f->changes);
    put_orders(w, c);
    summary_json(&f->memory, w, "memory");
    put_monitor(w, c->monitor);
    return PLIM_OK;
}

static enum plim_status take_order(struct run_control *c, const struct run_order *order,
                                   struct json_writer *w, struct plim_error *err)
{
    if (c->waiting)
        return plim_fail(err, PLIM_BUSY, "order %lld is waiting for the next step; try again when it is done",
                         (long long)c->order.number);
    if (c->stopped) return plim_fail(err, PLIM_BUSY, "the run is stopping");
    int64_t number = c->order.number + 1;
    c->order = *order;
    c->order.number = number;
    c->waiting = true;
    json_int(w, "order", c->order.number);
    return PLIM_OK;
}

static enum plim_status take_budget(struct run_control *c, const struct node *message, struct json_writer *w,
                                    struct plim_error *err)
{
    int64_t bytes = node_int(node_get(message, "bytes"), -1);
    if (bytes < 1)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "a budget is {\"do\":\"budget\",\"bytes\":N} with a whole number above 0");
    return take_order(c, &(struct run_order){.kind = ORDER_BUDGET, .bytes = bytes}, w, err);
}

static enum plim_status take_checkpoint(struct run_control *c, const struct node *, struct json_writer *w,
                                        struct plim_error *err)
{
    return take_order(c, &(struct run_order){.kind = ORDER_CHECKPOINT}, w, err);
}

static enum plim_status take_snapshot(struct run_control *c, const struct node *message,
                                      struct json_writer *w, struct plim_error *err)
{
    struct run_order order = {.kind = ORDER_SNAPSHOT};
    enum plim_status status = snapshot_wish_read(message, &order.snapshot, err);
    return status == PLIM_OK ? take_order(c, &order, w, err) : status;
}

static enum plim_status take_stop(struct run_control *c, const struct node *, struct json_writer *w,
                                  struct plim_error *)
{
    c->stopped = true;
    json_bool(w, "stopping", true);
    return PLIM_OK;
}

static const struct {
    const char *what;
    enum plim_status (*answer)(struct run_control *c, const struct node *message, struct json_writer *w,
                               struct plim_error *err);
} answers[] = {{"status", say_status},
               {"budget", take_budget},
               {"checkpoint", take_checkpoint},
               {"snapshot", take_snapshot},
               {"stop", take_stop}};

enum plim_status run_control_answer(void *arg, const char *what, const struct node *message,
                                    struct json_writer *reply, struct plim_error *err)
{
    struct run_control *c = arg;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        if (strcmp(what, answers[i].what) != 0) continue;
        pthread_mutex_lock(&c->lock);
        enum plim_status status = answers[i].answer(c, message, reply, err);
        pthread_mutex_unlock(&c->lock);
        return status;
    }
    return plim_fail(err, PLIM_BAD_INPUT,
                     "a run knows status, budget, checkpoint, snapshot and stop, not '%.40s'", what);
}

/* --- the trainer's side ------------------------------------------------------------------------------------------ */

void run_control_tell(struct run_control *c, const struct run_facts *facts)
{
    LOCKED(&c->lock);
    c->facts = *facts;
}

bool run_control_next(struct run_control *c, struct run_order *out)
{
    LOCKED(&c->lock);
    bool waits = c->waiting;
    *out = c->order;
    return waits;
}

void run_control_done(struct run_control *c, const struct run_order *order, enum plim_status status,
                      const char *text)
{
    LOCKED(&c->lock);
    c->waiting = false;
    c->done = order->number;
    c->good = status == PLIM_OK;
    snprintf(c->text, sizeof c->text, "%s", text ? text : "");
}

bool run_control_stopped(struct run_control *c)
{
    LOCKED(&c->lock);
    return c->stopped;
}

enum plim_status run_control_open(const char *folder, struct monitor *monitor, struct run_control **out,
                                  struct plim_error *err)
{
    char path[512];
    struct run_control *c = *out = calloc(1, sizeof *c);
    if (!c) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the run's control socket");
    pthread_mutex_init(&c->lock, NULL);
    c->monitor = monitor;
    if (!folder) return PLIM_OK;
    snprintf(path, sizeof path, "%s/" RUN_SOCKET, folder);
    enum plim_status status = control_open(path, run_control_answer, c, &c->socket, err);
    if (status == PLIM_OK) return PLIM_OK;
    run_control_close(c);
    *out = NULL;
    return status;
}

void run_control_close(struct run_control *c)
{
    if (!c) return;
    control_close(c->socket);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
