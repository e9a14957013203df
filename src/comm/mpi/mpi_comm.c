/* mpi_comm.c - bytes between ranks by MPI: a module of its own, loaded when a launcher has started several ranks.
 *
 * Every exchange is begun without waiting and tested until it is done, so that a rank that does not answer is noticed. The
 * module uses nothing of the program but comm.h's structs. */
#include "comm/comm.h"
#include "comm/mpi/mpi_roll.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Bytes of one MPI call, whose counts are ints: exchanges of more come in several. */
#define MOST ((size_t)1 << 30)

struct own {
    MPI_Comm comm;
    double seconds;
    int rank, ranks;
    bool lost;            /* a rank did not answer: `why` is the answer to everything from now on */
    int *counts, *starts; /* [ranks] each, of what is sent, and of what comes */
    int *to_counts, *to_starts;
    char why[256];
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const char *mpi_error(struct own *own, const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING];
    int len = 0;
    MPI_Error_string(code, text, &len);
    snprintf(own->why, sizeof own->why, "%s: %.*s", what, len, text);
    return own->why;
}

/* Between two tests: often at first, then the processor is left to others. Beside computing it is theirs from the beginning. */
static void rest(const struct comm *comm, long tries)
{
    if (comm->beside && tries > 4)
        nanosleep(&(struct timespec){0, 50000}, NULL);
    else if (tries >= 2000)
        nanosleep(&(struct timespec){0, 20000}, NULL);
    else if (tries >= 200)
        sched_yield();
}

static const char *finish(const struct comm *comm, const char *what, int code, MPI_Request *request)
{
    struct own *own = comm->own;
    double until = now() + own->seconds;
    int done = 0;
    if (own->lost) return own->why;
    for (long tries = 0; code == MPI_SUCCESS && !done; tries++) {
        code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (done) continue;
        rest(comm, tries);
        const char *gone = comm->gone && tries % 64 == 0 ? comm->gone(comm->pmi) : NULL;
        if (gone)
            return own->lost = true, snprintf(own->why, sizeof own->why, "%s: %s", what, gone), own->why;
        if (tries % 64 == 0 && now() > until) {
            int n = snprintf(own->why, sizeof own->why, "%s: ", what);
            mpi_roll_call(own->rank, own->ranks, own->seconds, true, own->why + n,
                          sizeof own->why - (size_t)n);
            own->lost = true;
            return own->why;
        }
    }
    return code == MPI_SUCCESS ? NULL : mpi_error(own, what, code);
}

/* Prepares this rank to talk to the others of a communicator, which it takes over. */
static const char *meet(struct comm *comm, MPI_Comm with, double seconds)
{
    struct own *own = comm->own = calloc(1, sizeof *own);
    if (!own) return "out of memory";
    own->comm = with, own->seconds = seconds;
    MPI_Comm_set_errhandler(with, MPI_ERRORS_RETURN);
    MPI_Comm_rank(with, &comm->rank);
    MPI_Comm_size(with, &comm->ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &own->rank); /* the roll is called among all */
    MPI_Comm_size(MPI_COMM_WORLD, &own->ranks);
    own->counts = calloc((size_t)comm->ranks * 4, sizeof *own->counts);
    if (!own->counts) return "out of memory";
    own->starts = own->counts + comm->ranks, own->to_counts = own->starts + comm->ranks;
    own->to_starts = own->to_counts + comm->ranks;
    return NULL;
}

/* Over TCP Open MPI writes a large message by "put", which takes turns with what comes the other way: 62 of 1 Gb/s each way, where sending it
 * in fragments takes 120. These are its flags without put, unless somebody has chosen others. */
static void choose_fragments(const struct comm *comm)
{
    static const char name[] = "OMPI_MCA_btl_tcp_flags";
    for (char *const *pair = comm->context->environment; pair && *pair; pair++)
        if (!strncmp(*pair, name, sizeof name - 1)) return;
    comm->context->process->set_variable(name, "313");
}

static const char *mpi_open(struct comm *comm, double seconds)
{
    MPI_Comm local;
    int began = 0, level = MPI_THREAD_SINGLE;
    choose_fragments(comm);
    if (MPI_Initialized(&began) != MPI_SUCCESS ||
        (!began && MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS))
        return "MPI_Init_thread failed";
    if (began) MPI_Query_thread(&level);
    comm->any_thread = level >= MPI_THREAD_SERIALIZED;
    const char *why = meet(comm, MPI_COMM_WORLD, seconds);
    if (why) return why;
    comm->local_ranks = 1;
    if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local) == MPI_SUCCESS) {
        MPI_Comm_rank(local, &comm->local_rank);
        MPI_Comm_size(local, &comm->local_ranks);
        MPI_Comm_free(&local);
    }
    return NULL;
}

static const char *mpi_split(struct comm *comm, int part, struct comm *out)
{
    struct own *own = comm->own;
    MPI_Comm group;
    int code = MPI_Comm_split(own->comm, part, comm->rank, &group);
    return code == MPI_SUCCESS ? meet(out, group, own->seconds) : mpi_error(own, "split", code);
}

static size_t part(size_t whole, size_t first, size_t bytes)
{
    if (first >= whole) return 0;
    return whole - first < bytes ? whole - first : bytes;
}

static const char *gather_small(struct comm *comm, const void *piece, size_t bytes, void *whole,
                                size_t whole_bytes)
{
    struct own *own = comm->own;
    MPI_Request request;
    for (int r = 0; r < comm->ranks; r++) {
        own->counts[r] = (int)part(whole_bytes, (size_t)r * bytes, bytes);
        own->starts[r] = own->counts[r] ? (int)((size_t)r * bytes) : 0;
    }
    int code = MPI_Iallgatherv(piece, own->counts[comm->rank], MPI_BYTE, whole, own->counts, own->starts,
                               MPI_BYTE, own->comm, &request);
    return finish(comm, "gather", code, &request);
}

/* Each rank's piece by itself. */
static const char *mpi_broadcast(struct comm *comm, void *data, size_t bytes, int root)
{
    struct own *own = comm->own;
    const char *why = NULL;
    for (size_t at = 0; at < bytes && !why; at += MOST) {
        MPI_Request request;
        int code =
            MPI_Ibcast((char *)data + at, (int)part(bytes, at, MOST), MPI_BYTE, root, own->comm, &request);
        why = finish(comm, "broadcast", code, &request);
    }
    return why;
}

static const char *mpi_gather(struct comm *comm, const void *piece, size_t piece_bytes, void *whole,
                              size_t whole_bytes)
{
    const char *why = NULL;
    if (whole_bytes <= MOST) return gather_small(comm, piece, piece_bytes, whole, whole_bytes);
    for (int r = 0; r < comm->ranks && !why; r++) {
        size_t first = (size_t)r * piece_bytes, here = part(whole_bytes, first, piece_bytes);
        char *at = (char *)whole + first;
        if (r == comm->rank && here) memcpy(at, piece, here);
        why = mpi_broadcast(comm, at, here, r);
    }
    return why;
}

/* A chunk's displacement may lie far behind an int: what is sent is addressed by a type of its own for each rank. */
static const char *mpi_exchange(struct comm *comm, const char *from, size_t whole, size_t stride,
                                size_t bytes, char *to)
{
    struct own *own = comm->own;
    const char *why = NULL;
    MPI_Request *requests = malloc(2 * (size_t)comm->ranks * sizeof *requests);
    if (!requests) return "out of memory";
    int count = 0, code = MPI_SUCCESS;
    size_t mine = part(whole, (size_t)comm->rank * stride, bytes);
    for (int r = 0; r < comm->ranks && code == MPI_SUCCESS; r++) {
        size_t theirs = part(whole, (size_t)r * stride, bytes);
        if (r == comm->rank) {
            if (mine) memcpy(to + (size_t)r * bytes, from + (size_t)r * stride, mine);
            continue;
        }
        if (mine)
            code =
                MPI_Irecv(to + (size_t)r * bytes, (int)mine, MPI_BYTE, r, 1, own->comm, &requests[count++]);
        if (theirs && code == MPI_SUCCESS)
            code = MPI_Isend(from + (size_t)r * stride, (int)theirs, MPI_BYTE, r, 1, own->comm,
                             &requests[count++]);
    }
    for (int i = 0; i < count && !why; i++) why = finish(comm, "exchange", code, &requests[i]);
    free(requests);
    return why ? why : code == MPI_SUCCESS ? NULL : mpi_error(own, "exchange", code);
}

static const char *mpi_missing(struct comm *comm, double seconds)
{
    struct own *own = comm->own;
    if (!own->lost) mpi_roll_call(own->rank, own->ranks, seconds, false, own->why, sizeof own->why);
    own->lost = true;
    return own->why;
}

static void mpi_abort(struct comm *comm, int code)
{
    MPI_Abort(MPI_COMM_WORLD, code);
    comm->context->process->end(code); /* a library may come back from it */
}

static void mpi_close(struct comm *comm)
{
    struct own *own = comm->own;
    if (own->comm != MPI_COMM_WORLD)
        MPI_Comm_free(&own->comm);
    else
        MPI_Finalize();
    free(own->counts);
    free(own);
}

__attribute__((visibility("default"))) extern const struct comm_ops plimsoll_mpi;
#ifdef OPEN_MPI
#define NAME "Open MPI"
#else
#define NAME "MPICH"
#endif
const struct comm_ops plimsoll_mpi = {.name = NAME,
                                      .open = mpi_open,
                                      .gather = mpi_gather,
                                      .exchange = mpi_exchange,
                                      .broadcast = mpi_broadcast,
                                      .split = mpi_split,
                                      .missing = mpi_missing,
                                      .abort = mpi_abort,
                                      .close = mpi_close};
