/* hook.c - see hook.h. */
#include "tell/hook.h"
#include "base/clock.h"
#include "base/locked.h"
#include "base/threads.h"

#include <stdlib.h>
#include <string.h>

/* libcurl and a TLS library below it are modest; a name's look-up is not. */
#define HOOK_STACK ((size_t)512 << 10)

struct hook {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    struct post *post;
    double seconds;
    char *queue[HOOK_QUEUE]; /* [first, first + count) modulo its size, the oldest first */
    int first, count;
    bool closing;
    double end; /* when closing: nothing is sent after it */
    bool lost, told;
    struct plim_error problem;
};

/* The oldest message; NULL: there is none, and none will come. Waits. */
static char *take(struct hook *h, double *seconds)
{
    char *text = NULL;
    LOCKED(&h->lock);
    while (!h->count && !h->closing) thread_wait(&h->changed, &h->lock, false);
    double left = h->closing ? h->end - clock_seconds() : h->seconds;
    *seconds = left < h->seconds ? left : h->seconds;
    if (h->count && left > 0) {
        text = h->queue[h->first];
        h->first = (h->first + 1) % HOOK_QUEUE, h->count--;
    }
    return text;
}

static void note_loss(struct hook *h, const struct plim_error *why)
{
    LOCKED(&h->lock);
    if (!h->lost) h->lost = true, h->problem = *why;
}

/* Seconds before the first repetition; each further one waits twice as long. */
#define PAUSE 0.25

static void rest(struct hook *h, double seconds)
{
    double until = clock_seconds() + seconds;
    LOCKED(&h->lock);
    while (clock_seconds() < until && !(h->closing && clock_seconds() >= h->end))
        thread_wait(&h->changed, &h->lock, true);
}

/* Time left for a message, or for the hook. */
static double time_left(struct hook *h, double deadline)
{
    pthread_mutex_lock(&h->lock);
    if (h->closing && h->end < deadline) deadline = h->end;
    pthread_mutex_unlock(&h->lock);
    return deadline - clock_seconds();
}

static enum plim_status deliver(struct hook *h, const char *text, double seconds, struct plim_error *err)
{
    double deadline = clock_seconds() + seconds, pause = PAUSE;
    enum plim_status status = post_send(h->post, text, strlen(text), seconds, err);
    for (int tries = 1; status == PLIM_BUSY && tries < HOOK_TRIES; tries++, pause *= 2) {
        rest(h, pause);
        double left = time_left(h, deadline);
        if (left <= 0) break;
        status = post_send(h->post, text, strlen(text), left, err);
    }
    return status;
}

static void *work(void *arg)
{
    struct hook *h = arg;
    double seconds;
    thread_name("plim-hook");
    for (char *text; (text = take(h, &seconds));) {
        struct plim_error err = {0};
        if (deliver(h, text, seconds, &err) != PLIM_OK) note_loss(h, &err);
        free(text);
    }
    return NULL;
}

enum plim_status hook_open(const struct hook_options *o, struct hook **out, struct plim_error *err)
{
    struct hook *h = calloc(1, sizeof *h);
    *out = NULL;
    if (!h) return plim_fail(err, PLIM_NO_MEMORY, "out of memory");
    h->seconds = o->seconds;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    enum plim_status status = post_open(o->library, o->url, &h->post, err);
    if (status == PLIM_OK && thread_begin(&h->thread, HOOK_STACK, work, h))
        status = plim_fail(err, PLIM_NO_MEMORY, "the system refused a thread");
    if (status != PLIM_OK) {
        post_close(h->post);
        free(h);
        return status;
    }
    *out = h;
    return PLIM_OK;
}

void hook_send(struct hook *h, struct strbuf *message)
{
    char *text = strbuf_detach(message, NULL);
    if (!text) return;
    LOCKED(&h->lock);
    if (h->count == HOOK_QUEUE) { /* the oldest is the least news */
        free(h->queue[h->first]);
        h->first = (h->first + 1) % HOOK_QUEUE, h->count--;
        if (!h->lost) plim_fail(&h->problem, PLIM_IO, "it is slower than the messages");
        h->lost = true;
    }
    h->queue[(h->first + h->count++) % HOOK_QUEUE] = text;
    pthread_cond_signal(&h->changed);
}

bool hook_problem(struct hook *h, struct plim_error *out)
{
    LOCKED(&h->lock);
    bool news = h->lost && !h->told;
    if (news) h->told = true, *out = h->problem;
    return news;
}

void hook_finish(struct hook *h)
{
    if (!h) return;
    LOCKED(&h->lock);
    if (!h->closing) h->closing = true, h->end = clock_seconds() + h->seconds;
    pthread_cond_signal(&h->changed);
}

bool hook_close(struct hook *h, struct plim_error *problem)
{
    if (!h) return false;
    hook_finish(h);
    pthread_join(h->thread, NULL);
    post_close(h->post);
    if (h->count && !h->lost)
        h->lost = true, plim_fail(&h->problem, PLIM_IO, "the run ended before it answered");
    while (h->count) free(h->queue[(h->first + --h->count) % HOOK_QUEUE]);
    bool news = hook_problem(h, problem);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    free(h);
    return news;
}
