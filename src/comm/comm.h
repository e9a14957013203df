/* comm.h - several ranks as one: pieces gathered, sums in the order of ranks, one number agreed on.
 *
 *     struct comm *comm;
 *     bool tells;
 *     comm_open(&context, &comm, &tells, end, &err);               // as mpirun, srun, torchrun or nobody started us; one rank: NULL
 *     comm_gather(comm, piece, piece_bytes, whole, whole_bytes, &err);
 *     comm_reduce(comm, whole, count, piece, piece_count, DT_F32, true, work, &err);
 *     comm_close(comm);
 *
 * All ranks call the same functions in the same order with the same sizes. A NULL comm means a single rank: nothing
 * is exchanged. Backends only move bytes (struct comm_ops); additions and their order are here, so that every backend
 * gives the same bits.
 *
 * Rank r owns bytes [r * piece, min((r + 1) * piece, whole)); a piece past the end is zeros.
 *
 * No call waits for ever: if another rank does not answer within comm.patience seconds, the call returns PLIM_IO, and the
 * caller ends the job with comm_abort.
 *
 * Exchanges overlap computing on the lane, a thread that runs them in the order in which they were begun; that order
 * is the same on all ranks:
 *
 *     uint64_t ticket = comm_begin(comm, &(struct comm_exchange){COMM_GATHER, piece, whole, count, all, DT_F32});
 *     ...                                               // neither end is touched meanwhile
 *     comm_wait(comm, ticket, &err);
 *
 * Every other call waits until the lane is empty. The lane's first error is returned by every later call.
 */
#pragma once

#include "base/clock.h"
#include "base/context.h"
#include "base/status.h"
#include "tensor/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct comm;
struct comm_lane;
struct nccl;
struct pmi;

/* Transport between ranks. Each function returns NULL or one line about the failure, valid until the next call. */
struct comm_ops {
    const char *name;
    /* Joins the other ranks; `seconds` limits the waiting of every call. */
    const char *(*open)(struct comm *, double seconds);
    /* Gathers every rank's `piece` bytes into `whole`, in the order of ranks; the last piece may be short or empty. */
    const char *(*gather)(struct comm *, const void *piece, size_t piece_bytes, void *whole,
                          size_t whole_bytes);
    /* Receives from every rank the bytes [rank * stride, + bytes) of its `from`, where rank is the caller's, into
     * to[sender * bytes]; bytes past `whole` do not exist. */
    const char *(*exchange)(struct comm *, const char *from, size_t whole, size_t stride, size_t bytes,
                            char *to);
    const char *(*broadcast)(struct comm *, void *data, size_t bytes, int root);
    /* Splits the ranks: those with the same `part` form a group, in their order. Sets rank, ranks and own of `out`. */
    const char *(*split)(struct comm *, int part, struct comm *out);
    /* Finds the rank that does not answer, after another library waited in vain for `seconds`. Returns within 15 s on
     * the rank that must report it; the others are held, because the job is about to end. */
    const char *(*missing)(struct comm *, double seconds);
    void (*abort)(struct comm *, int code); /* ends all ranks */
    void (*close)(struct comm *);           /* the world, or a group of it */
};

struct comm {
    const struct comm_ops *ops;
    const struct context *context; /* passed to comm_open, borrowed */
    int rank, ranks;
    int local_rank, local_ranks; /* of those on this machine */
    void *own;                   /* of the backend */
    int64_t program_bytes;       /* os_code_bytes before the library was loaded */
    int64_t library_bytes;       /* memory of the library per rank, from its table; see comm_library_bytes */
    double patience;             /* maximum seconds that a call waits for the others */
    bool any_thread; /* the backend takes calls from any thread, one at a time; its open says so */
    /* The call in progress is the lane's: waiting in it yields the processor to computing. */
    bool beside;
    struct comm_lane *lane; /* NULL: none; exchanges then alternate with computing */
    /* Subsets of the ranks: those on this machine, and one per machine; this rank belongs to both. NULL with a single
     * machine, or unless every machine has the same number of ranks (more than one) with consecutive numbers. */
    struct comm *node, *across;
    /* Moves data between GPU memories, for all ranks and their groups (nccl.h); NULL: through host memory. */
    struct nccl *nccl;
    /* For ranks whose launcher does not watch them (pmi.h): `gone` returns which rank has ended (NULL: none) and
     * stops waiting. Both are NULL where the launcher watches. */
    struct pmi *pmi;
    const char *(*gone)(struct pmi *);
    char *stage; /* host buffer for exchanges of a device with its own memory; see comm_stage */
};

/* An exchange as data: the arguments of comm_gather, comm_reduce and comm_sum (in place: `to`). */
enum comm_kind { COMM_GATHER, COMM_REDUCE, COMM_SUM };
struct comm_exchange {
    enum comm_kind kind;
    const void *from;
    void *to;
    int64_t from_count, to_count; /* elements */
    enum dtype type;
    bool add;
    /* comm_work bytes for reduce and sum. The lane runs one exchange at a time, so all share them. */
    void *work;
    struct clock_span *when; /* on a lane: set when it has run; NULL: nobody asks */
};

/* Begins an exchange on the lane, which must exist. It is done, with all earlier ones, when comm_wait of its ticket
 * returns. */
uint64_t comm_begin(struct comm *comm, const struct comm_exchange *exchange);
enum plim_status comm_wait(struct comm *comm, uint64_t ticket, struct plim_error *err);
bool comm_is_done(struct comm *comm, uint64_t ticket); /* comm_wait would return at once */

/* Runs an exchange immediately in the calling thread. Requires that there is no lane, or that it is empty. */
enum plim_status comm_run(struct comm *comm, const struct comm_exchange *exchange, struct plim_error *err);

/* Takes and touches that memory, before the process is measured. PLIM_NO_MEMORY. */
enum plim_status comm_stage(struct comm *comm, struct plim_error *err);

/* PLIM_UNSUPPORTED: a launcher started several ranks, and the library that connects them is missing; PLIM_IO: they do
 * not meet; PLIM_BAD_INPUT: they run different programs. *tells: if several ranks have the error, this rank must
 * report it. *out may be set even on an error, when ranks are connected. A connecting library waits for ever for a
 * rank that runs another program; `stuck` is then called from another thread with a line that names it, and must end
 * the process. The context must have a process: connecting libraries read its variables. */
enum plim_status comm_open(const struct context *context, struct comm **out, bool *tells,
                           void (*stuck)(const char *why), struct plim_error *err);
void comm_close(struct comm *comm);
void comm_abort(struct comm *comm, int code);

/* Memory that MPI will take per rank, for planning ranks that are not started: Open MPI's, or MPICH's if only its
 * module is present. Connected ranks have comm.library_bytes. */
int64_t comm_library_bytes(const struct context *context, int local_ranks);

/* Returns PLIM_IO naming the missing rank after another library (`what`) waited in vain; with `why`, that reason. If
 * several ranks call it at about the same time, it returns on the first, which reports; the others are held. */
enum plim_status comm_missing(struct comm *comm, const char *what, const char *why, struct plim_error *err);

static inline int comm_rank(const struct comm *comm) { return comm ? comm->rank : 0; }
static inline int comm_ranks(const struct comm *comm) { return comm ? comm->ranks : 1; }

/* Scratch bytes of comm_reduce and comm_sum with this many ranks. */
size_t comm_work(int ranks, size_t whole_bytes);

enum plim_status comm_gather(struct comm *comm, const void *piece, size_t piece_bytes, void *whole,
                             size_t whole_bytes, struct plim_error *err);

/* Computes this rank's piece of the sum of `whole` over ranks; `add`: adds it to `piece`. */
enum plim_status comm_reduce(struct comm *comm, const void *whole, int64_t count, void *piece,
                             int64_t piece_count, enum dtype type, bool add, void *work,
                             struct plim_error *err);

/* Returns this rank's piece of `whole`, with zeros past its end. */
void comm_piece(const struct comm *comm, const void *whole, size_t whole_bytes, void *piece,
                size_t piece_bytes);

/* The sum over ranks, in place. */
enum plim_status comm_sum(struct comm *comm, void *data, int64_t count, enum dtype type, void *work,
                          struct plim_error *err);

/* Sums a few numbers over all ranks; whole numbers stay exact. */
enum plim_status comm_sum_numbers(struct comm *comm, double *numbers, int count, struct plim_error *err);

/* Copies the data of rank `root` to all ranks. */
enum plim_status comm_broadcast(struct comm *comm, void *data, size_t bytes, int root,
                                struct plim_error *err);

/* PLIM_BAD_INPUT if the bytes differ between ranks; `what` names them. */
enum plim_status comm_same(struct comm *comm, const void *data, size_t bytes, const char *what,
                           struct plim_error *err);

/* PLIM_OK if every rank passed PLIM_OK; otherwise all get the error of the first that did not. */
enum plim_status comm_agree(struct comm *comm, enum plim_status status, struct plim_error *err);
