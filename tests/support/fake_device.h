/* fake_device.h - a device with its own memory, for tests: the CPU's kernels behind everything a GPU has.
 *
 *     struct fake *fake = fake_open(LATE_STORES);
 *     trainer_open(&job, &fake->device, &options, &trainer, &err);
 *     ...                                            // counts say what was asked of it
 *     fake->device.ops->close(&fake->device);
 *
 * It keeps to the letter of device/device.h where that is hardest on the caller: recorded ops do nothing until they
 * are replayed, ops given at once run last one first, tune ruins everything it may write, and copies to or from the host tier come as late as they may:
 * when an op or another copy writes what they read or touches what they write, or at a sync. */
#ifndef PLIM_TESTS_FAKE_DEVICE_H
#define PLIM_TESTS_FAKE_DEVICE_H

#include "device/device.h"

enum { FAKE_RECORDINGS = 8, FAKE_PENDING = 32 };
enum fake_timing { PROMPT, LATE_STORES, LATE_FETCHES, FAKE_TIMINGS };

struct fake_event { /* an op, or a copy when call.op is NULL */
    struct kernel_call call;
    bool fetch;
    char *near;
    size_t host, bytes;
};

struct fake {
    struct device device; /* first: a struct device * is a struct fake * */
    struct device *cpu;
    enum fake_timing timing;
    bool cannot_record; /* record_end says so */
    bool refuse;        /* the next commit fails */
    bool recording;
    char *host;
    size_t host_bytes, committed;
    struct fake_event pending[FAKE_PENDING]; /* copies asked for and not made */
    int npending;
    struct {
        struct fake_event *events;
        int count, room;
    } recorded[FAKE_RECORDINGS];
    int nrecorded;
    int begun, replays, forgets, tunes, runs, groups, host_runs, copies, writes; /* how often so far */
};

/* Ends the test when the CPU cannot be opened. */
struct fake *fake_open(enum fake_timing timing);

#endif
