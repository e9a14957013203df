/* monitor.h - watches the memories that a job lives on, from a thread of its own, and says how they are. It reports, it
 * never steers: train/adapt.h decides what is done about it.
 *
 *     struct monitor *monitor;
 *     monitor_open(&(struct monitor_options){.source = {.root = os_machine_root(), .device = device}, .thresholds = profile,
 *                                            .interval = 0.2}, &monitor, &err);
 *     monitor_tell(monitor, &(struct monitor_own){.step = step, .budget = budget});   // at step ends
 *     struct monitor_state now;
 *     monitor_look(monitor, &now);                       // the newest sample; never waits for one
 *     monitor_close(monitor);
 *
 * Gauges, the first being the memory that the job's plan lies in: the device as its driver sees it with all processes, or
 * the machine (its container where that is tighter); beside a device with its own memory also the host; and the job's budget.
 * The status is the worst gauge's. What the trainer pays at a step's end is a lock that is held for a copy.
 */
#ifndef PLIM_WATCH_MONITOR_H
#define PLIM_WATCH_MONITOR_H

#include "base/json.h"
#include "watch/leak.h"
#include "watch/readers.h"
#include "watch/status.h"

#define MONITOR_STALL 10.0 /* per cent of the time that every task waits for memory: a warning by itself */

enum { GAUGES_MAX = 3, MONITOR_TREND = 16, ADVICE_MAX = 4 };

/* Where the strain on a memory comes from, against the first sample. */
enum strain {
    STRAIN_NONE,
    STRAIN_OTHERS, /* other processes take more */
    STRAIN_LIMIT,  /* there is less memory: a container's limit was lowered */
    STRAIN_OURS,   /* this process takes more of the machine */
    STRAIN_BUDGET, /* this process is above its own line */
    STRAIN_STALL,  /* tasks wait for memory */
    STRAINS
};
const char *strain_name(enum strain strain);

/* State reported by the job itself. */
struct monitor_own {
    int64_t step, budget; /* budget 0: none */
    bool gives_way;       /* the job plans anew by itself where others want its memory */
    bool serves;          /* it is a server: advice is for one */
    int64_t loader_held;  /* heap that grew while the loader worked and was not given back */
    int64_t planned;      /* of the process outside the arena: up to there nothing has grown */
    int64_t allowed;      /* growth beyond it that is no leak; 0: leaks are not looked for */
};

struct monitor_state {
    int64_t sample; /* number of this one, from 1 */
    struct watch_reading now;
    struct gauge gauge[GAUGES_MAX];
    int gauges;
    int worst;   /* of all */
    int leading; /* the worse of those that the job's plan can ease: the first, and the budget */
    enum memory_status status;
    enum strain strain;
    double trend; /* bytes/s of the first gauge, over the last samples */
    struct leak leak;
    bool gives_way, serves; /* as monitor_own says */
};

struct monitor_options {
    watch_reader *const *readers; /* NULL: watch_readers */
    struct watch_source source;
    struct profile thresholds;
    double interval; /* seconds; 0: no thread, samples are the caller's (monitor_sample) */
    /* Hears each sample on the thread that took it; may be NULL. */
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

/* All of it as an object. */
void monitor_json(const struct monitor_state *state, struct json_writer *w, const char *key);

#endif
