/* fault.h - failures on demand, for tests.
 *
 * Code that can fail asks at its fault point whether it must fail now. A struct fault says which call fails: the Nth one,
 * once. A test passes one in. Where NULL is passed, the process's own counts; a program built with PLIMSOLL_FAULTS reads
 * it from the environment variable PLIMSOLL_FAULT (for example "alloc:17" or "reserve:2,write:3"). The file is in base/
 * because file writes, the lowest fault point, are.
 *
 *     struct fault fault = FAULT_INIT;
 *     fault_set(&fault, FAULT_RESERVE, 2);               // the second reservation is refused
 */
#pragma once

#include "base/status.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum fault_point {
    FAULT_ALLOC,       /* arena_commit                         */
    FAULT_RESERVE,     /* ledger_reserve                       */
    FAULT_WRITE,       /* file_pwrite_full and all writes that use it */
    FAULT_DISK,        /* file_free_bytes: reports a full disk */
    FAULT_COMPILE,     /* exec_open: a kernel is missing       */
    FAULT_LEAK,        /* a training step: this and every later one leak memory */
    FAULT_LEAK_LOADER, /* likewise, attributed to the loader */
    FAULT_EVAL,        /* trainer_evaluate: it does not fit */
    FAULT_IO,          /* a transfer of the disk tier: the disk reports an error */
    FAULT_SHORT,       /* likewise: only half is transferred */
    FAULT_DIE, /* fault_may_die: the process is killed before a write, sync or rename, or before a step */
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

/* Makes the nth call (from 1) from now on fail; 0: none. */
void fault_set(struct fault *fault, enum fault_point point, int64_t nth);

/* Reads "point:n[,point:n...]". PLIM_BAD_INPUT names the mistake. */
enum plim_status fault_parse(struct fault *fault, const char *text, struct plim_error *err);

/* Counts the call and returns true if it must fail. NULL: the process's own fault. Thread-safe. */
bool fault_hit(struct fault *fault, enum fault_point point);

/* Kills the process as kill -9 does, when FAULT_DIE is due. */
void fault_may_die(void);

/* The process's own fault. Only tests, or a program built for tests (PLIMSOLL_FAULTS), arm it. */
struct fault *fault_process(void);

/* From the failing call on, each call leaks FAULT_LOST_BYTES, until fault_set says 0. */
enum { FAULT_LOST_BYTES = 1 << 20 };
void fault_lose(enum fault_point point);
