/* growing_file.c - see growing_file.h. */
#include "tell/growing_file.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum plim_status growing_file_open(struct growing_file *f, const char *path, struct plim_error *err)
{
    f->bytes = 0, f->fd = -1;
    if ((size_t)snprintf(f->path, sizeof f->path, "%s", path) >= sizeof f->path)
        return plim_fail(err, PLIM_IO, "%.100s...: the path is too long; choose a shorter folder", path);
    f->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0) return plim_fail(err, PLIM_IO, "%s: cannot be made: %s", path, strerror(errno));
    return PLIM_OK;
}

enum plim_status growing_file_add(struct growing_file *f, const void *bytes, size_t n, struct plim_error *err)
{
    enum plim_status status = file_pwrite_full(f->fd, bytes, n, f->bytes, f->path, err);
    if (status == PLIM_OK) f->bytes += n;
    /* Half a record would make a reader refuse the whole file; where not even this works, it stays. */
    if (status != PLIM_OK && ftruncate(f->fd, (off_t)f->bytes)) return status;
    return status;
}

void growing_file_close(struct growing_file *f)
{
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}
