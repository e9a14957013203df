/* fault.c - a countdown per point: the call that takes it from 1 to 0 fails. */
#include "base/fault.h"
#include "base/number.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const point_names[FAULT_POINTS] = {
    "alloc", "reserve", "write", "disk", "compile", "leak", "leak_loader", "eval", "io", "short", "die"};

void fault_set(struct fault *fault, enum fault_point point, int64_t nth)
{
    atomic_store(&fault->left[point], nth);
}

/* One "point:n" of the list. */
static enum plim_status parse_one(struct fault *fault, const char *text, size_t len, struct plim_error *err)
{
    const char *colon = memchr(text, ':', len);
    size_t name_len = colon ? (size_t)(colon - text) : len;
    int64_t nth;
    for (int i = 0; i < FAULT_POINTS; i++) {
        if (strlen(point_names[i]) != name_len || memcmp(point_names[i], text, name_len) != 0) continue;
        if (!colon || !number_parse_int64(colon + 1, len - name_len - 1, &nth) || nth < 1)
            return plim_fail(err, PLIM_BAD_INPUT, "fault '%.*s': expected a count from 1; write e.g. %s:3",
                             (int)len, text, point_names[i]);
        fault_set(fault, (enum fault_point)i, nth);
        return PLIM_OK;
    }
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "fault '%.*s': unknown point; write alloc:N, reserve:N, write:N, disk:N, compile:N, leak:N, "
        "leak_loader:N, eval:N, io:N, short:N or die:N",
        (int)len, text);
}

enum plim_status fault_parse(struct fault *fault, const char *text, struct plim_error *err)
{
    for (;;) {
        size_t len = strcspn(text, ",");
        enum plim_status status = parse_one(fault, text, len, err);
        if (status != PLIM_OK || text[len] == '\0') return status;
        text += len + 1;
    }
}

bool fault_hit(struct fault *fault, enum fault_point point)
{
    if (!fault) fault = fault_process();
    if (atomic_load_explicit(&fault->left[point], memory_order_relaxed) <= 0) return false;
    return atomic_fetch_sub(&fault->left[point], 1) == 1;
}

void fault_may_die(void)
{
    if (fault_hit(NULL, FAULT_DIE)) kill(getpid(), SIGKILL);
}

/* The only state of the process here: a test switch, armed once from the environment. */
static struct fault process_fault = FAULT_INIT;
static pthread_once_t process_once = PTHREAD_ONCE_INIT;

static void process_read(void)
{
    const char *text = getenv("PLIMSOLL_FAULT");
    struct fault read = FAULT_INIT;
    if (!text || !*text || fault_parse(&read, text, NULL) != PLIM_OK) return;
    for (int i = 0; i < FAULT_POINTS; i++)
        fault_set(&process_fault, (enum fault_point)i, atomic_load(&read.left[i]));
}

struct fault *fault_process(void)
{
    pthread_once(&process_once, process_read);
    return &process_fault;
}

enum plim_status fault_process_check(struct plim_error *err)
{
    const char *text = getenv("PLIMSOLL_FAULT");
    struct fault read = FAULT_INIT;
    if (!text || !*text) return PLIM_OK;
    enum plim_status status = fault_parse(&read, text, err);
    if (status != PLIM_OK) plim_error_prefix(err, "PLIMSOLL_FAULT");
    return status;
}
