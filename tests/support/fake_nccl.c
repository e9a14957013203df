/* fake_nccl.c - NCCL's functions that comm/nccl.c uses, as a library of its own, for the fake device's streams: bytes go through
 * files of the folder FAKE_NCCL_DIR. FAKE_NCCL makes one of them fail:
 *
 *     version, group      it is old; groups of calls cannot be made
 *     init, init-waits    joining fails; never returns
 *     async:N             from the Nth group on of a communicator an error is there
 *     hangs:N             from the Nth group on nothing is sent, and streams are stuck
 *     group-waits:N       the Nth group of calls does not return until the communicator is aborted
 *     gives-up            who waits longer than a second for others is stuck
 */
#include "support/fake_stream.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPS = 64, SUCCESS = 0, FAILS = 3 };

struct id {
    char bytes[128];
};

struct comm {
    char name[128];
    int rank, ranks;
    unsigned long groups; /* made so far, the same on all ranks */
};

struct transfer {
    bool sends;
    const char *from;
    char *to;
    size_t bytes;
    int peer; /* of a broadcast its root, on all ranks */
    bool broadcast;
};

static struct group {
    struct comm *comm;
    struct fake_stream *stream;
    struct transfer ops[OPS];
    int count;
} group;

int ncclGetVersion(int *version);
int ncclGetUniqueId(struct id *id);
int ncclCommInitRank(struct comm **out, int ranks, struct id id, int rank);
int ncclCommDestroy(struct comm *comm);
int ncclCommAbort(struct comm *comm);
int ncclCommGetAsyncError(struct comm *comm, int *code);
const char *ncclGetErrorString(int code);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclSend(const void *from, size_t n, int type, int peer, struct comm *comm, struct fake_stream *stream);
int ncclRecv(void *to, size_t n, int type, int peer, struct comm *comm, struct fake_stream *stream);
int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, struct comm *comm,
                  struct fake_stream *stream);

static bool fails(const char *what)
{
    const char *text = getenv("FAKE_NCCL");
    size_t n = strlen(what);
    return text && !strncmp(text, what, n) && (!text[n] || text[n] == ':');
}

/* The group from which on it does. */
static unsigned long from_group(void)
{
    const char *colon = strchr(getenv("FAKE_NCCL"), ':');
    return colon ? strtoul(colon + 1, NULL, 10) : 1;
}

int ncclGetVersion(int *version)
{
    *version = fails("version") ? 2408 : 22000;
    return SUCCESS;
}

int ncclGetUniqueId(struct id *id)
{
    static int made;
    snprintf(id->bytes, sizeof id->bytes, "%d.%d", (int)getpid(), made++);
    return SUCCESS;
}

int ncclCommInitRank(struct comm **out, int ranks, struct id id, int rank)
{
    struct comm *comm = calloc(1, sizeof *comm);
    while (fails("init-waits")) pause();
    if (!comm || fails("init")) return free(comm), FAILS;
    memcpy(comm->name, id.bytes, sizeof comm->name);
    comm->rank = rank, comm->ranks = ranks;
    *out = comm;
    return SUCCESS;
}

int ncclCommDestroy(struct comm *comm) { return free(comm), SUCCESS; }
static volatile bool aborted;
int ncclCommAbort(struct comm *comm)
{
    (void)comm; /* a call may still be in it */
    return aborted = true, SUCCESS;
}

int ncclCommGetAsyncError(struct comm *comm, int *code)
{
    *code = fails("async") && comm->groups >= from_group() ? FAILS : SUCCESS;
    return SUCCESS;
}

const char *ncclGetErrorString(int code) { return code == FAILS ? "internal error" : "no error"; }

static void path_of(const struct comm *comm, int from, int to, char *out, size_t size)
{
    snprintf(out, size, "%s/%s.%lu.%d.%d", getenv("FAKE_NCCL_DIR"), comm->name, comm->groups, from, to);
}

static void put(const struct comm *comm, int to, const char *from, size_t bytes)
{
    char path[512], early[528];
    path_of(comm, comm->rank, to, path, sizeof path);
    snprintf(early, sizeof early, "%s.part", path);
    FILE *f = fopen(early, "wb");
    if (!f || fwrite(from, 1, bytes, f) != bytes || fclose(f) || rename(early, path)) abort();
}

static void get(const struct comm *comm, int from, char *to, size_t bytes, struct fake_stream *stream)
{
    char path[512];
    path_of(comm, from, comm->rank, path, sizeof path);
    for (int tries = 0; access(path, R_OK); tries++) {
        if (tries > 600000) abort();
        stream->stuck = tries > 10000 && fails("gives-up");
        if (stream->stuck) return;
        usleep(100);
    }
    FILE *f = fopen(path, "rb");
    if (!f || fread(to, 1, bytes, f) != bytes || fclose(f) || unlink(path)) abort();
}

static void begin(const struct comm *comm, const struct transfer *t)
{
    if (t->broadcast) {
        for (int r = 0; r < comm->ranks && t->peer == comm->rank; r++)
            if (r != comm->rank) put(comm, r, t->from, t->bytes);
        if (t->peer == comm->rank && t->to != t->from) memmove(t->to, t->from, t->bytes);
    } else if (t->sends) {
        put(comm, t->peer, t->from, t->bytes);
    }
}

static void end(const struct comm *comm, const struct transfer *t, struct fake_stream *stream)
{
    if (t->broadcast ? t->peer != comm->rank : !t->sends) get(comm, t->peer, t->to, t->bytes, stream);
}

static void run(const void *arg)
{
    const struct group *g = arg;
    if (fails("hangs") && g->comm->groups >= from_group()) g->stream->stuck = true;
    if (g->stream->stuck) return;
    for (int i = 0; i < g->count; i++) begin(g->comm, &g->ops[i]);
    for (int i = 0; i < g->count && !g->stream->stuck; i++) end(g->comm, &g->ops[i], g->stream);
    g->comm->groups++;
}

int ncclGroupStart(void) { return group.count = 0, SUCCESS; }

int ncclGroupEnd(void)
{
    if (fails("group")) return FAILS;
    while (fails("group-waits") && group.comm && group.comm->groups >= from_group()) {
        if (aborted) return FAILS;
        usleep(1000);
    }
    if (group.count) group.stream->queue(group.stream, run, &group, sizeof group);
    return SUCCESS;
}

static int add(struct comm *comm, struct fake_stream *stream, struct transfer t)
{
    if (group.count == OPS) abort();
    group.comm = comm, group.stream = stream, group.ops[group.count++] = t;
    return SUCCESS;
}

int ncclSend(const void *from, size_t n, int type, int peer, struct comm *comm, struct fake_stream *stream)
{
    (void)type;
    return add(comm, stream, (struct transfer){.sends = true, .from = from, .bytes = n, .peer = peer});
}

int ncclRecv(void *to, size_t n, int type, int peer, struct comm *comm, struct fake_stream *stream)
{
    (void)type;
    return add(comm, stream, (struct transfer){.to = to, .bytes = n, .peer = peer});
}

int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, struct comm *comm,
                  struct fake_stream *stream)
{
    (void)type;
    return add(comm, stream,
               (struct transfer){.from = from, .to = to, .bytes = n, .peer = root, .broadcast = true});
}
