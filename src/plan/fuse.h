/* fuse.h - neighbouring ops that a device may run as one.
 *
 *     for (int i = begin, next; i < end; i = next)
 *         next = fuse_end(&tape, &layout, i, end, can, arg);      // ops [i, next) are one launch
 *
 * A table of patterns says which kinds follow each other and which operands connect them. The layout says whether their
 * addresses allow it. The device says, through `can`, whether it has a kernel for these shapes.
 *
 * Invariants of a fused run
 *  1. Its ops are adjacent on the tape and in the same part of it.
 *  2. No op writes bytes that another one reads or writes, except results passed on inside the run. A result of the first op
 *     that nobody reads may share a later one's bytes: the kernel then omits it.
 *     A pattern without ties is of ops that a device runs side by side; it knows what they may pass on.
 *  3. Results that the pattern calls `inner` are read only inside the run, so the kernel need not write them.
 *  4. A result of the first op that the pattern calls `omits` and only the run reads may have bytes of later results and of the last op's
 *     scratch: the kernel then omits it.
 */
#pragma once

#include "plan/layout.h"

/* The longest pattern. */
enum { FUSE_MOST = 4 };

/* Returns true if the device has one kernel for ops [begin, begin + count). */
typedef bool fuse_can(void *arg, int begin, int count);

/* Most rows of the runs below that fuse_kept_apart names for few rows. */
enum { FUSE_FEW_ROWS = 8 };

/* Layouts give operands of some runs bytes of their own, because running them as one is worth the memory (layout.h). Returns the index after
 * the longest such run that begins at op `begin`; begin + 1: none. The runs are
 *
 *     norm or glu, linear_f8s that read its result
 *     split3, kv_put, attn_paged                   few rows
 *     norm, linear_q, linear_q, glu of both        few rows */
int fuse_kept_apart(const struct tape *tape, int begin);

/* The index after the longest fused run that begins at op `begin` and ends no later than `end`; begin + 1:
 * none. */
int fuse_end(const struct tape *tape, const struct layout *layout, int begin, int end, fuse_can *can,
             void *arg);
