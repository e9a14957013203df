/* train_log.h - output of a run: JSON lines for programs, a progress line for people. */
#pragma once

#include "cli/train_folder.h"
#include "tell/tell.h"
#include <stdio.h>

struct train_log {
    FILE *json;   /* NULL: none */
    FILE *people; /* NULL: none; a terminal gets a progress bar, anything else a line per event */
    bool bar, colour;
    bool verbose; /* also report every layer's experts */
    bool failed;  /* a JSON line could not be written */
    double started;
    double stepping;    /* when the first step began */
    int64_t first_step; /* steps done before --resume */
    int64_t planned;    /* bytes of the last reported plan */
    double losses[48];  /* the last ones, for the curve */
    int nlosses;
    const struct job *job;
    const struct device_facts *facts; /* of its device */
    bool resume;                      /* append to the folder's log */
    struct train_folder folder;
    struct tell *tell; /* remote listeners; may be NULL */
};

/* The function of a train_listener; arg is a struct train_log. */
void train_log_hear(void *log, const struct train_event *event);

/* The run begins: writes the plan and the events so far to its folder (NULL: none). */
void train_log_begin(struct train_log *log, const char *folder, const struct plan *plan);

/* Reports a note from outside the trainer. */
void train_log_note(void *log, const char *line);
