/* disk.c - see disk.h. A ring of requests, and one thread, the mover, that cuts them into pieces for the engine (disk_engine.h)
 * and copies bytes between the callers' memory and the buffers that it reads into and writes from. Where the disk can reach memory
 * itself, and it stays as it is until the request has ended, nothing is copied: on a machine whose processors compute, the copies are what a fast disk waits for.
 *
 * Invariants
 *  1. Requests begin in the order they were asked for. A piece begins when no piece under way that writes touches its
 *     blocks, and a piece that writes when none at all does.
 *  2. Through the direct descriptor only whole blocks are read and written. The ends of a request that are not whole blocks
 *     go through the page cache, and so do small requests: the kernel keeps the two in step, and what is always read and
 *     written in parts of a block stays in the cache and costs no disk access.
 *  3. What an engine leaves over of a piece (a short read, an interrupted write) is carried through the page cache, where a
 *     failure has words.
 *  4. The first failure is kept and told by every call; pieces of later requests are not begun, their requests just end. */
#define _GNU_SOURCE
#include "exec/disk.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/minmax.h"
#include "base/threads.h"
#include "exec/disk_engine.h"
#include "mem/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RING        32
#define STACK_BYTES ((size_t)128 << 10)

struct request {
    char *buf;
    size_t n, begun, ended; /* bytes of it: all, in pieces that have begun, in pieces that are done */
    uint64_t offset;
    bool write;
    bool stays; /* the memory is as it is until the request has ended */
    double began;
    struct clock_span *when; /* wants to know; may be NULL */
};

/* A piece under way. */
struct slot {
    bool busy;
    uint64_t ticket;
    char *user; /* where its bytes belong */
    struct disk_piece piece;
};

struct disk_store {
    int fd, direct; /* the same file through the page cache and, or -1, past it */
    char path[512], words[256], why[128];
    uint64_t bytes; /* allocated */
    struct ledger *ledger;
    int cls;
    struct disk_engine *engine;
    struct disk_buffers buffers;
    struct slot slots[DISK_SLOTS_MOST]; /* the mover's */
    int under_way;
    size_t memory_align; /* of memory that the direct descriptor reads into */
    pthread_t mover;
    bool has_mover; /* else it rests */
    bool no_uring;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    struct request ring[RING];
    uint64_t asked, begun,
        done; /* tickets: request t is ring[t % RING]; all below begun have begun, below done ended */
    bool stop;
    struct plim_error failure; /* the first one, kept */
    struct disk_use use;
    double idle_since;       /* while nothing is under way */
    struct clock_span *when; /* of the next request */
};

size_t disk_buffer_bytes(int depth, size_t piece)
{
    return (size_t)(depth ? depth : DISK_DEPTH) * (piece ? piece : DISK_PIECE);
}

/* --- the mover ------------------------------------------------------------------------------------------------- */

static void fail_with(struct disk_store *disk, const struct plim_error *err)
{
    pthread_mutex_lock(&disk->lock);
    if (disk->failure.status == PLIM_OK) disk->failure = *err;
    pthread_mutex_unlock(&disk->lock);
}

static void fail_errno(struct disk_store *disk, bool write, int code)
{
    struct plim_error err = {0};
    plim_fail(&err, PLIM_IO, "%s: cannot %s the disk tier: %s", disk->path, write ? "write" : "read",
              strerror(code));
    fail_with(disk, &err);
}

/* So many bytes more of a request have begun, and `ended` of them are done. */
static void advance(struct disk_store *disk, uint64_t ticket, size_t begun, size_t ended)
{
    pthread_mutex_lock(&disk->lock);
    struct request *r = &disk->ring[ticket % RING];
    r->begun += begun, r->ended += ended;
    if (r->when && r->ended == r->n) *r->when = (struct clock_span){r->began, clock_seconds()};
    bool tells = r->begun == r->n || r->ended == r->n; /* nobody waits for less */
    while (disk->begun < disk->asked &&
           disk->ring[disk->begun % RING].begun == disk->ring[disk->begun % RING].n)
        disk->begun++;
    while (disk->done < disk->begun && disk->ring[disk->done % RING].ended == disk->ring[disk->done % RING].n)
        disk->done++;
    if (tells) pthread_cond_broadcast(&disk->moved);
    pthread_mutex_unlock(&disk->lock);
}

/* So many pieces more, or fewer, are under way, and so many bytes have been copied. */
static void count(struct disk_store *disk, int more, size_t copied)
{
    pthread_mutex_lock(&disk->lock);
    double now = clock_seconds();
    if (!disk->under_way) disk->use.idle += now - disk->idle_since;
    disk->under_way += more;
    disk->idle_since = now;
    disk->use.copied += copied;
    pthread_mutex_unlock(&disk->lock);
}

/* Invariant 3: bytes [from, n) of a piece by plain calls. */
static void finish_piece(struct disk_store *disk, struct slot *s, size_t from)
{
    struct plim_error err = {0};
    char *at = disk_piece_memory(&disk->buffers, &s->piece) + from;
    size_t n = s->piece.n - from;
    enum plim_status status =
        s->piece.write ? file_pwrite_full(disk->fd, at, n, s->piece.offset + from, disk->path, &err)
                       : file_pread_full(disk->fd, at, n, s->piece.offset + from, disk->path, &err);
    if (status != PLIM_OK) fail_with(disk, &err);
}

static int64_t with_faults(int64_t result)
{
    if (fault_hit(NULL, FAULT_IO)) return -EIO;
    return fault_hit(NULL, FAULT_SHORT) && result > 0 ? result / 2 : result;
}

/* Is this piece to be carried on by plain calls? Memory that the disk will not read into after all is one reason. */
static bool may_go_on(const struct slot *s, int64_t result)
{
    return result >= 0 || result == -EAGAIN || result == -EINTR || (result == -EINVAL && s->piece.memory);
}

/* Waits for the next piece; what was read goes where it belongs. */
static void reap(struct disk_store *disk)
{
    struct disk_done done;
    int code = disk->engine->ops->wait(disk->engine, &done);
    if (code) { /* nothing can be known of what is under way */
        fail_errno(disk, false, code);
        for (int i = 0; i < DISK_SLOTS_MOST; i++)
            if (disk->slots[i].busy) {
                disk->slots[i].busy = false;
                advance(disk, disk->slots[i].ticket, 0, disk->slots[i].piece.n);
            }
        count(disk, -disk->under_way, 0);
        return;
    }
    struct slot *s = &disk->slots[done.slot];
    int64_t result = with_faults(done.result);
    if (!may_go_on(s, result))
        fail_errno(disk, s->piece.write, (int)-result);
    else if (result < (int64_t)s->piece.n)
        finish_piece(disk, s, result < 0 ? 0 : (size_t)result);
    if (!s->piece.memory && !s->piece.write)
        memcpy(s->user, disk_piece_memory(&disk->buffers, &s->piece), s->piece.n);
    s->busy = false;
    count(disk, -1, s->piece.memory ? 0 : s->piece.n);
    advance(disk, s->ticket, 0, s->piece.n);
}

/* Invariant 1. */
static void wait_for_blocks(struct disk_store *disk, uint64_t offset, size_t n, bool write)
{
    for (int i = 0; i < disk->buffers.depth + DISK_BARE; i++) {
        const struct slot *s = &disk->slots[i];
        while (s->busy && (write || s->piece.write) && offset < s->piece.offset + s->piece.n &&
               s->piece.offset < offset + n)
            reap(disk);
    }
}

/* One with a buffer, or without. */
static struct slot *free_slot(struct disk_store *disk, bool buffer)
{
    struct slot *first = disk->slots + (buffer ? 0 : disk->buffers.depth);
    struct slot *end = first + (buffer ? disk->buffers.depth : DISK_BARE);
    for (;; reap(disk))
        for (struct slot *s = first; s < end; s++)
            if (!s->busy) return s;
}

/* Invariant 2: `n` bytes through the page cache. */
static void carry_cached(struct disk_store *disk, const struct request *r, uint64_t ticket, size_t n)
{
    struct plim_error err = {0};
    char *user = r->buf + r->begun;
    uint64_t at = r->offset + r->begun, block = at / DISK_BLOCK * DISK_BLOCK;
    wait_for_blocks(disk, block, (size_t)(at - block) + n + DISK_BLOCK, r->write);
    enum plim_status status = r->write ? file_pwrite_full(disk->fd, user, n, at, disk->path, &err)
                                       : file_pread_full(disk->fd, user, n, at, disk->path, &err);
    if (status != PLIM_OK) fail_with(disk, &err);
    count(disk, 0, n);
    advance(disk, ticket, n, n);
}

static void begin_piece(struct disk_store *disk, const struct request *r, uint64_t ticket, struct slot piece)
{
    wait_for_blocks(disk, piece.piece.offset, piece.piece.n, r->write);
    struct slot *s = free_slot(disk, !piece.piece.memory);
    *s = piece;
    s->busy = true, s->ticket = ticket;
    s->piece.slot = (int)(s - disk->slots), s->piece.fd = disk->direct < 0 ? disk->fd : disk->direct;
    if (r->write && !s->piece.memory)
        memcpy(disk_piece_memory(&disk->buffers, &s->piece), s->user, s->piece.n);
    int code = disk->engine->ops->submit(disk->engine, &s->piece);
    if (!code) count(disk, 1, 0);
    if (code) {
        fail_errno(disk, r->write, code);
        s->busy = false;
    }
    advance(disk, ticket, s->piece.n, code ? s->piece.n : 0);
}

/* The memory itself, where the disk can reach it. */
static void *own_memory(const struct disk_store *disk, const struct request *r)
{
    char *user = r->buf + r->begun;
    return disk->direct >= 0 && r->stays && (uintptr_t)user % disk->memory_align == 0 ? user : NULL;
}

/* The next bytes of a request. */
static void begin_next(struct disk_store *disk, const struct request *r, uint64_t ticket)
{
    uint64_t at = r->offset + r->begun;
    size_t left = r->n - r->begun, inside = (size_t)(at % DISK_BLOCK),
           n = min_size(left, disk->buffers.piece);
    bool direct = disk->direct >= 0;
    if (direct && r->n < DISK_SMALL)
        carry_cached(disk, r, ticket, left);
    else if (direct && (inside || left < DISK_BLOCK))
        carry_cached(disk, r, ticket, min_size(left, DISK_BLOCK - inside));
    else
        begin_piece(disk, r, ticket,
                    (struct slot){.user = r->buf + r->begun,
                                  .piece = {.write = r->write,
                                            .n = direct ? n / DISK_BLOCK * DISK_BLOCK : n,
                                            .offset = at,
                                            .memory = own_memory(disk, r)}});
}

static void *mover_main(void *arg)
{
    struct disk_store *disk = arg;
    for (;;) {
        pthread_mutex_lock(&disk->lock);
        while (disk->begun == disk->asked && !disk->under_way && !disk->stop)
            pthread_cond_wait(&disk->moved, &disk->lock);
        bool idle = disk->begun == disk->asked, failed = disk->failure.status != PLIM_OK;
        uint64_t ticket = disk->begun;
        struct request *next = &disk->ring[ticket % RING];
        if (!idle && next->when && !next->begun) next->began = clock_seconds();
        struct request r = *next;
        pthread_mutex_unlock(&disk->lock);
        if (idle && !disk->under_way) return NULL;
        if (idle)
            reap(disk);
        else if (failed)
            advance(disk, ticket, r.n - r.begun, r.n - r.begun); /* invariant 4 */
        else
            begin_next(disk, &r, ticket);
    }
}

/* --- the file -------------------------------------------------------------------------------------------------- */

static uint64_t whole_blocks(uint64_t bytes) { return (bytes + DISK_BLOCK - 1) / DISK_BLOCK * DISK_BLOCK; }

static enum plim_status grow(struct disk_store *disk, uint64_t bytes, struct plim_error *err)
{
    uint64_t more = bytes - disk->bytes;
    enum plim_status status = disk->ledger ? ledger_reserve(disk->ledger, disk->cls, more, err) : PLIM_OK;
    if (status != PLIM_OK) return status;
    int rc = posix_fallocate(disk->fd, 0, (off_t)whole_blocks(bytes));
    if (!rc) return disk->bytes = bytes, PLIM_OK;
    if (disk->ledger) ledger_release(disk->ledger, disk->cls, more);
    return plim_fail(err, PLIM_IO, "%s: no room for %llu bytes of the disk tier: %s", disk->path,
                     (unsigned long long)bytes, strerror(rc));
}

enum plim_status disk_resize(struct disk_store *disk, uint64_t bytes, struct plim_error *err)
{
    if (bytes > disk->bytes) return grow(disk, bytes, err);
    if (bytes == disk->bytes) return PLIM_OK;
    enum plim_status status = disk->has_mover ? disk_settle(disk, err) : PLIM_OK;
    if (status != PLIM_OK) return status;
    if (ftruncate(disk->fd, (off_t)whole_blocks(bytes)))
        return plim_fail(err, PLIM_IO, "%s: cannot shorten the disk tier: %s", disk->path, strerror(errno));
    if (disk->ledger) ledger_release(disk->ledger, disk->cls, disk->bytes - bytes);
    disk->bytes = bytes;
    return PLIM_OK;
}

/* The least alignment of memory that a direct read takes, or 0: the file system has none of the kind after all. */
static size_t find_align(const struct disk_store *disk)
{
    static const size_t tried[] = {64, DISK_MEMORY, DISK_BLOCK};
    size_t room = disk_buffer_bytes(disk->buffers.depth, disk->buffers.piece);
    for (int i = 0; i < 3; i++)
        if (tried[i] + DISK_BLOCK <= room &&
            pread(disk->direct, disk->buffers.base + tried[i], DISK_BLOCK, 0) >= 0)
            return tried[i];
    return pread(disk->direct, disk->buffers.base, DISK_BLOCK, 0) < 0 ? 0 : DISK_BLOCK;
}

/* The file, without a name from here on, and a way past the page cache where the file system has one: some only say at the
 * first read that they do not. */
static enum plim_status create(struct disk_store *disk, const char *dir, uint64_t bytes, bool no_direct,
                               struct plim_error *err)
{
    snprintf(disk->path, sizeof disk->path, "%s/.disk-XXXXXX", dir);
    enum plim_status status = file_make_dirs(dir, err);
    if (status != PLIM_OK) return status;
    disk->fd = mkstemp(disk->path);
    if (disk->fd < 0)
        return plim_fail(err, PLIM_IO, "%s: cannot create the disk tier: %s", disk->path, strerror(errno));
    if (!no_direct) disk->direct = open(disk->path, O_RDWR | O_DIRECT | O_CLOEXEC);
    unlink(disk->path);
    status = disk_resize(disk, bytes, err);
    disk->memory_align = status == PLIM_OK && disk->direct >= 0 && bytes ? find_align(disk) : DISK_BLOCK;
    if (!disk->memory_align) close(disk->direct), disk->direct = -1;
    return status;
}

static enum plim_status take_buffers(struct disk_store *disk, const struct disk_options *o,
                                     struct plim_error *err)
{
    int depth = o->depth ? o->depth : DISK_DEPTH;
    if (depth > DISK_DEPTH_MOST) depth = DISK_DEPTH_MOST;
    disk->buffers.depth = depth;
    disk->buffers.piece = o->piece ? o->piece : DISK_PIECE;
    void *base = mmap(NULL, disk_buffer_bytes(depth, disk->buffers.piece), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return plim_fail(err, PLIM_NO_MEMORY, "no memory for %d buffers of %zu bytes of the disk tier", depth,
                         disk->buffers.piece);
    disk->buffers.base = base;
    return PLIM_OK;
}

static enum plim_status start(struct disk_store *disk, bool no_uring, struct plim_error *err)
{
    snprintf(disk->why, sizeof disk->why, "asked for");
    if (!no_uring) disk->engine = disk_uring_open(&disk->buffers, disk->why, sizeof disk->why);
    bool uring = disk->engine != NULL;
    if (!uring) disk->engine = disk_threads_open(&disk->buffers, err);
    if (!disk->engine) return PLIM_NO_MEMORY;
    snprintf(disk->words, sizeof disk->words, "%s, %d x %zu KiB%s%s%s%s", disk->engine->ops->name,
             disk->buffers.depth, disk->buffers.piece >> 10,
             disk->direct < 0 ? ", through the page cache" : "", uring ? "" : " (", uring ? "" : disk->why,
             uring ? "" : ")");
    int rc = thread_begin(&disk->mover, STACK_BYTES, mover_main, disk);
    if (rc)
        return plim_fail(err, PLIM_NO_MEMORY, "cannot start the thread of the disk tier: %s", strerror(rc));
    disk->has_mover = true;
    return PLIM_OK;
}

enum plim_status disk_open(const char *dir, uint64_t bytes, const struct disk_options *options,
                           struct disk_store **out, struct plim_error *err)
{
    struct disk_store *disk = calloc(1, sizeof *disk);
    if (!disk) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while the disk tier was opened");
    pthread_mutex_init(&disk->lock, NULL);
    pthread_cond_init(&disk->moved, NULL);
    disk->idle_since = clock_seconds();
    disk->fd = disk->direct = -1, disk->ledger = options->ledger, disk->cls = options->cls;
    disk->no_uring = options->no_uring;
    enum plim_status status = take_buffers(disk, options, err);
    if (status == PLIM_OK) status = create(disk, dir, bytes, options->no_direct, err);
    if (status == PLIM_OK) status = start(disk, options->no_uring, err);
    if (status != PLIM_OK) {
        disk_close(disk);
        return status;
    }
    *out = disk;
    return PLIM_OK;
}

/* Thread, engine and buffers go. */
static void stop(struct disk_store *disk)
{
    if (disk->has_mover) {
        pthread_mutex_lock(&disk->lock);
        disk->stop = true;
        pthread_cond_broadcast(&disk->moved);
        pthread_mutex_unlock(&disk->lock);
        pthread_join(disk->mover, NULL);
    }
    if (disk->engine) disk->engine->ops->close(disk->engine);
    if (disk->buffers.base)
        munmap(disk->buffers.base, disk_buffer_bytes(disk->buffers.depth, disk->buffers.piece));
    disk->has_mover = disk->stop = false;
    disk->engine = NULL, disk->buffers.base = NULL;
}

enum plim_status disk_rest(struct disk_store *disk, struct plim_error *err)
{
    enum plim_status status = disk && disk->has_mover ? disk_settle(disk, err) : PLIM_OK;
    if (disk && status == PLIM_OK) stop(disk);
    return status;
}

enum plim_status disk_wake(struct disk_store *disk, int depth, size_t piece, struct plim_error *err)
{
    struct disk_options options = {.depth = depth, .piece = piece};
    if (!disk || disk_held(disk) == disk_buffer_bytes(depth, piece)) return PLIM_OK;
    enum plim_status status = disk_rest(disk, err);
    if (status == PLIM_OK) status = take_buffers(disk, &options, err);
    return status == PLIM_OK ? start(disk, disk->no_uring, err) : status;
}

size_t disk_held(const struct disk_store *disk)
{
    return disk && disk->has_mover ? disk_buffer_bytes(disk->buffers.depth, disk->buffers.piece) : 0;
}

void disk_close(struct disk_store *disk)
{
    if (!disk) return;
    stop(disk);
    if (disk->direct >= 0) close(disk->direct);
    if (disk->fd >= 0) close(disk->fd);
    if (disk->ledger) ledger_release(disk->ledger, disk->cls, disk->bytes);
    pthread_cond_destroy(&disk->moved);
    pthread_mutex_destroy(&disk->lock);
    free(disk);
}

const char *disk_describe(const struct disk_store *disk) { return disk->words; }

/* --- what is asked of it ---------------------------------------------------------------------------------------- */

/* Until something moves; that time is told. */
static void wait_moved(struct disk_store *disk)
{
    double start = clock_seconds();
    pthread_cond_wait(&disk->moved, &disk->lock);
    disk->use.waited += clock_seconds() - start;
}

static uint64_t ask(struct disk_store *disk, struct request r)
{
    pthread_mutex_lock(&disk->lock);
    while (disk->asked - disk->done >= RING) wait_moved(disk);
    *(r.write ? &disk->use.written : &disk->use.read) += r.n;
    uint64_t ticket = disk->asked++;
    r.when = disk->when, disk->when = NULL;
    disk->ring[ticket % RING] = r;
    pthread_cond_broadcast(&disk->moved);
    pthread_mutex_unlock(&disk->lock);
    return ticket;
}

static bool is_over(const struct disk_store *disk, uint64_t ticket, bool begun)
{
    const struct request *r = &disk->ring[ticket % RING];
    if (ticket < disk->done) return true;
    return begun ? r->begun == r->n : r->ended == r->n;
}

/* Until all of a request has begun, or ended. */
static enum plim_status await(struct disk_store *disk, uint64_t ticket, bool begun, struct plim_error *err)
{
    pthread_mutex_lock(&disk->lock);
    while (!is_over(disk, ticket, begun)) wait_moved(disk);
    struct plim_error failure = disk->failure;
    pthread_mutex_unlock(&disk->lock);
    if (failure.status != PLIM_OK && err) *err = failure;
    return failure.status;
}

void disk_time_next(struct disk_store *disk, struct clock_span *when) { disk->when = when; }

uint64_t disk_prefetch(struct disk_store *disk, void *buf, size_t n, uint64_t offset)
{
    return ask(disk, (struct request){.buf = buf, .n = n, .offset = offset, .stays = true});
}

enum plim_status disk_wait(struct disk_store *disk, uint64_t ticket, struct plim_error *err)
{
    return await(disk, ticket, false, err);
}

static uint64_t ask_write(struct disk_store *disk, const void *buf, size_t n, uint64_t offset, bool stays)
{
    if (fault_hit(NULL, FAULT_WRITE)) fail_errno(disk, true, ENOSPC);
    return ask(disk,
               (struct request){
                   .buf = (char *)(uintptr_t)buf, .n = n, .offset = offset, .write = true, .stays = stays});
}

enum plim_status disk_write(struct disk_store *disk, const void *buf, size_t n, uint64_t offset,
                            struct plim_error *err)
{
    return await(disk, ask_write(disk, buf, n, offset, false), true, err);
}

uint64_t disk_write_behind(struct disk_store *disk, const void *buf, size_t n, uint64_t offset)
{
    return ask_write(disk, buf, n, offset, true);
}

enum plim_status disk_read(struct disk_store *disk, void *buf, size_t n, uint64_t offset,
                           struct plim_error *err)
{
    return disk_wait(disk, disk_prefetch(disk, buf, n, offset), err);
}

enum plim_status disk_settle(struct disk_store *disk, struct plim_error *err)
{
    pthread_mutex_lock(&disk->lock);
    while (disk->done < disk->asked) wait_moved(disk);
    struct plim_error failure = disk->failure;
    pthread_mutex_unlock(&disk->lock);
    if (failure.status != PLIM_OK && err) *err = failure;
    return failure.status;
}

struct disk_use disk_use_of(struct disk_store *disk)
{
    pthread_mutex_lock(&disk->lock);
    struct disk_use use = disk->use;
    if (!disk->under_way) use.idle += clock_seconds() - disk->idle_since;
    pthread_mutex_unlock(&disk->lock);
    return use;
}
