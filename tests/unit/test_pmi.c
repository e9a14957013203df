/* test_pmi.c - ranks that have nobody but each other (comm/meet.h, comm/pmi.h): processes of this test, which say what MPICH would.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "comm/pmi.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct plim_error err;

/* A port that is ours to listen at: it stays bound, so that nobody else is given it, and with SO_REUSEADDR a listener may share it. */
static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    return ntohs(at.sin_port);
}

static void set_variable(const char *name, const char *value) { setenv(name, value, 1); }

static void end_process(int code) { _exit(code); }

static const struct context_process process = {.set_variable = set_variable, .end = end_process};

static struct meeting meeting_of(int rank, int ranks, int port)
{
    return (struct meeting){.process = &process,
                            .rank = rank,
                            .ranks = ranks,
                            .seconds = 20,
                            .host = "127.0.0.1",
                            .port = port,
                            .run = "test"};
}

/* One line to the process manager, and its answer. */
static bool ask(const char *line, const char *want)
{
    char answer[1024];
    size_t n = 0;
    int fd = atoi(getenv("PMI_FD"));
    if (write(fd, line, strlen(line)) != (ssize_t)strlen(line)) return false;
    while (n + 1 < sizeof answer && read(fd, &answer[n], 1) == 1 && answer[n] != '\n') n++;
    answer[n] = '\0';
    return strstr(answer, want) != NULL;
}

/* What MPI_Init and MPI_Finalize of a rank say. 0: all was answered as it should be. */
static int take_part(int rank, int ranks, int port)
{
    struct meeting m = meeting_of(rank, ranks, port);
    struct pmi *pmi;
    char line[128];
    if (pmi_open(&m, &pmi, &err) != PLIM_OK) return 2;
    bool good = ask("cmd=init pmi_version=1 pmi_subversion=1\n", "cmd=response_to_init pmi_version=1") &&
                ask("cmd=get_maxes\n", "vallen_max=512") && ask("cmd=get_appnum\n", "appnum=0") &&
                ask("cmd=get_my_kvsname\n", "kvsname=plimsoll") && ask("cmd=get_universe_size\n", "size=3") &&
                ask("cmd=get kvsname=plimsoll key=PMI_process_mapping\n", "rc=-1");
    snprintf(line, sizeof line, "cmd=put kvsname=plimsoll key=card-%d value=at=%d,key=x\n", rank, rank);
    good = good && ask(line, "cmd=put_result rc=0") && ask("cmd=barrier_in\n", "cmd=barrier_out");
    for (int r = 0; r < ranks; r++) {
        char want[64];
        snprintf(line, sizeof line, "cmd=get kvsname=plimsoll key=card-%d\n", r);
        snprintf(want, sizeof want, "rc=0 msg=success value=at=%d,key=x", r);
        good = good && ask(line, want);
    }
    pmi_leave(pmi);
    good = good && ask("cmd=finalize\n", "cmd=finalize_ack") && !pmi_gone(pmi);
    pmi_free(pmi);
    return good && atoi(getenv("PMI_RANK")) == rank && atoi(getenv("PMI_SIZE")) == ranks ? 0 : 1;
}

/* A process that ends with what `body` returns. */
static pid_t fork_rank(int (*body)(int, int, int), int rank, int ranks, int port)
{
    pid_t pid = fork();
    if (pid == 0) _exit(body(rank, ranks, port));
    return pid;
}

static int exit_of(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void ranks_find_what_others_put(void **state)
{
    (void)state;
    int port = free_port();
    pid_t pids[3];
    for (int r = 2; r >= 0; r--) pids[r] = fork_rank(take_part, r, 3, port);
    for (int r = 0; r < 3; r++) assert_int_equal(exit_of(pids[r]), 0);
}

/* Rank 2 ends; rank 0 hears of it, tells it, and ends all. */
static int end_early(int rank, int ranks, int port)
{
    struct meeting m = meeting_of(rank, ranks, port);
    struct pmi *pmi;
    if (pmi_open(&m, &pmi, &err) != PLIM_OK) return 2;
    if (rank == 2) return 0;
    for (double until = clock_seconds() + 20; clock_seconds() < until && !pmi_gone(pmi);) usleep(1000);
    if (rank == 0 && (!pmi_gone(pmi) || strcmp(pmi_gone(pmi), "rank 2 has ended"))) return 3;
    if (rank == 0) pmi_abort(pmi, 7);
    usleep(20000000);
    return 4;
}

static void who_ends_is_named_and_ends_all(void **state)
{
    (void)state;
    int port = free_port();
    pid_t pids[3];
    for (int r = 0; r < 3; r++) pids[r] = fork_rank(end_early, r, 3, port);
    assert_int_equal(exit_of(pids[2]), 0);
    assert_int_equal(exit_of(pids[0]), 7);
    assert_int_equal(exit_of(pids[1]), 7);
}

/* Rank 0 ends: rank 1 is the one to tell it, rank 2 just ends. */
static int lose_first(int rank, int ranks, int port)
{
    struct meeting m = meeting_of(rank, ranks, port);
    struct pmi *pmi;
    if (pmi_open(&m, &pmi, &err) != PLIM_OK) return 2;
    if (rank == 0) return 0;
    for (double until = clock_seconds() + 20; clock_seconds() < until && !pmi_gone(pmi);) usleep(1000);
    return pmi_gone(pmi) && !strcmp(pmi_gone(pmi), "rank 0 has ended") ? 5 : 3;
}

static void rank_1_hears_that_rank_0_has_ended(void **state)
{
    (void)state;
    int port = free_port();
    pid_t pids[3];
    for (int r = 0; r < 3; r++) pids[r] = fork_rank(lose_first, r, 3, port);
    assert_int_equal(exit_of(pids[0]), 0);
    assert_int_equal(exit_of(pids[1]), 5);
    assert_int_equal(exit_of(pids[2]), 1);
}

static void who_does_not_come_is_named(void **state)
{
    (void)state;
    int fds[3];
    struct meeting m = meeting_of(0, 3, free_port());
    m.seconds = 0.2;
    assert_int_equal(meet(&m, fds, &err), PLIM_IO);
    assert_non_null(strstr(err.text, "ranks 1, 2 of 3 did not come to 127.0.0.1:"));
    assert_true(m.tells);
    m.rank = 1;
    assert_int_equal(meet(&m, fds, &err), PLIM_IO);
    assert_non_null(strstr(err.text, "rank 0 of 3 did not come within 0 s"));
    assert_true(m.tells);
    m.rank = 2;
    assert_int_equal(meet(&m, fds, &err), PLIM_IO);
    assert_false(m.tells);
}

static int of_another_run(int rank, int ranks, int port)
{
    int fd;
    struct meeting m = meeting_of(rank, ranks, port);
    m.run = "another";
    return meet(&m, &fd, &err) == PLIM_IO && strstr(err.text, "another run meets here") && !m.tells ? 0 : 1;
}

static int of_our_run(int rank, int ranks, int port)
{
    int fd;
    struct meeting m = meeting_of(rank, ranks, port);
    return meet(&m, &fd, &err) == PLIM_OK ? 0 : 1;
}

static int of_more_ranks(int rank, int ranks, int port)
{
    int fd;
    struct meeting m = meeting_of(rank, ranks + 1, port);
    return meet(&m, &fd, &err) == PLIM_IO && strstr(err.text, "rank 1 of 3 came to a run of 2 ranks") ? 0 : 1;
}

static void strangers_are_sent_away(void **state)
{
    (void)state;
    int fds[2], port = free_port();
    struct meeting m = meeting_of(0, 2, port);
    pid_t stranger = fork_rank(of_another_run, 1, 2, port);
    pid_t ours = fork_rank(of_our_run, 1, 2, port);
    assert_int_equal(meet(&m, fds, &err), PLIM_OK);
    assert_int_equal(exit_of(ours), 0);
    close(fds[1]);
    if (kill(stranger, 0) == 0) kill(stranger, SIGKILL); /* it may have come too late to be heard */
    exit_of(stranger);
    pid_t more = fork_rank(of_more_ranks, 1, 2, port);
    assert_int_equal(meet(&m, fds, &err), PLIM_IO);
    assert_int_equal(exit_of(more), 0);
}

static void a_port_is_taken(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fds[2], fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, size), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    struct meeting m = meeting_of(0, 2, ntohs(at.sin_port));
    assert_int_equal(meet(&m, fds, &err), PLIM_IO);
    assert_non_null(strstr(err.text, "ranks cannot meet here"));
    assert_non_null(strstr(err.text, "PLIMSOLL_PORT"));
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_find_what_others_put),
        cmocka_unit_test(who_ends_is_named_and_ends_all),
        cmocka_unit_test(rank_1_hears_that_rank_0_has_ended),
        cmocka_unit_test(who_does_not_come_is_named),
        cmocka_unit_test(strangers_are_sent_away),
        cmocka_unit_test(a_port_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
