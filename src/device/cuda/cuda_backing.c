/* cuda_backing.c - see device/backing.h.
 *
 * Invariants: handles[i] of a range is the memory of its page i, 0 while that page is unmapped. An event is either in the cache's
 * hands or in the list of spare ones; none is destroyed before the end, because creating one costs microseconds.
 */
#include "device/backing.h"
#include "device/cuda/cuda_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct range {
    struct range *next;
    CUdeviceptr base;
    uint64_t bytes, page;
    CUmemGenericAllocationHandle handles[];
};

struct cuda_backing {
    struct cache_backing base;
    struct cache_backing_ops ops; /* own copy: the name has the device's number */
    struct cuda_api api;
    int index;
    char name[16];
    struct range *ranges;
    cudaEvent_t *spare; /* events that wait for their next use */
    int spares, room, made;
};

static struct cuda_backing *self(struct cache_backing *backing) { return (struct cuda_backing *)backing; }

/* The calling thread's device is the caller's affair: it is changed for the call and put back. */
static int enter(const struct cuda_backing *b)
{
    int before = -1;
    if (cudaGetDevice(&before) != cudaSuccess) before = -1;
    if (before != b->index) cudaSetDevice(b->index);
    return before;
}

static void leave(const struct cuda_backing *b, int before)
{
    if (before >= 0 && before != b->index) cudaSetDevice(before);
}

/* ---- whole segments ---- */

static enum plim_status segment_alloc(struct cache_backing *backing, uint64_t bytes, uint64_t *address,
                                      struct plim_error *err)
{
    struct cuda_backing *b = self(backing);
    void *at = NULL;
    int before = enter(b);
    enum plim_status status = cuda_check(cudaMalloc(&at, bytes), "taking memory", err);
    leave(b, before);
    *address = (uint64_t)(uintptr_t)at;
    return status;
}

/* cudaFree waits for the device. */
static void segment_free(struct cache_backing *backing, uint64_t address, uint64_t)
{
    struct cuda_backing *b = self(backing);
    int before = enter(b);
    cuda_check(cudaFree((void *)(uintptr_t)address), "giving memory back", NULL);
    leave(b, before);
}

/* ---- expandable segments ---- */

static enum plim_status range_reserve(struct cache_backing *backing, uint64_t bytes, uint64_t page,
                                      uint64_t *address, struct plim_error *err)
{
    struct cuda_backing *b = self(backing);
    struct range *r = calloc(1, sizeof *r + bytes / page * sizeof *r->handles);
    if (!r) return plim_fail(err, PLIM_NO_MEMORY, "no host memory for the GPU's pages");
    int before = enter(b);
    enum plim_status status = cuda_check_driver(&b->api, b->api.cuMemAddressReserve(&r->base, bytes, 0, 0, 0),
                                                "reserving addresses", err);
    leave(b, before);
    if (status != PLIM_OK) return free(r), status;
    r->bytes = bytes;
    r->page = page;
    r->next = b->ranges;
    b->ranges = r;
    *address = r->base;
    return PLIM_OK;
}

static void range_unreserve(struct cache_backing *backing, uint64_t address, uint64_t bytes)
{
    struct cuda_backing *b = self(backing);
    struct range **at = &b->ranges;
    while (*at && (*at)->base != address) at = &(*at)->next;
    if (!*at) return;
    struct range *r = *at;
    *at = r->next;
    int before = enter(b);
    b->api.cuMemAddressFree(address, bytes);
    leave(b, before);
    free(r);
}

static struct range *range_of(const struct cuda_backing *b, uint64_t address)
{
    struct range *r = b->ranges;
    while (address - r->base >= r->bytes) r = r->next;
    return r;
}

static enum plim_status page_map(const struct cuda_backing *b, struct range *r, uint64_t page,
                                 struct plim_error *err)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = b->index}};
    CUmemGenericAllocationHandle handle = 0;
    enum plim_status status =
        cuda_check_driver(&b->api, b->api.cuMemCreate(&handle, r->page, &prop, 0), "taking memory", err);
    if (status != PLIM_OK) return status;
    status = cuda_check_driver(&b->api, b->api.cuMemMap(r->base + page * r->page, r->page, 0, handle, 0),
                               "mapping memory", err);
    if (status != PLIM_OK)
        b->api.cuMemRelease(handle);
    else
        r->handles[page] = handle;
    return status;
}

static void pages_unmap(const struct cuda_backing *b, struct range *r, uint64_t first, uint64_t end)
{
    for (uint64_t i = first; i < end; i++) {
        b->api.cuMemUnmap(r->base + i * r->page, r->page);
        b->api.cuMemRelease(r->handles[i]);
        r->handles[i] = 0;
    }
}

static enum plim_status range_map(struct cache_backing *backing, uint64_t address, uint64_t bytes,
                                  struct plim_error *err)
{
    struct cuda_backing *b = self(backing);
    struct range *r = range_of(b, address);
    uint64_t first = (address - r->base) / r->page, end = first + bytes / r->page, done = first;
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = b->index},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    enum plim_status status = PLIM_OK;
    int before = enter(b);
    while (status == PLIM_OK && done < end) {
        status = page_map(b, r, done, err);
        done += status == PLIM_OK;
    }
    if (status == PLIM_OK)
        status = cuda_check_driver(&b->api, b->api.cuMemSetAccess(address, bytes, &access, 1),
                                   "opening memory", err);
    if (status != PLIM_OK) pages_unmap(b, r, first, done);
    leave(b, before);
    return status;
}

static void range_unmap(struct cache_backing *backing, uint64_t address, uint64_t bytes)
{
    struct cuda_backing *b = self(backing);
    struct range *r = range_of(b, address);
    uint64_t first = (address - r->base) / r->page;
    int before = enter(b);
    pages_unmap(b, r, first, first + bytes / r->page);
    leave(b, before);
}

/* ---- events ---- */

static cudaStream_t stream_of(uint64_t stream) { return (cudaStream_t)(uintptr_t)stream; }
static cudaEvent_t event_of(uint64_t event) { return (cudaEvent_t)(uintptr_t)event; }

/* Room for an event is made before the event, so that dropping one never fails. */
static cudaEvent_t event_new(struct cuda_backing *b)
{
    if (b->spares) return b->spare[--b->spares];
    if (b->made == b->room) {
        int room = b->room ? 2 * b->room : 64;
        cudaEvent_t *more = realloc(b->spare, (size_t)room * sizeof *more);
        if (!more) return NULL;
        b->spare = more;
        b->room = room;
    }
    cudaEvent_t event = NULL;
    if (cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event", NULL) !=
        PLIM_OK)
        return NULL;
    b->made++;
    return event;
}

static void event_drop(struct cache_backing *backing, uint64_t event)
{
    struct cuda_backing *b = self(backing);
    b->spare[b->spares++] = event_of(event);
}

static enum plim_status event_record(struct cache_backing *backing, uint64_t stream, uint64_t *event)
{
    struct cuda_backing *b = self(backing);
    int before = enter(b);
    cudaEvent_t e = event_new(b);
    enum plim_status status =
        e ? cuda_check(cudaEventRecord(e, stream_of(stream)), "recording an event", NULL) : PLIM_IO;
    leave(b, before);
    *event = (uint64_t)(uintptr_t)e;
    if (e && status != PLIM_OK) event_drop(backing, *event);
    return status;
}

/* An error of the device counts as done: nothing runs any more, and the caller's next call reports it. */
static bool event_done(struct cache_backing *, uint64_t event)
{
    cudaError_t code = cudaEventQuery(event_of(event));
    if (code == cudaErrorNotReady) cudaGetLastError();
    return code != cudaErrorNotReady;
}

static void event_finish(struct cache_backing *, uint64_t event) { cudaEventSynchronize(event_of(event)); }

static void stream_finish(struct cache_backing *backing, uint64_t stream)
{
    struct cuda_backing *b = self(backing);
    int before = enter(b);
    cudaStreamSynchronize(stream_of(stream));
    leave(b, before);
}

static uint64_t available(struct cache_backing *backing)
{
    struct cuda_backing *b = self(backing);
    size_t free_bytes = 0, total = 0;
    int before = enter(b);
    cudaError_t code = cudaMemGetInfo(&free_bytes, &total);
    leave(b, before);
    return code == cudaSuccess ? free_bytes : UINT64_MAX;
}

/* ---- beginning and end ---- */

static const struct cache_backing_ops cuda_ops = {.alloc = segment_alloc,
                                                  .free = segment_free,
                                                  .reserve = range_reserve,
                                                  .unreserve = range_unreserve,
                                                  .map = range_map,
                                                  .unmap = range_unmap,
                                                  .event_record = event_record,
                                                  .event_done = event_done,
                                                  .event_finish = event_finish,
                                                  .event_drop = event_drop,
                                                  .stream_finish = stream_finish,
                                                  .available = available};

static enum plim_status open_device(struct cuda_backing *b, struct plim_error *err)
{
    int cards = 0;
    size_t free_bytes = 0, total = 0;
    enum plim_status status = cuda_check(cudaGetDeviceCount(&cards), "counting cards", err);
    if (status == PLIM_OK && (b->index < 0 || b->index >= cards))
        return plim_fail(err, PLIM_UNSUPPORTED, "cuda: there is no card %d; %d are here", b->index, cards);
    if (status != PLIM_OK) return PLIM_UNSUPPORTED;
    int before = enter(b);
    status = cuda_check(cudaMemGetInfo(&free_bytes, &total), "opening the card", err);
    if (status == PLIM_OK) status = cuda_api_open_driver(&b->api, err);
    leave(b, before);
    b->base.total = total;
    return status;
}

enum plim_status cuda_backing_open(int index, struct cache_backing **out, struct plim_error *err)
{
    struct cuda_backing *b = calloc(1, sizeof *b);
    *out = NULL;
    if (!b) return plim_fail(err, PLIM_NO_MEMORY, "no host memory for the GPU's backing");
    b->index = index;
    snprintf(b->name, sizeof b->name, "cuda:%d", index);
    b->ops = cuda_ops;
    b->ops.name = b->name;
    b->base.ops = &b->ops;
    enum plim_status status = open_device(b, err);
    if (status == PLIM_OK)
        *out = &b->base;
    else
        free(b);
    return status;
}

void cuda_backing_close(struct cache_backing *backing)
{
    if (!backing) return;
    struct cuda_backing *b = self(backing);
    while (b->ranges) range_unreserve(backing, b->ranges->base, b->ranges->bytes);
    while (b->spares) cudaEventDestroy(b->spare[--b->spares]);
    free(b->spare);
    free(b);
}
