/* far.h - the disk tier: one unlinked scratch file, and a thread that reads ahead.
 *
 *     struct far_store *far;
 *     far_open("runs/small", bytes, &far, &err);      // room is allocated now, so a full disk is found now
 *     uint64_t ticket = far_read_ahead(far, buf, n, offset);
 *     ...
 *     far_wait(far, ticket, &err);                    // buf holds the bytes, or err says why not
 *     far_write(far, buf, n, offset, &err);
 *     far_close(far);
 *
 * Reads run in the order they were asked for. The file has no name once it is open: it goes with the process.
 */
#ifndef PLIM_EXEC_FAR_H
#define PLIM_EXEC_FAR_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

struct far_store;

enum plim_status far_open(const char *dir, uint64_t bytes, struct far_store **out, struct plim_error *err);
void far_close(struct far_store *far);

/* Make room for `bytes` in all; what is there stays. */
enum plim_status far_reserve(struct far_store *far, uint64_t bytes, struct plim_error *err);

uint64_t far_read_ahead(struct far_store *far, void *buf, size_t n, uint64_t offset);
enum plim_status far_wait(struct far_store *far, uint64_t ticket, struct plim_error *err);

enum plim_status far_write(struct far_store *far, const void *buf, size_t n, uint64_t offset,
                           struct plim_error *err);
enum plim_status far_read(struct far_store *far, void *buf, size_t n, uint64_t offset,
                          struct plim_error *err);

#endif
