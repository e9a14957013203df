/* cuda_arena.h - the arena on a GPU: addresses reserved once, physical memory mapped up to a mark.
 *
 * The contract is that of mem/arena.h: the base never moves; raising the mark maps new memory only; lowering it returns
 * memory to the driver at once, for other processes to use; remaining contents are kept. Memory comes in segments; if the
 * new mark is inside a segment, the segment is replaced by a smaller one. The ledger counts the requested bytes; the unused
 * rest of the last granule is part of the device's overhead. */
#pragma once

#include "device/cuda/cuda_api.h"
#include "mem/ledger.h"
#include <stdbool.h>

struct cuda_segment {
    CUmemGenericAllocationHandle handle;
    size_t bytes;
};

struct cuda_arena {
    const struct cuda_api *api;
    int device;
    CUdeviceptr base;
    size_t reserved;  /* addresses */
    size_t granule;   /* physical memory comes in multiples of this */
    size_t committed; /* as requested */
    size_t mapped;    /* committed rounded up to granules */
    struct cuda_segment *segments;
    size_t count, room;
    bool torn; /* contents were lost; nothing is committed any more */
    struct ledger *ledger;
    int cls;
};

enum plim_status cuda_arena_reserve(struct cuda_arena *arena, const struct cuda_api *api, int device,
                                    size_t most, struct ledger *ledger, int cls, struct plim_error *err);

/* PLIM_NO_MEMORY: the ledger or the card refused, and the arena is unchanged. PLIM_IO: the driver failed
 * while contents were moved; every later call fails too. The device must be idle. */
enum plim_status cuda_arena_commit(struct cuda_arena *arena, size_t bytes, struct plim_error *err);
void cuda_arena_release(struct cuda_arena *arena);
