/* plimsoll/pack.h - places in one arena for blocks whose lifetimes are known.
 *
 *     struct plim_interval blocks[] = {{0, 4, 1 << 20, 0}, {2, 6, 1 << 20, 0}, {4, 8, 1 << 20, 0}};
 *     uint64_t height;
 *     plim_pack(blocks, 3, 512, &height, &err);        // blocks[i].offset; height: bytes of the arena
 */
#ifndef PLIMSOLL_PACK_H
#define PLIMSOLL_PACK_H

#include <plimsoll/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A block lives in the half-open time [born, died). */
struct plim_interval {
    int64_t born, died;
    uint64_t bytes;
    uint64_t offset; /* out */
};

/* Blocks that live at the same time do not overlap, and the arena is as small as a quick search finds: on training steps nearly
 * always the peak of live bytes, below which nothing can go. Offsets and sizes are multiples of `align`; 0: of 1. The same blocks
 * always get the same offsets. */
PLIM_API enum plim_status plim_pack(struct plim_interval *blocks, size_t count, uint64_t align, uint64_t *height,
                                    struct plim_error *err);

#ifdef __cplusplus
}
#endif
#endif
