#define _GNU_SOURCE
#include "net/control.h"

#include "base/clock.h"
#include "net/control_path.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Bytes of a reply, at most: a snapshot of a large job is long. */
#define REPLY_MOST ((size_t)256 << 20)

static bool wait_for(int fd, short events, double until)
{
    double left = until - clock_seconds();
    struct pollfd one = {fd, events, 0};
    return left > 0 && poll(&one, 1, (int)(left * 1000) + 1) > 0;
}

static bool send_all(int fd, const char *text, size_t len, double until)
{
    while (len > 0) {
        if (!wait_for(fd, POLLOUT, until)) return false;
        ssize_t n = send(fd, text, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
        if (n > 0) text += n, len -= (size_t)n;
    }
    return true;
}

static bool read_line(int fd, struct strbuf *out, double until)
{
    char bytes[4096];
    out->most = REPLY_MOST;
    while (wait_for(fd, POLLIN, until) && !out->failed) {
        ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (n < 0) continue;
        char *end = memchr(bytes, '\n', (size_t)n);
        strbuf_addn(out, bytes, end ? (size_t)(end - bytes) : (size_t)n);
        if (end) return !out->failed;
    }
    return false;
}

static enum plim_status check_reply(const char *path, const struct strbuf *reply, struct plim_error *err)
{
    struct doc *doc;
    enum plim_status status = json_parse(strbuf_text(reply), reply->len, path, &doc, err);
    if (status != PLIM_OK) return status;
    if (!node_bool(node_get(&doc->root, "ok"), false))
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: %s", path,
                           node_string(node_get(&doc->root, "error"), "refused without a reason"));
    doc_free(doc);
    return status;
}

static enum plim_status ask(const struct control_path *path, int fd, const char *message, double seconds,
                            struct strbuf *reply, struct plim_error *err)
{
    double until = clock_seconds() + seconds;
    if (fd < 0) return plim_fail(err, PLIM_IO, "%s: nobody listens there: %s", path->text, strerror(errno));
    if (!send_all(fd, message, strlen(message), until) || !send_all(fd, "\n", 1, until) ||
        !read_line(fd, reply, until))
        return plim_fail(err, PLIM_IO, "%s: no reply within %.0f s", path->text, seconds);
    return check_reply(path->text, reply, err);
}

enum plim_status control_ask(const char *path, const char *message, double seconds, struct strbuf *reply,
                             struct plim_error *err)
{
    struct control_path at;
    enum plim_status status = control_path_open(path, &at, err);
    if (status == PLIM_OK) {
        int fd = control_path_connect(&at);
        status = ask(&at, fd, message, seconds, reply, err);
        if (fd >= 0) close(fd);
    }
    control_path_close(&at);
    if (status != PLIM_OK) strbuf_clear(reply);
    return status;
}
