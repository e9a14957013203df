/* lane.c - see lane.h. A ring of exchanges, one thread; tickets are numbers of exchanges. */
#include "comm/lane.h"
#include "base/threads.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define RING        64
#define STACK_BYTES ((size_t)512 << 10) /* a library's calls are deep */

struct comm_lane {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    struct asked {
        struct comm *comm; /* all ranks, or a group */
        struct comm_exchange exchange;
    } ring[RING];
    uint64_t asked, done; /* exchange t is ring[t % RING], finished when done > t */
    bool stop;
    struct plim_error failure; /* the first one, kept */
};

static void *lane_main(void *arg)
{
    struct comm_lane *lane = arg;
    prctl(PR_SET_TIMERSLACK, 1000); /* ns: naps between two looks at the link are short */
    pthread_mutex_lock(&lane->lock);
    for (;;) {
        while (lane->done == lane->asked && !lane->stop) pthread_cond_wait(&lane->moved, &lane->lock);
        if (lane->done == lane->asked) break;
        struct asked asked = lane->ring[lane->done % RING];
        if (lane->failure.status == PLIM_OK) {
            struct plim_error err = {0};
            pthread_mutex_unlock(&lane->lock);
            asked.comm->beside = true;
            struct clock_span span = {.began = clock_seconds()};
            enum plim_status status = comm_run(asked.comm, &asked.exchange, &err);
            span.ended = clock_seconds();
            asked.comm->beside = false;
            if (asked.exchange.when) *asked.exchange.when = span;
            pthread_mutex_lock(&lane->lock);
            if (status != PLIM_OK) lane->failure = err;
        }
        lane->done++;
        pthread_cond_broadcast(&lane->moved);
    }
    pthread_mutex_unlock(&lane->lock);
    return NULL;
}

enum plim_status lane_open(struct comm *comm, struct plim_error *err)
{
    struct comm_lane *lane = calloc(1, sizeof *lane);
    if (!lane) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while ranks were connected");
    pthread_mutex_init(&lane->lock, NULL);
    pthread_cond_init(&lane->moved, NULL);
    int rc = thread_begin(&lane->thread, STACK_BYTES, lane_main, lane);
    if (!rc) return comm->lane = lane, PLIM_OK;
    free(lane);
    return plim_fail(err, PLIM_NO_MEMORY, "cannot start the thread for exchanges: %s", strerror(rc));
}

void lane_close(struct comm_lane *lane)
{
    if (!lane) return;
    pthread_mutex_lock(&lane->lock);
    lane->stop = true;
    pthread_cond_broadcast(&lane->moved);
    pthread_mutex_unlock(&lane->lock);
    pthread_join(lane->thread, NULL);
    pthread_cond_destroy(&lane->moved);
    pthread_mutex_destroy(&lane->lock);
    free(lane);
}

/* Until everything before `count` is done. */
static enum plim_status wait_for(struct comm_lane *lane, uint64_t count, struct plim_error *err)
{
    pthread_mutex_lock(&lane->lock);
    while (lane->done < count) pthread_cond_wait(&lane->moved, &lane->lock);
    struct plim_error failure = lane->failure;
    pthread_mutex_unlock(&lane->lock);
    if (failure.status != PLIM_OK && err) *err = failure;
    return failure.status;
}

enum plim_status lane_drain(struct comm_lane *lane, struct plim_error *err)
{
    return wait_for(lane, lane->asked, err); /* only the owner asks */
}

uint64_t comm_begin(struct comm *comm, const struct comm_exchange *x)
{
    struct comm_lane *lane = comm->lane;
    pthread_mutex_lock(&lane->lock);
    while (lane->asked - lane->done >= RING) pthread_cond_wait(&lane->moved, &lane->lock);
    uint64_t ticket = lane->asked++;
    lane->ring[ticket % RING] = (struct asked){comm, *x};
    pthread_cond_broadcast(&lane->moved);
    pthread_mutex_unlock(&lane->lock);
    return ticket;
}

enum plim_status comm_wait(struct comm *comm, uint64_t ticket, struct plim_error *err)
{
    return wait_for(comm->lane, ticket + 1, err);
}

bool comm_is_done(struct comm *comm, uint64_t ticket)
{
    struct comm_lane *lane = comm->lane;
    pthread_mutex_lock(&lane->lock);
    bool done = lane->done > ticket;
    pthread_mutex_unlock(&lane->lock);
    return done;
}
