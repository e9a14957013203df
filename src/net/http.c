/* http.c - see http.h. Exchanges over libmicrohttpd: a pool of its threads, connections that are suspended while there is
 * nothing to say.
 *
 * The library calls on_request when the head is there (first), with pieces of the body, and then without one until an
 * answer is queued; when nothing can be answered yet the connection is suspended, and on_request is called again after it
 * was resumed. A stream is an answer whose bytes read_stream hands out, with the same rest between them.
 *
 * Invariants:
 *   1. A connection is suspended exactly while x->suspended is set, and both change under x->lock.
 *   2. Whoever clears x->suspended resumes the connection.
 *   3. woken or lost set: the thread that would suspend goes on instead.
 */
#define _GNU_SOURCE /* accept4 */
#include "net/http_part.h"
#include "base/clock.h"

#include <errno.h>
#include <linux/filter.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CLOSE_SECONDS 1.0
#define QUIET_SECONDS 0.1

/* Connections of each thread beyond the limit: they come while others are hung up on to make place. */
enum { SPARE = 4 };
/* Clients of a burst that are not let in yet; the system may allow fewer. */
enum { LISTEN_QUEUE = 4096 };

bool http_present(void) { return true; }

/* --- an exchange ------------------------------------------------------------------------------------------ */

const char *http_method(const struct http_exchange *x) { return x->method; }
const char *http_path(const struct http_exchange *x) { return x->path; }
void http_set_user(struct http_exchange *x, void *user) { x->user = user; }
void *http_user(const struct http_exchange *x) { return x->user; }
int http_status(const struct http_exchange *x) { return x->status; }
struct strbuf *http_stream(struct http_exchange *x) { return &x->out; }

const char *http_header(const struct http_exchange *x, const char *name)
{
    return x->http->mhd.lookup(x->connection, MHD_HEADER_KIND, name);
}

const char *http_body(const struct http_exchange *x, size_t *len)
{
    *len = x->body.len;
    return strbuf_text(&x->body);
}

struct strbuf http_take_body(struct http_exchange *x)
{
    struct strbuf body = x->body;
    x->body = (struct strbuf)STRBUF_INIT;
    return body;
}

void http_drop_body(struct http_exchange *x)
{
    strbuf_release(&x->body);
    atomic_fetch_sub(&x->http->bodies, x->booked);
    x->booked = 0;
}

bool http_book(struct http_exchange *x, int64_t bytes)
{
    int64_t all = atomic_fetch_add(&x->http->bodies, bytes) + bytes;
    x->booked += bytes;
    return all <= x->http->limits.bodies_bytes;
}

void http_set_header(struct http_exchange *x, const char *name, const char *value)
{
    if (x->headers == HTTP_HEADERS) return;
    x->header[x->headers].name = name;
    x->header[x->headers++].value = strdup(value); /* send_answer sees what could not be copied */
}

void http_answer(struct http_exchange *x, int status, const char *type, struct strbuf *text)
{
    bool whole = strbuf_status(text, NULL) == PLIM_OK;
    strbuf_release(&x->out);
    x->status = whole ? status : 500;
    if (whole) x->out = *text, *text = (struct strbuf)STRBUF_INIT;
    strbuf_release(text);
    http_set_header(x, MHD_HTTP_HEADER_CONTENT_TYPE, type);
}

void http_stream_begin(struct http_exchange *x, int status, const char *type)
{
    x->status = status, x->stream = true;
    http_set_header(x, MHD_HTTP_HEADER_CONTENT_TYPE, type);
}

void http_stream_end(struct http_exchange *x, bool broken) { x->ended = true, x->broken = broken; }

/* Clears x->suspended; the lock is held. */
static void resume(struct http_exchange *x)
{
    if (!x->suspended) return;
    x->suspended = false;
    x->http->mhd.resume(x->connection);
}

void http_wake(struct http_exchange *x)
{
    LOCKED(&x->lock);
    x->woken = true;
    resume(x);
}

void http_lose(struct http_exchange *x)
{
    LOCKED(&x->lock);
    x->lost = true;
    resume(x);
}

enum turn { TURN_MORE, TURN_REST, TURN_LOST };

/* Decides what to do when there is nothing to send: produce more, end because the client left, or rest until either. */
static enum turn next_turn(struct http_exchange *x)
{
    LOCKED(&x->lock);
    enum turn turn = x->lost ? TURN_LOST : x->woken ? TURN_MORE : TURN_REST;
    x->woken = false;
    if (turn == TURN_REST) x->suspended = true, x->http->mhd.suspend(x->connection);
    return turn;
}

/* "http://host/path", as proxies are asked, is "/path" here. */
static const char *path_of(const char *url)
{
    const char *host = strncasecmp(url, "http://", 7) ? NULL : url + 7,
               *path = host ? strchr(host, '/') : NULL;
    return path ? path : url;
}

static struct http_exchange *exchange_new(struct http *h, struct MHD_Connection *connection, const char *url,
                                          const char *method)
{
    const union MHD_ConnectionInfo *info =
        h->mhd.connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_exchange *x = info && info->socket_context ? calloc(1, sizeof *x) : NULL;
    if (!x) return NULL;
    *x = (struct http_exchange){.http = h, .connection = connection, .path = path_of(url), .method = method};
    x->peer = info->socket_context;
    x->body.most = (size_t)h->limits.body_bytes + 1;
    pthread_mutex_init(&x->lock, NULL);
    return x;
}

static void exchange_free(struct http_exchange *x)
{
    http_drop_body(x);
    strbuf_release(&x->out);
    for (int i = 0; i < x->headers; i++) free(x->header[i].value);
    pthread_mutex_destroy(&x->lock);
    free(x);
}

/* --- sending ---------------------------------------------------------------------------------------------- */

static ssize_t read_stream(void *arg, uint64_t, char *to, size_t most)
{
    struct http_exchange *x = arg;
    for (;;) {
        x->broken = x->broken || x->out.failed; /* clearing would forget it */
        size_t left = x->out.len - x->sent, n = left < most ? left : most;
        if (n) {
            memcpy(to, x->out.data + x->sent, n);
            x->sent += n;
            if (x->sent == x->out.len) strbuf_clear(&x->out), x->sent = 0;
            return (ssize_t)n;
        }
        if (x->broken) return MHD_CONTENT_READER_END_WITH_ERROR;
        if (x->ended) return MHD_CONTENT_READER_END_OF_STREAM;
        enum turn turn = next_turn(x);
        if (turn == TURN_LOST) return MHD_CONTENT_READER_END_WITH_ERROR;
        if (turn == TURN_REST) return 0;
        x->http->service->more(x->http->arg, x);
    }
}

static enum MHD_Result send_answer(struct http_exchange *x)
{
    const struct mhd_api *mhd = &x->http->mhd;
    struct MHD_Response *r = x->stream
                                 ? mhd->response_from_callback(MHD_SIZE_UNKNOWN, 4096, read_stream, x, NULL)
                                 : mhd->response_from_buffer(x->out.len, x->out.data, MHD_RESPMEM_PERSISTENT);
    if (!r) return MHD_NO;
    enum MHD_Result result =
        MHD_YES; /* MHD_NO hangs up: without one of its headers an answer may mean something else */
    for (int i = 0; i < x->headers; i++) {
        if (!x->header[i].value) result = MHD_NO;
        if (x->header[i].value) mhd->add_header(r, x->header[i].name, x->header[i].value);
    }
    if (result == MHD_YES) result = mhd->queue(x->connection, (unsigned)x->status, r);
    mhd->destroy_response(r);
    x->queued = true;
    return result;
}

/* --- receiving -------------------------------------------------------------------------------------------- */

static void refuse(struct http_exchange *x, int status, const char *type, const char *message)
{
    struct strbuf text = STRBUF_INIT;
    strbuf_addf(&text, "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,\"code\":null}}\n",
                message, type);
    if (status == 503) http_set_header(x, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    http_answer(x, status, "application/json", &text);
}

static void refuse_body(struct http_exchange *x)
{
    char message[96];
    snprintf(message, sizeof message, "the body is larger than the %lld bytes that are taken",
             (long long)x->http->limits.body_bytes);
    refuse(x, 413, "invalid_request_error", message);
}

/* Bytes of the body that the head announces; 0: it does not. */
static unsigned long long announced(const struct http_exchange *x)
{
    const char *length = http_header(x, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return length ? strtoull(length, NULL, 10) : 0;
}

static void take_piece(struct http_exchange *x, const char *piece, size_t n)
{
    struct http *h = x->http;
    if (x->status) return;
    int64_t all = atomic_fetch_add(&h->bodies, (int64_t)n) + (int64_t)n;
    x->booked += (int64_t)n;
    strbuf_addn(&x->body, piece, n);
    if (x->body.full || x->body.len > (size_t)h->limits.body_bytes)
        refuse_body(x);
    else if (all > h->limits.bodies_bytes || x->body.failed)
        refuse(x, 503, "overloaded_error", "too many large requests at once; try again later");
    if (x->status) http_drop_body(x);
}

/* The whole request is there, or the connection was resumed: goes on until there is an answer, or nothing to do. */
static enum MHD_Result go_on(struct http_exchange *x)
{
    struct http *h = x->http;
    if (!x->heard) {
        x->heard = true;
        http_connection_busy(h, x->peer, x);
        if (!x->status) h->service->handle(h->arg, x);
    }
    while (!x->status) {
        enum turn turn = next_turn(x);
        if (turn == TURN_LOST) return MHD_NO;
        if (turn == TURN_REST) return MHD_YES;
        h->service->more(h->arg, x);
    }
    return x->queued ? MHD_YES : send_answer(x);
}

/* The path as it was sent, before anything in it is decoded. What this returns is the request's context: none yet. */
static void *on_path(void *arg, const char *uri, struct MHD_Connection *connection)
{
    struct http *h = arg;
    const union MHD_ConnectionInfo *info =
        h->mhd.connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_connection *c = info ? info->socket_context : NULL;
    if (c) c->bad_path = !http_path_is_sound(uri);
    return NULL;
}

/* The head is there. */
static enum MHD_Result begin(struct http_exchange *x, const char *version)
{
    struct http *h = x->http;
    const char *why = http_check_head(x, version);
    http_connection_begun(h, x->peer);
    if (why || x->chunked) http_set_header(x, MHD_HTTP_HEADER_CONNECTION, "close");
    if (why) {
        refuse(x, 400, "invalid_request_error", why);
        return send_answer(x); /* nothing behind such a head is read */
    }
    if (h->service->begin) h->service->begin(h->arg, x);
    unsigned long long bytes_to_come = announced(x), most = (unsigned long long)h->limits.body_bytes;
    if (bytes_to_come > most && !x->status) refuse_body(x);
    /* Clients that are still sending when they are hung up on do not read why; a little too much is read for them. */
    return bytes_to_come > 4 * most ? send_answer(x) : MHD_YES;
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *piece, size_t *bytes,
                                  void **context)
{
    struct http *h = arg;
    struct http_exchange *x = *context;
    if (!x) {
        x = *context = exchange_new(h, connection, url, method);
        return x ? begin(x, version) : MHD_NO;
    }
    if (*bytes) {
        take_piece(x, piece, *bytes);
        *bytes = 0;
        return MHD_YES;
    }
    return go_on(x);
}

static void on_completed(void *arg, struct MHD_Connection *, void **context,
                         enum MHD_RequestTerminationCode code)
{
    struct http *h = arg;
    struct http_exchange *x = *context;
    if (!x) return;
    bool lost = code != MHD_REQUEST_TERMINATED_COMPLETED_OK || !x->status || (x->stream && !x->ended);
    http_connection_idle(h, x->peer, x);
    if (h->service->end) h->service->end(h->arg, x, lost);
    exchange_free(x);
    *context = NULL;
}

static void on_complaint(void *arg, const char *fmt, va_list ap)
{
    const struct http *h = arg;
    char line[512];
    int n = vsnprintf(line, sizeof line, fmt, ap);
    while (n > 0 && n < (int)sizeof line && line[n - 1] == '\n') line[--n] = '\0';
    log_debug(h->log, "http: %s", line);
}

/* --- opening and closing ---------------------------------------------------------------------------------- */

static int listen_at(const struct addrinfo *at, struct http *h)
{
    int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol), on = 1;
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    char port[16], host[64];
    if (bind(fd, at->ai_addr, at->ai_addrlen) || listen(fd, LISTEN_QUEUE) ||
        getsockname(fd, (struct sockaddr *)&own, &size) ||
        getnameinfo((struct sockaddr *)&own, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV)) {
        int why = errno;
        close(fd);
        errno = why;
        return -1;
    }
    h->port = atoi(port);
    h->loopback = !strncmp(host, "127.", 4) || !strcmp(host, "::1");
    return fd;
}

static enum plim_status listen_on(struct http *h, const char *host, int port, int *fd, struct plim_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    int wrong = getaddrinfo(host, service, &hints, &found);
    if (wrong)
        return plim_fail(err, PLIM_BAD_INPUT, "no address for '%s': %s; write e.g. 127.0.0.1", host,
                         gai_strerror(wrong));
    *fd = -1;
    for (const struct addrinfo *at = found; at && *fd < 0; at = at->ai_next) *fd = listen_at(at, h);
    int why = errno;
    freeaddrinfo(found);
    if (*fd >= 0) return PLIM_OK;
    return plim_fail(err, PLIM_IO, "cannot listen on %s port %d: %s%s", host, port, strerror(why),
                     why == EADDRINUSE ? "; another server has it: choose another --port, 0 for any free one"
                                       : "");
}

static enum plim_status start_daemon(struct http *h, int fd, int threads, struct plim_error *err)
{
    unsigned flags =
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | MHD_USE_ITC;
    sigset_t all, mine;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mine); /* signals belong to the program's own threads */
    h->daemon = h->mhd.start(flags, 0, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, on_complaint, h,
                             MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)threads,
                             MHD_OPTION_CONNECTION_LIMIT, (unsigned)(h->limits.connections + threads * SPARE),
                             MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)h->limits.head_bytes * 2,
                             MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)h->limits.send_seconds,
                             MHD_OPTION_NOTIFY_CONNECTION, http_on_connection, h, MHD_OPTION_NOTIFY_COMPLETED,
                             on_completed, h, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_URI_LOG_CALLBACK,
                             on_path, h, MHD_OPTION_END);
    pthread_sigmask(SIG_SETMASK, &mine, NULL);
    if (h->daemon) return PLIM_OK;
    close(fd);
    return plim_fail(err, PLIM_NO_MEMORY, "libmicrohttpd could not be started with %d threads", threads);
}

enum plim_status http_open(const struct http_options *options, struct http **out, struct plim_error *err)
{
    struct http *h = calloc(1, sizeof *h);
    int fd = -1, threads = options->threads ? options->threads : HTTP_THREADS;
    *out = NULL;
    if (!h) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while the HTTP front was set up");
    h->limits = options->limits, h->service = options->service, h->arg = options->arg, h->log = options->log;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    enum plim_status status = mhd_api_open(&h->mhd, err);
    if (status == PLIM_OK) status = listen_on(h, options->host, options->port, &fd, err);
    h->listener = fd;
    *out = h; /* callbacks may want it before this function has returned */
    if (status == PLIM_OK) status = start_daemon(h, fd, threads, err);
    if (status == PLIM_OK) status = http_watch_start(h, err);
    if (status == PLIM_OK) return PLIM_OK;
    *out = NULL;
    if (h->daemon) h->mhd.stop(h->daemon);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    free(h);
    return status;
}

/* The library must have no suspended connection when it is stopped: everything under way is lost first. */
static void lose_all(struct http *h)
{
    for (bool left = true; left;) {
        pthread_mutex_lock(&h->lock);
        for (struct http_connection *c = h->first; c; c = c->after) {
            if (c->busy) http_lose(c->busy);
            http_hang_up(h, c); /* wakes whoever waits to send, too */
        }
        left = h->active > 0;
        pthread_mutex_unlock(&h->lock);
        struct timespec pause = {0, 2000000};
        if (left) nanosleep(&pause, NULL);
    }
}

/* A listener's filter begins to read with the header of TCP. */
enum { TCP_FLAGS = 13, SYN = 2, ACK = 16 };

/* A filter that lets no SYN through: whoever knocks from now on hears nothing and tries again, and those who are in the
 * listener's queue can be answered until it is empty. So can who was answered with SYN and ACK a moment ago: for him the
 * connection stands already. */
void http_close_door(struct http *h)
{
    struct sock_filter no_syn[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, TCP_FLAGS),  BPF_STMT(BPF_ALU | BPF_AND | BPF_K, SYN | ACK),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYN, 0, 1), BPF_STMT(BPF_RET | BPF_K, 0),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
    };
    struct sock_fprog program = {sizeof no_syn / sizeof *no_syn, no_syn};
    setsockopt(h->listener, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

/* Those who are still in the queue are told so. */
static void turn_away(int listener)
{
    static const char text[] = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
                               "Content-Length: 0\r\n\r\n";
    struct timeval moment = {0, 100000};
    char rest[4096];
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0; close(fd)) {
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof moment);
        if (send(fd, text, sizeof text - 1, MSG_NOSIGNAL) < 0 || shutdown(fd, SHUT_WR)) continue;
        for (int i = 0; i < 64 && recv(fd, rest, sizeof rest, 0) > 0;)
            i++; /* else the answer would be lost */
    }
}

/* A moment for those who came in last: their requests are refused by the service, or are too late. One that the library has
 * accepted is not in the list at once, so it must be quiet for a while. */
static void hear_out(struct http *h)
{
    int active = http_active(h);
    double now = clock_seconds(), until = now + CLOSE_SECONDS, quiet = now;
    struct timespec pause = {0, 2000000};
    while (now < until && now - quiet < QUIET_SECONDS) {
        nanosleep(&pause, NULL);
        now = clock_seconds();
        if (http_arriving(h) || http_active(h) > active) quiet = now;
    }
}

void http_close(struct http *h)
{
    if (!h) return;
    http_close_door(h);
    int fd = h->mhd.quiesce(h->daemon);
    if (fd >= 0) turn_away(fd), close(fd);
    h->listener = -1;
    hear_out(h);
    lose_all(h);
    http_watch_stop(h);
    h->mhd.stop(h->daemon);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

int http_port(const struct http *h) { return h->port; }
bool http_is_loopback(const struct http *h) { return h->loopback; }

int http_connections(struct http *h)
{
    LOCKED(&h->lock);
    return h->connections;
}

int http_active(struct http *h)
{
    LOCKED(&h->lock);
    return h->active;
}

/* Library memory per connection outside its pool, and used stack: up to 36 KiB in random servers on aarch64, read
 * from smaps. */
enum { CONNECTION_BYTES = 2048, THREAD_BYTES = 64 << 10, WATCHER_BYTES = 16 << 10 };

int64_t http_bytes(const struct http_limits *limits, int threads)
{
    if (!threads) threads = HTTP_THREADS;
    int64_t each = 2 * limits->head_bytes + CONNECTION_BYTES + (int64_t)sizeof(struct http_connection) +
                   (int64_t)sizeof(struct http_exchange);
    return (limits->connections + threads * SPARE) * each + limits->bodies_bytes + threads * THREAD_BYTES +
           WATCHER_BYTES;
}
