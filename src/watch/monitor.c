/* monitor.c - sampling, and what is made of the samples. See monitor.h.
 *
 * `lock` guards what is shared: own, state. Readers run without it, so a driver that hangs holds up nobody.
 */
#define _GNU_SOURCE
#include "watch/monitor.h"
#include "base/clock.h"
#include "base/locked.h"
#include "base/threads.h"
#include "mem/os_groups.h"

#include <stdlib.h>

struct monitor {
    struct monitor_options options;
    struct os_groups groups;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    bool started, ending;
    struct monitor_own own;
    struct monitor_state state;
    struct gauge first; /* the first gauge of the first sample */
    uint64_t libraries; /* resident then */
    struct {
        double seconds, used;
    } past[MONITOR_TREND];
};

static const char *const strain_names[STRAINS] = {"none",         "other processes",  "a lowered limit",
                                                  "this process", "above the budget", "waiting for memory"};
const char *strain_name(enum strain strain) { return strain_names[strain]; }

/* --- one sample ------------------------------------------------------------------------------------------------ */

static int64_t machine_used(const struct os_machine *box)
{
    return box->available < box->total ? (int64_t)(box->total - box->available) : 0;
}

static void fill_gauges(const struct monitor *m, const struct monitor_own *own, struct monitor_state *s)
{
    const struct watch_reading *r = &s->now;
    const struct profile *p = &m->options.thresholds;
    bool card = r->device.total > 0;
    int64_t ours = card ? (int64_t)r->device.ours : (int64_t)r->process.rss;
    s->gauges = 0;
    if (card)
        s->gauge[s->gauges++] =
            gauge_of("device", (int64_t)r->device.used, (int64_t)r->device.total, ours, p);
    if (r->machine.total)
        s->gauge[s->gauges++] =
            gauge_of(r->machine.limited ? "container" : "machine", machine_used(&r->machine),
                     (int64_t)r->machine.total, (int64_t)r->process.rss, p);
    if (own->budget > 0) s->gauge[s->gauges++] = gauge_of_budget(ours, own->budget, p);
}

static int worse(const struct monitor_state *s, int a, int b)
{
    return gauge_status(&s->gauge[b]) > gauge_status(&s->gauge[a]) ? b : a;
}

static enum strain find_strain(const struct monitor *m, const struct monitor_state *s)
{
    const struct gauge *g = &s->gauge[s->worst], *first = &m->first;
    if (s->status == MEMORY_NORMAL) return STRAIN_NONE;
    if (gauge_status(g) == MEMORY_NORMAL) return STRAIN_STALL;
    if (s->worst == s->gauges - 1 && g->ours == g->used) return STRAIN_BUDGET;
    if (g->total < first->total) return STRAIN_LIMIT;
    int64_t others = (g->used - g->ours) - (first->used - first->ours), ours = g->ours - first->ours;
    return others >= ours || others + first->used - first->ours >= g->ours ? STRAIN_OTHERS : STRAIN_OURS;
}

static void judge(const struct monitor *m, struct monitor_state *s)
{
    s->worst = 0;
    for (int i = 1; i < s->gauges; i++) s->worst = worse(s, s->worst, i);
    s->leading = s->gauges ? worse(s, 0, s->gauges - 1) : 0;
    s->status = s->gauges ? gauge_status(&s->gauge[s->worst]) : MEMORY_NORMAL;
    if (s->status == MEMORY_NORMAL && s->now.pressure.full >= MONITOR_STALL) s->status = MEMORY_WARNING;
    s->strain = find_strain(m, s);
}

/* Least squares over the last samples of the first gauge. */
static void find_trend(struct monitor *m, struct monitor_state *s)
{
    double t = 0, u = 0, tt = 0, tu = 0;
    int n = s->sample < MONITOR_TREND ? (int)s->sample : MONITOR_TREND;
    m->past[s->sample % MONITOR_TREND].seconds = s->now.seconds;
    m->past[s->sample % MONITOR_TREND].used = (double)s->gauge[0].used;
    for (int i = 0; i < n; i++) {
        int at = (int)((s->sample - i) % MONITOR_TREND);
        double x = m->past[at].seconds - s->now.seconds, y = m->past[at].used;
        t += x, u += y, tt += x * x, tu += x * y;
    }
    double spread = n * tt - t * t;
    s->trend = n > 1 && spread > 0 ? (n * tu - t * u) / spread : 0;
}

/* Pages of libraries are mapped files, too; which of the two has grown is worth a look at the list of mappings. */
static void watch_leak(const struct monitor *m, const struct monitor_own *own, struct monitor_state *s)
{
    const struct watch_reading *r = &s->now;
    int64_t outside = (int64_t)r->process.rss - r->arena, file = (int64_t)r->process.file;
    bool before = s->leak.found;
    struct leak_parts parts = {.bytes = {[LEAK_LOADER] = own->loader_held,
                                         [LEAK_PAGE_CACHE] = file,
                                         [LEAK_UNKNOWN] = outside - file - own->loader_held}};
    if (own->allowed <= 0) return;
    if (outside < own->planned) outside = own->planned;
    leak_look(&s->leak, own->step, outside, own->allowed, &parts);
    if (before || !s->leak.found || s->leak.who != LEAK_PAGE_CACHE) return;
    uint64_t now = os_library_bytes();
    if (now > m->libraries && (int64_t)(now - m->libraries) > s->leak.growth / 2)
        s->leak.who = LEAK_LIBRARIES;
}

void monitor_sample(struct monitor *m)
{
    struct watch_reading reading;
    watch_read(m->options.readers, &m->options.source, &reading);
    pthread_mutex_lock(&m->lock);
    struct monitor_own own = m->own;
    struct monitor_state next = m->state;
    pthread_mutex_unlock(&m->lock);
    next.now = reading;
    next.sample++;
    fill_gauges(m, &own, &next);
    if (next.sample == 1) m->first = next.gauge[0];
    judge(m, &next);
    find_trend(m, &next);
    watch_leak(m, &own, &next);
    pthread_mutex_lock(&m->lock);
    next.gives_way = m->own.gives_way, next.serves = m->own.serves;
    m->state = next;
    pthread_mutex_unlock(&m->lock);
    if (m->options.hear) m->options.hear(m->options.arg, &next);
}

/* --- the thread ------------------------------------------------------------------------------------------------ */

static void *keep_watch(void *arg)
{
    struct monitor *m = arg;
    thread_name("plim-monitor");
    pthread_mutex_lock(&m->lock);
    while (!m->ending) {
        double until = clock_seconds() + m->options.interval;
        while (!m->ending && thread_wait_until(&m->wake, &m->lock, until)) continue;
        if (m->ending) break;
        pthread_mutex_unlock(&m->lock);
        monitor_sample(m);
        pthread_mutex_lock(&m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

enum plim_status monitor_open(const struct monitor_options *options, struct monitor **out,
                              struct plim_error *err)
{
    struct monitor *m = *out = calloc(1, sizeof *m);
    if (!m) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the monitor");
    m->options = *options;
    if (!m->options.readers) m->options.readers = watch_readers;
    if (!m->options.source.root) m->options.source.root = "";
    os_groups_find(m->options.source.root, &m->groups);
    m->options.source.groups = &m->groups;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->wake, NULL);
    m->libraries = os_library_bytes();
    monitor_sample(m);
    if (options->interval > 0) m->started = thread_begin(&m->thread, 0, keep_watch, m) == 0;
    if (options->interval <= 0 || m->started) return PLIM_OK;
    monitor_close(m);
    *out = NULL;
    return plim_fail(err, PLIM_NO_MEMORY, "the system refused a thread for the monitor");
}

void monitor_close(struct monitor *m)
{
    if (!m) return;
    pthread_mutex_lock(&m->lock);
    m->ending = true;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
    if (m->started) pthread_join(m->thread, NULL);
    pthread_cond_destroy(&m->wake);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

void monitor_tell(struct monitor *m, const struct monitor_own *own)
{
    LOCKED(&m->lock);
    m->own = *own;
    m->state.gives_way = own->gives_way, m->state.serves = own->serves;
}

void monitor_look(struct monitor *m, struct monitor_state *out)
{
    LOCKED(&m->lock);
    *out = m->state;
}

/* --- advice ---------------------------------------------------------------------------------------------------- */

static const struct {
    enum strain strain;
    enum memory_status from; /* at this status and above */
    const char *text;
    bool gives_way;     /* it advises what a job that gives way has */
    const char *server; /* to one that serves; NULL: as text, "": nothing */
} advice[] = {
    {STRAIN_OTHERS, MEMORY_WARNING, "other processes take the memory: end or move one, or lower budget"},
    {STRAIN_OTHERS, MEMORY_CRITICAL,
     "training.dynamic_batching.enabled: true lets the run give way by itself", .gives_way = true,
     .server = ""},
    {STRAIN_LIMIT, MEMORY_WARNING,
     "the limit was lowered: raise it again, or lower budget to what it leaves"},
    {STRAIN_OURS, MEMORY_WARNING,
     "this job fills the memory: lower budget or training.memory.target_utilization",
     .server = "this server fills the memory: lower its budget"},
    {STRAIN_BUDGET, MEMORY_WARNING,
     "the process is above its budget: something outside the plan grows; see "
     "plimsoll ctl RUN snapshot",
     .server = "the process is above its budget: something outside the plan grows; see plimsoll ctl SOCKET "
               "snapshot FILE"},
    {STRAIN_STALL, MEMORY_WARNING,
     "tasks wait for memory: the system is swapping or dropping pages it needs"},
};

int monitor_recommend(const struct monitor_state *s, const char **out, int most)
{
    int n = 0;
    for (size_t i = 0; i < sizeof advice / sizeof *advice && n < most; i++) {
        const char *text = s->serves && advice[i].server ? advice[i].server : advice[i].text;
        bool holds = advice[i].strain == s->strain && s->status >= advice[i].from;
        if (holds && *text && !(advice[i].gives_way && s->gives_way)) out[n++] = text;
    }
    return n;
}
