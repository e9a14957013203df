/* arena.h - one range of addresses that is filled with memory up to a mark.
 *
 * The range is reserved once and never moves; pages below the mark (`committed`) are usable and already
 * present, everything above it faults when touched. Raising the mark brings in pages for the new part only;
 * lowering it gives pages back to the system at once. The ledger, when there is one, carries exactly the
 * committed bytes.
 *
 *     struct arena arena;
 *     arena_reserve(&arena, most, &ledger, CLASS_ACT, &err);
 *     arena_commit(&arena, plan_bytes, team, &err);      // zeroed, prefaulted
 *     char *base = arena_base(&arena);                   // the same for the arena's life
 *     arena_commit(&arena, smaller, NULL, &err);         // RSS falls
 *     arena_release(&arena);
 *
 * Not thread-safe: one thread commits, and nobody uses bytes that are being given back.
 */
#pragma once

#include "base/fault.h"
#include "base/status.h"
#include "base/threads.h"
#include "mem/ledger.h"
#include <stddef.h>
#include <stdint.h>

struct arena {
    char *base;         /* NULL before arena_reserve; aligned to 2 MiB when max_bytes is 8 MiB or more */
    uint64_t max_bytes; /* as asked                                                                   */
    uint64_t committed; /* as asked; the memory behind it is rounded up to pages                      */
    struct ledger *ledger;
    int cls;
    struct fault *fault; /* NULL: the process's own; a test may set it after arena_reserve */
    void *mapping;       /* what was mapped, alignment included */
    size_t mapping_bytes;
};

/* Reserve addresses for max_bytes; no memory is used yet. ledger may be NULL. PLIM_NO_MEMORY when the system
 * refuses the addresses. A zeroed arena may be released without having been reserved. */
enum plim_status arena_reserve(struct arena *arena, uint64_t max_bytes, struct ledger *ledger, int cls,
                               struct plim_error *err);

/* Move the mark to `bytes` (at most max_bytes). Growing: PLIM_NO_MEMORY when the ledger refuses, when the
 * machine has too little available memory left, or when the system cannot supply the pages; the arena is then
 * as before. New memory is zero; what was committed keeps its content. Pages are brought in by `threads` in
 * parallel (NULL: by the caller). Shrinking always succeeds. */
enum plim_status arena_commit(struct arena *arena, uint64_t bytes, struct threads *threads,
                              struct plim_error *err);

void arena_release(struct arena *arena);

char *arena_base(const struct arena *arena);
uint64_t arena_committed(const struct arena *arena);
