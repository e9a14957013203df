/* clock.h - the clocks.
 *
 *     double begin = clock_seconds();
 *     work();
 *     double took = clock_seconds() - begin;
 */
#pragma once

/* Seconds on a clock that never jumps; only differences mean something. */
double clock_seconds(void);

/* From when to when something ran, on that clock; ended < began: unknown. */
struct clock_span {
    double began, ended;
};

/* Seconds since 1970-01-01 UTC, for time stamps people read. May jump when the machine's time is set. */
double clock_wall(void);

/* CPU time of the calling thread, in seconds. Waiting does not count, and other threads do not. */
double clock_thread(void);

/* CPU time of all threads of the process, in seconds. */
double clock_process(void);
