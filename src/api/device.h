/* device.h - the device handle of the public API, for the files that take one.
 *
 *     struct device *device;
 *     device_ready(handle, &device, err);        // a device that computes; NULL: a preset, whose facts are handle->preset
 *
 * A handle for a CPU starts neither threads nor measurements until something has to compute: programs that only ask about
 * memory stay as they are.
 */
#pragma once

#include "api/handle.h"
#include "device/registry.h"
#include "job/preset.h"
#include "watch/readers.h"
#include <plimsoll/device.h>

#include <pthread.h>

struct plim_allocator;

/* A summary and when it was made, for the snapshot. */
struct memory_sample {
    double seconds; /* clock_seconds */
    uint64_t tensors, cached, overhead, others, free;
};

enum { MEMORY_SAMPLES = 1024 };

struct plim_device {
    struct handle handle;
    const struct backend *backend; /* NULL: a preset */
    int index;                     /* N of "cuda:N" */
    /* The preset itself, or the one that the device resembles, with the facts of the device that are known
     * without opening it. */
    struct preset preset;

    pthread_mutex_t lock; /* guards the members below */
    struct device *opened;
    struct plim_allocator *allocator;            /* counted in summaries; may be NULL */
    uint64_t peak;                               /* of reserved, as far as summaries have seen it */
    bool kernel_peak;                            /* the system's own peak counts from the last reset */
    struct memory_sample sample[MEMORY_SAMPLES]; /* a ring: number i is at i % MEMORY_SAMPLES */
    int64_t samples;
};

/* Opens the device where that has not been done. */
enum plim_status device_ready(struct plim_device *device, struct device **out, struct plim_error *err);

/* Reads the memory that the handle stands for: watch_read, with the blocks of an attached allocator as part of the arena.
 * `groups` NULL: they are looked up. `out` may be NULL. A preset has no memory: PLIM_UNSUPPORTED. */
enum plim_status device_memory_read(struct plim_device *device, const struct os_groups *groups,
                                    struct watch_reading *reading, struct plim_memory *out,
                                    const char *function, struct plim_error *err);

/* Members of an object that is open: "total", "fragmentation", "classes". */
void device_memory_json(const struct plim_memory *memory, struct json_writer *w);
