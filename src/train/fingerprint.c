/* fingerprint.c - see fingerprint.h. */
#include "train/fingerprint.h"
#include "base/checksum.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static enum plim_status add_block(struct checksum *sum, int fd, const struct input_file *f, int64_t at,
                                  struct plim_error *err)
{
    char block[FINGERPRINT_BLOCK];
    int64_t n = f->bytes - at < FINGERPRINT_BLOCK ? f->bytes - at : FINGERPRINT_BLOCK;
    enum plim_status status = file_pread_full(fd, block, (size_t)n, (uint64_t)at, f->path, err);
    if (status == PLIM_OK) checksum_add(sum, block, (size_t)n);
    return status;
}

/* Blocks at 0, stride, 2 stride, ... and the last one. */
static enum plim_status add_file(struct checksum *sum, const struct input_file *f, int64_t stride,
                                 struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return plim_fail(err, PLIM_IO, "%s: cannot open: %s", f->path, strerror(errno));
    checksum_add(sum, &f->bytes, sizeof f->bytes);
    int64_t at = 0, last = f->bytes > FINGERPRINT_BLOCK ? f->bytes - FINGERPRINT_BLOCK : 0;
    for (; at < f->bytes && status == PLIM_OK; at += stride) status = add_block(sum, fd, f, at, err);
    if (stride > FINGERPRINT_BLOCK && status == PLIM_OK) status = add_block(sum, fd, f, last, err);
    close(fd);
    return status;
}

enum plim_status fingerprint_inputs(const struct inputs *in, uint64_t *out, struct plim_error *err)
{
    struct checksum sum;
    int64_t total = 0, stride = FINGERPRINT_BLOCK;
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < in->count; i++) total += in->file[i].bytes;
    if (total > FINGERPRINT_WHOLE) stride = total / FINGERPRINT_BLOCKS;
    checksum_begin(&sum, (uint64_t)in->count);
    for (int i = 0; i < in->count && status == PLIM_OK; i++)
        status = add_file(&sum, &in->file[i], stride, err);
    *out = checksum_end(&sum);
    return status;
}
