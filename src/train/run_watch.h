/* run_watch.h - what a trainer keeps to watch its memory, to give way and to be talked to. trainer_watch.c uses it. */
#ifndef PLIM_TRAIN_RUN_WATCH_H
#define PLIM_TRAIN_RUN_WATCH_H

#include "train/run_control.h"

struct run_watch {
    struct monitor *monitor;     /* NULL: monitoring.enabled is false */
    struct run_control *control; /* NULL: the run has no folder of its own */
    struct monitor_state seen;   /* the newest sample looked at */
    struct adapt adapt;
    int64_t line;                   /* the budget as somebody asked for it */
    int64_t full_bytes, full_micro; /* of its plan, the one before anything was given up */
    int changes;                    /* of the plan, whoever asked */
    int64_t loader_held;            /* heap that grew in the loader and stayed */
    bool leak_told;
    bool told; /* a step line has been told, with this status: */
    enum memory_status told_status;
    struct run_facts facts;
    struct adapt_look look; /* what is decided on; of several ranks, the worst of what they see */
    bool looks;             /* there is one */
    int64_t *rank_used;     /* [ranks] bytes of each, before the present step; NULL: there is one */
    double seconds; /* of the training thread: watching, obeying and telling; with train_options.profile */
};

#endif
