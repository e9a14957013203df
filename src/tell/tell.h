/* tell.h - a run's events for those who are not at the terminal: TensorBoard, W&B, addresses that people listen at.
 *
 *     struct tell *tell;
 *     tell_open(&(struct tell_options){.job = &job, .device = "cpu", .warn = say, .arg = log}, &tell, &err);
 *     ... train_options.listener: tell_hear, beside the log's ...
 *     tell_start(tell, &length, step, &err);             // before the first step: makes the files
 *     tell_end(tell, status, err.text);                  // finished, stopped or failed
 *     tell_close(tell);                                  // waits for addresses, monitoring.notify_timeout at most
 *
 * Telling never harms the run: after tell_start what fails is told once to `warn`, and the run goes on without it. Files
 * are written by the caller's thread, a few hundred bytes a step; addresses have threads of their own (hook.h), which open
 * libcurl's memory when the first message is due. A job that asks for nothing costs a comparison an event.
 */
#ifndef PLIM_TELL_TELL_H
#define PLIM_TELL_TELL_H

#include "train/trainer.h"

struct tell;

struct tell_options {
    const struct job *job;
    const char *device; /* its name; kept */
    bool resume;
    void (*warn)(void *arg, const char *line); /* called by the thread that calls here */
    void *arg;
};

enum plim_status tell_open(const struct tell_options *options, struct tell **out, struct plim_error *err);
void tell_close(struct tell *tell); /* NULL is fine, as for all of these */

/* A train_listener's function. */
void tell_hear(void *tell, const struct train_event *event);

/* PLIM_IO: the folders that the job asks for cannot be made or written. */
enum plim_status tell_start(struct tell *tell, const struct job_length *length, int64_t step,
                            struct plim_error *err);

/* PLIM_OK and PLIM_INTERRUPTED are an end, everything else is an error; text: its line. */
void tell_end(struct tell *tell, enum plim_status status, const char *text);

#endif
