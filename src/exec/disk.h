/* disk.h - the disk tier: one unlinked scratch file, and a thread that reads ahead.
 *
 *     struct disk_store *disk;
 *     disk_open("runs/small", bytes, &ledger, cls, &disk, &err); // room is allocated now, so a full disk is found now
 *     uint64_t ticket = disk_prefetch(disk, buf, n, offset);
 *     ...
 *     disk_wait(disk, ticket, &err);                    // buf holds the bytes, or err says why not
 *     disk_write(disk, buf, n, offset, &err);
 *     disk_close(disk);
 *
 * Reads run in the order they were asked for. The file has no name once it is open: it goes with the process. The ledger,
 * when there is one, carries exactly the bytes of the file; it is asked before the disk is.
 */
#ifndef PLIM_EXEC_DISK_H
#define PLIM_EXEC_DISK_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

struct disk_store;
struct ledger;

/* ledger may be NULL. PLIM_NO_MEMORY: the ledger refuses. PLIM_IO: the disk does. */
enum plim_status disk_open(const char *dir, uint64_t bytes, struct ledger *ledger, int cls,
                           struct disk_store **out, struct plim_error *err);
void disk_close(struct disk_store *disk);

/* The file is `bytes` long from now on; what is below both sizes stays. On an error it is as before. No read may be under
 * way. */
enum plim_status disk_resize(struct disk_store *disk, uint64_t bytes, struct plim_error *err);

uint64_t disk_prefetch(struct disk_store *disk, void *buf, size_t n, uint64_t offset);
enum plim_status disk_wait(struct disk_store *disk, uint64_t ticket, struct plim_error *err);

enum plim_status disk_write(struct disk_store *disk, const void *buf, size_t n, uint64_t offset,
                            struct plim_error *err);
enum plim_status disk_read(struct disk_store *disk, void *buf, size_t n, uint64_t offset,
                           struct plim_error *err);

#endif
