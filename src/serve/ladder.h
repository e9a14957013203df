/* ladder.h - how a server degrades where its device cannot hold what was asked, or fails: a table of rungs.
 *
 *     struct ladder l = {.options = options, .open = open_device, .arg = me, .log = &log, .fallback = true};
 *     ladder_open(&l, &engine, &err);                  // the highest rung that works
 *     engine_run(engine, stop, &err);                  // a step fails
 *     ladder_down(&l, engine, status, &err);           // the same engine on a lower rung; its requests go on
 *     engine_close(engine), ladder_close(&l);
 *
 * The upper rungs are those of the planner's offers (plan/offer.h): the planner itself takes the highest that fits. The
 * ladder comes down by one where a device refuses what was planned, and to the CPU where the device cannot serve at all.
 * Which rung is next depends on what failed: less memory does not help a device that is lost. Rungs that compute other
 * numbers than were asked for are used only where `allowed` has them.
 *
 * A rung that was refused memory is remembered (options.remember): the next start with the same model, device and options
 * begins below it, as long as the device has no more free memory than it had then.
 *
 * Invariants
 *  1. Rungs are tried in the order of the table, each at most once: coming down ends.
 *  2. An error that no rung helps against (a damaged file, an unknown model) is returned at once, as it came.
 *  3. When ladder_open or ladder_down fail, the error is that of the last rung that was tried.
 */
#ifndef PLIM_SERVE_LADDER_H
#define PLIM_SERVE_LADDER_H

#include "serve/engine.h"
#include "serve/plan_cache.h"
#include "watch/readers.h"

/* What failed, as people who run servers call it. */
enum failure {
    FAILURE_OTHER,     /* nothing that a rung helps against */
    FAILURE_EXHAUSTED, /* RESOURCE_EXHAUSTED: the system or the driver refused bytes */
    FAILURE_BUFFER,    /* buffer allocation: a plan does not fit the line */
    FAILURE_COMPILE,   /* compile: the device has no kernel for an op, or cannot make its program */
    FAILURE_LOST,      /* device lost */
    FAILURES
};
const char *failure_name(enum failure f);
/* `device` is asked whether it still answers; NULL: there is none. `stage`: how far opening had come, NULL: it was over. */
enum failure failure_of(enum plim_status status, const char *stage, struct device *device);
/* "host 12.3 MiB, device 1.20 GiB" */
enum { MEMORY_TEXT = 96 };
const char *memory_text(const struct device *device, char text[MEMORY_TEXT]);

/* Kinds of other numbers, for ladder.allowed. */
enum { ALLOW_KV8 = 1, ALLOW_WINDOW = 2 };
/* "kv8,window", "all" or "none"; false: it is none of these. */
bool ladder_read_allowed(const char *text, unsigned *out);

struct rung {
    const char *name, *what; /* "streamed"; what it is, for people */
    unsigned needs;          /* bits of ladder.allowed */
    unsigned helps;          /* a bit for each enum failure that it may help against */
    bool fallback;           /* on the fallback device */
    bool exact;              /* in float32 */
    bool limited;            /* performance will be limited */
};
/* By number, from 0; NULL behind the last. */
const struct rung *ladder_rung(int number);

struct ladder {
    struct engine_options options; /* as asked for */
    unsigned allowed;
    bool fallback; /* the fallback device may be used in the stead of the one asked for */
    /* The device asked for, or the fallback. */
    enum plim_status (*open)(void *arg, bool fallback, struct device **out, struct plim_error *err);
    void (*opened)(void *arg, struct device *device); /* told of the device in use; NULL: nobody */
    void *arg;
    const struct log *log;
    /* The ladder's own. */
    struct device *device; /* open, or NULL */
    const char *stage;     /* how far the start has come; the caller sets it to NULL when it serves */
    int rung;              /* the one in use, or the last one tried */
    /* Read when the last rung failed, before anything was given back. */
    char memory[MEMORY_TEXT]; /* "": unknown */
    struct watch_reading reading;
    struct engine_refusal refusal;
    int64_t free;        /* bytes that the device asked for had for us when it was opened */
    struct plan_key key; /* of what is remembered; empty: nothing is */
    bool refused;        /* a rung was refused memory that its plan had counted on */
    bool recalled;       /* it began on a rung of an earlier start */
};

enum plim_status ladder_open(struct ladder *l, struct engine **out, struct plim_error *err);
/* After a step that failed with `status`; err has its text and, on a failure, keeps it or gets the last rung's. Nobody else steps. */
enum plim_status ladder_down(struct ladder *l, struct engine *e, enum plim_status status,
                             struct plim_error *err);
/* The rung stands: the next start begins on it where those above were refused memory, and on the first one otherwise. */
void ladder_remember(const struct ladder *l);
void ladder_close(struct ladder *l); /* the device; after engine_close */

#endif
