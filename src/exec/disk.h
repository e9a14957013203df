/* disk.h - the disk tier: one unlinked scratch file, and a thread that carries bytes between it and memory.
 *
 *     struct disk_store *disk;
 *     struct disk_options options = {.ledger = &ledger, .cls = cls};
 *     disk_open("runs/small", bytes, &options, &disk, &err); // room is allocated now, so a full disk is found now
 *     uint64_t ticket = disk_prefetch(disk, buf, n, offset);
 *     ...
 *     disk_wait(disk, ticket, &err);                    // buf holds the bytes, or err says why not
 *     disk_write(disk, buf, n, offset, &err);           // buf is the caller's again; the bytes are on their way
 *     disk_close(disk);
 *
 * Any offset and length is allowed. A read sees all writes requested before it. Bytes pass through `depth` buffers of
 * `piece` bytes, so that I/O bypasses the page cache and several pieces are in flight. Memory aligned as the disk
 * requires (DISK_MEMORY suffices for most) needs no buffer for reads and for writes behind. Failures are sticky:
 * every later call reports them, and so a failed background write is noticed.
 *
 * The file is unlinked after opening, so it disappears with the process. The ledger, if there is one, carries exactly
 * the file's bytes and is asked before the disk. The caller counts the buffers (disk_buffer_bytes).
 */
#pragma once

#include "base/clock.h"
#include "base/status.h"
#include "plan/facts.h" /* DISK_BLOCK, DISK_DEPTH, DISK_PIECE, DISK_MEMORY, DISK_SMALL */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct disk_store;
struct ledger;

struct disk_options {
    struct ledger *ledger; /* may be NULL */
    int cls;
    int depth;      /* maximum pieces in flight; 0: DISK_DEPTH */
    size_t piece;   /* bytes of one, whole pages; 0: DISK_PIECE */
    bool no_uring;  /* use threads even if the kernel has io_uring */
    bool no_direct; /* through the page cache */
};

/* PLIM_NO_MEMORY: the ledger refuses. PLIM_IO: the disk does. */
enum plim_status disk_open(const char *dir, uint64_t bytes, const struct disk_options *options,
                           struct disk_store **out, struct plim_error *err);
void disk_close(struct disk_store *disk);

/* "io_uring with registered buffers, 4 x 512 KiB", "threads, 4 x 512 KiB, through the page cache (io_uring: Operation not
 * permitted)" */
const char *disk_describe(const struct disk_store *disk);

/* Frees the store's buffers and thread until disk_wake, which allocates buffers of this size; the file keeps its
 * bytes. Only the size of a resting store may be read. NULL: no store, no effect. */
enum plim_status disk_rest(struct disk_store *disk, struct plim_error *err);
enum plim_status disk_wake(struct disk_store *disk, int depth, size_t piece, struct plim_error *err);
size_t disk_held(const struct disk_store *disk); /* bytes of its buffers now */

/* Memory that a store of these options takes for its buffers. */
size_t disk_buffer_bytes(int depth, size_t piece);

/* Resizes the file; contents below both sizes stay. On an error nothing changes. No read may be in flight. */
enum plim_status disk_resize(struct disk_store *disk, uint64_t bytes, struct plim_error *err);

uint64_t disk_prefetch(struct disk_store *disk, void *buf, size_t n, uint64_t offset);
enum plim_status disk_wait(struct disk_store *disk, uint64_t ticket, struct plim_error *err);

enum plim_status disk_write(struct disk_store *disk, const void *buf, size_t n, uint64_t offset,
                            struct plim_error *err);
/* Writes directly from buf, which must not change until disk_wait of the ticket returns. */
uint64_t disk_write_behind(struct disk_store *disk, const void *buf, size_t n, uint64_t offset);
/* The next request sets *when once it has ended, at the latest in disk_settle. Requests may overlap. */
void disk_time_next(struct disk_store *disk, struct clock_span *when);
enum plim_status disk_read(struct disk_store *disk, void *buf, size_t n, uint64_t offset,
                           struct plim_error *err);

/* Statistics of a store since it was opened. */
struct disk_use {
    uint64_t read, written; /* bytes asked for */
    uint64_t copied;        /* part of them that went through buffers or the page cache */
    double idle;            /* seconds without any I/O */
    double waited;          /* seconds that callers waited */
};
struct disk_use disk_use_of(struct disk_store *disk);

/* Waits until every written byte is in the file. */
enum plim_status disk_settle(struct disk_store *disk, struct plim_error *err);
