/* comm.c - what ranks do together, over what moves bytes between them. See comm.h. */
#include "comm/lane.h"
#include "base/hash.h"
#include "base/minmax.h"
#include "tape/op.h"

#include <stdlib.h>
#include <string.h>

/* Numbers that comm_sum_numbers takes at once. */
enum { NUMBERS_MOST = 64 };

static enum plim_status told(const struct comm *comm, const char *what, const char *why,
                             struct plim_error *err)
{
    if (!why) return PLIM_OK;
    return plim_fail(err, PLIM_LINK, "rank %d of %d: %s: %s", comm->rank, comm->ranks, what, why);
}

enum plim_status comm_missing(struct comm *comm, const char *what, const char *why, struct plim_error *err)
{
    const char *who = comm->ops->missing(comm, comm->patience);
    return told(comm, what, why ? why : who, err);
}

/* Finishes the lane's queue first, so that all ranks see one order. */
static enum plim_status settle(struct comm *comm, struct plim_error *err)
{
    return comm->lane ? lane_drain(comm->lane, err) : PLIM_OK;
}

size_t comm_work(int ranks, size_t whole_bytes)
{
    return (size_t)op_collective_work((int64_t)whole_bytes, ranks);
}

enum plim_status comm_stage(struct comm *comm, struct plim_error *err)
{
    size_t bytes = (2 * (size_t)comm->ranks + 1) * (size_t)op_collective_chunk(comm->ranks);
    comm->stage = malloc(bytes);
    if (!comm->stage)
        return plim_fail(err, PLIM_NO_MEMORY, "no %zu bytes for exchanges between ranks", bytes);
    memset(comm->stage, 1, bytes);
    return PLIM_OK;
}

enum plim_status comm_gather(struct comm *comm, const void *piece, size_t piece_bytes, void *whole,
                             size_t whole_bytes, struct plim_error *err)
{
    if (!comm) {
        if (piece != whole) memcpy(whole, piece, min_size(piece_bytes, whole_bytes));
        return PLIM_OK;
    }
    enum plim_status status = settle(comm, err);
    if (status != PLIM_OK) return status;
    return told(comm, "gather", comm->ops->gather(comm, piece, piece_bytes, whole, whole_bytes), err);
}

void comm_piece(const struct comm *comm, const void *whole, size_t whole_bytes, void *piece,
                size_t piece_bytes)
{
    size_t first = (size_t)comm_rank(comm) * piece_bytes;
    size_t here = first < whole_bytes ? min_size(piece_bytes, whole_bytes - first) : 0;
    memcpy(piece, (const char *)whole + first, here);
    memset((char *)piece + here, 0, piece_bytes - here);
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

enum { BLOCK = 512 }; /* elements that are added at once */

/* The sum of every rank's part of `count` f64 into out; `add`: to what is there. */
static void add_doubles(const double *parts, int ranks, size_t count, double *out, bool add)
{
    for (size_t i = 0; i < count; i++) {
        double sum = parts[i];
        for (int r = 1; r < ranks; r++) sum += parts[(size_t)r * count + i];
        out[i] = add ? out[i] + sum : sum;
    }
}

static void add_to(float *sum, const void *from, enum dtype type, size_t n)
{
    float wide[BLOCK];
    dtype_convert(wide, DT_F32, from, type, (int64_t)n);
    for (size_t i = 0; i < n; i++) sum[i] += wide[i];
}

/* Sums narrower types in fp32 and rounds once. */
static void add_parts(const void *parts, enum dtype type, int ranks, size_t count, void *out, bool add)
{
    const char *from = parts;
    size_t size = dtype_size(type);
    if (type == DT_F64) {
        add_doubles(parts, ranks, count, out, add);
        return;
    }
    for (size_t at = 0; at < count; at += BLOCK) {
        float sum[BLOCK];
        size_t n = min_size(BLOCK, count - at);
        char *to = (char *)out + at * size;
        dtype_convert(sum, DT_F32, from + at * size, type, (int64_t)n);
        for (int r = 1; r < ranks; r++) add_to(sum, from + ((size_t)r * count + at) * size, type, n);
        if (add) add_to(sum, to, type, n);
        dtype_convert(to, type, sum, DT_F32, (int64_t)n);
    }
}

static enum plim_status reduce_now(struct comm *comm, const struct comm_exchange *x, struct plim_error *err)
{
    size_t size = dtype_size(x->type), stride = (size_t)x->to_count * size;
    size_t all = (size_t)x->from_count * size;
    size_t step = comm_work(comm->ranks, all) / (size_t)comm->ranks / size * size;
    for (size_t at = 0; at < stride; at += step) {
        size_t bytes = min_size(step, stride - at);
        size_t left = all > at ? all - at : 0;
        memset(x->work, 0, (size_t)comm->ranks * bytes);
        const char *why = comm->ops->exchange(comm, (const char *)x->from + at, left, stride, bytes, x->work);
        if (why) return told(comm, "reduce", why, err);
        add_parts(x->work, x->type, comm->ranks, bytes / size, (char *)x->to + at, x->add);
    }
    return PLIM_OK;
}

enum plim_status comm_reduce(struct comm *comm, const void *whole, int64_t count, void *piece,
                             int64_t piece_count, enum dtype type, bool add, void *work,
                             struct plim_error *err)
{
    if (!comm) {
        add_parts(whole, type, 1, (size_t)count, piece, add);
        return PLIM_OK;
    }
    struct comm_exchange x = {COMM_REDUCE, whole, piece, count, piece_count, type, add, work};
    enum plim_status status = settle(comm, err);
    return status == PLIM_OK ? reduce_now(comm, &x, err) : status;
}

/* Below this a second exchange costs more than the bytes it saves. */
#define SUM_WHOLE ((size_t)64 << 10)

/* Each rank adds a piece of a window of `data`, and all get all pieces. */
static enum plim_status sum_pieces(struct comm *comm, const struct comm_exchange *x, struct plim_error *err)
{
    size_t size = dtype_size(x->type), all = (size_t)x->to_count * size, ranks = (size_t)comm->ranks;
    size_t step = comm_work(comm->ranks, all) / ranks / size * size;
    for (size_t at = 0; at < all; at += ranks * step) {
        size_t left = min_size(ranks * step, all - at), piece = (left / size + ranks - 1) / ranks * size;
        char *data = (char *)x->to + at;
        memset(x->work, 0, ranks * piece);
        const char *why = comm->ops->exchange(comm, data, left, piece, piece, x->work);
        if (!why) {
            add_parts(x->work, x->type, comm->ranks, piece / size, x->work, false);
            why = comm->ops->gather(comm, x->work, piece, data, left);
        }
        if (why) return told(comm, "sum", why, err);
    }
    return PLIM_OK;
}

/* Every rank gets all parts and adds them; of many, a piece. The order is the same. */
static enum plim_status sum_now(struct comm *comm, const struct comm_exchange *x, struct plim_error *err)
{
    size_t size = dtype_size(x->type), all = (size_t)x->to_count * size;
    size_t most = comm_work(comm->ranks, all) / (size_t)comm->ranks / size * size;
    if (comm->ranks > 2 && all > SUM_WHOLE) return sum_pieces(comm, x, err);
    for (size_t at = 0; at < all; at += most) {
        size_t bytes = min_size(most, all - at);
        char *data = (char *)x->to + at;
        const char *why = comm->ops->gather(comm, data, bytes, x->work, (size_t)comm->ranks * bytes);
        if (why) return told(comm, "sum", why, err);
        add_parts(x->work, x->type, comm->ranks, bytes / size, data, false);
    }
    return PLIM_OK;
}

enum plim_status comm_sum(struct comm *comm, void *data, int64_t count, enum dtype type, void *work,
                          struct plim_error *err)
{
    if (!comm) return PLIM_OK;
    struct comm_exchange x = {COMM_SUM, data, data, count, count, type, false, work};
    enum plim_status status = settle(comm, err);
    return status == PLIM_OK ? sum_now(comm, &x, err) : status;
}

enum plim_status comm_run(struct comm *comm, const struct comm_exchange *x, struct plim_error *err)
{
    size_t size = dtype_size(x->type), from = (size_t)x->from_count * size, to = (size_t)x->to_count * size;
    if (x->kind == COMM_REDUCE) return reduce_now(comm, x, err);
    if (x->kind == COMM_SUM) return sum_now(comm, x, err);
    return told(comm, "gather", comm->ops->gather(comm, x->from, from, x->to, to), err);
}

enum plim_status comm_sum_numbers(struct comm *comm, double *numbers, int count, struct plim_error *err)
{
    if (!comm) return PLIM_OK;
    int most = count < NUMBERS_MOST ? count : NUMBERS_MOST; /* at a time */
    void *work = malloc(comm_work(comm->ranks, (size_t)most * sizeof *numbers * (size_t)comm->ranks));
    if (!work) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while ranks added numbers");
    enum plim_status status = PLIM_OK;
    for (int at = 0; at < count && status == PLIM_OK; at += most)
        status = comm_sum(comm, numbers + at, count - at < most ? count - at : most, DT_F64, work, err);
    free(work);
    return status;
}

/* --- agreement -------------------------------------------------------------------------------------------------- */

enum plim_status comm_broadcast(struct comm *comm, void *data, size_t bytes, int root, struct plim_error *err)
{
    enum plim_status status = comm ? settle(comm, err) : PLIM_OK;
    if (!comm || status != PLIM_OK) return status;
    return told(comm, "broadcast", comm->ops->broadcast(comm, data, bytes, root), err);
}

enum plim_status comm_same(struct comm *comm, const void *data, size_t bytes, const char *what,
                           struct plim_error *err)
{
    enum plim_status status = comm ? settle(comm, err) : PLIM_OK;
    if (!comm || status != PLIM_OK) return status;
    uint64_t mine = hash64(data, bytes, 0), *all = calloc((size_t)comm->ranks, sizeof *all);
    if (!all) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while ranks compared %s", what);
    const char *why = comm->ops->gather(comm, &mine, sizeof mine, all, (size_t)comm->ranks * sizeof mine);
    status = told(comm, what, why, err);
    for (int r = 1; r < comm->ranks && status == PLIM_OK; r++)
        if (all[r] != all[0])
            status =
                plim_fail(err, PLIM_BAD_INPUT,
                          "rank %d: %s is not that of rank 0; start every rank with the same files", r, what);
    free(all);
    return status;
}

enum plim_status comm_agree(struct comm *comm, enum plim_status status, struct plim_error *err)
{
    if (!comm) return status;
    struct plim_error none = {0}, *mine = err ? err : &none, lane = {0};
    if (settle(comm, &lane) != PLIM_OK) return *mine = lane, lane.status;
    int64_t code = status, *all = calloc((size_t)comm->ranks, sizeof *all);
    if (!all) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while ranks agreed");
    const char *why = comm->ops->gather(comm, &code, sizeof code, all, (size_t)comm->ranks * sizeof code);
    int first = 0;
    while (!why && first < comm->ranks && all[first] == PLIM_OK) first++;
    bool failed = first < comm->ranks;
    enum plim_status agreed = failed && !why ? (enum plim_status)all[first] : PLIM_OK;
    free(all);
    if (why)
        return status != PLIM_OK ? status : told(comm, "agree", why, err); /* its own error comes first */
    if (!failed) return PLIM_OK;
    struct plim_error told_by = *mine;
    why = comm->ops->broadcast(comm, &told_by, sizeof told_by, first);
    if (why) return told(comm, "agree", why, err);
    if (first == comm->rank) return agreed;
    if (agreed == PLIM_LINK) agreed = PLIM_IO; /* it is another rank's link */
    *mine = told_by, mine->status = agreed;
    return agreed;
}
