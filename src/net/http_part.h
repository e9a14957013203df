/* http_part.h - shared by the two halves of the HTTP server: exchanges (http.c), and the list of connections with the
 * thread that watches them (http_connections.c).
 *
 * Locks: http.lock guards the list and the fields of connections; an exchange's lock guards suspended, woken and lost. The
 * second may be taken while the first is held, never the reverse. */
#pragma once

#include "base/locked.h"
#include "net/http.h"
#include "net/mhd_api.h"
#include <stdatomic.h>

struct http_connection {
    struct http_connection *before, *after;
    int fd;
    double since;               /* start, or end of the last answer */
    struct http_exchange *busy; /* its complete request; NULL: idle */
    bool asked, begun;          /* a head has arrived; one is not answered yet */
    bool hung_up;
    bool bad_path; /* of the current request */
};

struct http {
    struct mhd_api mhd;
    struct MHD_Daemon *daemon;
    struct http_limits limits;
    const struct http_service *service;
    void *arg;
    const struct log *log;
    int listener, port;
    bool loopback;
    _Atomic int64_t bodies; /* bytes */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct http_connection *first, *last;   /* oldest first */
    int connections, idle, active, leaving; /* idle excludes disconnected ones that are leaving */
    bool stop;
    pthread_t watcher;
};

enum { HTTP_HEADERS = 8 };

struct http_exchange {
    struct http *http;
    struct MHD_Connection *connection;
    struct http_connection *peer;
    const char *method, *path;
    struct strbuf body;
    int64_t booked; /* of http.bodies */
    void *user;
    bool heard;   /* handle was called */
    bool chunked; /* the body came without a length; the connection ends with the answer */
    int status;   /* of the answer; 0: none yet */
    bool queued;  /* passed to the library */
    bool stream, ended, broken;
    struct {
        const char *name;
        char *value; /* NULL: memory was short */
    } header[HTTP_HEADERS];
    int headers;
    struct strbuf out; /* the answer, or the unsent part of the stream */
    size_t sent;       /* of out */

    pthread_mutex_t lock;
    bool suspended, woken, lost;
};

/* http_check.c: why a head is refused, or NULL; sets x->chunked. http_path_is_sound: whether a path, as sent,
 * is valid. */
const char *http_check_head(struct http_exchange *x, const char *version);
bool http_path_is_sound(const char *uri);

/* The list. */
enum plim_status http_watch_start(struct http *h, struct plim_error *err);
void http_watch_stop(struct http *h);
void http_on_connection(void *arg, struct MHD_Connection *connection, void **context,
                        enum MHD_ConnectionNotificationCode code);
/* A head has arrived; the request is complete; the answer was sent or the client is lost. */
void http_connection_begun(struct http *h, struct http_connection *c);
void http_connection_busy(struct http *h, struct http_connection *c, struct http_exchange *x);
void http_connection_idle(struct http *h, struct http_connection *c, struct http_exchange *x);

/* Shuts the socket down; the library notices and frees it. The lock must be held. */
void http_hang_up(struct http *h, struct http_connection *c);

/* The client has gone: lets the library handle the connection again. */
void http_lose(struct http_exchange *x);
