/* test_run_control.c - a run's control socket: who may open it, what is answered at once, and orders that wait for a step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "net/control_path.h"
#include "train/run_control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64], path[100];
static struct run_control *control;

static int set_up(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/plimsoll-run-XXXXXX");
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/" RUN_SOCKET, folder);
    return run_control_open(folder, NULL, &control, NULL) != PLIM_OK;
}

static int tear_down(void **state)
{
    (void)state;
    run_control_close(control);
    return rmdir(folder); /* the socket is gone, too */
}

/* The reply as it came, or the refusal. */
static const char *ask(const char *message)
{
    static char text[4096];
    struct plim_error err = {0};
    struct strbuf reply = STRBUF_INIT;
    control_ask(path, message, 10, &reply, &err);
    snprintf(text, sizeof text, "%s", reply.len ? strbuf_text(&reply) : err.text);
    strbuf_release(&reply);
    return text;
}

static void only_the_owner_may_call(void **state)
{
    (void)state;
    struct stat at;
    assert_int_equal(stat(path, &at), 0);
    assert_true(S_ISSOCK(at.st_mode));
    assert_int_equal(at.st_mode & 0777, 0600);
    if (geteuid() != 0) return; /* only root can be somebody else */
    assert_int_equal(chmod(folder, 0755), 0);
    pid_t child = fork();
    if (child == 0) { /* another user */
        struct control_path to;
        bool other = setgid(65534) == 0 && setuid(65534) == 0;
        bool opened = other && control_path_open(path, &to, NULL) == PLIM_OK;
        _exit(!other ? 2 : opened && control_path_connect(&to) >= 0 ? 1 : errno == EACCES ? 0 : 3);
    }
    int code = -1;
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(WEXITSTATUS(code), 0);
}

static void orders_wait_for_the_trainer(void **state)
{
    (void)state;
    struct run_order order;
    assert_false(run_control_next(control, &order));
    assert_string_equal(ask("{\"do\":\"budget\",\"bytes\":4096}"), "{\"ok\":true,\"order\":1}");
    assert_non_null(strstr(ask("{\"do\":\"checkpoint\"}"), "order 1 is waiting"));
    assert_non_null(strstr(ask("{\"do\":\"status\"}"), "\"order_waiting\":1"));
    assert_true(run_control_next(control, &order));
    assert_true(order.kind == ORDER_BUDGET && order.bytes == 4096);
    run_control_done(control, &order, PLIM_NO_FIT, "too small");
    assert_false(run_control_next(control, &order));
    assert_non_null(strstr(ask("{\"do\":\"status\"}"), "{\"number\":1,\"ok\":false,\"text\":\"too small\"}"));
    assert_string_equal(ask("{\"do\":\"snapshot\"}"), "{\"ok\":true,\"order\":2}");
    assert_true(run_control_next(control, &order));
    assert_true(order.kind == ORDER_SNAPSHOT && order.snapshot.format == SNAPSHOT_JSON &&
                !*order.snapshot.file);
    run_control_done(control, &order, PLIM_OK, "file");
    assert_non_null(
        strstr(ask("{\"do\":\"snapshot\",\"format\":\"jpeg\"}"), "unknown snapshot format 'jpeg'"));
    assert_non_null(strstr(ask("{\"do\":\"snapshot\",\"file\":\"here\"}"), "absolute path"));
    assert_string_equal(ask("{\"do\":\"snapshot\",\"format\":\"memory_viz\",\"file\":\"/tmp/a\"}"),
                        "{\"ok\":true,\"order\":3}");
    assert_true(run_control_next(control, &order));
    assert_true(order.snapshot.format == SNAPSHOT_MEMORY_VIZ && !strcmp(order.snapshot.file, "/tmp/a"));
    run_control_done(control, &order, PLIM_OK, "/tmp/a");
    assert_non_null(strstr(ask("{\"do\":\"budget\",\"bytes\":0}"), "whole number above 0"));
    assert_non_null(strstr(ask("{\"do\":\"budget\",\"bytes\":\"4KiB\"}"), "whole number above 0"));
    assert_non_null(strstr(ask("{\"do\":\"fly\"}"), "not 'fly'"));
    assert_false(run_control_stopped(control));
    assert_string_equal(ask("{\"do\":\"stop\"}"), "{\"ok\":true,\"stopping\":true}");
    assert_true(run_control_stopped(control));
    assert_non_null(strstr(ask("{\"do\":\"checkpoint\"}"), "stopping"));
}

static void the_status_is_the_last_step(void **state)
{
    (void)state;
    run_control_tell(control, &(struct run_facts){.step = 7,
                                                  .steps = 9,
                                                  .loss = 2.5,
                                                  .level = ADAPT_REDUCED,
                                                  .memory = {.budget = 100, .reserved = 50, .overhead = 10}});
    const char *text = ask("{\"do\":\"status\"}");
    assert_non_null(strstr(text, "\"what\":\"train\""));
    assert_non_null(strstr(text, "\"step\":7,\"steps\":9,\"loss\":2.5"));
    assert_non_null(strstr(text, "\"level\":\"reduced\""));
    assert_non_null(strstr(text, "\"utilisation\":0.5"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(only_the_owner_may_call, set_up, tear_down),
        cmocka_unit_test_setup_teardown(orders_wait_for_the_trainer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_status_is_the_last_step, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
