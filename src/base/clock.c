/* clock.c - the kernel's clocks as seconds. */
#include "base/clock.h"
#include <time.h>

static double seconds(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts); /* cannot fail for these clocks */
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

double clock_seconds(void) { return seconds(CLOCK_MONOTONIC); }

double clock_wall(void) { return seconds(CLOCK_REALTIME); }

double clock_thread(void) { return seconds(CLOCK_THREAD_CPUTIME_ID); }

double clock_process(void) { return seconds(CLOCK_PROCESS_CPUTIME_ID); }
