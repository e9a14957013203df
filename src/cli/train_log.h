/* train_log.h - what a run tells: JSON lines for programs, a progress line for people. */
#ifndef PLIM_CLI_TRAIN_LOG_H
#define PLIM_CLI_TRAIN_LOG_H

#include "cli/train_folder.h"
#include "tell/tell.h"
#include <stdio.h>

struct train_log {
    FILE *json;   /* NULL: none */
    FILE *people; /* NULL: none; a terminal gets a progress bar, anything else a line per event */
    bool bar, colour;
    bool verbose; /* people hear of every layer's experts, too */
    bool failed;  /* a JSON line could not be written */
    double started;
    double stepping;    /* when the first step began */
    int64_t first_step; /* steps done before this run: --resume */
    int64_t planned;    /* bytes of the plan told last */
    double losses[48];  /* the last ones, for the curve */
    int nlosses;
    const struct job *job;
    const struct device_facts *facts; /* what it runs on */
    bool resume;                      /* the folder's log goes on */
    struct train_folder folder;
    struct tell *tell; /* remote listeners; may be NULL */
};

/* A train_listener's function; arg is a struct train_log. */
void train_log_hear(void *log, const struct train_event *event);

/* The run begins: its folder (NULL: it has none) gets what was heard so far, and the plan. */
void train_log_begin(struct train_log *log, const char *folder, const struct plan *plan);

/* A note that is not the trainer's. */
void train_log_note(void *log, const char *line);

#endif
