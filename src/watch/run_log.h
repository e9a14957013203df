/* run_log.h - what a run leaves in its folder for those who watch it, read while it runs or afterwards.
 *
 *     struct run_log log;
 *     run_log_open(&log, "runs/small", &err);            // a run's folder, or a file that train --log wrote
 *     run_log_read(&log, run_state_hear, &state);        // events since the last time, one after another
 *     run_log_close(&log);
 *
 * A folder has RUN_LOG, one JSON object a line for each event (docs/cli.md), and RUN_PLAN, the plan that the run holds, as a
 * snapshot. Reading needs nothing of the run: it never waits for a reader and does not know of one. A line that is not whole yet
 * is read when it is; a line that is no JSON is left out. A log that begins anew, because another run took the folder, is read from
 * its beginning.
 */
#ifndef PLIM_WATCH_RUN_LOG_H
#define PLIM_WATCH_RUN_LOG_H

#include "base/json.h"
#include "base/strbuf.h"

#define RUN_LOG     "log.jsonl"
#define RUN_PLAN    "plan.json"
#define RUN_CONTROL "control.sock"

enum {
    RUN_PATH = 1024,
    RUN_LINE = 4 << 20
}; /* bytes of a path; of a line, at most: a longer one is left out */

struct run_log {
    char path[RUN_PATH];   /* of the log */
    char folder[RUN_PATH]; /* that it is in */
    int fd;
    int64_t offset;     /* bytes read */
    struct strbuf rest; /* of a line whose end has not come */
    bool skipping;      /* the end of a line that is too long is being waited for */
};

typedef void run_event_hear(void *arg, const struct node *event);

/* PLIM_IO, PLIM_BAD_INPUT: there is no log, or what is there cannot be one. */
enum plim_status run_log_open(struct run_log *log, const char *run, struct plim_error *err);
/* At most a few MiB at a time. RUN_ANEW: nothing was heard, and what was heard before is another run's. */
enum run_read { RUN_READ_ALL, RUN_READ_MORE, RUN_ANEW };
enum run_read run_log_read(struct run_log *log, run_event_hear *hear, void *arg);
void run_log_close(struct run_log *log);

/* The folder below `where`, up to three deep, whose log was written last. PLIM_BAD_INPUT: there is none. */
enum plim_status run_log_newest(const char *where, char *folder, size_t size, struct plim_error *err);

#endif
