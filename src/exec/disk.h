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
 * Any offset and length will do. Every read comes after the writes asked for before it. Bytes go through `depth` buffers of
 * `piece` bytes, so that the file is read and written past the page cache and several pieces are under way at once; what is read, or
 * written behind, in memory that is aligned as the disk wants it (DISK_MEMORY does for most) needs no buffer. What
 * fails is kept: from then on every call says so, and that is how a write that failed on its way is told.
 *
 * The file has no name once it is open: it goes with the process. The ledger, when there is one, carries exactly the bytes
 * of the file; it is asked before the disk is. The buffers, disk_buffer_bytes, are the caller's to count.
 */
#ifndef PLIM_EXEC_DISK_H
#define PLIM_EXEC_DISK_H

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
    int depth;      /* pieces under way at most; 0: DISK_DEPTH */
    size_t piece;   /* bytes of one, whole pages; 0: DISK_PIECE */
    bool no_uring;  /* threads, whether the kernel has io_uring or not */
    bool no_direct; /* through the page cache */
};

/* PLIM_NO_MEMORY: the ledger refuses. PLIM_IO: the disk does. */
enum plim_status disk_open(const char *dir, uint64_t bytes, const struct disk_options *options,
                           struct disk_store **out, struct plim_error *err);
void disk_close(struct disk_store *disk);

/* "io_uring with registered buffers, 4 x 512 KiB", "threads, 4 x 512 KiB, through the page cache (io_uring: Operation not
 * permitted)" */
const char *disk_describe(const struct disk_store *disk);

/* Gives the store's memory back, buffers and thread, until disk_wake, which takes buffers of this size; the file keeps its bytes.
 * Nothing may be asked of a store at rest but its size. NULL: there is no store, and nothing happens. */
enum plim_status disk_rest(struct disk_store *disk, struct plim_error *err);
enum plim_status disk_wake(struct disk_store *disk, int depth, size_t piece, struct plim_error *err);
size_t disk_held(const struct disk_store *disk); /* bytes of its buffers now */

/* Memory that a store of these options takes for its buffers. */
size_t disk_buffer_bytes(int depth, size_t piece);

/* The file is `bytes` long from now on; what is below both sizes stays. On an error it is as before. No read may be under
 * way. */
enum plim_status disk_resize(struct disk_store *disk, uint64_t bytes, struct plim_error *err);

uint64_t disk_prefetch(struct disk_store *disk, void *buf, size_t n, uint64_t offset);
enum plim_status disk_wait(struct disk_store *disk, uint64_t ticket, struct plim_error *err);

enum plim_status disk_write(struct disk_store *disk, const void *buf, size_t n, uint64_t offset,
                            struct plim_error *err);
/* Written from where it is, as a read is read: buf must stay as it is until disk_wait of the ticket returns. */
uint64_t disk_write_behind(struct disk_store *disk, const void *buf, size_t n, uint64_t offset);
enum plim_status disk_read(struct disk_store *disk, void *buf, size_t n, uint64_t offset,
                           struct plim_error *err);

/* Statistics of a store since it was opened. */
struct disk_use {
    uint64_t read, written; /* bytes asked for */
    uint64_t copied;        /* of them, through buffers or the page cache */
    double idle;            /* seconds in which nothing was under way */
    double waited;          /* seconds in which callers waited for it */
};
struct disk_use disk_use_of(struct disk_store *disk);

/* Every byte that was written is in the file. */
enum plim_status disk_settle(struct disk_store *disk, struct plim_error *err);

#endif
