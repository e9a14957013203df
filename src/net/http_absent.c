/* http_absent.c - in builds without libmicrohttpd: the front says so. See http.h. */
#include "net/http.h"

bool http_present(void) { return false; }

enum plim_status http_open(const struct http_options *, struct http **out, struct plim_error *err)
{
    *out = NULL;
    return plim_fail(err, PLIM_UNSUPPORTED,
                     "this plimsoll was built without libmicrohttpd and cannot serve; install it (Debian: "
                     "libmicrohttpd-dev) and build again");
}

void http_close_door(struct http *h) { (void)h; }
void http_close(struct http *h) { (void)h; }
int http_port(const struct http *h) { return (void)h, 0; }
bool http_is_loopback(const struct http *h) { return (void)h, true; }
int http_connections(struct http *h) { return (void)h, 0; }
int http_active(struct http *h) { return (void)h, 0; }
int http_arriving(struct http *h) { return (void)h, 0; }
int64_t http_bytes(const struct http_limits *limits, int threads) { return (void)limits, (void)threads, 0; }
const char *http_method(const struct http_exchange *x) { return (void)x, ""; }
const char *http_path(const struct http_exchange *x) { return (void)x, ""; }
const char *http_header(const struct http_exchange *x, const char *name) { return (void)x, (void)name, NULL; }
struct strbuf http_take_body(struct http_exchange *x) { return (void)x, (struct strbuf)STRBUF_INIT; }
const char *http_body(const struct http_exchange *x, size_t *len) { return (void)x, *len = 0, ""; }
void http_drop_body(struct http_exchange *x) { (void)x; }
bool http_book(struct http_exchange *x, int64_t bytes) { return (void)x, (void)bytes, false; }
void http_set_user(struct http_exchange *x, void *user) { (void)x, (void)user; }
void *http_user(const struct http_exchange *x) { return (void)x, NULL; }
void http_set_header(struct http_exchange *, const char *, const char *) {}
void http_answer(struct http_exchange *, int, const char *, struct strbuf *text) { strbuf_release(text); }
int http_status(const struct http_exchange *x) { return (void)x, 0; }
void http_stream_begin(struct http_exchange *, int, const char *) {}
struct strbuf *http_stream(struct http_exchange *x) { return (void)x, NULL; }
void http_stream_end(struct http_exchange *x, bool broken) { (void)x, (void)broken; }
void http_wake(struct http_exchange *x) { (void)x; }
