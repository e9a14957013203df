/* disk_uring_absent.c - in the stead of disk_uring.c where this program was built without liburing. */
#include "exec/disk_engine.h"

#include <stdio.h>

struct disk_engine *disk_uring_open(const struct disk_buffers *, char *why, size_t size)
{
    snprintf(why, size, "this program was built without liburing");
    return NULL;
}
