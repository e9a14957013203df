/* far.c - see far.h. A ring of requests, one reader thread. */
#include "exec/far.h"
#include "base/file.h"
#include "base/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RING        32
#define STACK_BYTES ((size_t)128 << 10)

struct request {
    void *buf;
    size_t n;
    uint64_t offset;
};

struct far_store {
    int fd;
    char path[512];
    uint64_t bytes; /* allocated */
    pthread_t reader;
    bool has_reader;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    struct request ring[RING];
    uint64_t asked, done; /* tickets: request t is ring[t % RING], finished when done > t */
    bool stop;
    struct plim_error failure; /* the first one, kept */
};

static void *reader_main(void *arg)
{
    struct far_store *far = arg;
    pthread_mutex_lock(&far->lock);
    for (;;) {
        while (far->done == far->asked && !far->stop) pthread_cond_wait(&far->moved, &far->lock);
        if (far->done == far->asked) break;
        struct request r = far->ring[far->done % RING];
        pthread_mutex_unlock(&far->lock);
        struct plim_error err = {0};
        enum plim_status status = file_pread_full(far->fd, r.buf, r.n, r.offset, far->path, &err);
        pthread_mutex_lock(&far->lock);
        if (status != PLIM_OK && far->failure.status == PLIM_OK) far->failure = err;
        far->done++;
        pthread_cond_broadcast(&far->moved);
    }
    pthread_mutex_unlock(&far->lock);
    return NULL;
}

static enum plim_status start_reader(struct far_store *far, struct plim_error *err)
{
    int rc = thread_begin(&far->reader, STACK_BYTES, reader_main, far);
    if (rc) return plim_fail(err, PLIM_NO_MEMORY, "cannot start the read-ahead thread: %s", strerror(rc));
    far->has_reader = true;
    return PLIM_OK;
}

enum plim_status far_reserve(struct far_store *far, uint64_t bytes, struct plim_error *err)
{
    if (bytes <= far->bytes) return PLIM_OK;
    int rc = posix_fallocate(far->fd, 0, (off_t)bytes);
    if (rc)
        return plim_fail(err, PLIM_IO, "%s: no room for %llu bytes of the disk tier: %s", far->path,
                         (unsigned long long)bytes, strerror(rc));
    far->bytes = bytes;
    return PLIM_OK;
}

enum plim_status far_open(const char *dir, uint64_t bytes, struct far_store **out, struct plim_error *err)
{
    struct far_store *far = calloc(1, sizeof *far);
    if (!far) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while the disk tier was opened");
    pthread_mutex_init(&far->lock, NULL);
    pthread_cond_init(&far->moved, NULL);
    far->fd = -1;
    snprintf(far->path, sizeof far->path, "%s/.far-XXXXXX", dir);
    enum plim_status status = file_make_dirs(dir, err);
    if (status == PLIM_OK) {
        far->fd = mkstemp(far->path);
        if (far->fd < 0)
            status =
                plim_fail(err, PLIM_IO, "%s: cannot create the disk tier: %s", far->path, strerror(errno));
        else
            unlink(far->path);
    }
    if (status == PLIM_OK) status = far_reserve(far, bytes, err);
    if (status == PLIM_OK) status = start_reader(far, err);
    if (status != PLIM_OK) {
        far_close(far);
        return status;
    }
    *out = far;
    return PLIM_OK;
}

void far_close(struct far_store *far)
{
    if (!far) return;
    if (far->has_reader) {
        pthread_mutex_lock(&far->lock);
        far->stop = true;
        pthread_cond_broadcast(&far->moved);
        pthread_mutex_unlock(&far->lock);
        pthread_join(far->reader, NULL);
    }
    if (far->fd >= 0) close(far->fd);
    pthread_cond_destroy(&far->moved);
    pthread_mutex_destroy(&far->lock);
    free(far);
}

uint64_t far_read_ahead(struct far_store *far, void *buf, size_t n, uint64_t offset)
{
    pthread_mutex_lock(&far->lock);
    while (far->asked - far->done >= RING) pthread_cond_wait(&far->moved, &far->lock);
    uint64_t ticket = far->asked++;
    far->ring[ticket % RING] = (struct request){buf, n, offset};
    pthread_cond_broadcast(&far->moved);
    pthread_mutex_unlock(&far->lock);
    return ticket;
}

enum plim_status far_wait(struct far_store *far, uint64_t ticket, struct plim_error *err)
{
    pthread_mutex_lock(&far->lock);
    while (far->done <= ticket) pthread_cond_wait(&far->moved, &far->lock);
    struct plim_error failure = far->failure;
    pthread_mutex_unlock(&far->lock);
    if (failure.status != PLIM_OK && err) *err = failure;
    return failure.status;
}

enum plim_status far_write(struct far_store *far, const void *buf, size_t n, uint64_t offset,
                           struct plim_error *err)
{
    return file_pwrite_full(far->fd, buf, n, offset, far->path, err);
}

enum plim_status far_read(struct far_store *far, void *buf, size_t n, uint64_t offset, struct plim_error *err)
{
    return far_wait(far, far_read_ahead(far, buf, n, offset), err);
}
