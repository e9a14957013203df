/* engine_snapshot.h - where every byte of an engine's plan lives, and what each op of a step takes, as a file (report/snapshot.h).
 *
 *     engine_save_plan(e, &wish, &err);                   // the largest step, as planned; also of a plan that is not committed
 *
 *     engine_snapshot(e, &wish, &number, &err);           // of a server that is under way: the next step is measured
 *     do engine_orders(e, &orders); while (orders.done < number);
 *     ... orders.good, orders.text ...
 *
 * The pass of a step that is measured runs op by op, each waited for, and makes the same tokens; other steps pay a look under
 * the engine's lock. An engine that has nothing to do writes its plan alone. What goes wrong is told and ends no request.
 */
#ifndef PLIM_SERVE_ENGINE_SNAPSHOT_H
#define PLIM_SERVE_ENGINE_SNAPSHOT_H

#include "report/snapshot.h"
#include "serve/engine.h"

/* By the stepping thread, or while nobody steps. */
enum plim_status engine_save_plan(struct engine *e, const struct snapshot_wish *wish, struct plim_error *err);

/* From any thread; the wish has a file. PLIM_BUSY: one waits already. */
enum plim_status engine_snapshot(struct engine *e, const struct snapshot_wish *wish, int64_t *number,
                                 struct plim_error *err);

struct engine_orders {
    int64_t waiting; /* number of the one that waits, from 1; 0: none does */
    int64_t done;    /* of the last that was carried out */
    bool good;
    char text[SNAPSHOT_PATH]; /* what came of it: the file, or one line */
};
void engine_orders(struct engine *e, struct engine_orders *out);

#endif
