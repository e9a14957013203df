/* meet.c - see meet.h. One line each way:
 *
 *     rank r    connects, again and again until rank 0 listens     "plimsoll RANK RANKS RUN\n"
 *     rank 0    when all are there                                 "welcome\n"
 *               otherwise                                          "no WHY\n"
 */
#define _GNU_SOURCE /* accept4 */
#include "comm/meet.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 512, HELLO_MS = 2000, RETRY_NS = 50000000 };

static int milliseconds(double until)
{
    double left = (until - clock_seconds()) * 1e3;
    return left < 0 ? 0 : left > 1e6 ? (int)1e6 : (int)left + 1;
}

static bool say(int fd, const char *text)
{
    size_t n = strlen(text);
    return send(fd, text, n, MSG_NOSIGNAL) == (ssize_t)n;
}

/* A line without its end, byte by byte: what comes behind it is the library's. */
static bool hear(int fd, char line[LINE], double until)
{
    for (size_t n = 0; n + 1 < LINE; n++) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, milliseconds(until)) != 1 || recv(fd, &line[n], 1, 0) != 1) return false;
        if (line[n] == '\n') return line[n] = '\0', true;
    }
    return false;
}

static enum plim_status find(const struct meeting *m, struct addrinfo **out, struct plim_error *err)
{
    char port[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    snprintf(port, sizeof port, "%d", m->port);
    if (m->rank == 0 && m->apart) hints.ai_flags |= AI_PASSIVE;
    int rc = getaddrinfo(m->rank == 0 && m->apart ? NULL : m->host, port, &hints, out);
    return rc ? plim_fail(err, PLIM_IO, "environment: MASTER_ADDR='%s': %s", m->host, gai_strerror(rc))
              : PLIM_OK;
}

static void close_all(int *fds, int count)
{
    for (int i = 0; i < count; i++) {
        if (fds[i] >= 0) close(fds[i]);
        fds[i] = -1;
    }
}

/* --- rank 0 ------------------------------------------------------------------------------------------------------ */

static enum plim_status listen_at(const struct meeting *m, int *out, struct plim_error *err)
{
    struct addrinfo *all = NULL;
    int fd = -1, one = 1, why = 0;
    enum plim_status status = find(m, &all, err);
    for (struct addrinfo *a = all; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (fd >= 0 && !bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, m->ranks + 16)) break;
        why = errno;
        if (fd >= 0) close(fd);
        fd = -1;
    }
    if (all) freeaddrinfo(all);
    *out = fd;
    if (status != PLIM_OK || fd >= 0) return status;
    return plim_fail(err, PLIM_IO,
                     "%s:%d: ranks cannot meet here: %s; name another port, on all ranks, by PLIMSOLL_PORT",
                     m->host, m->port, strerror(why));
}

/* Takes one that came, or sends it away. */
static enum plim_status take(const struct meeting *m, int fd, int *fds, int *missing, struct plim_error *err)
{
    char line[LINE], run[MEET_RUN] = "";
    int rank = -1, ranks = 0;
    bool ours = hear(fd, line, clock_seconds() + HELLO_MS * 1e-3) &&
                sscanf(line, "plimsoll %d %d %95s", &rank, &ranks, run) == 3 && !strcmp(run, m->run);
    enum plim_status status = PLIM_OK;
    if (ours && (ranks != m->ranks || rank < 1 || rank >= m->ranks))
        status =
            plim_fail(err, PLIM_IO, "rank %d of %d came to a run of %d ranks; start all with one launcher",
                      rank, ranks, m->ranks);
    else if (ours && fds[rank] >= 0)
        status =
            plim_fail(err, PLIM_IO, "two processes are rank %d; start each with a RANK of its own", rank);
    if (ours && status == PLIM_OK) return fds[rank] = fd, --*missing, PLIM_OK;
    char answer[LINE];
    snprintf(answer, sizeof answer, "no %.400s\n", status == PLIM_OK ? "another run meets here" : err->text);
    say(fd, answer);
    close(fd);
    return status;
}

static enum plim_status name_missing(const struct meeting *m, const int *fds, int missing,
                                     struct plim_error *err)
{
    char list[128];
    size_t n = 0;
    for (int r = 1; r < m->ranks && n < sizeof list - 16; r++)
        if (fds[r] < 0) n += (size_t)snprintf(list + n, sizeof list - n, n ? ", %d" : "%d", r);
    return plim_fail(err, PLIM_IO, "%s %s of %d did not come to %s:%d within %.0f s",
                     missing > 1 ? "ranks" : "rank", list, m->ranks, m->host, m->port, m->seconds);
}

static enum plim_status receive(struct meeting *m, int *fds, struct plim_error *err)
{
    int listener, missing = m->ranks - 1;
    double until = clock_seconds() + m->seconds;
    for (int r = 0; r < m->ranks; r++) fds[r] = -1;
    m->tells = true;
    enum plim_status status = listen_at(m, &listener, err);
    while (missing && status == PLIM_OK) {
        struct pollfd p = {.fd = listener, .events = POLLIN};
        int n = poll(&p, 1, milliseconds(until)),
            fd = n > 0 ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (fd >= 0)
            status = take(m, fd, fds, &missing, err);
        else if (clock_seconds() >= until)
            status = name_missing(m, fds, missing, err);
    }
    if (listener >= 0) close(listener);
    char answer[LINE];
    snprintf(answer, sizeof answer, "no %.400s\n", status == PLIM_OK ? "" : err->text);
    for (int r = 1; r < m->ranks; r++)
        if (fds[r] >= 0) say(fds[r], status == PLIM_OK ? "welcome\n" : answer);
    if (status != PLIM_OK) close_all(fds, m->ranks);
    return status;
}

/* --- the others ------------------------------------------------------------------------------------------------- */

static int connect_once(const struct addrinfo *all)
{
    for (const struct addrinfo *a = all; a; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && !connect(fd, a->ai_addr, a->ai_addrlen)) return fd;
        if (fd >= 0) close(fd);
    }
    return -1;
}

static enum plim_status connect_to(const struct meeting *m, int *out, double until, struct plim_error *err)
{
    struct addrinfo *all = NULL;
    enum plim_status status = find(m, &all, err);
    *out = -1;
    while (status == PLIM_OK && (*out = connect_once(all)) < 0) {
        nanosleep(&(struct timespec){0, RETRY_NS}, NULL);
        if (clock_seconds() > until)
            status = plim_fail(err, PLIM_IO, "%s:%d: rank 0 of %d did not come within %.0f s: %s", m->host,
                               m->port, m->ranks, m->seconds, strerror(errno));
    }
    if (all) freeaddrinfo(all);
    return status;
}

static enum plim_status go_there(struct meeting *m, int *fd, struct plim_error *err)
{
    char line[LINE];
    double until = clock_seconds() + m->seconds;
    m->tells = m->rank == 1;
    enum plim_status status = connect_to(m, fd, until, err);
    if (status != PLIM_OK) return status;
    snprintf(line, sizeof line, "plimsoll %d %d %s\n", m->rank, m->ranks, m->run);
    bool heard = say(*fd, line) && hear(*fd, line, until + HELLO_MS * 1e-3);
    if (heard && !strcmp(line, "welcome")) return PLIM_OK;
    close(*fd), *fd = -1;
    m->tells = false; /* rank 0 does: it has said so, or has found its port taken */
    if (heard && !strncmp(line, "no ", 3)) return plim_fail(err, PLIM_IO, "%s", line + 3);
    return plim_fail(err, PLIM_IO,
                     "%s:%d: the process that answers is not rank 0; set another PLIMSOLL_PORT on all ranks",
                     m->host, m->port);
}

enum plim_status meet(struct meeting *m, int *fds, struct plim_error *err)
{
    return m->rank == 0 ? receive(m, fds, err) : go_there(m, fds, err);
}
