/* http_load.c - see http_load.h. */
#define _GNU_SOURCE /* memmem */
#include "load/http_load.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/strbuf.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD = 2048, PIECE = 64 << 10, TAIL = 7, EVENTS = 256, LOOK_MS = 10 };

struct client {
    int fd;
    struct strbuf ask; /* the request, until it is sent */
    size_t sent;
    char head[HEAD]; /* of the answer, and whatever came with it */
    size_t head_len;
    bool begun;      /* the head is whole */
    int64_t left;    /* bytes of the answer to come; below 0: its end is marked */
    char tail[TAIL]; /* the last bytes */
};

struct run {
    struct http_load *load;
    int epoll, sent, answered;
    double began;
    char *piece;
};

static const char ended[TAIL + 1] = "\r\n0\r\n\r\n";

static enum plim_status fail(struct plim_error *err, const char *what)
{
    return plim_fail(err, PLIM_IO, "client: %s: %s", what, strerror(errno));
}

static void write_ask(struct run *r, struct client *c)
{
    const struct http_load *l = r->load;
    int64_t prompt = l->prompt, tokens = l->tokens;
    if (l->watch) l->watch->size(l->watch->arg, r->sent, &prompt, &tokens);
    STRBUF_AUTO body = STRBUF_INIT;
    strbuf_addf(&body,
                "{\"model\":\"%s\",\"max_tokens\":%lld,\"temperature\":0,\"ignore_eos\":true,\"stream\":%s,"
                "\"prompt\":[",
                l->model, (long long)tokens, l->streams ? "true" : "false");
    for (int64_t i = 0; i < prompt; i++) {
        uint64_t id = rng_below((uint64_t)r->sent, 1, (uint64_t)i, (uint64_t)l->vocab);
        strbuf_addf(&body, "%s%d", i ? "," : "", (int)id);
    }
    strbuf_add(&body, "]}");
    strbuf_clear(&c->ask);
    strbuf_addf(&c->ask,
                "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                "Content-Length: %zu\r\n\r\n",
                body.len);
    strbuf_addn(&c->ask, strbuf_text(&body), body.len);
}

static enum plim_status watch(const struct run *r, struct client *c, uint32_t events, int how,
                              struct plim_error *err)
{
    struct epoll_event event = {.events = events, .data.ptr = c};
    return epoll_ctl(r->epoll, how, c->fd, &event) ? fail(err, "epoll") : PLIM_OK;
}

/* The next request on this connection. */
static void ask_next(struct run *r, struct client *c)
{
    write_ask(r, c);
    c->sent = c->head_len = 0, c->begun = false, c->left = 0;
    memset(c->tail, 0, TAIL);
    if (++r->sent == r->load->requests)
        r->load->until = clock_seconds() - r->began, r->load->by_then = r->answered;
}

static enum plim_status connect_one(struct run *r, struct client *c, struct plim_error *err)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)r->load->port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0) return fail(err, "socket");
    if (connect(c->fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS)
        return fail(err, "connect");
    ask_next(r, c);
    return watch(r, c, EPOLLOUT, EPOLL_CTL_ADD, err);
}

static enum plim_status send_ask(struct run *r, struct client *c, struct plim_error *err)
{
    while (c->sent < c->ask.len) {
        ssize_t n = send(c->fd, c->ask.data + c->sent, c->ask.len - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) return watch(r, c, EPOLLOUT, EPOLL_CTL_MOD, err);
        if (n < 0) return fail(err, "send");
        c->sent += (size_t)n;
    }
    return watch(r, c, EPOLLIN, EPOLL_CTL_MOD, err);
}

/* What came may be the head, or a part of it. Returns how much of it was. */
static enum plim_status read_head(struct client *c, const char *text, size_t n, size_t *used,
                                  struct plim_error *err)
{
    size_t room = sizeof c->head - 1 - c->head_len, take = n < room ? n : room, had = c->head_len;
    memcpy(c->head + had, text, take);
    c->head_len += take, c->head[c->head_len] = '\0', *used = take;
    char *end = memmem(c->head, c->head_len, "\r\n\r\n", 4);
    if (!end && c->head_len + 1 == sizeof c->head)
        return plim_fail(err, PLIM_IO, "client: a head without end");
    if (!end) return PLIM_OK;
    if (strncmp(c->head, "HTTP/1.1 200", 12))
        return plim_fail(err, PLIM_IO, "client: the answer was %.300s", c->head);
    const char *length = strcasestr(c->head, "\r\nContent-Length:");
    c->left = length && length < end ? atoll(length + 17) : -1, c->begun = true;
    *used = (size_t)(end + 4 - c->head) - had;
    return PLIM_OK;
}

static void keep_tail(struct client *c, const char *text, size_t n)
{
    size_t take = n < TAIL ? n : TAIL;
    memmove(c->tail, c->tail + take, TAIL - take);
    memcpy(c->tail + TAIL - take, text + n - take, take);
}

/* Reads what is there; *over: the answer is whole. */
static enum plim_status take_answer(struct run *r, struct client *c, bool *over, struct plim_error *err)
{
    ssize_t got = recv(c->fd, r->piece, PIECE, 0);
    *over = false;
    if (got < 0 && errno == EAGAIN) return PLIM_OK;
    if (got <= 0) return plim_fail(err, PLIM_IO, "client: hung up on in the middle of an answer");
    size_t n = (size_t)got, used = 0;
    r->load->bytes += got;
    if (!c->begun) {
        enum plim_status status = read_head(c, r->piece, n, &used, err);
        if (status != PLIM_OK || !c->begun) return status;
    }
    if (c->left < 0) {
        keep_tail(c, r->piece + used, n - used);
        *over = !memcmp(c->tail, ended, TAIL);
    } else {
        c->left -= (int64_t)(n - used), *over = c->left == 0;
    }
    return PLIM_OK;
}

static enum plim_status serve_client(struct run *r, struct client *c, uint32_t events, struct plim_error *err)
{
    bool over = false;
    if (events & EPOLLOUT) return send_ask(r, c, err);
    enum plim_status status = take_answer(r, c, &over, err);
    if (status != PLIM_OK || !over) return status;
    r->answered++;
    if (r->sent == r->load->requests) return PLIM_OK;
    ask_next(r, c);
    return send_ask(r, c, err);
}

static bool goes_on(const struct run *r)
{
    const struct http_load *l = r->load;
    return r->answered < l->requests &&
           (!l->watch || l->watch->goes_on(l->watch->arg, r->sent < l->requests));
}

enum plim_status http_load_run(struct http_load *load, struct plim_error *err)
{
    struct run r = {.load = load, .epoll = epoll_create1(EPOLL_CLOEXEC), .began = clock_seconds()};
    int count = load->connections < load->requests ? load->connections : load->requests;
    struct client *clients = calloc((size_t)count, sizeof *clients);
    struct epoll_event events[EVENTS];
    enum plim_status status = PLIM_OK;
    load->bytes = 0;
    r.piece = malloc(PIECE);
    if (!clients || !r.piece || r.epoll < 0) status = plim_fail(err, PLIM_NO_MEMORY, "client: out of memory");
    for (int i = 0; i < count && status == PLIM_OK; i++) status = connect_one(&r, &clients[i], err);
    while (status == PLIM_OK && goes_on(&r)) {
        int n = epoll_wait(r.epoll, events, EVENTS, load->watch ? LOOK_MS : -1);
        for (int i = 0; i < n && status == PLIM_OK; i++)
            status = serve_client(&r, events[i].data.ptr, events[i].events, err);
    }
    load->seconds = clock_seconds() - r.began;
    for (int i = 0; i < count && clients; i++) {
        if (clients[i].fd > 0) close(clients[i].fd);
        strbuf_release(&clients[i].ask);
    }
    free(clients);
    free(r.piece);
    if (r.epoll >= 0) close(r.epoll);
    return status;
}
