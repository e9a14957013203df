/* engine_snapshot.h - writes the placement of every byte of an engine's plan, and the cost of each op of a step, to a
 * file (report/snapshot.h).
 *
 *     engine_save_plan(e, &wish, &err);                   // the largest step, as planned; also of a plan that is not committed
 *
 *     engine_snapshot(e, &wish, &number, &err);           // of a server that is under way: the next step is measured
 *     do engine_orders(e, &orders); while (orders.done < number);
 *     ... orders.good, orders.text ...
 *
 * The measured step runs as every other one (exec/op_clock.h) and produces the same tokens; other steps only check a flag
 * under the engine's lock. An idle engine writes its plan alone. Failures are reported and end no request.
 */
#pragma once

#include "report/snapshot.h"
#include "serve/engine.h"

/* For the stepping thread, or while no thread steps. */
enum plim_status engine_save_plan(struct engine *e, const struct snapshot_wish *wish, struct plim_error *err);

/* Any thread may call it; the wish must name a file. PLIM_BUSY: another order is waiting. */
enum plim_status engine_snapshot(struct engine *e, const struct snapshot_wish *wish, int64_t *number,
                                 struct plim_error *err);

struct engine_orders {
    int64_t waiting; /* number of the waiting order, from 1; 0: none */
    int64_t done;    /* number of the last completed order */
    bool good;
    char text[SNAPSHOT_PATH]; /* result: the file, or one line of error */
};
void engine_orders(struct engine *e, struct engine_orders *out);
