/* cuda_arena.c - see cuda_arena.h. Invariant: segments lie one after another from base, their sum is `mapped`. */
#include "device/cuda/cuda_arena.h"
#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

/* Few enough to map quickly, small enough that replacing one is cheap. */
#define SEGMENT ((size_t)64 << 20)

static CUmemAllocationProp properties(int device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

enum plim_status cuda_arena_reserve(struct cuda_arena *arena, const struct cuda_api *api, int device,
                                    size_t most, struct ledger *ledger, int cls, struct plim_error *err)
{
    *arena = (struct cuda_arena){.api = api, .device = device, .ledger = ledger, .cls = cls};
    CUmemAllocationProp prop = properties(device);
    enum plim_status status = cuda_check_driver(
        api, api->cuMemGetAllocationGranularity(&arena->granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "allocation granularity", err);
    if (status != PLIM_OK) return status;
    arena->reserved = round_up(most, arena->granule);
    arena->room = arena->reserved / SEGMENT + 2 * (SEGMENT / arena->granule);
    arena->segments = calloc(arena->room, sizeof *arena->segments);
    if (!arena->segments) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the GPU's arena");
    return cuda_check_driver(api, api->cuMemAddressReserve(&arena->base, arena->reserved, 0, 0, 0),
                             "reserving addresses", err);
}

static enum plim_status push(struct cuda_arena *arena, size_t bytes, struct plim_error *err)
{
    const struct cuda_api *api = arena->api;
    CUmemAllocationProp prop = properties(arena->device);
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at = arena->base + arena->mapped;
    struct cuda_segment segment = {.bytes = bytes};
    if (arena->count == arena->room) return plim_fail(err, PLIM_BUG, "the GPU's arena has too many segments");
    enum plim_status status =
        cuda_check_driver(api, api->cuMemCreate(&segment.handle, bytes, &prop, 0), "taking memory", err);
    if (status != PLIM_OK) return status;
    status = cuda_check_driver(api, api->cuMemMap(at, bytes, 0, segment.handle, 0), "mapping memory", err);
    if (status == PLIM_OK) {
        status = cuda_check_driver(api, api->cuMemSetAccess(at, bytes, &access, 1), "opening memory", err);
        if (status != PLIM_OK) api->cuMemUnmap(at, bytes);
    }
    if (status != PLIM_OK) {
        api->cuMemRelease(segment.handle);
        return status;
    }
    arena->segments[arena->count++] = segment;
    arena->mapped += bytes;
    return PLIM_OK;
}

static void pop(struct cuda_arena *arena)
{
    struct cuda_segment *segment = &arena->segments[--arena->count];
    arena->mapped -= segment->bytes;
    arena->api->cuMemUnmap(arena->base + arena->mapped, segment->bytes);
    arena->api->cuMemRelease(segment->handle);
}

static enum plim_status grow(struct cuda_arena *arena, size_t to, struct plim_error *err)
{
    size_t before = arena->mapped;
    while (arena->mapped < to) {
        size_t left = to - arena->mapped;
        enum plim_status status = push(arena, left < SEGMENT ? left : SEGMENT, err);
        if (status == PLIM_OK) continue;
        while (arena->mapped > before) pop(arena);
        return status;
    }
    return PLIM_OK;
}

/* Moves the bytes below the mark in its segment through the host into a smaller segment. Until the first pop a
 * failure changes nothing; after it content may be lost, and `torn` records that. */
static enum plim_status shrink(struct cuda_arena *arena, size_t to, struct plim_error *err)
{
    size_t start = arena->mapped, cut = arena->count;
    while (start > to) start -= arena->segments[--cut].bytes;
    size_t keep = to - start;
    void *at = (void *)(uintptr_t)(arena->base + start), *content = keep ? malloc(keep) : NULL;
    if (keep && !content) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while the GPU's arena shrank");
    enum plim_status status = PLIM_OK;
    if (keep)
        status = cuda_check(cudaMemcpy(content, at, keep, cudaMemcpyDeviceToHost), "saving a segment", err);
    if (status == PLIM_OK) {
        while (arena->mapped > start) pop(arena);
        if (keep) status = push(arena, keep, err);
        if (keep && status == PLIM_OK)
            status =
                cuda_check(cudaMemcpy(at, content, keep, cudaMemcpyHostToDevice), "restoring a segment", err);
        /* The copy may be under way still, and the compute stream does not wait for the one it is on. */
        if (keep && status == PLIM_OK)
            status = cuda_check(cudaStreamSynchronize(NULL), "restoring a segment", err);
        arena->torn = status != PLIM_OK;
    }
    free(content);
    return status;
}

enum plim_status cuda_arena_commit(struct cuda_arena *arena, size_t bytes, struct plim_error *err)
{
    size_t to = round_up(bytes, arena->granule);
    enum plim_status status = PLIM_OK;
    if (to > arena->reserved) {
        char most[BYTES_TEXT];
        bytes_format(most, arena->reserved);
        return plim_fail(err, PLIM_NO_MEMORY, "cuda: the GPU has only %s", most);
    }
    if (arena->torn) return plim_fail(err, PLIM_IO, "cuda: the arena lost content when it last shrank");
    size_t more = bytes > arena->committed ? bytes - arena->committed : 0;
    if (more) status = ledger_reserve(arena->ledger, arena->cls, more, err);
    if (status != PLIM_OK) return status;
    if (to > arena->mapped)
        status = grow(arena, to, err);
    else if (to < arena->mapped)
        status = shrink(arena, to, err);
    if (status != PLIM_OK) {
        if (more) ledger_release(arena->ledger, arena->cls, more);
        return status;
    }
    if (bytes < arena->committed) ledger_release(arena->ledger, arena->cls, arena->committed - bytes);
    arena->committed = bytes;
    return PLIM_OK;
}

void cuda_arena_release(struct cuda_arena *arena)
{
    if (arena->base) {
        while (arena->count) pop(arena);
        ledger_release(arena->ledger, arena->cls, arena->committed);
        arena->api->cuMemAddressFree(arena->base, arena->reserved);
    }
    free(arena->segments);
    memset(arena, 0, sizeof *arena);
}
