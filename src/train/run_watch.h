/* run_watch.h - a trainer's state for monitoring, adapting and its control socket. Used by
 * trainer_watch.c. */
#pragma once

#include "train/run_control.h"

struct run_watch {
    struct monitor *monitor;     /* NULL: monitoring.enabled is false */
    struct run_control *control; /* NULL: the run has no folder */
    struct monitor_state seen;   /* the newest sample examined */
    struct adapt adapt;
    int64_t line;                   /* the requested budget */
    int64_t full_bytes, full_micro; /* of the plan for it, before any concession */
    int changes;                    /* changes of the plan, for any reason */
    int64_t loader_held;            /* heap that grew in the loader and was not freed */
    bool leak_told;
    bool told; /* a memory line was printed, with this status: */
    enum memory_status told_status;
    struct run_facts facts;
    struct adapt_look look; /* basis of decisions; with several ranks the worst of their samples */
    bool looks;             /* `look` is valid */
    int64_t *rank_used;     /* [ranks] bytes of each before the current step; NULL: single rank */
    /* Time of the training thread for monitoring, orders and reports; with train_options.profile. */
    double seconds;
};
