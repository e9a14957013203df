/* comm.h - several ranks as one: pieces gathered, sums in the order of ranks, one number agreed on.
 *
 *     struct comm *comm;
 *     bool tells;
 *     comm_open(&context, &comm, &tells, end, &err);               // as mpirun, srun, torchrun or nobody started us; one rank: NULL
 *     comm_gather(comm, piece, piece_bytes, whole, whole_bytes, &err);
 *     comm_reduce(comm, whole, count, piece, piece_count, DT_F32, true, work, &err);
 *     comm_close(comm);
 *
 * All ranks call the same functions in the same order with the same sizes. NULL is one rank: nothing is exchanged. A backend only
 * moves bytes (struct comm_ops); what is added, and in which order, is here, so that every backend gives the same bits.
 *
 * Of `whole` bytes rank r has [r * piece, min((r + 1) * piece, whole)); a piece behind the end is zeros.
 *
 * No call waits for ever: if another rank does not answer within comm.patience seconds, the call returns PLIM_IO, and the
 * caller ends the job with comm_abort.
 *
 * Exchanges run beside computing on the lane, a thread that takes them in the order in which they were begun; that order is
 * the same on all ranks, too:
 *
 *     uint64_t ticket = comm_begin(comm, &(struct comm_exchange){COMM_GATHER, piece, whole, count, all, DT_F32});
 *     ...                                               // neither end is touched meanwhile
 *     comm_wait(comm, ticket, &err);
 *
 * Every other call waits until the lane is empty. The first error of the lane is that of every call behind it.
 */
#ifndef PLIM_COMM_COMM_H
#define PLIM_COMM_COMM_H

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
    /* Joins the others; `seconds`: how long any call waits for them. */
    const char *(*open)(struct comm *, double seconds);
    /* Every rank's `piece` bytes, in the order of ranks, into `whole`, of which the last may be short or missing. */
    const char *(*gather)(struct comm *, const void *piece, size_t piece_bytes, void *whole,
                          size_t whole_bytes);
    /* From every rank the bytes [rank * stride, + bytes) of its `from`, for the rank that calls, into to[sender * bytes]; what
     * lies behind `whole` is not there. */
    const char *(*exchange)(struct comm *, const char *from, size_t whole, size_t stride, size_t bytes,
                            char *to);
    const char *(*broadcast)(struct comm *, void *data, size_t bytes, int root);
    /* Ranks that give the same `part` become a group of their own, in their order: rank, ranks and own of `out` are set. */
    const char *(*split)(struct comm *, int part, struct comm *out);
    /* Who does not answer, after something that is not this backend's was not answered within `seconds`: returns on the rank that
     * is to tell it, at most 15 s later; the others are held, for the job is about to be ended. */
    const char *(*missing)(struct comm *, double seconds);
    void (*abort)(struct comm *, int code); /* ends all ranks */
    void (*close)(struct comm *);           /* the world, or a group of it */
};

struct comm {
    const struct comm_ops *ops;
    const struct context *context; /* it was opened with, borrowed */
    int rank, ranks;
    int local_rank, local_ranks; /* of those on this machine */
    void *own;                   /* of the backend */
    int64_t program_bytes;       /* os_code_bytes before the library was loaded */
    int64_t library_bytes; /* that the library takes of this rank, by its table; see comm_library_bytes */
    double patience;       /* seconds that any call waits for the others */
    bool any_thread;       /* the backend takes calls from any thread, one at a time; its open says so */
    /* The call in progress is the lane's: waiting in it yields the processor to computing. */
    bool beside;
    struct comm_lane *lane; /* NULL: there is none, and exchanges run one after the other with computing */
    /* Subsets of the ranks: those on this machine, and one per machine; this rank belongs to both. NULL with a single
     * machine, or unless every machine has the same number of ranks (more than one) with consecutive numbers. */
    struct comm *node, *across;
    /* Moves data between GPU memories, for all ranks and their groups (nccl.h); NULL: through host memory. */
    struct nccl *nccl;
    /* For ranks whose launcher does not watch them (pmi.h): `gone` returns which rank has ended (NULL: none) and
     * stops waiting. Both are NULL where the launcher watches. */
    struct pmi *pmi;
    const char *(*gone)(struct pmi *);
    char *stage; /* host memory through which a device with its own exchanges; see comm_stage */
};

/* An exchange as data: what comm_gather, comm_reduce and comm_sum (in place: `to`) are called with. */
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
};

/* Begun on the lane, which there must be; done, with everything begun before it, when comm_wait of its ticket returns. */
uint64_t comm_begin(struct comm *comm, const struct comm_exchange *exchange);
enum plim_status comm_wait(struct comm *comm, uint64_t ticket, struct plim_error *err);
bool comm_is_done(struct comm *comm, uint64_t ticket); /* comm_wait would return at once */

/* Runs an exchange immediately in the calling thread. Requires that there is no lane, or that it is empty. */
enum plim_status comm_run(struct comm *comm, const struct comm_exchange *exchange, struct plim_error *err);

/* Takes and touches that memory, before the process is measured. PLIM_NO_MEMORY. */
enum plim_status comm_stage(struct comm *comm, struct plim_error *err);

/* PLIM_UNSUPPORTED: a launcher started several ranks, and what connects them is missing; PLIM_IO: they do not meet; PLIM_BAD_INPUT:
 * they are of different programs. *tells: of an error that several ranks have, this rank's is the one to tell. *out may be
 * set with an error, when ranks are connected. A library that connects them waits for ever for a rank that runs another
 * program: `stuck` is then called, from another thread, with a line that names it, and must end the process. The context has a
 * process: libraries that connect ranks read its variables. */
enum plim_status comm_open(const struct context *context, struct comm **out, bool *tells,
                           void (*stuck)(const char *why), struct plim_error *err);
void comm_close(struct comm *comm);
void comm_abort(struct comm *comm, int code);

/* Bytes of a rank that MPI will take, for a plan of ranks that nobody has started: Open MPI's, or MPICH's where only its module is
 * here. Ranks that are connected have comm.library_bytes of the library that connects them. */
int64_t comm_library_bytes(const struct context *context, int local_ranks);

/* PLIM_IO with who is missing, where another library (`what`) waited in vain; or, with `why`, with that. Of the ranks that come
 * here about the same time the first one returns, to tell it; others are held. */
enum plim_status comm_missing(struct comm *comm, const char *what, const char *why, struct plim_error *err);

static inline int comm_rank(const struct comm *comm) { return comm ? comm->rank : 0; }
static inline int comm_ranks(const struct comm *comm) { return comm ? comm->ranks : 1; }

/* Bytes of scratch that comm_reduce and comm_sum of so many ranks need. */
size_t comm_work(int ranks, size_t whole_bytes);

enum plim_status comm_gather(struct comm *comm, const void *piece, size_t piece_bytes, void *whole,
                             size_t whole_bytes, struct plim_error *err);

/* This rank's piece of the sum over ranks of `whole`; `add`: to what is in `piece`. */
enum plim_status comm_reduce(struct comm *comm, const void *whole, int64_t count, void *piece,
                             int64_t piece_count, enum dtype type, bool add, void *work,
                             struct plim_error *err);

/* This rank's piece of `whole`, with zeros behind its end. */
void comm_piece(const struct comm *comm, const void *whole, size_t whole_bytes, void *piece,
                size_t piece_bytes);

/* The sum over ranks, in place. */
enum plim_status comm_sum(struct comm *comm, void *data, int64_t count, enum dtype type, void *work,
                          struct plim_error *err);

/* The sum of a few numbers over all ranks; each is kept exact where it is whole. */
enum plim_status comm_sum_numbers(struct comm *comm, double *numbers, int count, struct plim_error *err);

/* Copies the data of rank `root` to all ranks. */
enum plim_status comm_broadcast(struct comm *comm, void *data, size_t bytes, int root,
                                struct plim_error *err);

/* PLIM_BAD_INPUT when ranks have different bytes; `what` names them. */
enum plim_status comm_same(struct comm *comm, const void *data, size_t bytes, const char *what,
                           struct plim_error *err);

/* Every rank has come here with PLIM_OK; otherwise all have the error of the first that has not. */
enum plim_status comm_agree(struct comm *comm, enum plim_status status, struct plim_error *err);

#endif
