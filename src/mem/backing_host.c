/* backing_host.c - see cache_backing.h: segments from the system's pages. Expandable segments are ranges without access whose
 * pages are opened and given back. */
#define _GNU_SOURCE
#include "base/bytes.h"
#include "mem/cache_backing.h"
#include "mem/os.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { MAP_KIND = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };

static enum plim_status map_pages(uint64_t bytes, int access, uint64_t *address, struct plim_error *err)
{
    char text[BYTES_TEXT];
    void *at = mmap(NULL, bytes, access, MAP_KIND, -1, 0);
    if (at == MAP_FAILED)
        return plim_fail(err, PLIM_NO_MEMORY, "the system cannot supply %s: %s", bytes_format(text, bytes),
                         strerror(errno));
    *address = (uint64_t)(uintptr_t)at;
    return PLIM_OK;
}

static enum plim_status host_alloc(struct cache_backing *, uint64_t bytes, uint64_t *address,
                                   struct plim_error *err)
{
    return map_pages(bytes, PROT_READ | PROT_WRITE, address, err);
}

static void host_free(struct cache_backing *, uint64_t address, uint64_t bytes)
{
    munmap((void *)(uintptr_t)address, bytes);
}

static enum plim_status host_reserve(struct cache_backing *, uint64_t bytes, uint64_t, uint64_t *address,
                                     struct plim_error *err)
{
    return map_pages(bytes, PROT_NONE, address, err);
}

static enum plim_status host_map(struct cache_backing *, uint64_t address, uint64_t bytes,
                                 struct plim_error *err)
{
    char text[BYTES_TEXT];
    if (!mprotect((void *)(uintptr_t)address, bytes, PROT_READ | PROT_WRITE)) return PLIM_OK;
    return plim_fail(err, PLIM_NO_MEMORY, "the system cannot supply %s: %s", bytes_format(text, bytes),
                     strerror(errno));
}

/* A fresh mapping over the pages forbids them and gives them back at once. */
static void host_unmap(struct cache_backing *, uint64_t address, uint64_t bytes)
{
    void *at = (void *)(uintptr_t)address;
    if (mmap(at, bytes, PROT_NONE, MAP_KIND | MAP_FIXED, -1, 0) == MAP_FAILED)
        madvise(at, bytes, MADV_DONTNEED);
}

static uint64_t host_available(struct cache_backing *)
{
    struct os_machine box;
    return os_machine_memory(&box, NULL) == PLIM_OK ? box.available : UINT64_MAX;
}

static const struct cache_backing_ops ops = {.name = "host",
                                             .alloc = host_alloc,
                                             .free = host_free,
                                             .reserve = host_reserve,
                                             .unreserve = host_free,
                                             .map = host_map,
                                             .unmap = host_unmap,
                                             .available = host_available};

void backing_host_init(struct backing_host *host, uint64_t total)
{
    struct os_allowance allowance;
    if (!total) total = os_allowance(&allowance, NULL) == PLIM_OK ? allowance.bytes : (uint64_t)1 << 40;
    host->base = (struct cache_backing){&ops, total};
}
