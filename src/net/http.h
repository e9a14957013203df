/* http.h - a small HTTP front: requests in, answers and event streams out, everything bounded.
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
 * An exchange is one request and its answer. The service hears of it on threads of the front, never on two at once:
 *
 *     begin    the head is there. An answer given here stands: the body is read to its end and thrown away.
 *     handle   the whole request is there. It may answer, begin a stream, or do neither and be woken later.
 *     more     somebody has called http_wake since: the place to answer, or to add to the stream.
 *     end      the last call: answered to the end, or `lost` because the client has gone or did not read in time.
 *
 * An exchange lives from begin to the return of end. http_wake may be called from any thread in that time, and does not
 * wait; everything else belongs to the thread that is inside a callback. While nothing is to be sent no thread waits: the
 * connection rests until it is woken. A client that closes its side (or half of it) meanwhile is noticed within
 * HTTP_WATCH_SECONDS.
 *
 * Bounds: the number of connections, in all and idle ones; bytes of a head, of a body and of all bodies together; seconds
 * for sending a request, however slowly it trickles in, and for taking an answer. Beyond a bound a client gets 413, 431 or
 * 503, or is hung up on; others do not notice. http_bytes says what all of it can come to.
 */
#ifndef PLIM_NET_HTTP_H
#define PLIM_NET_HTTP_H

#include "base/log.h"
#include "base/status.h"
#include "base/strbuf.h"
#include <stdint.h>

#define HTTP_WATCH_SECONDS 0.1
#define HTTP_THREADS       4

struct http;
struct http_exchange;

struct http_limits {
    int connections;      /* at once; one more is hung up on, unless an idle one can go */
    int idle;             /* of them without a whole request; beyond, the longest idle goes */
    int64_t head_bytes;   /* of request line and headers; also what a connection keeps for sending */
    int64_t body_bytes;   /* of one request */
    int64_t bodies_bytes; /* of all requests that are there at once */
    /* Time limit until a request is complete, counted from the connection's start or the last answer. */
    double receive_seconds;
    int send_seconds; /* that a client may take not a single byte */
};

#define HTTP_LIMITS                                                                                          \
    {                                                                                                        \
        .connections = 1024, .idle = 512, .head_bytes = 8 << 10, .body_bytes = 2 << 20,                      \
        .bodies_bytes = 32 << 20, .receive_seconds = 30, .send_seconds = 30                                  \
    }

struct http_service {
    void (*begin)(void *arg, struct http_exchange *x); /* NULL: nothing is refused early */
    void (*handle)(void *arg, struct http_exchange *x);
    void (*more)(void *arg, struct http_exchange *x);           /* NULL: nobody wakes */
    void (*end)(void *arg, struct http_exchange *x, bool lost); /* NULL: nothing is kept */
};

struct http_options {
    const char *host; /* address or name to listen at */
    int port;         /* 0: any free one */
    int threads;      /* that callbacks run on; 0: HTTP_THREADS */
    struct http_limits limits;
    const struct http_service *service;
    void *arg;             /* for the service */
    const struct log *log; /* receives the library's complaints; may be NULL */
};

/* Is the front in this build? */
bool http_present(void);

/* Listens; *out is set before the first callback. PLIM_IO: the address cannot be had, and why; PLIM_UNSUPPORTED: this build has no HTTP. */
enum plim_status http_open(const struct http_options *options, struct http **out, struct plim_error *err);
/* From now on nobody new is let in: before http_close, so that whoever is in can be answered. */
void http_close_door(struct http *h);
/* Hangs up on whatever is under way (its end is heard) and stops. */
void http_close(struct http *h);

int http_port(const struct http *h);
bool http_is_loopback(const struct http *h);
int http_connections(struct http *h);
int http_active(struct http *h); /* exchanges that are whole and not answered to their end */
/* Connections whose request is on its way: begun and not whole, with bytes that nobody has read, or new. */
int http_arriving(struct http *h);

/* The most that all connections and bodies together can take, beside what the service keeps of them. */
int64_t http_bytes(const struct http_limits *limits, int threads);

const char *http_method(const struct http_exchange *x);
const char *http_path(const struct http_exchange *x);                     /* without the query */
const char *http_header(const struct http_exchange *x, const char *name); /* NULL: absent */
const char *http_body(const struct http_exchange *x, size_t *len);        /* from handle on */
/* The body is the caller's from now on; it counts among all bodies until http_drop_body. */
struct strbuf http_take_body(struct http_exchange *x);
void http_drop_body(struct http_exchange *x); /* when it is no longer needed */
/* Counts a large answer among the bodies until its exchange ends; false: there is no room for it now. */
bool http_book(struct http_exchange *x, int64_t bytes);

/* The service's own. */
void http_set_user(struct http_exchange *x, void *user);
void *http_user(const struct http_exchange *x);

/* A header of the answer, before it is given. The name lives as long as the program; the value is copied. */
void http_set_header(struct http_exchange *x, const char *name, const char *value);
/* The whole answer; the text's memory is taken over. One that lost text for want of memory is answered with 500. */
void http_answer(struct http_exchange *x, int status, const char *type, struct strbuf *text);
int http_status(const struct http_exchange *x); /* that was answered; 0: not yet */

/* An answer whose length nobody knows yet: begin, then add to http_stream as it comes, and end. A stream that ends as
 * broken is cut off, so that the client can tell. */
void http_stream_begin(struct http_exchange *x, int status, const char *type);
struct strbuf *http_stream(struct http_exchange *x);
void http_stream_end(struct http_exchange *x, bool broken);

/* Calls more() soon. From any thread. */
void http_wake(struct http_exchange *x);

#endif
