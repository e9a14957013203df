/* fault.c - a countdown per point: the call that takes it from 1 to 0 fails. */
#include "base/fault.h"
#include "base/number.h"
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

/* The only state of the process here: a test switch that its program may arm. */
struct fault *fault_process(void)
{
    static struct fault fault = FAULT_INIT;
    return &fault;
}

enum { EVERY_CALL = -1 };

void fault_lose(enum fault_point point)
{
    static _Atomic(void *) lost; /* the last block, which leads to those before it */
    _Atomic int64_t *left = &fault_process()->left[point];
    if (fault_hit(NULL, point)) atomic_store(left, EVERY_CALL);
    if (atomic_load(left) != EVERY_CALL) return;
    void **block = malloc(FAULT_LOST_BYTES);
    if (!block) return;
    memset(block, 1, FAULT_LOST_BYTES);
    *block = atomic_exchange(&lost, block);
}
