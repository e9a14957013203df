/* api_control.c - what the owner of a server asks and orders over its control socket. See server.h and net/control.h. */
#include "serve/server_part.h"
#include "serve/engine_snapshot.h"
#include "base/clock.h"
#include "mem/os.h"

#include <string.h>
#include <time.h>

/* A step of the engine ends before the line moves; nobody waits longer than that for the answer. */
enum { APPLY_SECONDS = 5 };

typedef enum plim_status order(struct server *s, const struct node *message, struct json_writer *reply,
                               struct plim_error *err);

static enum plim_status check_ready(struct server *s, struct plim_error *err)
{
    if (atomic_load(&s->state) != SERVER_LOADING) return PLIM_OK;
    return plim_fail(err, PLIM_BUSY, "the model is being loaded; try again later");
}

/* As a training run tells them (train/run_control.h). */
static void tell_orders(struct server *s, struct json_writer *reply)
{
    struct engine_orders orders;
    engine_orders(s->model.engine, &orders);
    if (orders.waiting) json_int(reply, "order_waiting", orders.waiting);
    if (!orders.done) return;
    json_begin_object(reply, "last_order");
    json_int(reply, "number", orders.done);
    json_bool(reply, "ok", orders.good);
    json_str(reply, "text", orders.text);
    json_end_object(reply);
}

static enum plim_status tell_status(struct server *s, const struct node *, struct json_writer *reply,
                                    struct plim_error *)
{
    server_write_status(s, reply);
    if (atomic_load(&s->state) != SERVER_LOADING) tell_orders(s, reply);
    return PLIM_OK;
}

static enum plim_status take_snapshot(struct server *s, const struct node *message, struct json_writer *reply,
                                      struct plim_error *err)
{
    struct snapshot_wish wish;
    int64_t number = 0;
    enum plim_status status = snapshot_wish_read(message, &wish, err);
    if (status == PLIM_OK && !*wish.file)
        status = plim_fail(
            err, PLIM_BAD_INPUT,
            "a server has no folder; name a file, e.g. plimsoll ctl SOCKET snapshot step.trace.json");
    if (status == PLIM_OK) status = check_ready(s, err);
    if (status == PLIM_OK) status = engine_snapshot(s->model.engine, &wish, &number, err);
    if (status == PLIM_OK) json_int(reply, "order", number);
    return status;
}

/* Has the engine's line come to be `bytes`? */
static bool line_is(struct server *s, int64_t bytes, struct engine_stats *stats)
{
    engine_stats(s->model.engine, stats);
    return stats->budget == bytes;
}

static enum plim_status move_line(struct server *s, const struct node *message, struct json_writer *reply,
                                  struct plim_error *err)
{
    int64_t bytes;
    struct engine_stats stats;
    struct timespec pause = {0, 2000000};
    if (!node_is_whole(node_get(message, "bytes"), &bytes) || bytes <= 0)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "budget: say how many, e.g. {\"do\":\"budget\",\"bytes\":1073741824}");
    if (check_ready(s, err) != PLIM_OK) return PLIM_BUSY;
    engine_stats(s->model.engine, &stats);
    int64_t before = stats.budget, process = 0;
    enum plim_status status = engine_set_budget(s->model.engine, bytes, err);
    if (status != PLIM_OK) return status;
    double until = clock_seconds() + APPLY_SECONDS;
    bool applied = line_is(s, bytes, &stats);
    while (!applied && clock_seconds() < until) nanosleep(&pause, NULL), applied = line_is(s, bytes, &stats);
    struct os_process me = {0};
    if (os_process_memory(&me, NULL) == PLIM_OK) process = (int64_t)me.rss;
    json_bool(reply, "applied", applied);
    json_int(reply, "before", before);
    json_int(reply, "budget", stats.budget);
    json_int(reply, "used", stats.used);
    json_int(reply, "process", process);
    json_int(reply, "blocks", stats.blocks);
    json_int(reply, "tokens", stats.blocks * ENGINE_BLOCK);
    json_int(reply, "running", stats.running);
    json_int(reply, "waiting", stats.waiting);
    return PLIM_OK;
}

static enum plim_status stop(struct server *s, const struct node *, struct json_writer *reply,
                             struct plim_error *err)
{
    if (!s->options.stop)
        return plim_fail(err, PLIM_UNSUPPORTED, "this server cannot be stopped through its socket");
    json_int(reply, "active", server_active(s));
    s->options.stop();
    return PLIM_OK;
}

static const struct {
    const char *what;
    order *obey;
} orders[] = {{"status", tell_status}, {"budget", move_line}, {"snapshot", take_snapshot}, {"stop", stop}};

enum plim_status server_control(void *server, const char *what, const struct node *message,
                                struct json_writer *reply, struct plim_error *err)
{
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
        if (!strcmp(orders[i].what, what)) return orders[i].obey(server, message, reply, err);
    return plim_fail(err, PLIM_UNSUPPORTED, "a server takes status, budget, snapshot and stop, not '%.40s'",
                     what);
}
