/* fake_device.h - a device with its own memory, for tests: the CPU's kernels behind everything a GPU has.
 *
 *     struct fake *fake = fake_open(LATE_STORES);
 *     trainer_open(&job, &fake->device, &options, &trainer, &err);
 *     ...                                            // counts say what was asked of it
 *     fake->device.ops->close(&fake->device);
 *
 * It keeps to the letter of device/device.h where that is hardest on the caller: compiled ops do nothing until their
 * program is launched, a program that was freed or whose addresses have gone is found out, ops given at once run last one first, tune ruins everything it may write, and copies to or from the host tier come as late as they may:
 * when an op or another copy writes what they read or touches what they write, or at a sync. Exchanges with other devices are
 * copies of that kind, one after the other. */
#ifndef PLIM_TESTS_FAKE_DEVICE_H
#define PLIM_TESTS_FAKE_DEVICE_H

#include "device/device.h"
#include "support/fake_stream.h"

enum { FAKE_PENDING = 32 };
enum fake_timing { PROMPT, LATE_STORES, LATE_FETCHES, FAKE_TIMINGS };

/* What an exchange queued on its stream. */
struct fake_call {
    void (*call)(const void *arg);
    void *arg;
    struct fake_call *next;
};

struct
    fake_event { /* an op, or when call.op is NULL a copy or, with calls, an exchange or, with spoil, bytes that become noise */
    struct kernel_call call;
    struct fake_call *calls;
    struct device_exchange ends;
    bool fetch, spoil;
    char *near;
    size_t host, bytes;
    int timed; /* the op it belongs to, counted from 1; 0: it is not timed */
};

struct fake_program {
    struct device_program program; /* first */
    bool freed;                    /* it stays in the list, so that a late launch is seen */
    struct fake_event *events;
    int count, room;
    struct fake_program *next;
};

struct fake {
    struct device device; /* first: a struct device * is a struct fake * */
    struct device *cpu;
    struct ledger host_ledger;
    enum fake_timing timing;
    bool cannot_compile; /* compile says so */
    bool refuse;         /* the next commit fails */
    bool full;           /* every commit of more than there is fails */
    int open_every; /* of so many reads in two parts one has a token that the device did not draw; 0: none */
    int lose_after; /* it is lost when so many programs are launched; 0: it is not */
    bool lost;      /* sync, read and write fail from now on, and nothing is computed */
    char *host;
    size_t host_bytes, committed;
    struct fake_stream stream;               /* of exchanges */
    struct fake_call **queued;               /* where the next call on it goes */
    struct fake_event pending[FAKE_PENDING]; /* copies asked for and not made */
    int npending;
    char slots[DEVICE_READS][DEVICE_READ_BYTES]; /* of reads in two parts */
    struct clock_span *times;                    /* of ops, between time_begin and time_end */
    int ops, op;                                 /* those, and the one that is given */
    struct fake_program *programs, *compiling;   /* all there ever were; the one that takes ops */
    int compiled, launches, freed, tunes, runs, groups, fused, host_runs, host_waits, copies, exchanges,
        writes, row_writes, reads, begun; /* how often so far */
};

/* Programs that are alive. */
int fake_programs(const struct fake *fake);

/* Ends the test when the CPU cannot be opened. Closing it ends the test when a program is still alive. */
struct fake *fake_open(enum fake_timing timing);

#endif
