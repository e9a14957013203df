/* fault.h - failures on demand, for tests.
 *
 * Code that can fail asks at its fault point whether it must fail now. A struct fault says which call fails:
 * the Nth one, once. It is either passed in by a test or, where NULL is passed, the process's own, which a program
 * built with PLIMSOLL_FAULTS reads from the environment variable PLIMSOLL_FAULT (for example "alloc:17" or
 * "reserve:2,write:3"). It lives in base/ because file writes, the lowest fault point, do.
 *
 *     struct fault fault = FAULT_INIT;
 *     fault_set(&fault, FAULT_RESERVE, 2);               // the second reservation is refused
 */
#ifndef PLIM_BASE_FAULT_H
#define PLIM_BASE_FAULT_H

#include "base/status.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum fault_point {
    FAULT_ALLOC,       /* arena_commit                         */
    FAULT_RESERVE,     /* ledger_reserve                       */
    FAULT_WRITE,       /* file_pwrite_full and everything on it */
    FAULT_DISK,        /* file_free_bytes: finds none          */
    FAULT_COMPILE,     /* exec_open: a kernel is missing       */
    FAULT_LEAK,        /* a training step: it and those after it keep memory */
    FAULT_LEAK_LOADER, /* likewise, in the loader's name */
    FAULT_EVAL,        /* trainer_evaluate: it does not fit */
    FAULT_IO,          /* a piece of the disk tier: the device reports an error */
    FAULT_SHORT,       /* likewise: half of it is carried, the rest is left over */
    FAULT_DIE, /* fault_may_die: the process is killed, before a write, a sync or a new name of a file or a step */
    FAULT_POINTS
};

struct fault {
    _Atomic int64_t left[FAULT_POINTS]; /* calls until the failing one; 0: never */
};

#define FAULT_INIT                                                                                           \
    {                                                                                                        \
        {                                                                                                    \
            0                                                                                                \
        }                                                                                                    \
    }

/* Let the nth call (from 1) from now on fail; 0: none. */
void fault_set(struct fault *fault, enum fault_point point, int64_t nth);

/* Read "point:n[,point:n...]"; PLIM_BAD_INPUT names what is wrong. */
enum plim_status fault_parse(struct fault *fault, const char *text, struct plim_error *err);

/* Must this call fail? Counts the call. NULL: the process's own. Safe from any thread. */
bool fault_hit(struct fault *fault, enum fault_point point);

/* As kill -9, when FAULT_DIE is due. */
void fault_may_die(void);

/* The process's own. Nothing is armed, unless a program built for tests (PLIMSOLL_FAULTS) or a test does it. */
struct fault *fault_process(void);

/* From the call on that must fail, each takes FAULT_LOST_BYTES and never gives them back, until fault_set says 0. */
enum { FAULT_LOST_BYTES = 1 << 20 };
void fault_lose(enum fault_point point);

#endif
