/* model_engine.h - an engine (serve/engine.h) on a device that the caller names, on the highest rung of the ladder
 * (serve/ladder.h) that works, and the recovery of steps that fail.
 *
 *     struct model_engine m = {.caller = {context, "serve"}, .device = "auto", .line = line, .log = &log};
 *     model_engine_open(&m, &options, allowed, &err);       // m.engine
 *     model_engine_warm_up(&m, &err);
 *     model_engine_run(&m, stop, &err);                     // or engine_step, and model_engine_recover when one fails
 *     model_engine_close(&m);
 */
#pragma once

#include "api/caller.h"
#include "api/device_line.h"
#include "serve/ladder.h"
#include <stdatomic.h>

struct model_engine {
    struct caller caller;
    const char *device; /* with options.plan_only also the name of a preset */
    int threads;
    struct device_line line;
    double fraction;       /* share of a GPU's memory that is the budget if none was given; 0: all of it */
    const struct log *log; /* may be NULL */
    void (*opened)(void *arg, struct device *device); /* called with the device in use; may be NULL */
    /* Called before (false) and after (true) a move to another rung, which may close the device; may be NULL. */
    void (*moved)(void *arg, bool done);
    void *arg;
    struct ladder ladder;
    struct engine *engine; /* NULL: not open */
    /* Private. */
    int failures;  /* steps that failed in a row */
    int64_t steps; /* that had been made when the last one failed */
    bool cold;     /* the warm-up failed */
};

/* "auto", "i8", "f32", "bf16", "f16"; false: there is no such type. */
bool kv_type_parse(const char *name, enum dtype *out);

/* options.budget is that of m->line; options.stage and the like are passed on. `allowed`: as ladder.allowed. */
enum plim_status model_engine_open(struct model_engine *m, const struct engine_options *options,
                                   unsigned allowed, struct plim_error *err);
/* A few tokens through the engine before anybody asks, so that what is made at the first step is made now. Comes down the
 * ladder if that fails. The plan is stored for the next start. */
enum plim_status model_engine_warm_up(struct model_engine *m, struct plim_error *err);

/* After a step failed with `status`. PLIM_OK: step again, perhaps on a lower rung. Sleeps for a moment. Otherwise no rung is
 * left. Only for the stepping thread. */
enum plim_status model_engine_recover(struct model_engine *m, enum plim_status status,
                                      struct plim_error *err);
/* engine_run with recovery. */
enum plim_status model_engine_run(struct model_engine *m, const atomic_int *stop, struct plim_error *err);

/* Engine and device; also after an error. */
void model_engine_close(struct model_engine *m);
