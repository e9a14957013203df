/* disk_engine.h - who carries pieces between a file and the buffers of the disk tier: io_uring, or threads with pread and
 * pwrite.
 *
 *     struct disk_buffers buffers = {base, 256 << 10, 4};          // four pieces under way at most
 *     struct disk_engine *engine = disk_uring_open(&buffers, why, sizeof why);
 *     if (!engine) engine = disk_threads_open(&buffers, &err);     // `why` says what io_uring was refused for
 *     engine->ops->submit(engine, &(struct disk_piece){.fd = fd, .slot = 2, .n = n, .offset = at});
 *     engine->ops->wait(engine, &done);                            // done.slot, and bytes or -errno
 *     engine->ops->close(engine);
 *
 * A piece is read into, or written from, the buffer of its slot or memory of the caller's; a slot has one piece under way at
 * most. Behind those with a buffer come DISK_BARE slots for pieces that need none: they take no memory, so there are enough of them
 * to keep a disk busy while whoever submits waits for a processor. Pieces end in any order: whoever submits two that touch the same bytes of the
 * file waits for the first. One thread calls these.
 */
#pragma once

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DISK_DEPTH_MOST = 32, DISK_BARE = 16, DISK_SLOTS_MOST = DISK_DEPTH_MOST + DISK_BARE };

/* The memory that pieces go through: for each of the first `depth` slots `piece` bytes, from a page's beginning on. */
struct disk_buffers {
    char *base;
    size_t piece;
    int depth;
};

struct disk_piece {
    int fd, slot;
    bool write;
    size_t n;
    uint64_t offset;
    void *memory; /* NULL: the slot's buffer */
};

static inline char *disk_piece_memory(const struct disk_buffers *b, const struct disk_piece *p)
{
    return p->memory ? p->memory : b->base + (size_t)p->slot * b->piece;
}

struct disk_done {
    int slot;
    int64_t result; /* bytes, or -errno */
};

struct disk_engine {
    const struct disk_engine_ops *ops;
};

struct disk_engine_ops {
    const char *name;
    /* 0, or errno: nothing is under way then. */
    int (*submit)(struct disk_engine *, const struct disk_piece *piece);
    /* The next piece that is done; something must be under way. 0, or errno: the engine is broken. */
    int (*wait)(struct disk_engine *, struct disk_done *out);
    /* Nothing may be under way. */
    void (*close)(struct disk_engine *);
};

/* NULL: `why` says what is missing (this build's liburing, the kernel's leave). The buffers are registered where the system
 * lets so much memory be locked. */
struct disk_engine *disk_uring_open(const struct disk_buffers *buffers, char *why, size_t size);

/* As many threads as buffers. NULL: PLIM_NO_MEMORY. */
struct disk_engine *disk_threads_open(const struct disk_buffers *buffers, struct plim_error *err);
