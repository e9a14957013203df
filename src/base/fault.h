/* fault.h - failures on demand, for tests.
 *
 * Code that can fail asks at its fault point whether it must fail now. A struct fault says which call fails:
 * the Nth one, once. It is either passed in by a test or, where NULL is passed, the process's own, read once
 * from the environment variable PLIMSOLL_FAULT (for example "alloc:17" or "reserve:2,write:3"; unset in
 * normal life). It lives in base/ because file writes, the lowest fault point, do.
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

/* The process's own, read from PLIMSOLL_FAULT at the first use. An unreadable value arms nothing. */
struct fault *fault_process(void);

/* The unreadable PLIMSOLL_FAULT, for a program that wants to say so at its start: PLIM_BAD_INPUT or PLIM_OK.
 */
enum plim_status fault_process_check(struct plim_error *err);

#endif
