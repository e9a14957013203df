#define _GNU_SOURCE
#include "net/control.h"

#include "base/clock.h"
#include "base/threads.h"
#include "net/control_path.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct client {
    int fd;
    double until; /* clock_seconds when it is dropped; 0: nothing is half done */
    double since; /* it came, or last sent or read something */
    struct strbuf in, out;
    size_t sent; /* of out */
};

struct control {
    struct control_path path;
    control_answer *answer;
    void *arg;
    pthread_t thread;
    int fd, wake[2]; /* listening; a byte in wake ends the thread */
    int count;
    struct client client[CONTROL_CLIENTS];
};

/* --- one message ---------------------------------------------------------------------------------------------- */

static enum plim_status answer_message(struct control *c, const char *text, size_t len,
                                       struct json_writer *reply, struct plim_error *err)
{
    struct doc *doc;
    enum plim_status status = json_parse(text, len, "message", &doc, err);
    if (status != PLIM_OK) return status;
    const char *what = node_string(node_get(&doc->root, "do"), NULL);
    status =
        what ? c->answer(c->arg, what, &doc->root, reply, err)
             : plim_fail(err, PLIM_BAD_INPUT, "a message is an object with \"do\", e.g. {\"do\":\"status\"}");
    doc_free(doc);
    return status;
}

static void answer_line(struct control *c, struct client *client, const char *text, size_t len)
{
    struct plim_error err = {0};
    struct strbuf *out = &client->out;
    size_t begin = out->len;
    struct json_writer w = json_object(out, 0);
    json_bool(&w, "ok", true);
    if (answer_message(c, text, len, &w, &err) == PLIM_OK) {
        json_end_object(&w);
    } else {
        strbuf_truncate(out, begin);
        json_writer_init(&w, out, 0);
        json_begin_object(&w, NULL);
        json_bool(&w, "ok", false);
        json_str(&w, "error", err.text);
        json_end_object(&w);
    }
    strbuf_addc(out, '\n');
}

/* --- one client ----------------------------------------------------------------------------------------------- */

/* Answers the whole lines that have come and keeps the rest. False: the client is to be dropped. */
static bool take_lines(struct control *c, struct client *client)
{
    struct strbuf *in = &client->in;
    size_t begin = 0;
    for (char *end; (end = memchr(in->data + begin, '\n', in->len - begin)) != NULL;) {
        answer_line(c, client, in->data + begin, (size_t)(end - in->data) - begin);
        begin = (size_t)(end - in->data) + 1;
    }
    memmove(in->data, in->data + begin, in->len - begin);
    strbuf_truncate(in, in->len - begin);
    return !in->failed && !client->out.failed && in->len < CONTROL_MESSAGE;
}

static bool client_read(struct control *c, struct client *client)
{
    char bytes[4096];
    ssize_t n = recv(client->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n <= 0) return n < 0 && (errno == EAGAIN || errno == EINTR);
    strbuf_addn(&client->in, bytes, (size_t)n);
    return !client->in.failed && take_lines(c, client);
}

static bool client_write(struct client *client)
{
    ssize_t n = send(client->fd, client->out.data + client->sent, client->out.len - client->sent,
                     MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    client->sent += (size_t)n;
    client->until = 0;
    if (client->sent == client->out.len) {
        strbuf_clear(&client->out);
        client->sent = 0;
    }
    return true;
}

/* While a reply waits to be read no further message is taken. */
static short client_wants(const struct client *client)
{
    return client->sent < client->out.len ? POLLOUT : POLLIN;
}

static bool client_serve(struct control *c, struct client *client, short events)
{
    if (events) client->since = clock_seconds();
    if (events & POLLOUT && !client_write(client)) return false;
    if (events & (POLLIN | POLLHUP | POLLERR) && !(events & POLLOUT) && !client_read(c, client)) return false;
    bool half_done = client->in.len > 0 || client->sent < client->out.len;
    double now = clock_seconds();
    if (!half_done) client->until = 0;
    if (half_done && client->until == 0) client->until = now + CONTROL_SECONDS;
    return !half_done || now < client->until;
}

static void client_drop(struct client *client)
{
    close(client->fd);
    strbuf_release(&client->in);
    strbuf_release(&client->out);
}

static void client_accept(struct control *c)
{
    struct ucred who;
    socklen_t len = sizeof who;
    int fd = accept4(c->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        struct timespec pause = {
            0, 100000000}; /* no descriptor is left: the client still waits, and poll would spin */
        if (errno != EAGAIN) nanosleep(&pause, NULL);
        return;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0 || who.uid != geteuid()) {
        close(fd);
        return;
    }
    c->client[c->count++] =
        (struct client){.fd = fd, .since = clock_seconds(), .in = STRBUF_INIT, .out = STRBUF_INIT};
}

/* A client that has nothing half done makes place for a new one: the longest silent. -1: there is none. */
static int longest_silent(const struct control *c)
{
    int found = -1;
    for (int i = 0; i < c->count; i++) {
        if (c->client[i].until != 0) continue;
        if (found < 0 || c->client[i].since < c->client[found].since) found = i;
    }
    return found;
}

static void client_remove(struct control *c, int i)
{
    client_drop(&c->client[i]);
    c->client[i] = c->client[--c->count];
}

/* --- the thread ----------------------------------------------------------------------------------------------- */

static int poll_milliseconds(const struct control *c)
{
    for (int i = 0; i < c->count; i++)
        if (c->client[i].until != 0) return 200;
    return -1;
}

static void *listen_on(void *arg)
{
    struct control *c = arg;
    thread_name("plim-control");
    for (;;) {
        struct pollfd fds[CONTROL_CLIENTS + 2] = {{c->wake[0], POLLIN, 0}, {c->fd, POLLIN, 0}};
        int count = c->count;
        if (count == CONTROL_CLIENTS && longest_silent(c) < 0) fds[1].fd = -1;
        for (int i = 0; i < count; i++)
            fds[2 + i] = (struct pollfd){c->client[i].fd, client_wants(&c->client[i]), 0};
        if (poll(fds, (nfds_t)count + 2, poll_milliseconds(c)) < 0 && errno != EINTR) return NULL;
        if (fds[0].revents) return NULL;
        for (int i = count - 1; i >= 0; i--)
            if (!client_serve(c, &c->client[i], fds[2 + i].revents)) client_remove(c, i);
        if (!fds[1].revents) continue;
        if (c->count == CONTROL_CLIENTS && longest_silent(c) >= 0) client_remove(c, longest_silent(c));
        if (c->count < CONTROL_CLIENTS) client_accept(c);
    }
}

/* --- opening, closing ------------------------------------------------------------------------------------------ */

static enum plim_status listen_at(struct control *c, struct plim_error *err)
{
    const char *path = c->path.text;
    int other = control_path_connect(&c->path);
    if (other >= 0) {
        close(other);
        return plim_fail(err, PLIM_BUSY, "%s: another process listens there; end it or name another folder",
                         path);
    }
    control_path_remove(&c->path);
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un *at = &c->path.address;
    if (c->fd < 0 || fchmod(c->fd, 0600) != 0 || bind(c->fd, (struct sockaddr *)at, sizeof *at) != 0)
        return plim_fail(err, PLIM_IO, "%s: cannot be made: %s", path, strerror(errno));
    c->path.made = true;
    if (listen(c->fd, CONTROL_CLIENTS) != 0 || pipe2(c->wake, O_CLOEXEC) != 0)
        return plim_fail(err, PLIM_IO, "%s: cannot listen: %s", path, strerror(errno));
    return PLIM_OK;
}

static void release(struct control *c)
{
    for (int i = 0; i < c->count; i++) client_drop(&c->client[i]);
    if (c->fd >= 0) close(c->fd);
    for (int i = 0; i < 2; i++)
        if (c->wake[i] >= 0) close(c->wake[i]);
    control_path_close(&c->path);
    free(c);
}

enum plim_status control_open(const char *path, control_answer *answer, void *arg, struct control **out,
                              struct plim_error *err)
{
    *out = NULL;
    struct control *c = calloc(1, sizeof *c);
    if (!c) return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for the control socket", path);
    c->answer = answer, c->arg = arg, c->fd = c->wake[0] = c->wake[1] = -1;
    enum plim_status status = control_path_open(path, &c->path, err);
    if (status == PLIM_OK) status = listen_at(c, err);
    int failed = status == PLIM_OK ? thread_begin(&c->thread, 0, listen_on, c) : 0;
    if (failed) status = plim_fail(err, PLIM_NO_MEMORY, "%s: no thread: %s", path, strerror(failed));
    if (status != PLIM_OK) return release(c), status;
    *out = c;
    return PLIM_OK;
}

void control_close(struct control *c)
{
    if (!c) return;
    while (write(c->wake[1], "", 1) < 0 && errno == EINTR) {
    }
    pthread_join(c->thread, NULL);
    release(c);
}
