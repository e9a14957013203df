/* disk.h - the disk tier: one unlinked scratch file, and a thread that reads ahead.
 *
 *     struct disk_store *disk;
 *     disk_open("runs/small", bytes, &disk, &err);      // room is allocated now, so a full disk is found now
 *     uint64_t ticket = disk_prefetch(disk, buf, n, offset);
 *     ...
 *     disk_wait(disk, ticket, &err);                    // buf holds the bytes, or err says why not
 *     disk_write(disk, buf, n, offset, &err);
 *     disk_close(disk);
 *
 * Reads run in the order they were asked for. The file has no name once it is open: it goes with the process.
 */
#ifndef PLIM_EXEC_DISK_H
#define PLIM_EXEC_DISK_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

struct disk_store;

enum plim_status disk_open(const char *dir, uint64_t bytes, struct disk_store **out, struct plim_error *err);
void disk_close(struct disk_store *disk);

/* Make room for `bytes` in all; what is there stays. */
enum plim_status disk_reserve(struct disk_store *disk, uint64_t bytes, struct plim_error *err);

uint64_t disk_prefetch(struct disk_store *disk, void *buf, size_t n, uint64_t offset);
enum plim_status disk_wait(struct disk_store *disk, uint64_t ticket, struct plim_error *err);

enum plim_status disk_write(struct disk_store *disk, const void *buf, size_t n, uint64_t offset,
                            struct plim_error *err);
enum plim_status disk_read(struct disk_store *disk, void *buf, size_t n, uint64_t offset,
                           struct plim_error *err);

#endif
