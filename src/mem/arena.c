/* arena.c - one mapping, usable up to a page and forbidden from there on.
 *
 * Invariants:
 * 1. [base, base + round(committed)) is readable, writable and present; [.., base + round(max_bytes)) is
 *    PROT_NONE and holds no pages.
 * 2. The ledger carries exactly `committed` bytes of this arena.
 * 3. A failed growth restores 1 and 2 for the old mark.
 * Bytes between the mark and the end of its page are usable by accident only; growing over them clears them,
 * so that new memory is zero in every case.
 */
#define _GNU_SOURCE
#include "mem/arena.h"
#include "base/bytes.h"
#include "mem/os.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define HUGE_PAGE ((uint64_t)2 << 20)
#define HUGE_FROM ((uint64_t)8 << 20)

/* One thread's share at a time: large enough to hide the call, small enough to balance. */
#define POPULATE_CHUNK ((uint64_t)8 << 20)

enum { MAP_KIND = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };

enum plim_status arena_reserve(struct arena *arena, uint64_t max_bytes, struct ledger *ledger, int cls,
                               struct plim_error *err)
{
    memset(arena, 0, sizeof *arena);
    char text[BYTES_TEXT];
    if (max_bytes == 0 || max_bytes > SIZE_MAX / 2)
        return plim_fail(err, PLIM_BAD_INPUT, "cannot reserve an arena of %s", bytes_format(text, max_bytes));
    uint64_t align = max_bytes >= HUGE_FROM ? HUGE_PAGE : 0, bytes = os_page_round(max_bytes) + align;
    void *mapping = mmap(NULL, bytes, PROT_NONE, MAP_KIND, -1, 0);
    if (mapping == MAP_FAILED)
        return plim_fail(err, PLIM_NO_MEMORY, "cannot reserve addresses for an arena of %s: %s",
                         bytes_format(text, max_bytes), strerror(errno));
    uint64_t skip = align ? (align - (uintptr_t)mapping % align) % align : 0;
    arena->mapping = mapping;
    arena->mapping_bytes = bytes;
    arena->base = (char *)mapping + skip;
    arena->max_bytes = max_bytes;
    arena->ledger = ledger;
    arena->cls = cls;
    return PLIM_OK;
}

/* State shared by the threads that touch pages. */
struct populate {
    char *begin;
    uint64_t bytes;
    size_t page;
    _Atomic int failed; /* errno of a failure, 0 */
};

/* Kernels before 5.14 cannot be asked; a write to each page brings it in. */
static void touch(char *begin, uint64_t bytes, size_t page)
{
    for (uint64_t at = 0; at < bytes; at += page) *(volatile char *)(begin + at) = 0;
}

static void populate_chunks(void *arg, int64_t first, int64_t last, int worker)
{
    (void)worker;
    struct populate *p = arg;
    uint64_t begin = (uint64_t)first * POPULATE_CHUNK, end = (uint64_t)last * POPULATE_CHUNK;
    if (end > p->bytes) end = p->bytes;
    if (atomic_load_explicit(&p->failed, memory_order_relaxed)) return;
    if (madvise(p->begin + begin, end - begin, MADV_POPULATE_WRITE) == 0) return;
    if (errno == EINVAL)
        touch(p->begin + begin, end - begin, p->page);
    else
        atomic_store_explicit(&p->failed, errno, memory_order_relaxed);
}

/* Bring in the pages of [from, to), page-aligned offsets; 0 or an errno. */
static int bring_in(struct arena *arena, uint64_t from, uint64_t to, struct threads *threads)
{
    if (from == to) return 0;
    if (mprotect(arena->base + from, to - from, PROT_READ | PROT_WRITE) < 0) return errno;
    /* A wish: without huge pages everything works, only slower. */
    if (to >= HUGE_FROM) madvise(arena->base, to, MADV_HUGEPAGE);
    struct populate p = {.begin = arena->base + from, .bytes = to - from, .page = os_page_size()};
    int64_t chunks = (int64_t)((p.bytes + POPULATE_CHUNK - 1) / POPULATE_CHUNK);
    threads_each(threads, chunks, 1, populate_chunks, &p);
    return atomic_load(&p.failed);
}

/* Forbid [from, to) and give its pages back. A fresh mapping over it does both at once; should the system
 * have no room for one more mapping, the pages at least go. */
static void give_back(struct arena *arena, uint64_t from, uint64_t to)
{
    if (from == to) return;
    if (mmap(arena->base + from, to - from, PROT_NONE, MAP_KIND | MAP_FIXED, -1, 0) != MAP_FAILED) return;
    madvise(arena->base + from, to - from, MADV_DONTNEED);
    mprotect(arena->base + from, to - from, PROT_NONE);
}

/* The kernel lends more than it has and kills later; ask first. Where it cannot be asked, go on. */
static enum plim_status check_machine(uint64_t bytes, struct plim_error *err)
{
    struct os_machine box;
    char want[BYTES_TEXT], have[BYTES_TEXT], exact[BYTES_TEXT];
    if (bytes < HUGE_PAGE || os_machine_memory(&box, NULL) != PLIM_OK || bytes <= box.available)
        return PLIM_OK;
    return plim_fail(err, PLIM_NO_MEMORY,
                     "an arena needs %s (%s bytes) more, but the %s has only %s available",
                     bytes_format(want, bytes), bytes_format_exact(exact, bytes),
                     box.limited ? "container" : "machine", bytes_format(have, box.available));
}

static enum plim_status grow(struct arena *arena, uint64_t bytes, struct threads *threads,
                             struct plim_error *err)
{
    uint64_t from = os_page_round(arena->committed), to = os_page_round(bytes);
    enum plim_status status = check_machine(to - from, err);
    if (status != PLIM_OK) return status;
    int failed = fault_hit(arena->fault, FAULT_ALLOC) ? ENOMEM : bring_in(arena, from, to, threads);
    if (failed) {
        char want[BYTES_TEXT], exact[BYTES_TEXT];
        give_back(arena, from, to);
        return plim_fail(err, PLIM_NO_MEMORY, "the system cannot supply %s (%s bytes) for an arena: %s",
                         bytes_format(want, bytes - arena->committed),
                         bytes_format_exact(exact, bytes - arena->committed), strerror(failed));
    }
    uint64_t stale_end = bytes < from ? bytes : from;
    memset(arena->base + arena->committed, 0, stale_end - arena->committed);
    arena->committed = bytes;
    return PLIM_OK;
}

static void shrink(struct arena *arena, uint64_t bytes)
{
    give_back(arena, os_page_round(bytes), os_page_round(arena->committed));
    if (arena->ledger) ledger_release(arena->ledger, arena->cls, arena->committed - bytes);
    arena->committed = bytes;
}

enum plim_status arena_commit(struct arena *arena, uint64_t bytes, struct threads *threads,
                              struct plim_error *err)
{
    if (bytes > arena->max_bytes) {
        char want[BYTES_TEXT], most[BYTES_TEXT];
        return plim_fail(err, PLIM_NO_MEMORY, "an arena of at most %s cannot hold %s",
                         bytes_format(most, arena->max_bytes), bytes_format(want, bytes));
    }
    if (bytes <= arena->committed) {
        shrink(arena, bytes);
        return PLIM_OK;
    }
    uint64_t more = bytes - arena->committed;
    enum plim_status status = arena->ledger ? ledger_reserve(arena->ledger, arena->cls, more, err) : PLIM_OK;
    if (status != PLIM_OK) return status;
    status = grow(arena, bytes, threads, err);
    if (status != PLIM_OK && arena->ledger) ledger_release(arena->ledger, arena->cls, more);
    return status;
}

void arena_release(struct arena *arena)
{
    if (!arena->base) return;
    if (arena->ledger) ledger_release(arena->ledger, arena->cls, arena->committed);
    munmap(arena->mapping, arena->mapping_bytes);
    memset(arena, 0, sizeof *arena);
}

char *arena_base(const struct arena *arena) { return arena->base; }

uint64_t arena_committed(const struct arena *arena) { return arena->committed; }
