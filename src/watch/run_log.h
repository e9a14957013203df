/* run_log.h - reads the log that a run leaves in its folder, during the run or afterwards.
 *
 *     struct run_log log;
 *     run_log_open(&log, "runs/small", &err);            // a run's folder, or a file that train --log wrote
 *     run_log_read(&log, run_state_hear, &state);        // events since the last time, one after another
 *     run_log_close(&log);
 *
 * A folder has RUN_LOG, one JSON object per event and line (docs/output.md), and RUN_PLAN, the run's plan as a snapshot.
 * Reading is independent of the run, which never waits for a reader. An incomplete line is read once it is complete; a line
 * that is not JSON is skipped. If another run starts a new log in the folder, reading restarts at its beginning.
 */
#pragma once

#include "base/json.h"
#include "base/strbuf.h"

#define RUN_LOG     "log.jsonl"
#define RUN_PLAN    "plan.json"
#define RUN_CONTROL "control.sock"

/* Bytes of a path; maximum bytes of a line, longer ones are skipped. */
enum { RUN_PATH = 1024, RUN_LINE = 4 << 20 };

struct run_log {
    char path[RUN_PATH];   /* of the log */
    char folder[RUN_PATH]; /* the folder it is in */
    int fd;
    int64_t offset;     /* bytes read */
    struct strbuf rest; /* an incomplete line */
    bool skipping;      /* waiting for the end of a line that is too long */
};

typedef void run_event_hear(void *arg, const struct node *event);

/* PLIM_IO, PLIM_BAD_INPUT: there is no log, or the file cannot be one. */
enum plim_status run_log_open(struct run_log *log, const char *run, struct plim_error *err);
/* Reads at most a few MiB. RUN_ANEW: nothing was read, because another run has replaced the log; forget
 * earlier events. */
enum run_read { RUN_READ_ALL, RUN_READ_MORE, RUN_ANEW };
enum run_read run_log_read(struct run_log *log, run_event_hear *hear, void *arg);
void run_log_close(struct run_log *log);

/* Finds the folder below `where`, up to three levels deep, whose log was written last. PLIM_BAD_INPUT: there
 * is none. */
enum plim_status run_log_newest(const char *where, char *folder, size_t size, struct plim_error *err);
