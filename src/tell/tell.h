/* tell.h - reports a run's events elsewhere than the terminal: TensorBoard, W&B, webhooks.
 *
 *     struct tell *tell;
 *     tell_open(&(struct tell_options){.job = &job, .device = "cpu", .warn = say, .arg = log}, &tell, &err);
 *     ... train_options.listener: tell_hear, together with the log's ...
 *     tell_start(tell, &length, step, &err);             // before the first step: creates the files
 *     tell_end(tell, status, err.text);                  // finished, stopped or failed
 *     tell_close(tell);                                  // waits for webhooks, at most monitoring.notify_timeout
 *
 * Reporting never harms the run: after tell_start a failure is passed to `warn` once, and the run continues without that
 * report. The caller's thread writes files, a few hundred bytes per step. Webhooks have their own threads (hook.h), which
 * load libcurl when the first message is due. A job without reports pays one comparison per event.
 */
#pragma once

#include "train/trainer.h"

struct tell;

struct tell_options {
    const struct job *job;
    const char *device; /* its name; kept */
    bool resume;
    void (*warn)(void *arg, const char *line); /* called by the thread that calls these functions */
    void *arg;
};

enum plim_status tell_open(const struct tell_options *options, struct tell **out, struct plim_error *err);
void tell_close(struct tell *tell); /* NULL is fine, as for all functions here */

/* The function of a train_listener. */
void tell_hear(void *tell, const struct train_event *event);

/* PLIM_IO: the folders cannot be created or written. */
enum plim_status tell_start(struct tell *tell, const struct job_length *length, int64_t step,
                            struct plim_error *err);

/* PLIM_OK and PLIM_INTERRUPTED are a normal end, every other status an error; text: its message. */
void tell_end(struct tell *tell, enum plim_status status, const char *text);
