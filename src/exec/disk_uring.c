/* disk_uring.c - pieces by io_uring. See disk_engine.h.
 *
 * With registered buffers the kernel keeps their pages mapped instead of looking them up for every piece. Registering counts
 * against what a process may lock; where that is too little, pieces are read and written as ordinary memory. */
#define _GNU_SOURCE
#include "exec/disk_engine.h"

#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

struct uring_engine {
    struct disk_engine engine; /* first */
    struct disk_buffers buffers;
    struct io_uring ring;
    bool registered;
};

static void prepare(const struct uring_engine *e, struct io_uring_sqe *sqe, const struct disk_piece *p)
{
    char *buf = disk_piece_memory(&e->buffers, p);
    unsigned n = (unsigned)p->n;
    bool registered = e->registered && !p->memory;
    if (registered && p->write)
        io_uring_prep_write_fixed(sqe, p->fd, buf, n, p->offset, p->slot);
    else if (registered)
        io_uring_prep_read_fixed(sqe, p->fd, buf, n, p->offset, p->slot);
    else if (p->write)
        io_uring_prep_write(sqe, p->fd, buf, n, p->offset);
    else
        io_uring_prep_read(sqe, p->fd, buf, n, p->offset);
    io_uring_sqe_set_data64(sqe, (unsigned long long)p->slot);
}

static int uring_submit(struct disk_engine *engine, const struct disk_piece *piece)
{
    struct uring_engine *e = (struct uring_engine *)engine;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&e->ring);
    if (!sqe) return EBUSY; /* there are as many entries as slots */
    prepare(e, sqe, piece);
    int code;
    do code = io_uring_submit(&e->ring);
    while (code == -EINTR || code == -EAGAIN);
    return code < 0 ? -code : 0;
}

static int uring_wait(struct disk_engine *engine, struct disk_done *out)
{
    struct uring_engine *e = (struct uring_engine *)engine;
    struct io_uring_cqe *cqe = NULL;
    int code;
    do code = io_uring_wait_cqe(&e->ring, &cqe);
    while (code == -EINTR || code == -EAGAIN);
    if (code < 0) return -code;
    *out = (struct disk_done){(int)io_uring_cqe_get_data64(cqe), cqe->res};
    io_uring_cqe_seen(&e->ring, cqe);
    return 0;
}

static void uring_close(struct disk_engine *engine)
{
    struct uring_engine *e = (struct uring_engine *)engine;
    io_uring_queue_exit(&e->ring);
    free(e);
}

static const struct disk_engine_ops ops[2] = {
    {"io_uring", uring_submit, uring_wait, uring_close},
    {"io_uring with registered buffers", uring_submit, uring_wait, uring_close},
};

static bool register_buffers(struct uring_engine *e)
{
    struct iovec list[DISK_DEPTH_MOST];
    for (int i = 0; i < e->buffers.depth; i++)
        list[i] = (struct iovec){e->buffers.base + (size_t)i * e->buffers.piece, e->buffers.piece};
    return io_uring_register_buffers(&e->ring, list, (unsigned)e->buffers.depth) == 0;
}

struct disk_engine *disk_uring_open(const struct disk_buffers *buffers, char *why, size_t size)
{
    struct uring_engine *e = calloc(1, sizeof *e);
    int code = e ? io_uring_queue_init((unsigned)buffers->depth + DISK_BARE, &e->ring, 0) : -ENOMEM;
    if (code < 0) {
        snprintf(why, size, "io_uring: %s", strerror(-code));
        free(e);
        return NULL;
    }
    e->buffers = *buffers;
    e->registered = register_buffers(e);
    e->engine.ops = &ops[e->registered];
    return &e->engine;
}
