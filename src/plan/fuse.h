/* fuse.h - neighbouring ops that a device may run as one.
 *
 *     for (int i = begin, next; i < end; i = next)
 *         next = fuse_end(&tape, &layout, i, end, can, arg);      // ops [i, next) are one launch
 *
 * A table of patterns says which kinds follow each other and which operands tie them together. The layout says whether
 * their bytes allow it. The device says, through `can`, whether it has a kernel for these shapes.
 *
 * Invariants of a fused run
 *  1. Its ops are neighbours on the tape and in the same part of it.
 *  2. No op of it writes bytes that another one reads or writes, but for results that are handed on inside the run. A
 *     result of the first op that nobody reads may lie on a later one's bytes: the kernel leaves it out then.
 *  3. A result that the pattern calls `inner` is read inside the run only, so that the kernel need not write it.
 */
#ifndef PLIM_PLAN_FUSE_H
#define PLIM_PLAN_FUSE_H

#include "plan/layout.h"

/* The longest pattern. */
enum { FUSE_MOST = 3 };

/* Returns true if the device has one kernel for ops [begin, begin + count). */
typedef bool fuse_can(void *arg, int begin, int count);

/* The index behind the longest fused run that begins at op `begin` and ends at `end` at the latest; begin + 1: none. */
int fuse_end(const struct tape *tape, const struct layout *layout, int begin, int end, fuse_can *can,
             void *arg);

#endif
