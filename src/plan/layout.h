/* layout.h - the address and lifetime of every byte of a tape: lifetimes, then offsets in one arena per tier.
 *
 *     struct layout layout;
 *     layout_make(&tape, &(struct layout_options){.facts = &facts, .accumulation = 4}, &layout, &err);
 *     // layout.offset[id], layout.arena_bytes, layout.lower_bound
 *     layout_release(&layout);
 *
 * Invariants
 *  1. Kept tensors are at the bottom of the arena: parameters, then each parameter's master and moments together, then
 *     kv, io. State leaves the device starting with the last parameter's; parameters leave only when all state has left, in
 *     the same order. So two layouts of the same model have the same offsets for all tensors that are on the same tier in
 *     both.
 *  2. A transient lives from its first write to its last use. A tensor that accumulates over micro-batches lives throughout
 *     if there is more than one. Outputs live to the end.
 *  3. An output takes over an input's bytes if the op's row permits it and the input dies there.
 *  4. Scratch of an op lives only during that op. A device with its own memory may run a group at once (tape/group.h):
 *     scratch then lives as long as the group, the group's outputs live from its beginning, and no bytes are taken over
 *     inside it. Exchanges that overlap computing run one after the other: those of the loop share one scratch throughout
 *     the loop, those of the update another.
 *  5. With carried_below, gradients, sums and outputs that one pass leaves for another keep their addresses throughout.
 *  6. lower_bound is the kept bytes plus the peak of live transient bytes; no layout can be smaller.
 *  7. If device memory is the process's own, a near copy of a tensor on disk begins at a multiple of DISK_MEMORY unless it
 *     is small.
 *  8. Where ops may run at once, runs of fuse_kept_apart have bytes of their own: what the first op reads, unless a result takes it over,
 *     and writes lives to the end of the run, and later products in 8 bits live from the first one on.
 */
#pragma once

#include "plan/facts.h"

struct layout;

struct layout_options {
    const struct device_facts *facts;
    int64_t accumulation;
    /* Lay this tape out above the kept tensors of another one that owns the arena (evaluation inside
     * training): kept tensors with the same name take that layout's offsets, the others start at its
     * kept_bytes. */
    const struct layout *above;
    const struct tape *above_tape;
    /* Several tapes of one loop share the arena in turn (runtime/lengths.h). Tensors that one pass leaves for the
     * next or for the update are directly above the kept tensors throughout and, with `above`, at that layout's
     * offsets. */
    bool carried_below;
    int64_t capacity; /* arena size to stay below if the packer's dives (pack.h) can; 0: no limit */
    int dives;
};

struct lifetime {
    int first, last; /* op indices, inclusive; first > last: never used */
};

struct layout {
    int ntensors, nops;
    int64_t *offset;      /* by tensor: in the arena, or in its tier's file or region; 0: never used */
    int64_t *work_offset; /* by op */
    int64_t *work_bytes;  /* by op */
    /* Scratch of overlapped exchanges, of the loop and of the update. */
    int64_t lane_bytes[2], lane_offset[2];
    struct lifetime *life; /* by tensor; a root's includes all its views */
    int *buffer;           /* by tensor: the root whose bytes it took over (invariant 3), itself otherwise */
    int *group_end;        /* by op: the end of its group; NULL: ops run one by one */
    int64_t kept_bytes, arena_bytes, lower_bound;
    int64_t carried_bytes; /* with options.carried_below: bytes above the kept tensors */
    int64_t part_peak[2];  /* peak of live transient bytes in the loop and in the update */
    int part_tensors[2];   /* touched by the loop; only by the update */
    int64_t tier_bytes[TIER_COUNT];
    int peak_op;                   /* where live bytes peak */
    int64_t by_class[CLASS_COUNT]; /* live at that op; sums to lower_bound */
};

/* The index after the group of op `i`. */
static inline int layout_group_end(const struct layout *layout, int i)
{
    return layout->group_end ? layout->group_end[i] : i + 1;
}

enum plim_status layout_make(const struct tape *tape, const struct layout_options *options,
                             struct layout *out, struct plim_error *err);
void layout_release(struct layout *layout);

/* Computes sizes without offsets: lower_bound, kept_bytes, tier_bytes, part_peak, part_tensors. Fast enough for the
 * thousands of calls of a search. */
enum plim_status layout_bound(const struct tape *tape, const struct layout_options *options,
                              struct layout *out, struct plim_error *err);

/* Checks invariants 1-5 of a finished layout on every tier; PLIM_BUG names the bytes that collide. plan_make calls
 * it. */
enum plim_status layout_verify(const struct tape *tape, const struct layout *layout, struct plim_error *err);
