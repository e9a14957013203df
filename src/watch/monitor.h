/* monitor.h - watches the memories that a job uses, from its own thread, and reports their state. It never acts:
 * train/adapt.h decides what to do.
 *
 *     struct monitor *monitor;
 *     monitor_open(&(struct monitor_options){.source = {.root = os_machine_root(), .device = device}, .thresholds = profile,
 *                                            .interval = 0.2}, &monitor, &err);
 *     monitor_tell(monitor, &(struct monitor_own){.step = step, .budget = budget});   // at step ends
 *     struct monitor_state now;
 *     monitor_look(monitor, &now);                       // the newest sample; never waits for one
 *     monitor_close(monitor);
 *
 * Gauges: first the memory that holds the job's plan, which is the device as its driver sees it with all processes, or the
 * machine (its container if that is tighter); then the host, for a device with its own memory; then the job's budget. The
 * status is that of the worst gauge. At the end of a step the trainer only takes a lock and copies.
 */
#pragma once

#include "base/json.h"
#include "watch/leak.h"
#include "watch/readers.h"
#include "watch/status.h"

#define MONITOR_STALL 10.0 /* warn if all tasks wait for memory for this percentage of the time */

enum { GAUGES_MAX = 3, MONITOR_TREND = 16, ADVICE_MAX = 4 };

/* The cause of pressure on a memory, relative to the first sample. */
enum strain {
    STRAIN_NONE,
    STRAIN_OTHERS, /* other processes take more */
    STRAIN_LIMIT,  /* there is less memory: a container's limit was lowered */
    STRAIN_OURS,   /* this process takes more of the machine */
    STRAIN_BUDGET, /* this process exceeds its own budget */
    STRAIN_STALL,  /* tasks wait for memory */
    STRAINS
};
const char *strain_name(enum strain strain);

/* State that the job reports. */
struct monitor_own {
    int64_t step, budget; /* budget 0: none */
    bool gives_way;       /* the job re-plans by itself when others need its memory */
    bool serves;          /* it is a server, so advice is for one */
    int64_t loader_held;  /* heap that grew while the loader worked and was not freed */
    int64_t planned;      /* planned memory of the process outside the arena; less is not growth */
    int64_t allowed;      /* growth beyond it that is not a leak; 0: do not look for leaks */
};

struct monitor_state {
    int64_t sample; /* number of this sample, from 1 */
    struct watch_reading now;
    struct gauge gauge[GAUGES_MAX];
    int gauges;
    int worst;   /* index of the worst gauge */
    int leading; /* the worse of those that the job's plan can relieve: the first, and the budget */
    enum memory_status status;
    enum strain strain;
    double trend; /* bytes/s of the first gauge over the last samples */
    struct leak leak;
    bool gives_way, serves; /* from monitor_own */
};

struct monitor_options {
    watch_reader *const *readers; /* NULL: watch_readers */
    struct watch_source source;
    struct profile thresholds;
    double interval; /* seconds; 0: no thread, the caller takes samples (monitor_sample) */
    /* Receives each sample on the thread that took it; may be NULL. */
    void (*hear)(void *arg, const struct monitor_state *state);
    void *arg;
};

struct monitor;

/* Takes the first sample. */
enum plim_status monitor_open(const struct monitor_options *options, struct monitor **out,
                              struct plim_error *err);
void monitor_close(struct monitor *monitor); /* NULL is fine */

void monitor_tell(struct monitor *monitor, const struct monitor_own *own);
void monitor_look(struct monitor *monitor, struct monitor_state *out);
void monitor_sample(struct monitor *monitor);

/* Recommends actions to the user, one line each. Returns their number, at most `most`; 0 when all is well. */
int monitor_recommend(const struct monitor_state *state, const char **out, int most);

/* Writes the state as an object. */
void monitor_json(const struct monitor_state *state, struct json_writer *w, const char *key);
