/* disk_threads.c - pieces by threads that call pread and pwrite. See disk_engine.h. */
#include "exec/disk_engine.h"
#include "base/threads.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STACK_BYTES ((size_t)64 << 10)

/* Pieces in the order they came: taken <= given; what is done waits in a list of its own. */
struct threads_engine {
    struct disk_engine engine; /* first */
    struct disk_buffers buffers;
    pthread_t thread[DISK_DEPTH_MOST];
    int threads;
    pthread_mutex_t lock;
    pthread_cond_t more, fewer; /* a piece is given; a piece is done */
    struct disk_piece given[DISK_SLOTS_MOST];
    struct disk_done done[DISK_SLOTS_MOST];
    int first, ngiven, ndone;
    bool stop;
};

/* As many bytes as one call carries. */
static int64_t carry(const struct threads_engine *e, const struct disk_piece *p)
{
    char *buf = disk_piece_memory(&e->buffers, p);
    ssize_t n;
    do n = p->write ? pwrite(p->fd, buf, p->n, (off_t)p->offset) : pread(p->fd, buf, p->n, (off_t)p->offset);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

static void *carrier_main(void *arg)
{
    struct threads_engine *e = arg;
    pthread_mutex_lock(&e->lock);
    for (;;) {
        while (!e->ngiven && !e->stop) pthread_cond_wait(&e->more, &e->lock);
        if (!e->ngiven) break;
        struct disk_piece piece = e->given[e->first];
        e->first = (e->first + 1) % DISK_SLOTS_MOST, e->ngiven--;
        pthread_mutex_unlock(&e->lock);
        int64_t result = carry(e, &piece);
        pthread_mutex_lock(&e->lock);
        e->done[e->ndone++] = (struct disk_done){piece.slot, result};
        pthread_cond_signal(&e->fewer);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

static int threads_submit(struct disk_engine *engine, const struct disk_piece *piece)
{
    struct threads_engine *e = (struct threads_engine *)engine;
    pthread_mutex_lock(&e->lock);
    e->given[(e->first + e->ngiven++) % DISK_SLOTS_MOST] = *piece;
    pthread_cond_signal(&e->more);
    pthread_mutex_unlock(&e->lock);
    return 0;
}

static int threads_wait(struct disk_engine *engine, struct disk_done *out)
{
    struct threads_engine *e = (struct threads_engine *)engine;
    pthread_mutex_lock(&e->lock);
    while (!e->ndone) pthread_cond_wait(&e->fewer, &e->lock);
    *out = e->done[0];
    memmove(e->done, e->done + 1, (size_t)--e->ndone * sizeof *e->done);
    pthread_mutex_unlock(&e->lock);
    return 0;
}

static void threads_close(struct disk_engine *engine)
{
    struct threads_engine *e = (struct threads_engine *)engine;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_broadcast(&e->more);
    pthread_mutex_unlock(&e->lock);
    for (int i = 0; i < e->threads; i++) pthread_join(e->thread[i], NULL);
    pthread_cond_destroy(&e->more);
    pthread_cond_destroy(&e->fewer);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

static const struct disk_engine_ops ops = {"threads", threads_submit, threads_wait, threads_close};

struct disk_engine *disk_threads_open(const struct disk_buffers *buffers, struct plim_error *err)
{
    struct threads_engine *e = calloc(1, sizeof *e);
    if (!e) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while the disk tier was opened"), NULL;
    e->engine.ops = &ops, e->buffers = *buffers;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->more, NULL);
    pthread_cond_init(&e->fewer, NULL);
    for (int code = 0; e->threads < buffers->depth && !code;) {
        code = thread_begin(&e->thread[e->threads], STACK_BYTES, carrier_main, e);
        if (!code) e->threads++;
        if (code && !e->threads) { /* fewer will do */
            plim_fail(err, PLIM_NO_MEMORY, "cannot start a thread of the disk tier: %s", strerror(code));
            threads_close(&e->engine);
            return NULL;
        }
    }
    return &e->engine;
}
