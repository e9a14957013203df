/* test_hook.c - a hook's queue and thread, with something in place of libcurl that waits, fails and answers to order. */
#include "base/clock.h"
#include "tell/hook.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

/* ---- in place of net/post.c: these stand before the library's ---- */

enum { SENT_MOST = 64 };

/* What the other side does, and what has come to it. */
struct post {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool shut, fails;
    int busy; /* so many are told to come again */
    int begun, count;
    int sent[SENT_MOST];
    double given[SENT_MOST]; /* seconds */
};

static struct post there = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

enum plim_status post_library_open(struct post_library **out, struct plim_error *err)
{
    (void)err;
    *out = NULL;
    return PLIM_OK;
}

void post_library_close(struct post_library *library) { (void)library; }

enum plim_status post_open(struct post_library *library, const char *url, struct post **out,
                           struct plim_error *err)
{
    (void)library, (void)url, (void)err;
    *out = &there;
    return PLIM_OK;
}

void post_close(struct post *post) { (void)post; }

/* Waits while the door is shut, as long as it may. */
enum plim_status post_send(struct post *p, const char *json, size_t len, double seconds,
                           struct plim_error *err)
{
    struct timespec until;
    int late = 0;
    (void)len;
    clock_gettime(CLOCK_REALTIME, &until);
    double end = (double)until.tv_sec + (double)until.tv_nsec * 1e-9 + seconds;
    until.tv_sec = (time_t)end, until.tv_nsec = (long)((end - (double)(time_t)end) * 1e9);
    pthread_mutex_lock(&p->lock);
    p->begun++;
    pthread_cond_broadcast(&p->changed);
    while (p->shut && !late) late = pthread_cond_timedwait(&p->changed, &p->lock, &until);
    bool later = p->busy > 0 && p->busy--, arrived = !late && !p->fails && !later;
    if (arrived && p->count < SENT_MOST) p->given[p->count] = seconds, p->sent[p->count++] = atoi(json);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return arrived ? PLIM_OK
                   : plim_fail(err, later ? PLIM_BUSY : PLIM_IO,
                               late    ? "too late"
                               : later ? "later"
                                       : "refused");
}

static void door(bool shut, bool fails)
{
    pthread_mutex_lock(&there.lock);
    there.shut = shut, there.fails = fails;
    pthread_cond_broadcast(&there.changed);
    pthread_mutex_unlock(&there.lock);
}

static void wait_begun(int count)
{
    pthread_mutex_lock(&there.lock);
    while (there.begun < count) pthread_cond_wait(&there.changed, &there.lock);
    pthread_mutex_unlock(&there.lock);
}

/* ---- the tests ---- */

static struct hook *fresh(double seconds)
{
    struct hook *hook;
    struct plim_error err;
    there.begun = there.count = 0;
    door(false, false);
    assert_int_equal(hook_open(&(struct hook_options){NULL, "https://x", seconds}, &hook, &err), PLIM_OK);
    return hook;
}

static void send_number(struct hook *hook, int number)
{
    struct strbuf text = STRBUF_INIT;
    strbuf_addf(&text, "%d", number);
    hook_send(hook, &text);
    assert_null(text.data); /* the hook's */
}

static void test_order(void **state)
{
    struct plim_error err;
    struct hook *hook = fresh(60);
    (void)state;
    for (int i = 1; i <= 10; i++) send_number(hook, i);
    assert_false(hook_close(hook, &err));
    assert_int_equal(there.count, 10);
    for (int i = 0; i < 10; i++) assert_int_equal(there.sent[i], i + 1);
}

/* The sender goes on while nothing moves; of too many messages the newest stay, and it is told once. */
static void test_full_queue(void **state)
{
    struct plim_error err;
    struct hook *hook = fresh(60);
    (void)state;
    door(true, false);
    send_number(hook, 1);
    wait_begun(1);
    for (int i = 2; i <= 100; i++) send_number(hook, i);
    assert_true(hook_problem(hook, &err));
    assert_non_null(strstr(err.text, "slower"));
    assert_false(hook_problem(hook, &err));
    door(false, false);
    assert_false(hook_close(hook, &err));
    assert_int_equal(there.count, 1 + HOOK_QUEUE);
    assert_int_equal(there.sent[0], 1);
    for (int i = 0; i < HOOK_QUEUE; i++) assert_int_equal(there.sent[1 + i], 101 - HOOK_QUEUE + i);
}

static void test_failures(void **state)
{
    struct plim_error err;
    struct hook *hook = fresh(60);
    (void)state;
    door(false, true);
    for (int i = 1; i <= 5; i++) send_number(hook, i);
    wait_begun(5);
    door(false, false);
    send_number(hook, 6);
    assert_true(hook_close(hook, &err)); /* told at the end, for nobody asked before */
    assert_string_equal(err.text, "refused");
    assert_int_equal(there.begun, 6); /* each was tried once */
    assert_int_equal(there.sent[there.count - 1], 6);
}

/* An answer of "later" is no loss while there are tries, and one after them. */
static void test_comes_again(void **state)
{
    struct plim_error err;
    (void)state;
    for (int busy = HOOK_TRIES - 1; busy <= HOOK_TRIES; busy++) {
        struct hook *hook = fresh(60);
        there.busy = busy;
        send_number(hook, 1);
        send_number(hook, 2);
        assert_int_equal(hook_close(hook, &err), busy == HOOK_TRIES);
        assert_int_equal(there.begun, HOOK_TRIES + 1);
        assert_int_equal(there.count, busy == HOOK_TRIES ? 1 : 2);
        if (busy == HOOK_TRIES) assert_string_equal(err.text, "later");
    }
}

/* All that is left at the end has the time of one message. */
static void test_end_is_bounded(void **state)
{
    struct plim_error err;
    struct hook *hook = fresh(0.5);
    (void)state;
    door(true, false);
    for (int i = 1; i <= 12; i++) send_number(hook, i);
    wait_begun(1);
    double begin = clock_seconds();
    assert_true(hook_close(hook, &err));
    double took = clock_seconds() - begin;
    assert_int_equal(there.count, 0);
    if (took > 12 * 0.5) fail_msg("the end waited %.2f s for 12 messages", took);
    assert_false(hook_close(NULL, &err));
    hook_finish(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_full_queue),
                                       cmocka_unit_test(test_failures), cmocka_unit_test(test_comes_again),
                                       cmocka_unit_test(test_end_is_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
