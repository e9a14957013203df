/* allocator.h - the allocator handle of the public API, for the files that take one. */
#pragma once

#include "api/handle.h"
#include "base/json.h"
#include "mem/cache.h"
#include <plimsoll/allocator.h>

struct plim_allocator {
    struct handle handle;
    struct cache *cache;
    const struct backend *backend; /* whose memory it is; NULL: simulated */
    int index;
    struct cache_backing *backing; /* one of the two below, or the backend's */
    struct backing_host host;
    struct backing_simulated simulated;
    struct plim_device *device; /* attached to; may be NULL */
};

struct allocator_usage {
    uint64_t active, reserved;
};
void allocator_usage(struct plim_allocator *allocator, struct allocator_usage *out);

/* Live blocks by owner (plim_alloc_for), the largest first; to be freed. Returns the number of owners; 0: none, or no memory. */
struct allocator_owner {
    const char *name; /* NULL: blocks without an owner */
    int64_t bytes, blocks;
};
int allocator_owners(struct plim_allocator *allocator, struct allocator_owner **out);

/* Figures and fragmentation as an object. */
void allocator_json(struct plim_allocator *allocator, struct json_writer *w, const char *key);

/* plim_device_attach calls these. PLIM_BAD_INPUT: the memory is not the device's, or it is attached to another handle. */
enum plim_status allocator_belong(struct plim_allocator *allocator, struct plim_device *device,
                                  struct plim_error *err);
void allocator_leave(struct plim_allocator *allocator);

/* A snapshot as torch.cuda.memory._dump_snapshot writes it, or the same as JSON. */
enum plim_status allocator_snapshot(struct plim_allocator *allocator, bool pickle, const char *path,
                                    struct plim_error *err);
