/* http.h - a small HTTP server: requests, answers and event streams, all within limits.
 *
 *     static void handle(void *arg, struct http_exchange *x)
 *     {
 *         struct strbuf text = STRBUF_INIT;
 *         strbuf_add(&text, "hello");
 *         http_answer(x, 200, "text/plain", &text);
 *     }
 *     static const struct http_service service = {.handle = handle};
 *     http_open(&(struct http_options){.host = "127.0.0.1", .port = 8000, .limits = HTTP_LIMITS, .service = &service}, &h, &err);
 *     http_close(h);
 *
 * An exchange is one request and its answer. The service's callbacks run on the server's threads, for one exchange never
 * two at once:
 *
 *     begin    the head has arrived. If it is answered here, the body is read and discarded.
 *     handle   the whole request has arrived. It may answer, begin a stream, or do neither and be woken later.
 *     more     http_wake was called: the place to answer, or to add to the stream.
 *     end      the last call: the answer was sent, or `lost`: the client has gone or did not read in time.
 *
 * An exchange lives from begin until end returns. In that time any thread may call http_wake, which does not wait. All other
 * functions may be called only inside a callback. A connection with nothing to send is suspended and occupies no thread
 * until it is woken. If its client closes the connection (or half of it), this is noticed within HTTP_WATCH_SECONDS.
 *
 * Limits: connections in total and idle ones; bytes of a head, of a body and of all bodies together; seconds to send a
 * request, however slowly it trickles in, and to take an answer. A client beyond a limit gets 413, 431 or 503, or is
 * disconnected; others are not affected. http_bytes gives the maximum memory of all this.
 */
#pragma once

#include "base/log.h"
#include "base/status.h"
#include "base/strbuf.h"
#include <stdint.h>

#define HTTP_WATCH_SECONDS 0.1
#define HTTP_THREADS       4

struct http;
struct http_exchange;

struct http_limits {
    int connections;      /* at once; one more is disconnected, unless it can replace an idle one */
    int idle;             /* those without a complete request; beyond that the longest idle is closed */
    int64_t head_bytes;   /* of request line and headers; also the send buffer of a connection */
    int64_t body_bytes;   /* of one request */
    int64_t bodies_bytes; /* of all current requests */
    /* Time limit until a request is complete, counted from the connection's start or the last answer. */
    double receive_seconds;
    int send_seconds; /* maximum without a single byte taken by the client */
};

#define HTTP_LIMITS                                                                                          \
    {                                                                                                        \
        .connections = 1024, .idle = 512, .head_bytes = 8 << 10, .body_bytes = 2 << 20,                      \
        .bodies_bytes = 32 << 20, .receive_seconds = 30, .send_seconds = 30                                  \
    }

struct http_service {
    void (*begin)(void *arg, struct http_exchange *x); /* NULL: nothing is refused early */
    void (*handle)(void *arg, struct http_exchange *x);
    void (*more)(void *arg, struct http_exchange *x);           /* NULL: http_wake is not used */
    void (*end)(void *arg, struct http_exchange *x, bool lost); /* NULL: there is nothing to free */
};

struct http_options {
    const char *host; /* address or name to listen at */
    int port;         /* 0: any free port */
    int threads;      /* for callbacks; 0: HTTP_THREADS */
    struct http_limits limits;
    const struct http_service *service;
    void *arg;             /* for the service */
    const struct log *log; /* receives the library's complaints; may be NULL */
};

/* True if this build has the HTTP server. */
bool http_present(void);

/* Starts to listen; *out is set before the first callback. PLIM_IO: the address is not available.
 * PLIM_UNSUPPORTED: this build has no HTTP. */
enum plim_status http_open(const struct http_options *options, struct http **out, struct plim_error *err);
/* Stops accepting connections; existing ones can still be answered. Call it before http_close. */
void http_close_door(struct http *h);
/* Disconnects all clients (calling `end`) and stops. */
void http_close(struct http *h);

int http_port(const struct http *h);
bool http_is_loopback(const struct http *h);
int http_connections(struct http *h);
int http_active(struct http *h); /* complete requests whose answer is not finished */
/* Connections whose request is arriving: incomplete, with unread bytes, or new. */
int http_arriving(struct http *h);

/* Maximum memory of all connections and bodies, not counting the service's own. */
int64_t http_bytes(const struct http_limits *limits, int threads);

const char *http_method(const struct http_exchange *x);
const char *http_path(const struct http_exchange *x);                     /* without the query */
const char *http_header(const struct http_exchange *x, const char *name); /* NULL: missing */
const char *http_body(const struct http_exchange *x, size_t *len);        /* from handle on */
/* Moves the body to the caller; it counts among all bodies until http_drop_body. */
struct strbuf http_take_body(struct http_exchange *x);
void http_drop_body(struct http_exchange *x); /* when it is no longer needed */
/* Counts a large answer among the bodies until its exchange ends. Returns false if there is no room now. */
bool http_book(struct http_exchange *x, int64_t bytes);

/* A pointer for the service's own use. */
void http_set_user(struct http_exchange *x, void *user);
void *http_user(const struct http_exchange *x);

/* Adds a header to the answer; call it before answering. The name must be static; the value is copied. */
void http_set_header(struct http_exchange *x, const char *name, const char *value);
/* Sends the whole answer and takes over the text's memory. A text that failed for lack of memory gives
 * 500. */
void http_answer(struct http_exchange *x, int status, const char *type, struct strbuf *text);
int http_status(const struct http_exchange *x); /* the answer's status; 0: none yet */

/* An answer of unknown length: begin, add to http_stream as text becomes available, end. A broken stream is
 * cut off, so that the client notices. */
void http_stream_begin(struct http_exchange *x, int status, const char *type);
struct strbuf *http_stream(struct http_exchange *x);
void http_stream_end(struct http_exchange *x, bool broken);

/* Calls more() soon. Thread-safe. */
void http_wake(struct http_exchange *x);
