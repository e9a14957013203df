/* disk.c - see disk.h. A ring of requests, one reader thread. */
#include "exec/disk.h"
#include "base/file.h"
#include "base/threads.h"
#include "mem/ledger.h"

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

struct disk_store {
    int fd;
    char path[512];
    uint64_t bytes; /* allocated */
    struct ledger *ledger;
    int cls;
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
    struct disk_store *disk = arg;
    pthread_mutex_lock(&disk->lock);
    for (;;) {
        while (disk->done == disk->asked && !disk->stop) pthread_cond_wait(&disk->moved, &disk->lock);
        if (disk->done == disk->asked) break;
        struct request r = disk->ring[disk->done % RING];
        pthread_mutex_unlock(&disk->lock);
        struct plim_error err = {0};
        enum plim_status status = file_pread_full(disk->fd, r.buf, r.n, r.offset, disk->path, &err);
        pthread_mutex_lock(&disk->lock);
        if (status != PLIM_OK && disk->failure.status == PLIM_OK) disk->failure = err;
        disk->done++;
        pthread_cond_broadcast(&disk->moved);
    }
    pthread_mutex_unlock(&disk->lock);
    return NULL;
}

static enum plim_status start_reader(struct disk_store *disk, struct plim_error *err)
{
    int rc = thread_begin(&disk->reader, STACK_BYTES, reader_main, disk);
    if (rc) return plim_fail(err, PLIM_NO_MEMORY, "cannot start the read-ahead thread: %s", strerror(rc));
    disk->has_reader = true;
    return PLIM_OK;
}

static enum plim_status grow(struct disk_store *disk, uint64_t bytes, struct plim_error *err)
{
    uint64_t more = bytes - disk->bytes;
    enum plim_status status = disk->ledger ? ledger_reserve(disk->ledger, disk->cls, more, err) : PLIM_OK;
    if (status != PLIM_OK) return status;
    int rc = posix_fallocate(disk->fd, 0, (off_t)bytes);
    if (!rc) return disk->bytes = bytes, PLIM_OK;
    if (disk->ledger) ledger_release(disk->ledger, disk->cls, more);
    return plim_fail(err, PLIM_IO, "%s: no room for %llu bytes of the disk tier: %s", disk->path,
                     (unsigned long long)bytes, strerror(rc));
}

enum plim_status disk_resize(struct disk_store *disk, uint64_t bytes, struct plim_error *err)
{
    if (bytes > disk->bytes) return grow(disk, bytes, err);
    if (bytes == disk->bytes) return PLIM_OK;
    if (ftruncate(disk->fd, (off_t)bytes))
        return plim_fail(err, PLIM_IO, "%s: cannot shorten the disk tier: %s", disk->path, strerror(errno));
    if (disk->ledger) ledger_release(disk->ledger, disk->cls, disk->bytes - bytes);
    disk->bytes = bytes;
    return PLIM_OK;
}

enum plim_status disk_open(const char *dir, uint64_t bytes, struct ledger *ledger, int cls,
                           struct disk_store **out, struct plim_error *err)
{
    struct disk_store *disk = calloc(1, sizeof *disk);
    if (!disk) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while the disk tier was opened");
    pthread_mutex_init(&disk->lock, NULL);
    pthread_cond_init(&disk->moved, NULL);
    disk->fd = -1, disk->ledger = ledger, disk->cls = cls;
    snprintf(disk->path, sizeof disk->path, "%s/.disk-XXXXXX", dir);
    enum plim_status status = file_make_dirs(dir, err);
    if (status == PLIM_OK) {
        disk->fd = mkstemp(disk->path);
        if (disk->fd < 0)
            status =
                plim_fail(err, PLIM_IO, "%s: cannot create the disk tier: %s", disk->path, strerror(errno));
        else
            unlink(disk->path);
    }
    if (status == PLIM_OK) status = disk_resize(disk, bytes, err);
    if (status == PLIM_OK) status = start_reader(disk, err);
    if (status != PLIM_OK) {
        disk_close(disk);
        return status;
    }
    *out = disk;
    return PLIM_OK;
}

void disk_close(struct disk_store *disk)
{
    if (!disk) return;
    if (disk->has_reader) {
        pthread_mutex_lock(&disk->lock);
        disk->stop = true;
        pthread_cond_broadcast(&disk->moved);
        pthread_mutex_unlock(&disk->lock);
        pthread_join(disk->reader, NULL);
    }
    if (disk->fd >= 0) close(disk->fd);
    if (disk->ledger) ledger_release(disk->ledger, disk->cls, disk->bytes);
    pthread_cond_destroy(&disk->moved);
    pthread_mutex_destroy(&disk->lock);
    free(disk);
}

uint64_t disk_prefetch(struct disk_store *disk, void *buf, size_t n, uint64_t offset)
{
    pthread_mutex_lock(&disk->lock);
    while (disk->asked - disk->done >= RING) pthread_cond_wait(&disk->moved, &disk->lock);
    uint64_t ticket = disk->asked++;
    disk->ring[ticket % RING] = (struct request){buf, n, offset};
    pthread_cond_broadcast(&disk->moved);
    pthread_mutex_unlock(&disk->lock);
    return ticket;
}

enum plim_status disk_wait(struct disk_store *disk, uint64_t ticket, struct plim_error *err)
{
    pthread_mutex_lock(&disk->lock);
    while (disk->done <= ticket) pthread_cond_wait(&disk->moved, &disk->lock);
    struct plim_error failure = disk->failure;
    pthread_mutex_unlock(&disk->lock);
    if (failure.status != PLIM_OK && err) *err = failure;
    return failure.status;
}

enum plim_status disk_write(struct disk_store *disk, const void *buf, size_t n, uint64_t offset,
                            struct plim_error *err)
{
    return file_pwrite_full(disk->fd, buf, n, offset, disk->path, err);
}

enum plim_status disk_read(struct disk_store *disk, void *buf, size_t n, uint64_t offset,
                           struct plim_error *err)
{
    return disk_wait(disk, disk_prefetch(disk, buf, n, offset), err);
}
