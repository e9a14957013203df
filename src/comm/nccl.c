/* nccl.c - see nccl.h. The few functions that are used are declared here as NCCL 2 documents them: their symbols have not
 * changed since 2.7, which brought send and receive.
 *
 * Joining waits for all ranks, and has no end where one of them does not come: it runs on a thread of its own, which is left
 * behind with everything it uses when it takes too long. Groups of calls, which connect ranks when they are first made, are
 * watched: one that takes too long is ended by ncclCommAbort from the thread that watches. */
#include "comm/nccl.h"
#include "base/clock.h"
#include "base/threads.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_BYTE = 0, NCCL_LEAST = 2700 };

struct nccl_id {
    char bytes[128];
};
struct nccl_comm; /* the library's own */

struct library {
    int (*get_version)(int *);
    int (*get_unique_id)(struct nccl_id *);
    int (*init_rank)(struct nccl_comm **, int ranks, struct nccl_id, int rank);
    int (*destroy)(struct nccl_comm *);
    int (*abort)(struct nccl_comm *);
    int (*async_error)(struct nccl_comm *, int *);
    const char *(*error_string)(int);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*send)(const void *, size_t, int type, int peer, struct nccl_comm *, void *stream);
    int (*recv)(void *, size_t, int type, int peer, struct nccl_comm *, void *stream);
    int (*broadcast)(const void *, void *, size_t, int type, int root, struct nccl_comm *, void *stream);
};

static const struct {
    const char *name;
    size_t offset;
} symbols[] = {
    {"ncclGetVersion", offsetof(struct library, get_version)},
    {"ncclGetUniqueId", offsetof(struct library, get_unique_id)},
    {"ncclCommInitRank", offsetof(struct library, init_rank)},
    {"ncclCommDestroy", offsetof(struct library, destroy)},
    {"ncclCommAbort", offsetof(struct library, abort)},
    {"ncclCommGetAsyncError", offsetof(struct library, async_error)},
    {"ncclGetErrorString", offsetof(struct library, error_string)},
    {"ncclGroupStart", offsetof(struct library, group_start)},
    {"ncclGroupEnd", offsetof(struct library, group_end)},
    {"ncclSend", offsetof(struct library, send)},
    {"ncclRecv", offsetof(struct library, recv)},
    {"ncclBroadcast", offsetof(struct library, broadcast)},
};

enum { GROUPS = AMONG_NODES + 1 };

struct nccl {
    void *handle;
    struct library lib;
    struct comm *comm;
    bool stuck; /* a thread is in the library and does not come back */
    pthread_t watch;
    bool watched;
    atomic_bool closing, ended; /* nobody watches any more; communicators are gone */
    _Atomic double calling;     /* since when a group of calls is made; 0: none is */
    struct group {              /* by enum among */
        struct nccl_comm *comm;
        int rank, ranks;
    } group[GROUPS];
    char why[160];
};

/* --- the library ---------------------------------------------------------------------------------------------- */

static void *open_library(const struct context *context, char *why, size_t size)
{
    const char *named = context_get(context, "PLIMSOLL_NCCL");
    const char *const names[] = {named && *named ? named : "libnccl.so.2", NULL};
    void *handle = NULL;
    for (int i = 0; names[i] && !handle; i++) handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!handle) snprintf(why, size, "%s", dlerror());
    return handle;
}

static enum plim_status load(const struct context *context, struct nccl *nccl, struct plim_error *err)
{
    int version = 0;
    nccl->handle = open_library(context, nccl->why, sizeof nccl->why);
    if (!nccl->handle)
        return plim_fail(err, PLIM_UNSUPPORTED, "NCCL is not installed (%s); install libnccl2", nccl->why);
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *found = dlsym(nccl->handle, symbols[i].name);
        if (!found)
            return plim_fail(err, PLIM_UNSUPPORTED, "NCCL's library has no %s; install version 2.7 or newer",
                             symbols[i].name);
        memcpy((char *)&nccl->lib + symbols[i].offset, &found, sizeof found);
    }
    nccl->lib.get_version(&version);
    if (version < NCCL_LEAST)
        return plim_fail(err, PLIM_UNSUPPORTED, "NCCL is version %d; install 2.7 or newer", version);
    return PLIM_OK;
}

static const char *text_of(struct nccl *nccl, const char *what, int code)
{
    if (code == NCCL_SUCCESS || code == NCCL_IN_PROGRESS) return NULL;
    snprintf(nccl->why, sizeof nccl->why, "%s: %s", what, nccl->lib.error_string(code));
    return nccl->why;
}

/* --- groups ---------------------------------------------------------------------------------------------------- */

struct joining {
    const struct library *lib;
    struct nccl_comm *comm;
    struct nccl_id id;
    int rank, ranks, code;
    atomic_bool done;
};

static void *join_main(void *arg)
{
    struct joining *j = arg;
    j->code = j->lib->init_rank(&j->comm, j->ranks, j->id, j->rank);
    atomic_store(&j->done, true);
    return NULL;
}

enum { JOIN_STACK = 8 << 20, WATCH_STACK = 1 << 20, WATCH_NS = 100000000 };

/* Half of the time that ranks have: one whose joining failed waits for the others to agree on that. */
static const char *join_in_time(struct nccl *nccl, struct joining *j, double seconds)
{
    pthread_t thread;
    double until = clock_seconds() + seconds / 2;
    int rc = thread_begin(&thread, JOIN_STACK, join_main, j);
    if (rc) return strerror(rc);
    while (!atomic_load(&j->done) && clock_seconds() < until) nanosleep(&(struct timespec){0, 1000000}, NULL);
    nccl->stuck = !atomic_load(&j->done);
    if (nccl->stuck) {
        pthread_detach(thread);
        snprintf(nccl->why, sizeof nccl->why, "joining: not all ranks came within %.0f s", seconds / 2);
        return nccl->why;
    }
    pthread_join(thread, NULL);
    return text_of(nccl, "joining", j->code);
}

static enum plim_status join(struct nccl *nccl, struct comm *comm, enum among among, struct plim_error *err)
{
    struct group *g = &nccl->group[among];
    if (!comm) return PLIM_OK;
    struct joining *j = calloc(1, sizeof *j);
    if (!j) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for NCCL");
    j->lib = &nccl->lib, j->rank = g->rank = comm->rank, j->ranks = g->ranks = comm->ranks;
    const char *why = comm->rank == 0 ? text_of(nccl, "id", nccl->lib.get_unique_id(&j->id)) : NULL;
    enum plim_status status = why ? plim_fail(err, PLIM_IO, "NCCL: %s", why) : PLIM_OK;
    status = comm_agree(comm, status, err);
    if (status == PLIM_OK) status = comm_broadcast(comm, &j->id, sizeof j->id, 0, err);
    if (status == PLIM_OK) why = join_in_time(nccl, j, nccl->comm->patience);
    if (status == PLIM_OK && why)
        status = plim_fail(err, PLIM_LINK, "NCCL: rank %d of %d: %s; NCCL_DEBUG=WARN says more", comm->rank,
                           comm->ranks, why);
    if (nccl->stuck) return status;
    g->comm = j->comm;
    free(j);
    return status;
}

static void end(struct nccl *nccl, int (*how)(struct nccl_comm *))
{
    if (!how || atomic_exchange(&nccl->ended, true)) return;
    for (int i = 0; i < GROUPS; i++)
        if (nccl->group[i].comm) how(nccl->group[i].comm);
}

static void *watch_main(void *arg)
{
    struct nccl *nccl = arg;
    while (!atomic_load(&nccl->closing)) {
        double since = atomic_load(&nccl->calling);
        if (since > 0 && clock_seconds() > since + nccl->comm->patience) end(nccl, nccl->lib.abort);
        nanosleep(&(struct timespec){0, WATCH_NS}, NULL);
    }
    return NULL;
}

void nccl_close(struct nccl *nccl)
{
    if (!nccl || nccl->stuck) return;
    atomic_store(&nccl->closing, true);
    if (nccl->watched) pthread_join(nccl->watch, NULL);
    end(nccl, nccl->lib.destroy);
    if (nccl->handle) dlclose(nccl->handle);
    free(nccl);
}

void nccl_abort(struct nccl *nccl) { end(nccl, nccl->lib.abort); }

enum plim_status nccl_open(struct comm *comm, struct plim_error *err)
{
    struct nccl *nccl = calloc(1, sizeof *nccl);
    struct comm *groups[GROUPS] = {comm, comm->node, comm->across};
    enum plim_status status =
        nccl ? load(comm->context, nccl, err) : plim_fail(err, PLIM_NO_MEMORY, "out of memory for NCCL");
    if (nccl) nccl->comm = comm;
    status = comm_agree(comm, status, err); /* nobody waits for a rank that has no library */
    for (int i = 0; i < GROUPS && status == PLIM_OK; i++)
        status = comm_agree(comm, join(nccl, groups[i], (enum among)i, err), err);
    if (status != PLIM_OK) return nccl_close(nccl), status;
    nccl->watched = !thread_begin(&nccl->watch, WATCH_STACK, watch_main, nccl);
    comm->nccl = nccl;
    return PLIM_OK;
}

enum plim_status nccl_check(struct nccl *nccl, struct plim_error *err)
{
    for (int i = 0; i < GROUPS; i++) {
        int code = NCCL_SUCCESS;
        if (!nccl->group[i].comm || atomic_load(&nccl->ended)) continue;
        int asked = nccl->lib.async_error(nccl->group[i].comm, &code);
        const char *why = text_of(nccl, "exchange", asked ? asked : code);
        if (why) return comm_missing(nccl->comm, "NCCL", why, err);
    }
    return PLIM_OK;
}

/* --- exchanges ------------------------------------------------------------------------------------------------- */

static size_t part(size_t whole, size_t first, size_t bytes)
{
    if (first >= whole) return 0;
    return whole - first < bytes ? whole - first : bytes;
}

/* The first error of a group of calls; the group is ended in any case. */
static const char *finish(struct nccl *nccl, const char *what, int code)
{
    atomic_store(&nccl->calling, clock_seconds());
    int ended = nccl->lib.group_end();
    atomic_store(&nccl->calling, 0);
    if (!atomic_load(&nccl->ended)) return text_of(nccl, what, code ? code : ended);
    snprintf(nccl->why, sizeof nccl->why, "%s: not answered within %.0f s", what, nccl->comm->patience);
    return nccl->why;
}

/* Pieces may be short, which all-gather does not know: each comes from its rank by itself, all at once. */
const char *nccl_gather(struct nccl *nccl, enum among among, const void *piece, size_t piece_bytes,
                        void *whole, size_t whole_bytes, void *stream)
{
    const struct group *g = &nccl->group[among];
    int code = nccl->lib.group_start();
    for (int r = 0; r < g->ranks && !code; r++) {
        size_t first = (size_t)r * piece_bytes, bytes = part(whole_bytes, first, piece_bytes);
        char *to = (char *)whole + first;
        if (bytes)
            code = nccl->lib.broadcast(r == g->rank ? piece : to, to, bytes, NCCL_BYTE, r, g->comm, stream);
    }
    return finish(nccl, "gather", code);
}

/* A rank sends to itself, too: one way for every part, and no copy of another kind on the stream. */
const char *nccl_exchange(struct nccl *nccl, enum among among, const char *from, size_t whole, size_t stride,
                          size_t bytes, char *to, void *stream)
{
    const struct group *g = &nccl->group[among];
    size_t mine = part(whole, (size_t)g->rank * stride, bytes);
    int code = nccl->lib.group_start();
    for (int r = 0; r < g->ranks && !code; r++) {
        size_t theirs = part(whole, (size_t)r * stride, bytes);
        if (theirs) code = nccl->lib.send(from + (size_t)r * stride, theirs, NCCL_BYTE, r, g->comm, stream);
        if (mine && !code) code = nccl->lib.recv(to + (size_t)r * bytes, mine, NCCL_BYTE, r, g->comm, stream);
    }
    return finish(nccl, "reduce", code);
}
