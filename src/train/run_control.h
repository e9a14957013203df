/* run_control.h - a run's control socket: queries are answered at once, orders wait for the next step.
 *
 *     run_control_open("runs/a", monitor, &control, &err);          // runs/a/control.sock (net/control.h)
 *     run_control_tell(control, &facts);                            // at step ends
 *     while (run_control_next(control, &order)) {                   // between two optimizer steps
 *         ...
 *         run_control_done(control, &order, status, text);
 *     }
 *     run_control_close(control);
 *
 * Messages, and the members of their replies besides "ok":
 *
 *     {"do":"status"}               everything in `struct run_facts`, the monitor's newest sample, the last order
 *     {"do":"budget","bytes":N}     "order": its number; status reports when it is done, and its result
 *     {"do":"checkpoint"}           likewise
 *     {"do":"snapshot"}             likewise, once the next step has been measured; the result is the path of a file in the
 *                                   run's folder. "format": "json" (default), "trace" or "memory_viz"; "file": another path
 *     {"do":"stop"}                 "stopping": true; a checkpoint is saved after the current micro-batch
 *
 * Neither side waits for the other: the socket's thread only records orders, and the trainer only takes a lock and copies.
 * One order may wait at a time; another is refused until it is done.
 */
#pragma once

#include "net/control.h"
#include "report/snapshot.h"
#include "train/adapt.h"
#include "watch/monitor.h"
#include "watch/summary.h"

#define RUN_SOCKET "control.sock"

enum run_order_kind { ORDER_BUDGET, ORDER_CHECKPOINT, ORDER_SNAPSHOT };

struct run_order {
    int64_t number; /* from 1 */
    enum run_order_kind kind;
    int64_t bytes;                 /* ORDER_BUDGET */
    struct snapshot_wish snapshot; /* ORDER_SNAPSHOT; without a file the run chooses one */
};

/* State of a run at the end of a step. */
struct run_facts {
    int64_t step, steps, micro_batch, accumulation, tokens;
    double loss, lr, tokens_per_s, step_seconds;
    enum adapt_level level;
    int changes; /* of the plan since the start */
    struct memory_summary memory;
};

struct run_control;

/* PLIM_BUSY, PLIM_IO: the socket cannot be created. `folder` NULL: no socket, for callers that pass messages
 * themselves. The monitor may be NULL. */
enum plim_status run_control_open(const char *folder, struct monitor *monitor, struct run_control **out,
                                  struct plim_error *err);
void run_control_close(struct run_control *control); /* NULL is fine */

void run_control_tell(struct run_control *control, const struct run_facts *facts);
bool run_control_next(struct run_control *control, struct run_order *out);
/* `text`: the result, or the error. */
void run_control_done(struct run_control *control, const struct run_order *order, enum plim_status status,
                      const char *text);
bool run_control_stopped(struct run_control *control);

/* A control_answer; arg is the run_control. */
enum plim_status run_control_answer(void *arg, const char *what, const struct node *message,
                                    struct json_writer *reply, struct plim_error *err);
