/* cuda_arena.h - the arena on a GPU: addresses reserved once, physical memory mapped up to a mark.
 *
 * The same promise as mem/arena.h: the base never moves, raising the mark maps new memory only, lowering it gives
 * memory back to the driver at once (another process can take it), what stays keeps its content. Memory comes in
 * segments; a segment the new mark falls into is replaced by a smaller one. The ledger carries the bytes asked for;
 * the last granule's rest is part of the device's overhead. */
#ifndef PLIM_DEVICE_CUDA_CUDA_ARENA_H
#define PLIM_DEVICE_CUDA_CUDA_ARENA_H

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
    size_t committed; /* as asked */
    size_t mapped;    /* committed rounded up to granules */
    struct cuda_segment *segments;
    size_t count, room;
    bool torn; /* content was lost: nothing is committed any more */
    struct ledger *ledger;
    int cls;
};

enum plim_status cuda_arena_reserve(struct cuda_arena *arena, const struct cuda_api *api, int device,
                                    size_t most, struct ledger *ledger, int cls, struct plim_error *err);

/* PLIM_NO_MEMORY when the ledger or the card refuses: the arena is then as before. PLIM_IO: the driver failed while
 * content was moved; every later call fails too. The device must be idle. */
enum plim_status cuda_arena_commit(struct cuda_arena *arena, size_t bytes, struct plim_error *err);
void cuda_arena_release(struct cuda_arena *arena);

#endif
