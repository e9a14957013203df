/* far.c - see far.h. Reads and writes are two lanes, each a ring of requests and a thread that does them in order. */
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

enum { READS, WRITES, LANES };

struct request {
    void *to;         /* of a read, else NULL */
    const void *from; /* of a write, else NULL */
    size_t n;
    uint64_t offset;
    uint64_t
        after; /* begins when the other lane has done so many: those with bytes of this one, asked for before it */
};

struct lane {
    struct far_store *far;
    pthread_t thread;
    bool started;
    struct request ring[RING];
    uint64_t asked, done; /* request t is ring[t % RING], finished when done > t */
};

struct far_store {
    int fd;
    char path[512];
    uint64_t bytes; /* allocated */
    pthread_mutex_t lock;
    pthread_cond_t moved;
    struct lane lanes[LANES];
    bool stop;
    struct plim_error failure; /* the first one, kept */
};

static struct lane *other(struct lane *lane) { return &lane->far->lanes[lane == lane->far->lanes]; }

static enum plim_status copy(struct far_store *far, const struct request *r, struct plim_error *err)
{
    return r->to ? file_pread_full(far->fd, r->to, r->n, r->offset, far->path, err)
                 : file_pwrite_full(far->fd, r->from, r->n, r->offset, far->path, err);
}

static void *lane_main(void *arg)
{
    struct lane *lane = arg;
    struct far_store *far = lane->far;
    pthread_mutex_lock(&far->lock);
    for (;;) {
        while (lane->done == lane->asked && !far->stop) pthread_cond_wait(&far->moved, &far->lock);
        if (lane->done == lane->asked) break;
        struct request r = lane->ring[lane->done % RING];
        while (other(lane)->done < r.after) pthread_cond_wait(&far->moved, &far->lock);
        pthread_mutex_unlock(&far->lock);
        struct plim_error err = {0};
        enum plim_status status = copy(far, &r, &err);
        pthread_mutex_lock(&far->lock);
        if (status != PLIM_OK && far->failure.status == PLIM_OK) far->failure = err;
        lane->done++;
        pthread_cond_broadcast(&far->moved);
    }
    pthread_mutex_unlock(&far->lock);
    return NULL;
}

static enum plim_status start_lanes(struct far_store *far, struct plim_error *err)
{
    for (int i = 0; i < LANES; i++) {
        struct lane *lane = &far->lanes[i];
        lane->far = far;
        int rc = thread_begin(&lane->thread, STACK_BYTES, lane_main, lane);
        if (rc)
            return plim_fail(err, PLIM_NO_MEMORY, "cannot start a thread of the disk tier: %s", strerror(rc));
        lane->started = true;
    }
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
    if (status == PLIM_OK) status = start_lanes(far, err);
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
    pthread_mutex_lock(&far->lock);
    far->stop = true;
    pthread_cond_broadcast(&far->moved);
    pthread_mutex_unlock(&far->lock);
    for (int i = 0; i < LANES; i++)
        if (far->lanes[i].started) pthread_join(far->lanes[i].thread, NULL);
    if (far->fd >= 0) close(far->fd);
    pthread_cond_destroy(&far->moved);
    pthread_mutex_destroy(&far->lock);
    free(far);
}

/* How much of a lane must be done before these bytes are nobody's there. */
static uint64_t last_of(const struct lane *lane, const struct request *r)
{
    for (uint64_t t = lane->asked; t > lane->done; t--) {
        const struct request *its = &lane->ring[(t - 1) % RING];
        if (its->offset < r->offset + r->n && r->offset < its->offset + its->n) return t;
    }
    return 0;
}

static uint64_t ask(struct far_store *far, int which, struct request r)
{
    struct lane *lane = &far->lanes[which];
    pthread_mutex_lock(&far->lock);
    while (lane->asked - lane->done >= RING) pthread_cond_wait(&far->moved, &far->lock);
    r.after = last_of(other(lane), &r);
    uint64_t ticket = lane->asked++;
    lane->ring[ticket % RING] = r;
    pthread_cond_broadcast(&far->moved);
    pthread_mutex_unlock(&far->lock);
    return ticket * LANES + (uint64_t)which;
}

uint64_t far_read_ahead(struct far_store *far, void *buf, size_t n, uint64_t offset)
{
    return ask(far, READS, (struct request){.to = buf, .n = n, .offset = offset});
}

uint64_t far_write_behind(struct far_store *far, const void *buf, size_t n, uint64_t offset)
{
    return ask(far, WRITES, (struct request){.from = buf, .n = n, .offset = offset});
}

enum plim_status far_wait(struct far_store *far, uint64_t ticket, struct plim_error *err)
{
    const struct lane *lane = &far->lanes[ticket % LANES];
    pthread_mutex_lock(&far->lock);
    while (lane->done <= ticket / LANES) pthread_cond_wait(&far->moved, &far->lock);
    struct plim_error failure = far->failure;
    pthread_mutex_unlock(&far->lock);
    if (failure.status != PLIM_OK && err) *err = failure;
    return failure.status;
}

enum plim_status far_write(struct far_store *far, const void *buf, size_t n, uint64_t offset,
                           struct plim_error *err)
{
    return far_wait(far, far_write_behind(far, buf, n, offset), err);
}

enum plim_status far_read(struct far_store *far, void *buf, size_t n, uint64_t offset, struct plim_error *err)
{
    return far_wait(far, far_read_ahead(far, buf, n, offset), err);
}
