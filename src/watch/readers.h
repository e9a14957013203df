/* readers.h - the monitor's sources, as a table of functions that a test may replace.
 *
 *     struct watch_source source = {.root = "", .device = device};
 *     struct watch_reading now = {0};
 *     watch_read(watch_readers, &source, &now);
 *
 * Each reader fills its part of a reading and leaves the rest unchanged; facts that the system does not report stay 0.
 * Readers run on the monitor's thread: they touch no arena and submit no ops.
 */
#pragma once

#include "device/device.h"
#include "mem/os.h"

struct watch_source {
    const char *root;      /* root of /proc and /sys; "" for the real machine */
    struct device *device; /* NULL: none */
    /* Control groups of that machine; NULL: looked up at each reading. */
    const struct os_groups *groups;
    void *arg; /* for readers that are not ours */
};

struct watch_reading {
    double seconds;              /* clock_seconds when it was taken */
    struct os_process process;   /* ours, on the host */
    struct os_machine machine;   /* total 0: unknown */
    struct os_pressure pressure; /* of the container, else of the machine */
    /* The driver's view of all processes; total 0: the device uses the machine's memory. */
    struct device_memory device;
    int64_t arena;        /* committed by this process for tensors, according to our ledgers */
    int64_t device_arena; /* the same on a device with its own memory */
};

typedef void watch_reader(const struct watch_source *source, struct watch_reading *out);

/* All readers; ends with NULL. */
extern watch_reader *const watch_readers[];

/* Takes one reading with every reader of a table. */
void watch_read(watch_reader *const *readers, const struct watch_source *source, struct watch_reading *out);
