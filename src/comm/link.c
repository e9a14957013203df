/* link.c - see link.h. A gather of a number is all waiting; of one of megabytes, what is left behind the waiting is the link's
 * rate: of the waiting the median, of the large ones the fastest, for disturbance only makes them slower. */
#include "comm/link.h"
#include "base/clock.h"
#include "base/strbuf.h"
#include "device/calibration.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ASSUMED_BANDWIDTH 1e9
#define ASSUMED_SECONDS   1e-4

enum { HOST_NAME = 64, SMALL_ROUNDS = 21, LARGE_ROUNDS = 5, LARGE_WHOLE = 8 << 20, LARGE_LEAST = 64 << 10 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Times of `rounds` gathers of so many bytes of each rank, in rising order; the first, which opens connections, does not
 * count. */
static enum plim_status time_gathers(struct comm *comm, size_t bytes, int rounds,
                                     double seconds[SMALL_ROUNDS], struct plim_error *err)
{
    size_t whole = bytes * (size_t)comm->ranks;
    char *piece = calloc(1, bytes), *all = calloc(1, whole);
    enum plim_status status =
        piece && all ? PLIM_OK : plim_fail(err, PLIM_NO_MEMORY, "out of memory while the link was measured");
    for (int i = -1; i < rounds && status == PLIM_OK; i++) {
        double start = clock_seconds();
        status = comm_gather(comm, piece, bytes, all, whole, err);
        if (i >= 0) seconds[i] = clock_seconds() - start;
    }
    free(piece), free(all);
    if (status == PLIM_OK) qsort(seconds, (size_t)rounds, sizeof *seconds, by_value);
    return status;
}

static enum plim_status measure(struct comm *comm, struct link_rates *out, struct plim_error *err)
{
    size_t bytes = (size_t)LARGE_WHOLE / (size_t)comm->ranks;
    double waits[SMALL_ROUNDS] = {0}, moves[SMALL_ROUNDS] = {0};
    if (bytes < LARGE_LEAST) bytes = LARGE_LEAST;
    enum plim_status status = time_gathers(comm, sizeof(double), SMALL_ROUNDS, waits, err);
    if (status == PLIM_OK) status = time_gathers(comm, bytes, LARGE_ROUNDS, moves, err);
    if (status != PLIM_OK) return status;
    double small = waits[SMALL_ROUNDS / 2], large = moves[0];
    double least = 0.1 * large, behind = large - small > least ? large - small : least;
    out->seconds = small > 1e-9 ? small : 1e-9;
    out->bandwidth = (double)bytes * (comm->ranks - 1) / (behind > 1e-9 ? behind : 1e-9);
    out->fresh = true;
    return PLIM_OK;
}

/* "MPI: 4 on a, 4 on b": the machines in the order of ranks. */
static enum plim_status name_link(struct comm *comm, struct strbuf *key, struct plim_error *err)
{
    char mine[HOST_NAME] = "", *all = calloc((size_t)comm->ranks, HOST_NAME);
    if (!all) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while the link was measured");
    gethostname(mine, sizeof mine - 1);
    enum plim_status status = comm_gather(comm, mine, sizeof mine, all, (size_t)comm->ranks * HOST_NAME, err);
    strbuf_addf(key, "%s:", comm->ops->name);
    for (int r = 0, same = 1; r < comm->ranks && status == PLIM_OK; r++, same++) {
        const char *host = all + (size_t)r * HOST_NAME;
        if (r + 1 < comm->ranks && !strncmp(host, host + HOST_NAME, HOST_NAME)) continue;
        strbuf_addf(key, " %d on %.63s", same, host);
        same = 0;
    }
    free(all);
    return status == PLIM_OK ? strbuf_status(key, err) : status;
}

enum plim_status link_measure(struct comm *comm, struct link_rates *out, struct plim_error *err)
{
    struct strbuf key = STRBUF_INIT;
    struct calibration_number kept[] = {{"bandwidth", 0}, {"seconds", 0}};
    *out = (struct link_rates){ASSUMED_BANDWIDTH, ASSUMED_SECONDS, false};
    bool wanted = calibration_wanted(), known = false;
    enum plim_status status = comm_broadcast(comm, &wanted, sizeof wanted, 0, err);
    if (status != PLIM_OK || !wanted) return status;
    status = name_link(comm, &key, err);
    if (status == PLIM_OK && comm->rank == 0) known = calibration_recall("link", strbuf_text(&key), kept, 2);
    if (status == PLIM_OK) status = comm_broadcast(comm, &known, sizeof known, 0, err);
    if (status == PLIM_OK && known) out->bandwidth = kept[0].value, out->seconds = kept[1].value;
    if (status == PLIM_OK && !known) status = measure(comm, out, err);
    if (status == PLIM_OK) status = comm_broadcast(comm, out, sizeof *out, 0, err);
    kept[0].value = out->bandwidth, kept[1].value = out->seconds;
    if (status == PLIM_OK && out->fresh && comm->rank == 0)
        calibration_keep("link", strbuf_text(&key), kept, 2);
    strbuf_release(&key);
    return status;
}
