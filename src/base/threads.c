/* threads.c - one job at a time behind a gate.
 *
 * A job is four plain fields (n, grain, body, arg) and a counter from which workers take chunks. The gate,
 * one atomic word, says whether the job may be entered and how many workers are inside:
 *
 *     closed, 0 inside --threads_each--> open --worker_join/leave--> open, k inside
 *        ^                                                              |
 *        +--------- the last one leaves ---------- closed, k inside <---+  chunks are used up
 *
 * 1. The plain fields are written only while the gate is closed with nobody inside, and read only by workers
 *    inside; opening and joining, leaving and seeing zero are the release/acquire pairs.
 * 2. Chunks cannot run out before each is taken, so a worker that wakes late need not be waited for: it finds
 *    the gate closed. A short loop therefore never waits for sleepers.
 * 3. `epoch` grows with every job; idle workers spin on it, then sleep on it. `sleepers` is raised before the
 *    sleep and epoch before sleepers is read, both sequentially consistent, so no wake-up is lost.
 * 4. Only the caller sleeps on the gate; it sets WAITED first, and the last worker to leave sees the bit.
 */
#define _GNU_SOURCE
#include "base/threads.h"
#include "base/clock.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STACK_BYTES = 256 << 10, THREADS_MAX = 1024, LINE = 64 };

/* Bytes of a worker's stack that are touched at start. The deepest body is a product of few rows (device/cpu/gemm_few.c): two tiles of 32 KiB, one inside the
 * other. With what the C library has at the top, 76 KiB were touched by every job on AArch64; x86 kernels need less. */
enum { TOUCHED = 80 << 10, TOP = 12 << 10, LEAST_PAGE = 4096 };

#define OPEN   0x80000000u
#define WAITED 0x40000000u
#define INSIDE 0x3fffffffu

struct worker {
    struct threads *team;
    pthread_t thread;
    int index;
};

struct threads {
    _Alignas(LINE) _Atomic int64_t next; /* first item not yet handed out */
    _Alignas(LINE) _Atomic uint32_t gate;
    _Alignas(LINE) _Atomic uint32_t epoch;
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    _Atomic int ready;        /* workers whose stack is resident */
    _Alignas(LINE) int64_t n; /* the job */
    int64_t grain;
    threads_body *body;
    void *arg;
    int count; /* workers, the caller included */
    struct worker *workers;
};

/* How often to relax before sleeping: about 20 us, longer than the ops between two jobs, shorter than other programs would mind. */
#if defined(__x86_64__) || defined(__i386__)
enum { SPINS = 300 }; /* `pause` takes 140 cycles since 2015, 40 before */
static void relax(void) { __asm__ __volatile__("pause"); }
#elif defined(__aarch64__)
enum { SPINS = 2000 }; /* `isb` some 25 cycles; `yield` does nothing on most cores */
static void relax(void) { __asm__ __volatile__("isb" ::: "memory"); }
#else
enum { SPINS = 2000 };
static void relax(void) {}
#endif

static void futex_wait(_Atomic uint32_t *word, uint32_t expected)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int most)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, most, NULL, NULL, 0);
}

static void run_chunks(struct threads *team, int worker)
{
    int64_t n = team->n, grain = team->grain;
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(&team->next, grain, memory_order_relaxed);
        if (begin >= n) return;
        int64_t end = n - begin > grain ? begin + grain : n;
        team->body(team->arg, begin, end, worker);
    }
}

static bool worker_join(struct threads *team)
{
    uint32_t gate = atomic_load_explicit(&team->gate, memory_order_relaxed);
    while (gate & OPEN)
        if (atomic_compare_exchange_weak_explicit(&team->gate, &gate, gate + 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
    return false;
}

static void worker_leave(struct threads *team)
{
    uint32_t before = atomic_fetch_sub_explicit(&team->gate, 1, memory_order_release);
    if ((before & INSIDE) == 1 && (before & WAITED)) futex_wake(&team->gate, 1);
}

/* Wait until epoch is no longer `seen`; the new value. */
static uint32_t wait_epoch(struct threads *team, uint32_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        uint32_t now = atomic_load_explicit(&team->epoch, memory_order_acquire);
        if (now != seen) return now;
        relax();
    }
    uint32_t now;
    atomic_fetch_add(&team->sleepers, 1);
    while ((now = atomic_load(&team->epoch)) == seen) futex_wait(&team->epoch, seen);
    atomic_fetch_sub(&team->sleepers, 1);
    return now;
}

static size_t page_round(size_t bytes)
{
    long page = sysconf(_SC_PAGESIZE);
    return page > 0 ? (bytes + (size_t)page - 1) / (size_t)page * (size_t)page : bytes;
}

/* Brings in the stack that bodies will use, so that how much of it is resident does not depend on who gets a deep one. */
__attribute__((noinline)) static void touch_stack(void)
{
    volatile char deep[TOUCHED - TOP];
    for (size_t i = 0; i < sizeof deep; i += LEAST_PAGE) deep[i] = 0;
    (void)deep[sizeof deep - 1];
}

static void *worker_main(void *arg)
{
    struct worker *me = arg;
    struct threads *team = me->team;
    uint32_t seen = 0;
    touch_stack();
    atomic_fetch_add(&team->ready, 1);
    for (;;) {
        seen = wait_epoch(team, seen);
        if (atomic_load_explicit(&team->stop, memory_order_acquire)) return NULL;
        if (!worker_join(team)) continue;
        run_chunks(team, me->index);
        worker_leave(team);
    }
}

static void announce(struct threads *team, int64_t useful)
{
    atomic_fetch_add(&team->epoch, 1);
    if (atomic_load(&team->sleepers) > 0) futex_wake(&team->epoch, useful > INT_MAX ? INT_MAX : (int)useful);
}

/* Close the gate and wait until nobody is inside. */
static void close_gate(struct threads *team)
{
    uint32_t gate = atomic_fetch_and_explicit(&team->gate, ~OPEN, memory_order_acquire) & ~OPEN;
    for (int i = 0; (gate & INSIDE) && i < SPINS; i++) {
        relax();
        gate = atomic_load_explicit(&team->gate, memory_order_acquire);
    }
    if (!(gate & INSIDE)) return;
    gate = atomic_fetch_or_explicit(&team->gate, WAITED, memory_order_acquire) | WAITED;
    while (gate & INSIDE) {
        futex_wait(&team->gate, gate);
        gate = atomic_load_explicit(&team->gate, memory_order_acquire);
    }
}

void threads_each(struct threads *team, int64_t n, int64_t grain, threads_body *body, void *arg)
{
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    if (!team || team->count == 1 || n <= grain) {
        body(arg, 0, n, 0);
        return;
    }
    team->n = n;
    team->grain = grain;
    team->body = body;
    team->arg = arg;
    atomic_store_explicit(&team->next, 0, memory_order_relaxed);
    atomic_store_explicit(&team->gate, OPEN, memory_order_release);
    announce(team, (n - 1) / grain);
    run_chunks(team, 0);
    close_gate(team);
}

int64_t threads_bytes(int count) { return count > 1 ? (count - 1) * (int64_t)page_round(TOUCHED) : 0; }

int threads_count(const struct threads *team) { return team ? team->count : 1; }

static int online_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

int thread_begin(pthread_t *out, size_t stack_bytes, void *(*body)(void *), void *arg)
{
    pthread_attr_t attr;
    sigset_t all, old;
    int rc = pthread_attr_init(&attr);
    if (rc) return rc;
    if (stack_bytes) pthread_attr_setstacksize(&attr, stack_bytes);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(out, &attr, body, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}

void thread_name(const char *name) { pthread_setname_np(pthread_self(), name); }

bool thread_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, double until)
{
    time_t whole = (time_t)until;
    struct timespec at = {.tv_sec = whole, .tv_nsec = (long)((until - (double)whole) * 1e9)};
    return pthread_cond_clockwait(cond, lock, CLOCK_MONOTONIC, &at) == 0;
}

void thread_wait(pthread_cond_t *cond, pthread_mutex_t *lock, bool look)
{
    if (look)
        thread_wait_until(cond, lock, clock_seconds() + 0.05);
    else
        pthread_cond_wait(cond, lock);
}

enum plim_status threads_start(int count, struct threads **out, struct plim_error *err)
{
    *out = NULL;
    if (count < 0 || count > THREADS_MAX)
        return plim_fail(err, PLIM_BAD_INPUT, "cannot start %d threads; write 0 (one per CPU) to %d", count,
                         THREADS_MAX);
    if (count == 0) count = online_cpus();
    struct threads *team = aligned_alloc(LINE, sizeof *team);
    struct worker *workers = calloc((size_t)count, sizeof *workers);
    if (!team || !workers) {
        free(team);
        free(workers);
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory for a team of %d threads", count);
    }
    memset(team, 0, sizeof *team);
    team->workers = workers;
    for (team->count = 1; team->count < count; team->count++) {
        struct worker *worker = &workers[team->count];
        *worker = (struct worker){.team = team, .index = team->count};
        int rc = thread_begin(&worker->thread, STACK_BYTES, worker_main, worker);
        if (rc == 0) continue;
        int started = team->count;
        threads_free(team);
        return plim_fail(err, PLIM_NO_MEMORY, "cannot start thread %d of %d: %s", started + 1, count,
                         strerror(rc));
    }
    while (atomic_load(&team->ready) < count - 1) sched_yield();
    *out = team;
    return PLIM_OK;
}

void threads_free(struct threads *team)
{
    if (!team) return;
    atomic_store(&team->stop, true);
    announce(team, INT_MAX);
    for (int i = 1; i < team->count; i++) pthread_join(team->workers[i].thread, NULL);
    free(team->workers);
    free(team);
}
