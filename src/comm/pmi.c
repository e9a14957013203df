/* pmi.c - see pmi.h. Lines of "key=value" words, of which "cmd" comes first, each answered by one line:
 *
 *     init, get_maxes, get_appnum, get_my_kvsname, get_universe_size     always the same
 *     put, get              a value under a name; what is not there is an answer, too
 *     barrier_in            answered when all ranks have asked
 *     finalize              the rank leaves
 *     abort exitcode=N      all ranks end
 *
 * Invariants: a peer has left, or its connection is open, or the job is over. Rank 0's thread alone touches peers and names.
 */
#define _GNU_SOURCE /* POLLRDHUP */
#include "comm/pmi.h"
#include "base/clock.h"
#include "base/threads.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    LINE = 2048,
    KEY = 64,
    VALUE = 512,
    LOOK_MS = 100,
    STACK_BYTES = 256 << 10,
    LEAVE_SECONDS = 10,
    ENDED = 1
};

struct peer {
    int fd;
    bool left, waits; /* has finalized; is in the barrier */
    size_t used;
    char line[LINE];
};

struct pmi {
    const struct context_process *process;
    int rank, ranks;
    double seconds;
    int watched; /* of others than rank 0: the connection, once more */
    struct peer *peers;
    struct pair {
        char key[KEY], value[VALUE];
    } * pairs;
    int npairs, cap;
    pthread_t thread;
    bool runs;
    atomic_bool leaving, freed;
    const char *_Atomic gone;
    double gone_at;
    char text[64];
};

/* The process ends as a launcher would end it: who has a reason to tell has told it. */
static void end_process(const struct pmi *pmi, int code) { pmi->process->end(code ? code : ENDED); }

static void set_gone(struct pmi *pmi, int rank)
{
    if (atomic_load(&pmi->gone)) return;
    snprintf(pmi->text, sizeof pmi->text, "rank %d has ended", rank);
    pmi->gone_at = clock_seconds();
    atomic_store(&pmi->gone, pmi->text);
}

/* --- rank 0 answers ------------------------------------------------------------------------------------------------ */

static void say(struct peer *peer, const char *text)
{
    if (peer->fd >= 0) (void)!send(peer->fd, text, strlen(text), MSG_NOSIGNAL);
}

/* The word behind "name=", as far as it fits; empty: there is none. */
static void word(const char *line, const char *name, char *out, size_t size)
{
    size_t n = strlen(name), used = 0;
    out[0] = '\0';
    for (const char *at = line; (at = strstr(at, name)); at += n) {
        if ((at != line && at[-1] != ' ') || at[n] != '=') continue;
        for (at += n + 1; *at && *at != ' ' && used + 1 < size; at++) out[used++] = *at;
        out[used] = '\0';
        return;
    }
}

static const struct pair *find(const struct pmi *pmi, const char *key)
{
    for (int i = 0; i < pmi->npairs; i++)
        if (!strcmp(pmi->pairs[i].key, key)) return &pmi->pairs[i];
    return NULL;
}

static void put(struct pmi *pmi, struct peer *peer, const char *line)
{
    if (pmi->npairs == pmi->cap) {
        int cap = pmi->cap ? 2 * pmi->cap : 64;
        struct pair *pairs = realloc(pmi->pairs, (size_t)cap * sizeof *pairs);
        if (!pairs) {
            say(peer, "cmd=put_result rc=-1 msg=out_of_memory\n");
            return;
        }
        pmi->pairs = pairs, pmi->cap = cap;
    }
    struct pair *pair = &pmi->pairs[pmi->npairs++];
    word(line, "key", pair->key, sizeof pair->key);
    word(line, "value", pair->value, sizeof pair->value);
    say(peer, "cmd=put_result rc=0 msg=success\n");
}

static void get(struct pmi *pmi, struct peer *peer, const char *line)
{
    char key[KEY], answer[LINE];
    word(line, "key", key, sizeof key);
    const struct pair *pair = find(pmi, key);
    snprintf(answer, sizeof answer, "cmd=get_result rc=%d msg=%s value=%s\n", pair ? 0 : -1,
             pair ? "success" : "not_found", pair ? pair->value : "unknown");
    say(peer, answer);
}

static void universe_size(struct pmi *pmi, struct peer *peer, const char *)
{
    char answer[64];
    snprintf(answer, sizeof answer, "cmd=universe_size size=%d\n", pmi->ranks);
    say(peer, answer);
}

static void barrier(struct pmi *pmi, struct peer *peer, const char *)
{
    peer->waits = true;
    for (int r = 0; r < pmi->ranks; r++)
        if (!pmi->peers[r].waits) return;
    for (int r = 0; r < pmi->ranks; r++) {
        pmi->peers[r].waits = false;
        say(&pmi->peers[r], "cmd=barrier_out\n");
    }
}

static void leave(struct pmi *, struct peer *peer, const char *)
{
    peer->left = true;
    say(peer, "cmd=finalize_ack\n");
}

/* All but the one that asked for it, whose library waits for an answer that nobody has. */
static void end_all(struct pmi *pmi, const struct peer *asked, int code)
{
    char text[48];
    snprintf(text, sizeof text, "cmd=end code=%d\n", code);
    for (int r = 1; r < pmi->ranks; r++) {
        struct peer *peer = &pmi->peers[r];
        if (peer == asked || peer->fd < 0) continue;
        say(peer, text);
        shutdown(peer->fd, SHUT_RDWR);
    }
    end_process(pmi, code);
}

static void end_by_abort(struct pmi *pmi, struct peer *peer, const char *line)
{
    char code[16];
    word(line, "exitcode", code, sizeof code);
    end_all(pmi, peer, atoi(code));
}

static const struct {
    const char *cmd, *text; /* what is answered, or who answers */
    void (*answer)(struct pmi *, struct peer *, const char *line);
} commands[] = {
    {"init", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n", NULL},
    {"get_maxes", "cmd=maxes kvsname_max=64 keylen_max=64 vallen_max=512\n", NULL},
    {"get_appnum", "cmd=appnum appnum=0\n", NULL},
    {"get_my_kvsname", "cmd=my_kvsname kvsname=plimsoll\n", NULL},
    {"get_universe_size", NULL, universe_size},
    {"put", NULL, put},
    {"get", NULL, get},
    {"barrier_in", NULL, barrier},
    {"finalize", NULL, leave},
    {"abort", NULL, end_by_abort},
};

static void answer(struct pmi *pmi, struct peer *peer, const char *line)
{
    char cmd[32];
    word(line, "cmd", cmd, sizeof cmd);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(commands[i].cmd, cmd)) continue;
        if (commands[i].text)
            say(peer, commands[i].text);
        else
            commands[i].answer(pmi, peer, line);
        return;
    }
    say(peer, "cmd=unknown rc=-1 msg=not_answered_here\n");
}

/* Reads from a peer and answers its complete lines. Returns false when the peer has closed. */
static bool listen_to(struct pmi *pmi, struct peer *peer)
{
    ssize_t n = recv(peer->fd, peer->line + peer->used, LINE - 1 - peer->used, MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0 || peer->used + (size_t)n == LINE - 1) return false;
    peer->used += (size_t)n, peer->line[peer->used] = '\0';
    for (char *end; (end = strchr(peer->line, '\n'));) {
        *end = '\0';
        answer(pmi, peer, peer->line);
        peer->used -= (size_t)(end + 1 - peer->line);
        memmove(peer->line, end + 1, peer->used + 1);
    }
    return true;
}

static int count_open(struct pmi *pmi, struct pollfd *polled)
{
    int open = 0;
    for (int r = 0; r < pmi->ranks; r++) {
        struct peer *peer = &pmi->peers[r];
        polled[r] = (struct pollfd){.fd = peer->fd, .events = POLLIN};
        open += peer->fd >= 0 && !peer->left;
    }
    return open;
}

static void close_peer(struct pmi *pmi, int r)
{
    struct peer *peer = &pmi->peers[r];
    if (!peer->left) set_gone(pmi, r);
    close(peer->fd), peer->fd = -1;
}

static void *serve(void *arg)
{
    struct pmi *pmi = arg;
    struct pollfd *polled = calloc((size_t)pmi->ranks, sizeof *polled);
    double left_at = 0;
    while (polled && count_open(pmi, polled)) {
        poll(polled, (nfds_t)pmi->ranks, LOOK_MS);
        for (int r = 0; r < pmi->ranks; r++)
            if (polled[r].fd >= 0 && polled[r].revents && !listen_to(pmi, &pmi->peers[r])) close_peer(pmi, r);
        double now = clock_seconds();
        if (!left_at && atomic_load(&pmi->freed)) left_at = now;
        if (left_at && now > left_at + LEAVE_SECONDS) break;
        if (atomic_load(&pmi->gone) && now > pmi->gone_at + pmi->seconds)
            end_all(pmi, NULL, ENDED); /* nobody told it */
    }
    for (int r = 0; r < pmi->ranks; r++)
        if (pmi->peers[r].fd >= 0) close(pmi->peers[r].fd);
    free(polled);
    return NULL;
}

/* --- the others watch ---------------------------------------------------------------------------------------------- */

/* Rank 0 closes when all have left, or at the end of the job, which it says first. */
static void *watch(void *arg)
{
    struct pmi *pmi = arg;
    struct pollfd p = {.fd = pmi->watched, .events = POLLRDHUP};
    char text[64] = "", code[16];
    while (!atomic_load(&pmi->leaving) && poll(&p, 1, LOOK_MS) < 1) {
    }
    if (atomic_load(&pmi->leaving)) return NULL;
    ssize_t n = recv(pmi->watched, text, sizeof text - 1, MSG_PEEK | MSG_DONTWAIT);
    text[n > 0 ? n : 0] = '\0';
    word(text, "code", code, sizeof code);
    if (code[0] || pmi->rank != 1) end_process(pmi, atoi(code));
    set_gone(pmi, 0);
    for (double until = clock_seconds() + pmi->seconds;
         clock_seconds() < until && !atomic_load(&pmi->leaving);)
        usleep(LOOK_MS * 1000);
    if (!atomic_load(&pmi->leaving)) end_process(pmi, ENDED);
    return NULL;
}

/* --- life ---------------------------------------------------------------------------------------------------------- */

static void set_number(const struct pmi *pmi, const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    pmi->process->set_variable(name, text);
}

/* Passes this rank's end of the connection to MPI_Init, which owns it from now on. */
static enum plim_status hand_over(struct pmi *pmi, int fd, struct plim_error *err)
{
    set_number(pmi, "PMI_RANK", pmi->rank), set_number(pmi, "PMI_SIZE", pmi->ranks),
        set_number(pmi, "PMI_FD", fd);
    if (pmi->rank) pmi->watched = dup(fd);
    int rc = thread_begin(&pmi->thread, STACK_BYTES, pmi->rank ? watch : serve, pmi);
    pmi->runs = !rc;
    return rc ? plim_fail(err, PLIM_NO_MEMORY, "cannot start the thread that connects ranks: %s",
                          strerror(rc))
              : PLIM_OK;
}

enum plim_status pmi_open(struct meeting *meeting, struct pmi **out, struct plim_error *err)
{
    int ends[2] = {-1, -1}, count = meeting->rank ? 1 : meeting->ranks,
        *fds = calloc((size_t)count, sizeof *fds);
    struct pmi *pmi = calloc(1, sizeof *pmi);
    struct peer *peers = calloc((size_t)count, sizeof *peers);
    enum plim_status status =
        fds && pmi && peers ? PLIM_OK : plim_fail(err, PLIM_NO_MEMORY, "out of memory while ranks met");
    *out = NULL;
    if (status == PLIM_OK) status = meet(meeting, fds, err);
    if (status == PLIM_OK && !meeting->rank && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        status = plim_fail(err, PLIM_IO, "ranks cannot meet: %s", strerror(errno));
    if (status == PLIM_OK) {
        *pmi = (struct pmi){.process = meeting->process,
                            .rank = meeting->rank,
                            .ranks = meeting->ranks,
                            .seconds = meeting->seconds,
                            .watched = -1,
                            .peers = peers};
        for (int r = 0; r < count; r++) peers[r].fd = r ? fds[r] : ends[0];
        status = hand_over(pmi, meeting->rank ? fds[0] : ends[1], err);
    }
    free(fds);
    if (status == PLIM_OK) return *out = pmi, PLIM_OK;
    free(peers), free(pmi);
    return status;
}

const char *pmi_gone(struct pmi *pmi) { return atomic_load(&pmi->gone); }

void pmi_abort(struct pmi *pmi, int code)
{
    char text[48];
    if (pmi->rank == 0) end_all(pmi, NULL, code);
    snprintf(text, sizeof text, "cmd=abort exitcode=%d\n", code);
    (void)!send(pmi->watched, text, strlen(text), MSG_NOSIGNAL);
    end_process(pmi, code);
}

void pmi_leave(struct pmi *pmi)
{
    if (pmi) atomic_store(&pmi->leaving, true);
}

void pmi_free(struct pmi *pmi)
{
    if (!pmi) return;
    pmi_leave(pmi);
    atomic_store(&pmi->freed, true);
    if (pmi->runs) pthread_join(pmi->thread, NULL);
    if (pmi->watched >= 0) close(pmi->watched);
    free(pmi->peers), free(pmi->pairs), free(pmi);
}
