/* ladder.h - how a server degrades when its device fails or cannot hold what was requested: a table of rungs.
 *
 *     struct ladder l = {.options = options, .open = open_device, .arg = me, .log = &log, .fallback = true};
 *     ladder_open(&l, &engine, &err);                  // the highest rung that works
 *     engine_run(engine, stop, &err);                  // a step fails
 *     ladder_down(&l, engine, status, &err);           // the same engine on a lower rung; its requests continue
 *     engine_close(engine), ladder_close(&l);
 *
 * The upper rungs are those of the planner's offers (plan/offer.h); the planner takes the highest that fits. The
 * ladder goes down one rung when a device refuses a planned allocation, and to the CPU when the device cannot serve
 * at all. The next rung depends on the failure: using less memory does not help when the device is lost. Rungs that
 * change results are used only if `allowed` includes them.
 *
 * If a rung was refused memory, that is stored (options.remember): the next start with the same model, device and
 * options begins below it, unless the device then has more free memory.
 *
 * Invariants
 *  1. Rungs are tried in the order of the table, each at most once: coming down ends.
 *  2. An error that no rung helps against (a damaged file, an unknown model) is returned at once, as it came.
 *  3. When ladder_open or ladder_down fail, the error is that of the last rung that was tried.
 */
#pragma once

#include "serve/engine.h"
#include "serve/plan_cache.h"
#include "watch/readers.h"

/* Kinds of failure, in the words of people who run servers. */
enum failure {
    FAILURE_OTHER,     /* no rung helps against it */
    FAILURE_EXHAUSTED, /* RESOURCE_EXHAUSTED: the system or the driver refused bytes */
    FAILURE_BUFFER,    /* buffer allocation: a plan does not fit the budget */
    FAILURE_COMPILE,   /* compile: the device has no kernel for an op, or cannot make its program */
    FAILURE_LOST,      /* device lost */
    FAILURES
};
const char *failure_name(enum failure f);
/* Classifies a failure. `device` is tested for being lost; NULL: there is none. `stage`: progress of opening; NULL:
 * it was complete. */
enum failure failure_of(enum plim_status status, const char *stage, struct device *device);
/* "host 12.3 MiB, device 1.20 GiB" */
enum { MEMORY_TEXT = 96 };
const char *memory_text(const struct device *device, char text[MEMORY_TEXT]);

/* Changes of results that ladder.allowed may permit. */
enum { ALLOW_KV8 = 1, ALLOW_WINDOW = 2 };
/* Parses "kv8,window", "all" or "none"; returns false for anything else. */
bool ladder_read_allowed(const char *text, unsigned *out);

struct rung {
    const char *name, *what; /* "streamed"; a description for people */
    unsigned needs;          /* bits of ladder.allowed */
    unsigned helps;          /* bits of enum failure that it may help against */
    bool fallback;           /* on the fallback device */
    bool exact;              /* in float32 */
    bool limited;            /* performance will be limited */
};
/* By number, from 0; NULL after the last. */
const struct rung *ladder_rung(int number);

struct ladder {
    struct engine_options options; /* as requested */
    unsigned allowed;
    bool fallback; /* the fallback device may replace the requested one */
    /* Opens the requested device, or the fallback. */
    enum plim_status (*open)(void *arg, bool fallback, struct device **out, struct plim_error *err);
    void (*opened)(void *arg, struct device *device); /* called with the device in use; may be NULL */
    void *arg;
    const struct log *log;
    /* Private. */
    struct device *device; /* open, or NULL */
    const char *stage;     /* progress of the start; the caller sets it to NULL once it serves */
    int rung;              /* in use, or last tried */
    /* Read when the last rung failed, before anything was released. */
    char memory[MEMORY_TEXT]; /* "": unknown */
    struct watch_reading reading;
    struct engine_refusal refusal;
    int64_t free;        /* free bytes of the requested device when it was opened */
    struct plan_key key; /* identifies the stored rung; empty: none */
    bool refused;        /* a rung was refused memory that its plan had counted on */
    bool recalled;       /* it began on a stored rung */
};

enum plim_status ladder_open(struct ladder *l, struct engine **out, struct plim_error *err);
/* Call it after a step failed with `status`. err holds that step's message; on failure it keeps it or gets the last
 * rung's. No other thread may step. */
enum plim_status ladder_down(struct ladder *l, struct engine *e, enum plim_status status,
                             struct plim_error *err);
/* Stores the rung: the next start begins on it if the rungs above were refused memory, and on the first otherwise. */
void ladder_remember(const struct ladder *l);
void ladder_close(struct ladder *l); /* the device; after engine_close */
