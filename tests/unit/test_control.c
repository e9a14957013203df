/* The control socket: who is answered, what with, and who cannot hold it up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "net/control.h"
#include "net/control_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];
static char path[400];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/plimsoll-control-XXXXXX");
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/control.sock", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

/* Says what it was asked and counts; "refuse" is refused. */
static enum plim_status answer(void *arg, const char *what, const struct node *message,
                               struct json_writer *reply, struct plim_error *err)
{
    ++*(int *)arg;
    json_str(reply, "did", what);
    json_int(reply, "bytes", node_int(node_get(message, "bytes"), -1));
    if (!strcmp(what, "refuse")) return plim_fail(err, PLIM_NO_FIT, "too \"deep\"");
    if (!strcmp(what, "long"))
        for (int i = 0; i < 100000; i++) json_int(reply, "x", i);
    return PLIM_OK;
}

static struct control *open_control(int *count)
{
    struct control *c;
    struct plim_error err = {0};
    if (control_open(path, answer, count, &c, &err) != PLIM_OK) fail_msg("%s", err.text);
    return c;
}

static void messages_are_answered_and_refused(void **state)
{
    (void)state;
    int count = 0;
    struct plim_error err = {0};
    struct strbuf reply = STRBUF_INIT;
    struct control *c = open_control(&count);
    assert_int_equal(control_ask(path, "{\"do\":\"budget\",\"bytes\":7}", 10, &reply, &err), PLIM_OK);
    assert_string_equal(strbuf_text(&reply), "{\"ok\":true,\"did\":\"budget\",\"bytes\":7}");
    strbuf_clear(&reply);
    assert_int_equal(control_ask(path, "{\"do\":\"refuse\"}", 10, &reply, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "control.sock: too \"deep\""));
    assert_int_equal(reply.len, 0);
    assert_int_equal(control_ask(path, "{\"say\":1}", 10, &reply, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "an object with \"do\""));
    assert_int_equal(control_ask(path, "[", 10, &reply, &err), PLIM_BAD_INPUT);
    assert_int_equal(count, 2);
    assert_int_equal(control_ask(path, "{\"do\":\"long\"}", 10, &reply, &err),
                     PLIM_BAD_INPUT); /* a key twice */
    strbuf_release(&reply);
    control_close(c);
    assert_int_equal(access(path, F_OK), -1);
}

static void the_socket_is_its_owners_alone(void **state)
{
    (void)state;
    int count = 0;
    struct stat at;
    struct control *c = open_control(&count), *second;
    struct plim_error err = {0};
    assert_int_equal(stat(path, &at), 0);
    assert_int_equal(at.st_mode & 0777, 0600);
    assert_int_equal(control_open(path, answer, &count, &second, &err), PLIM_BUSY);
    assert_null(second);
    assert_int_equal(access(path, F_OK), 0);
    control_close(c);
}

/* What comes back to a user with this number: bytes, or -1 where the socket cannot be reached. */
static int asked_by(uid_t user)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        char reply[100];
        struct sockaddr_un at = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        strcpy(at.sun_path, path);
        if (setuid(user) || connect(fd, (struct sockaddr *)&at, sizeof at)) _exit(255);
        send(fd, "{\"do\":\"status\"}\n", 16, MSG_NOSIGNAL);
        ssize_t n = recv(fd, reply, sizeof reply, 0);
        _exit(n > 0 ? (int)n : 0);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status) == 255 ? -1 : WEXITSTATUS(status);
}

/* The file's mode keeps others out; where somebody has opened that, the kernel is asked who calls. */
static void other_users_are_not_answered(void **state)
{
    (void)state;
    enum { NOBODY = 65534 };
    int count = 0;
    if (geteuid() != 0) skip();
    struct control *c = open_control(&count);
    assert_int_equal(chmod(folder, 0711), 0);
    assert_int_equal(asked_by(NOBODY), -1);
    assert_int_equal(chmod(path, 0666), 0);
    assert_int_equal(asked_by(NOBODY), 0);
    assert_true(asked_by(0) > 0);
    control_close(c); /* joins who counts */
    assert_int_equal(count, 1);
}

static void a_stale_socket_is_replaced_and_a_file_is_not(void **state)
{
    (void)state;
    int count = 0;
    struct plim_error err = {0};
    struct control_path at;
    struct control *c;
    assert_int_equal(control_path_open(path, &at, &err), PLIM_OK);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at.address, sizeof at.address), 0);
    close(fd); /* as a killed process leaves it */
    control_path_close(&at);
    control_close(open_control(&count));
    FILE *f = fopen(path, "w");
    fclose(f);
    assert_int_equal(control_open(path, answer, &count, &c, &err), PLIM_IO);
    assert_int_equal(unlink(path), 0);
}

static void clients_that_stall_hold_nobody_up(void **state)
{
    (void)state;
    int count = 0, fd[8];
    struct plim_error err = {0};
    struct control_path at;
    struct strbuf reply = STRBUF_INIT;
    struct control *c = open_control(&count);
    assert_int_equal(control_path_open(path, &at, &err), PLIM_OK);
    for (int i = 0; i < 8; i++) {
        fd[i] = control_path_connect(&at);
        assert_true(fd[i] >= 0);
        const char *half = i % 2 ? "{\"do\":\"long\"}\n{\"do\":\"long\"}\n" : "{\"do\":";
        assert_true(send(fd[i], half, strlen(half), MSG_NOSIGNAL) > 0);
    }
    assert_int_equal(control_ask(path, "{\"do\":\"status\"}", 60, &reply, &err), PLIM_OK);
    char *much = malloc(2 * CONTROL_MESSAGE);
    memset(much, 'a', 2 * CONTROL_MESSAGE);
    int flood = control_path_connect(&at);
    for (int i = 0; i < 64; i++) send(flood, much, 2 * CONTROL_MESSAGE, MSG_NOSIGNAL | MSG_DONTWAIT);
    strbuf_clear(&reply);
    assert_int_equal(control_ask(path, "{\"do\":\"status\"}", 60, &reply, &err), PLIM_OK);
    control_close(c); /* with clients that are still there */
    for (int i = 0; i < 8; i++) close(fd[i]);
    close(flood);
    free(much);
    control_path_close(&at);
    strbuf_release(&reply);
}

static void paths_may_be_long_and_must_be_there(void **state)
{
    (void)state;
    int count = 0;
    struct plim_error err = {0};
    struct control *c;
    struct strbuf reply = STRBUF_INIT;
    char deep[300], name[201];
    memset(name, 'd', 200);
    name[200] = 0;
    snprintf(deep, sizeof deep, "%s/%s", folder, name);
    assert_int_equal(mkdir(deep, 0700), 0);
    snprintf(path, sizeof path, "%s/control.sock", deep);
    c = open_control(&count);
    assert_int_equal(control_ask(path, "{\"do\":\"status\"}", 10, &reply, &err), PLIM_OK);
    control_close(c);
    strbuf_clear(&reply);
    assert_int_equal(control_ask(path, "{\"do\":\"status\"}", 10, &reply, &err), PLIM_IO);
    assert_non_null(strstr(err.text, "nobody listens there"));
    assert_int_equal(rmdir(deep), 0);
    assert_int_equal(control_open(path, answer, &count, &c, &err), PLIM_IO);
    strbuf_release(&reply);
}

#define test(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(messages_are_answered_and_refused), test(the_socket_is_its_owners_alone),
        test(other_users_are_not_answered),      test(a_stale_socket_is_replaced_and_a_file_is_not),
        test(clients_that_stall_hold_nobody_up), test(paths_may_be_long_and_must_be_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
