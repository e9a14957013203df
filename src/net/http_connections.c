/* http_connections.c - who is connected, for how long, and who has gone.
 *
 * The library bounds what a connection keeps; it does not see that a client has left while its connection is suspended,
 * nor that a request trickles in too slowly. One thread looks at all connections ten times a second:
 *
 *     busy (its request is whole)      has its client closed? Then its exchange is lost.
 *     idle                             longer than receive_seconds, or its client has closed in the middle of a request,
 *                                      which the library may overlook? Then it is hung up on. Are there too many? Then the
 *                                      longest idle goes, unless bytes of it wait to be read or it has only just come.
 *
 * A descriptor is only used under the lock: the library closes it after http_on_connection has taken it off the list.
 */
#define _GNU_SOURCE /* POLLRDHUP */
#include "net/http_part.h"
#include "base/clock.h"
#include "base/threads.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

/* So long a connection may take to send its first bytes before it counts as one that wants nothing. */
#define GRACE_SECONDS 1.0
enum { AT_ONCE = 256 };

void http_hang_up(struct http *h, struct http_connection *c)
{
    if (c->hung_up) return;
    shutdown(c->fd, SHUT_RDWR);
    c->hung_up = true;
    h->leaving++, h->idle -= !c->busy;
}

static bool has_bytes(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0 && (p.revents & POLLIN);
}

/* The connection that has been idle longest, and for at least so long; NULL: there is none. */
static struct http_connection *longest_idle(struct http *h, double seconds)
{
    struct http_connection *oldest = NULL;
    double latest = clock_seconds() - seconds;
    for (struct http_connection *c = h->first; c; c = c->after)
        if (!c->busy && !c->hung_up && c->since <= latest && (!oldest || c->since < oldest->since) &&
            !has_bytes(c->fd))
            oldest = c;
    return oldest;
}

static bool is_arriving(const struct http_connection *c, double now)
{
    if (c->busy || c->hung_up) return false;
    return c->begun || (!c->asked && now - c->since < GRACE_SECONDS) || has_bytes(c->fd);
}

int http_arriving(struct http *h)
{
    double now = clock_seconds();
    LOCKED(&h->lock);
    int n = has_bytes(h->listener); /* somebody who was not let in yet */
    for (struct http_connection *c = h->first; c; c = c->after) n += is_arriving(c, now);
    return n;
}

/* Idle connections make place: too many of them when they have had time to ask, and for the newest at once. */
static void make_place(struct http *h, struct http_connection *newest)
{
    bool full = h->connections - h->leaving > h->limits.connections;
    while (h->idle > h->limits.idle || full) {
        struct http_connection *c = longest_idle(h, full ? 0 : GRACE_SECONDS);
        if (!c) c = full ? newest : NULL;
        if (!c) return;
        http_hang_up(h, c);
        full = false;
    }
}

static void judge(struct http *h, struct http_connection *c, bool gone, double now)
{
    if (c->busy && gone)
        http_lose(c->busy);
    else if (!c->busy && (gone || now - c->since > h->limits.receive_seconds))
        http_hang_up(h, c);
}

/* The system is asked about many at once: of thousands of connections each question by itself takes a tenth of a core. */
static void look(struct http *h)
{
    struct http_connection *some[AT_ONCE], *c = h->first;
    struct pollfd ask[AT_ONCE];
    double now = clock_seconds();
    while (c) {
        nfds_t n = 0;
        for (; c && n < AT_ONCE; c = c->after, n++)
            some[n] = c, ask[n] = (struct pollfd){.fd = c->fd, .events = POLLRDHUP};
        bool told = poll(ask, n, 0) > 0;
        for (nfds_t i = 0; i < n; i++)
            judge(h, some[i], told && (ask[i].revents & (POLLRDHUP | POLLHUP | POLLERR)), now);
    }
    make_place(h, NULL);
}

static void *watch(void *arg)
{
    struct http *h = arg;
    LOCKED(&h->lock);
    while (!h->stop) {
        look(h);
        thread_wait_until(&h->changed, &h->lock, clock_seconds() + HTTP_WATCH_SECONDS);
    }
    return NULL;
}

enum plim_status http_watch_start(struct http *h, struct plim_error *err)
{
    if (thread_begin(&h->watcher, 0, watch, h) == 0) return PLIM_OK;
    return plim_fail(err, PLIM_NO_MEMORY, "no thread to watch connections with");
}

void http_watch_stop(struct http *h)
{
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->watcher, NULL);
}

static void begin_connection(struct http *h, struct MHD_Connection *connection, void **context)
{
    const union MHD_ConnectionInfo *info =
        h->mhd.connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct http_connection *c = calloc(1, sizeof *c);
    *context = c;
    if (!c || !info) return;
    c->fd = info->connect_fd, c->since = clock_seconds(), c->before = h->last;
    *(h->last ? &h->last->after : &h->first) = c;
    h->last = c, h->connections++, h->idle++;
    make_place(h, c);
}

static void end_connection(struct http *h, struct http_connection *c)
{
    if (!c) return;
    *(c->before ? &c->before->after : &h->first) = c->after;
    *(c->after ? &c->after->before : &h->last) = c->before;
    h->connections--, h->leaving -= c->hung_up, h->idle -= !c->busy && !c->hung_up;
    free(c);
}

void http_on_connection(void *arg, struct MHD_Connection *connection, void **context,
                        enum MHD_ConnectionNotificationCode code)
{
    struct http *h = arg;
    LOCKED(&h->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        begin_connection(h, connection, context);
    else
        end_connection(h, *context), *context = NULL;
}

void http_connection_begun(struct http *h, struct http_connection *c)
{
    LOCKED(&h->lock);
    c->asked = c->begun = true;
}

void http_connection_busy(struct http *h, struct http_connection *c, struct http_exchange *x)
{
    LOCKED(&h->lock);
    c->busy = x, h->idle -= !c->hung_up, h->active++;
}

void http_connection_idle(struct http *h, struct http_connection *c, struct http_exchange *x)
{
    LOCKED(&h->lock);
    c->since = clock_seconds(), c->begun = false;
    if (c->busy == x) c->busy = NULL, h->idle += !c->hung_up, h->active--;
}
