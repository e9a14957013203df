/* device.h - the device handle of the public API, for the files that take one. */
#ifndef PLIM_API_DEVICE_H
#define PLIM_API_DEVICE_H

#include "api/handle.h"
#include "device/device.h"
#include "job/preset.h"

struct plim_allocator;

struct plim_device {
    struct handle handle;
    struct device *device;            /* NULL: a preset */
    struct preset preset;             /* facts are those of the device, or of the preset */
    struct plim_allocator *allocator; /* counted in summaries; may be NULL */
};

#endif
