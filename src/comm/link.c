/* link.c - see link.h. Exchanges are timed as a run has them. A gather of a number is all waiting. Of megabytes, what is left behind the
 * waiting is the link's rate, and of a reduction that of exchanges whose parts are added: so long does a run take that waits for
 * them. Where there is a lane they run once more beside a team that computes, for what carries bytes takes its part of the processors and
 * gets less of them. Of the waiting the median counts, of the large ones the fastest, for others only make them slower. */
#include "comm/link.h"
#include "base/clock.h"
#include "base/strbuf.h"
#include "device/calibration.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PACE_SECONDS 0.004
#define PACE_WINDOWS 5
#define LOAD_MOST    0.9

enum {
    HOST_NAME = 64,
    SMALL_ROUNDS = 21,
    LARGE_ROUNDS = 5,
    LARGE_COUNT = 4,
    LARGE_WHOLE = 8 << 20,
    LARGE_LEAST = 64 << 10
};
enum { UNIT_FLOATS = 4096, UNIT_PASSES = 32 }; /* some ten microseconds of a thread */

/* --- what is computed beside ------------------------------------------------------------------------------------ */

static void unit_body(void *arg, int64_t begin, int64_t end, int)
{
    for (int64_t i = begin; i < end; i++) {
        float *x = (float *)arg + i * UNIT_FLOATS;
        for (int pass = 0; pass < UNIT_PASSES; pass++)
            for (int k = 0; k < UNIT_FLOATS; k++) x[k] = x[k] * 0.999f + 0.001f;
    }
}

struct probe {
    struct comm *comm;
    struct threads *team; /* NULL: nothing computes */
    float *work;          /* of each of its threads */
    double pace;          /* units/s while nothing is exchanged */
    char *piece, *whole, *scratch;
    size_t bytes; /* of a piece */
};

static void compute_unit(const struct probe *p)
{
    threads_each(p->team, threads_count(p->team), 1, unit_body, p->work);
}

/* The best of a few, for others may use the machine. */
static void find_pace(struct probe *p)
{
    for (int i = 0; i < PACE_WINDOWS; i++) {
        double start = clock_seconds(), now = start;
        int64_t units = 0;
        for (; now - start < PACE_SECONDS; now = clock_seconds(), units++) compute_unit(p);
        double pace = (double)units / (now - start);
        if (pace > p->pace) p->pace = pace;
    }
}

/* --- times ------------------------------------------------------------------------------------------------------ */

struct timing {
    double seconds, load; /* that it took, and the share of computing that was lost meanwhile */
};

/* One of `count` exchanges that follow each other. */
static enum plim_status time_once(const struct probe *p, const struct comm_exchange *x, int count,
                                  bool beside, struct timing *out, struct plim_error *err)
{
    double start = clock_seconds();
    uint64_t ticket = 0;
    int64_t units = 0;
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < count && status == PLIM_OK; i++)
        if (p->comm->lane)
            ticket = comm_begin(p->comm, x);
        else
            status = comm_run(p->comm, x, err);
    for (; beside && !comm_is_done(p->comm, ticket); units++) compute_unit(p);
    if (p->comm->lane) status = comm_wait(p->comm, ticket, err);
    double seconds = clock_seconds() - start;
    *out = (struct timing){seconds / count, beside ? 1 - (double)units / (p->pace * seconds) : 0};
    return status;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[n / 2];
}

/* Times `rounds` exchanges of `bytes` of each rank. The first round opens connections and does not count. */
static enum plim_status time_rounds(const struct probe *p, enum comm_kind kind, size_t bytes, bool beside,
                                    struct timing *out, struct plim_error *err)
{
    double seconds[SMALL_ROUNDS] = {0};
    bool large = bytes > sizeof(float);
    int rounds = large ? LARGE_ROUNDS : SMALL_ROUNDS;
    struct timing fastest = {0};
    int64_t piece = (int64_t)(bytes / sizeof(float)), whole = piece * p->comm->ranks;
    struct comm_exchange gather = {COMM_GATHER, p->piece, p->whole, piece, whole, DT_F32, false, p->scratch},
                         reduce = {COMM_REDUCE, p->whole, p->piece, whole, piece, DT_F32, false, p->scratch};
    enum plim_status status = PLIM_OK;
    for (int i = -1; i < rounds && status == PLIM_OK; i++) {
        struct timing t;
        status =
            time_once(p, kind == COMM_GATHER ? &gather : &reduce, large ? LARGE_COUNT : 1, beside, &t, err);
        if (i >= 0) seconds[i] = t.seconds;
        if (i == 0 || (i > 0 && t.seconds < fastest.seconds)) fastest = t;
    }
    *out = large ? fastest : (struct timing){median(seconds, rounds), 0};
    return status;
}

static bool probe_open(struct probe *p)
{
    size_t ranks = (size_t)p->comm->ranks, threads = p->team ? (size_t)threads_count(p->team) : 0;
    p->bytes = (size_t)LARGE_WHOLE / ranks / 4096 * 4096;
    if (p->bytes < LARGE_LEAST) p->bytes = LARGE_LEAST;
    p->work = calloc(threads + 1, UNIT_FLOATS * sizeof *p->work);
    p->piece = calloc(1, p->bytes), p->whole = calloc(ranks, p->bytes);
    p->scratch = calloc(1, comm_work(p->comm->ranks, ranks * p->bytes));
    return p->work && p->piece && p->whole && p->scratch;
}

static void probe_close(struct probe *p) { free(p->work), free(p->piece), free(p->whole), free(p->scratch); }

/* Bytes/s behind the waiting. */
static double rate_of(const struct probe *p, double seconds, double waiting)
{
    double least = 0.1 * seconds, behind = seconds - waiting > least ? seconds - waiting : least;
    return (double)p->bytes * (p->comm->ranks - 1) / (behind > 1e-9 ? behind : 1e-9);
}

static enum plim_status measure(struct comm *comm, struct threads *team, struct link_rates *out,
                                struct plim_error *err)
{
    struct probe p = {.comm = comm, .team = comm->lane ? team : NULL};
    struct timing small, gather, reduce, beside[2] = {0};
    enum plim_status status =
        probe_open(&p) ? PLIM_OK
                       : plim_fail(err, PLIM_NO_MEMORY, "out of memory while the link was measured");
    status = comm_agree(comm, status, err); /* and all begin to compute at once */
    if (status == PLIM_OK && p.team) find_pace(&p);
    if (status == PLIM_OK) status = time_rounds(&p, COMM_GATHER, sizeof(float), false, &small, err);
    if (status == PLIM_OK) status = time_rounds(&p, COMM_GATHER, p.bytes, false, &gather, err);
    if (status == PLIM_OK) status = time_rounds(&p, COMM_REDUCE, p.bytes, false, &reduce, err);
    if (status == PLIM_OK && p.team) status = time_rounds(&p, COMM_GATHER, p.bytes, true, &beside[0], err);
    if (status == PLIM_OK && p.team) status = time_rounds(&p, COMM_REDUCE, p.bytes, true, &beside[1], err);
    probe_close(&p);
    if (status != PLIM_OK) return status;
    double load = (beside[0].load + beside[1].load) / 2, slower = beside[0].seconds + beside[1].seconds;
    out->beside = fmin(1, p.team ? (gather.seconds + reduce.seconds) / slower : 1);
    out->seconds = small.seconds > 1e-9 ? small.seconds : 1e-9;
    out->bandwidth = rate_of(&p, gather.seconds, small.seconds);
    out->reduce_share = rate_of(&p, reduce.seconds, small.seconds) / out->bandwidth;
    out->load = load < 0 ? 0 : load > LOAD_MOST ? LOAD_MOST : load;
    return PLIM_OK;
}

/* --- what is remembered ----------------------------------------------------------------------------------------- */

/* " 4 on a": of the ranks in their order, so many in a row on one machine. */
static void name_machine(struct strbuf *key, int ranks, const char *host)
{
    strbuf_addf(key, " %d on %.63s", ranks, host);
}

static void name_threads(struct strbuf *key, int threads)
{
    if (threads > 0) strbuf_addf(key, ", beside %d threads", threads);
}

/* "ranks: 4 on a, 4 on b, beside 2 threads" */
static enum plim_status name_link(struct comm *comm, int threads, struct strbuf *key, struct plim_error *err)
{
    char mine[HOST_NAME] = "", *all = calloc((size_t)comm->ranks, HOST_NAME);
    if (!all) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while ranks named their machines");
    gethostname(mine, sizeof mine - 1);
    enum plim_status status = comm_gather(comm, mine, sizeof mine, all, (size_t)comm->ranks * HOST_NAME, err);
    strbuf_add(key, "ranks:");
    for (int r = 0, same = 1; r < comm->ranks && status == PLIM_OK; r++, same++) {
        const char *host = all + (size_t)r * HOST_NAME;
        if (r + 1 < comm->ranks && !strncmp(host, host + HOST_NAME, HOST_NAME)) continue;
        name_machine(key, same, host);
        same = 0;
    }
    name_threads(key, threads);
    free(all);
    return status == PLIM_OK ? strbuf_status(key, err) : status;
}

enum { NUMBERS = 5 }; /* all above 0: the last is the share of computing that is left */
static const char *const names[NUMBERS] = {"bandwidth", "seconds", "reduce_share", "beside", "left"};

static bool recall(const struct context *context, const char *key, struct link_rates *out)
{
    struct calibration_number n[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) n[i] = (struct calibration_number){names[i], 0};
    if (!calibration_wanted(context) || !calibration_recall(context, "link", key, n, NUMBERS)) return false;
    *out = (struct link_rates){n[0].value, n[1].value, n[2].value, n[3].value, 1 - n[4].value};
    return true;
}

static void keep(const struct context *context, const char *key, const struct link_rates *r)
{
    double values[NUMBERS] = {r->bandwidth, r->seconds, r->reduce_share, r->beside, 1 - r->load};
    struct calibration_number n[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) n[i] = (struct calibration_number){names[i], values[i]};
    calibration_keep(context, "link", key, n, NUMBERS);
}

bool link_recall_here(const struct context *context, int ranks, int threads, struct link_rates *out)
{
    char host[HOST_NAME] = "";
    struct strbuf key = STRBUF_INIT;
    gethostname(host, sizeof host - 1);
    strbuf_add(&key, "ranks:");
    name_machine(&key, ranks, host);
    name_threads(&key, threads);
    bool known = !key.failed && recall(context, strbuf_text(&key), out);
    strbuf_release(&key);
    return known;
}

enum plim_status link_recall(struct comm *comm, int threads, struct link_rates *out, bool *known,
                             struct plim_error *err)
{
    struct strbuf key = STRBUF_INIT;
    *known = false, *out = (struct link_rates){0};
    enum plim_status status = name_link(comm, threads, &key, err);
    if (status == PLIM_OK && comm->rank == 0) *known = recall(comm->context, strbuf_text(&key), out);
    strbuf_release(&key);
    if (status == PLIM_OK) status = comm_broadcast(comm, known, sizeof *known, 0, err);
    return status == PLIM_OK ? comm_broadcast(comm, out, sizeof *out, 0, err) : status;
}

enum plim_status link_measure(struct comm *comm, struct threads *team, struct link_rates *out,
                              struct plim_error *err)
{
    struct strbuf key = STRBUF_INIT;
    bool wanted = calibration_wanted(comm->context);
    *out = (struct link_rates){0};
    enum plim_status status = comm_broadcast(comm, &wanted, sizeof wanted, 0, err);
    if (status == PLIM_OK && !wanted)
        status =
            plim_fail(err, PLIM_UNSUPPORTED, CALIBRATION_WISH "=0: the link between ranks is not measured");
    if (status == PLIM_OK) status = name_link(comm, team ? threads_count(team) : 0, &key, err);
    if (status == PLIM_OK) status = measure(comm, team, out, err);
    if (status == PLIM_OK) status = comm_broadcast(comm, out, sizeof *out, 0, err);
    if (status == PLIM_OK && comm->rank == 0) keep(comm->context, strbuf_text(&key), out);
    strbuf_release(&key);
    return status;
}
