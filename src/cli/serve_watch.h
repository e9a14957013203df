/* serve_watch.h - logs a server's memory: one line when the status changes, and one every few seconds.
 *
 *     serve_watch_open(&watch, engine, device, &(struct serve_watch_how){.log = &log, .thresholds = profile, .every = 60});
 *     ... [Step 812] Memory: 22.8/24.0 GB (95%), Status: critical - running 3, waiting 1
 *     serve_watch_close(&watch);
 *
 * The monitor's thread writes the lines (watch/monitor.h). A status above normal is logged as a warning with advice. When the
 * engine moves to another device, close the watch and open it again.
 */
#pragma once

#include "serve/engine.h"
#include "watch/monitor.h"

struct serve_watch_how {
    const struct log *log;
    struct profile thresholds;
    double every; /* seconds between two lines; 0: only when the status changes */
};

struct serve_watch {
    struct serve_watch_how how;
    struct engine *engine;
    struct monitor *monitor; /* NULL: not watching */
    bool told;
    enum memory_status status; /* of the last line */
    double at;                 /* when it was written */
};

/* If the monitor cannot start, logs a warning; the server runs without it. */
void serve_watch_open(struct serve_watch *w, struct engine *engine, struct device *device,
                      const struct serve_watch_how *how);
void serve_watch_close(struct serve_watch *w);
