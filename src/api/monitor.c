/* monitor.c - see plimsoll/monitor.h.
 *
 * watch/monitor.h samples and judges. This file adds what a caller of the library needs: advice in its words, the batch of the
 * next step, a call when the status changes, and leaks of more than one memory.
 *
 * `lock` guards everything below it. Callbacks are made without it. */
#include "api/allocator.h"
#include "api/device.h"
#include "base/bytes.h"
#include "train/adapt.h"
#include "watch/holders.h"
#include "watch/monitor.h"
#include <plimsoll/monitor.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static_assert((int)PLIM_MEMORY_EMERGENCY == MEMORY_EMERGENCY && (int)PLIM_MEMORY_NORMAL == MEMORY_NORMAL,
              "the public statuses are those of watch/status.h");

enum { LEAK_HOST, LEAK_DEVICE, LEAK_BLOCKS, LEAKS };
enum { CALM_CHECKS = 5, LEAK_BYTES = 4 << 20 };

struct plim_monitor {
    struct handle handle;
    struct plim_monitor_options options;
    struct monitor *monitor;
    pthread_mutex_t lock;
    enum memory_status told;     /* to `changed` */
    int64_t checks, batch, most; /* batch: of the last check; most: the largest ever */
    int calm;                    /* normal checks in a row */
    int64_t floor;               /* memory of the process in the first sample: below it nothing has grown */
    struct leak leak[LEAKS];
    struct allocator_owner *first; /* blocks when the monitor was opened */
    int firsts;
};

const char *plim_memory_status_name(enum plim_memory_status status)
{
    return (unsigned)status < MEMORY_STATUSES ? memory_status_name((enum memory_status)status) : "unknown";
}

/* --- advice ------------------------------------------------------------------------------------------------------- */

static const struct {
    unsigned strains; /* a bit for each */
    enum memory_status from;
    const char *text;
} advice[] = {
#define OURS (1u << STRAIN_OURS | 1u << STRAIN_BUDGET)
    {~0u, MEMORY_EMERGENCY, "clear the cache deeply and free what is not needed, now"},
    {1u << STRAIN_OTHERS, MEMORY_WARNING, "other processes take the memory: end or move one"},
    {1u << STRAIN_LIMIT, MEMORY_WARNING, "the memory limit was lowered: raise it again, or use less memory"},
    {1u << STRAIN_STALL, MEMORY_WARNING,
     "tasks wait for memory: the system is swapping or dropping pages it needs"},
    {OURS, MEMORY_WARNING, "give cached memory back: clear the cache"},
#undef OURS
};

static void advise(struct plim_health *h, const char *text)
{
    if (h->count < PLIM_RECOMMENDATIONS)
        snprintf(h->recommendations[h->count++], sizeof *h->recommendations, "%s", text);
}

static void advise_batch(struct plim_health *h, int64_t batch)
{
    char text[sizeof *h->recommendations];
    if (h->status < PLIM_MEMORY_CRITICAL) return;
    if (h->batch_size < batch)
        snprintf(text, sizeof text, "reduce the batch size from %lld to %lld", (long long)batch,
                 (long long)h->batch_size);
    else
        snprintf(text, sizeof text, "%s",
                 batch ? "the batch size is 1 already: use gradient checkpointing, or offload"
                       : "reduce the batch size");
    advise(h, text);
}

static void recommend(struct plim_health *h, const struct monitor_state *s, int64_t batch)
{
    advise_batch(h, batch);
    for (size_t i = 0; i < sizeof advice / sizeof *advice; i++)
        if ((advice[i].strains >> s->strain & 1) && s->status >= advice[i].from) advise(h, advice[i].text);
    if (h->leaking) advise(h, "memory keeps growing: see the leak report");
}

/* Needs the lock. */
static int64_t next_batch(const struct plim_monitor *m, enum memory_status status)
{
    if (status >= MEMORY_CRITICAL) return m->batch > 1 ? m->batch / 2 : m->batch;
    if (m->calm < CALM_CHECKS || m->batch >= m->most) return m->batch;
    return m->batch <= m->most / 2 ? 2 * m->batch : m->most;
}

static void put_line(struct plim_health *h, const struct monitor_state *s, int64_t batch)
{
    enum adapt_act act = h->batch_size < batch   ? ADAPT_SHRINK
                         : h->batch_size > batch ? ADAPT_RESTORE
                                                 : ADAPT_STAY;
    struct strbuf line = STRBUF_INIT;
    if (s->gauges) status_line(&line, h->step, &s->gauge[s->worst], s->status, adapt_act_text(act));
    snprintf(h->line, sizeof h->line, "%s", strbuf_text(&line));
    strbuf_release(&line);
}

/* Needs the lock. `step` 0: that of the last check. */
static struct plim_health health_of(const struct plim_monitor *m, const struct monitor_state *s, int64_t step)
{
    struct plim_health h = {.step = step ? step : m->checks,
                            .status = (enum plim_memory_status)s->status,
                            .trend = s->trend,
                            .batch_size = next_batch(m, s->status)};
    const struct gauge *worst = s->gauges ? &s->gauge[s->worst] : NULL;
    if (worst) h.used = (uint64_t)worst->used, h.total = (uint64_t)worst->total;
    if (h.total) h.utilization = (double)h.used / (double)h.total;
    for (int i = 0; i < LEAKS; i++) h.leaking |= m->leak[i].found;
    recommend(&h, s, m->batch);
    put_line(&h, s, m->batch);
    return h;
}

/* --- samples ------------------------------------------------------------------------------------------------------ */

static void read_handle(const struct watch_source *source, struct watch_reading *out)
{
    device_memory_read(source->arg, source->groups, out, NULL, "plim_monitor", NULL);
}
static watch_reader *const readers[] = {read_handle, NULL};

/* The lock keeps an allocator that another thread closes until it has been read. */
static int64_t blocks_in_use(struct plim_device *d)
{
    struct allocator_usage usage = {0};
    pthread_mutex_lock(&d->lock);
    if (d->allocator) allocator_usage(d->allocator, &usage);
    pthread_mutex_unlock(&d->lock);
    return (int64_t)usage.active;
}

static int owners_of(struct plim_device *d, struct allocator_owner **out)
{
    *out = NULL;
    pthread_mutex_lock(&d->lock);
    int n = d->allocator ? allocator_owners(d->allocator, out) : 0;
    pthread_mutex_unlock(&d->lock);
    return n;
}

/* Needs the lock. Pages of an allocator that are touched late are no growth: up to `floor` nothing counts. */
static void look_for_leaks(struct plim_monitor *m, const struct watch_reading *r, int64_t blocks)
{
    int64_t host = (int64_t)r->process.rss - r->arena, file = (int64_t)r->process.file;
    int64_t card = (int64_t)r->device.ours - r->device_arena, allowed = (int64_t)m->options.leak_bytes;
    struct leak_parts parts = {.bytes = {[LEAK_PAGE_CACHE] = file, [LEAK_UNKNOWN] = host - file}},
                      none = {{0}};
    if (!m->floor) m->floor = (int64_t)r->process.rss;
    leak_look(&m->leak[LEAK_HOST], m->checks, host > m->floor ? host : m->floor, allowed, &parts);
    if (card > 0) leak_look(&m->leak[LEAK_DEVICE], m->checks, card, allowed, &none);
    leak_look(&m->leak[LEAK_BLOCKS], m->checks, blocks, allowed, &none);
}

/* Hears each sample. */
static void hear(void *arg, const struct monitor_state *s)
{
    struct plim_monitor *m = arg;
    int64_t blocks = blocks_in_use(m->options.device);
    pthread_mutex_lock(&m->lock);
    look_for_leaks(m, &s->now, blocks);
    bool changed = s->status != m->told;
    m->told = s->status;
    struct plim_health health = health_of(m, s, 0);
    pthread_mutex_unlock(&m->lock);
    health.size = sizeof health;
    if (changed && m->options.changed) m->options.changed(m->options.arg, &health);
}

/* --- handles ------------------------------------------------------------------------------------------------------ */

static enum plim_status check_options(struct plim_monitor_options *o, struct plim_error *err)
{
    double *shares[LINES] = {&o->target, &o->warning, &o->critical, &o->emergency}, before = 0;
    const double usual[LINES] = {0.90, 0.92, 0.95, 0.97};
    if (!handle_is(o->device, HANDLE_DEVICE, "plim_monitor_open: options.device", err)) return PLIM_BAD_INPUT;
    if (!o->device->backend)
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "plim_monitor_open: the preset %s has no memory of its own; open a device of this machine",
            o->device->preset.facts.name);
    for (int i = 0; i < LINES; before = *shares[i++]) {
        if (*shares[i] == 0) *shares[i] = usual[i] > before ? usual[i] : before;
        if (!(*shares[i] >= before && *shares[i] > 0 && *shares[i] <= 1))
            return plim_fail(
                err, PLIM_BAD_INPUT,
                "plim_monitor_open: target, warning, critical and emergency are shares from 0 to 1 in "
                "ascending order, e.g. 0.90, 0.92, 0.95, 0.97");
    }
    if (!(o->interval >= 0 && o->interval <= 86400))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "plim_monitor_open: interval is in seconds, from 0 to 86400, e.g. 1");
    if (!o->leak_bytes) o->leak_bytes = LEAK_BYTES;
    return PLIM_OK;
}

enum plim_status plim_monitor_open(struct plim_context *context, const struct plim_monitor_options *options,
                                   struct plim_monitor **out, struct plim_error *err)
{
    struct plim_monitor_options o;
    if (!out) return plim_fail(err, PLIM_BAD_INPUT, "plim_monitor_open: out is NULL");
    *out = NULL;
    if (!handle_is(context, HANDLE_CONTEXT, "plim_monitor_open", err)) return PLIM_BAD_INPUT;
    enum plim_status status = options_take(&o, sizeof o, options, "plim_monitor_open", err);
    if (status == PLIM_OK) status = check_options(&o, err);
    if (status != PLIM_OK) return status;
    struct plim_monitor *m = handle_new(sizeof *m, HANDLE_MONITOR, context, err);
    if (!m) return PLIM_NO_MEMORY;
    m->options = o;
    pthread_mutex_init(&m->lock, NULL);
    m->firsts = owners_of(o.device, &m->first);
    struct monitor_options how = {.readers = readers,
                                  .source = {.root = os_machine_root(), .arg = o.device},
                                  .thresholds = {o.target, o.warning, o.critical, o.emergency},
                                  .interval = o.interval,
                                  .hear = hear,
                                  .arg = m};
    status = monitor_open(&how, &m->monitor, err);
    if (status != PLIM_OK) return plim_monitor_close(m), status;
    monitor_tell(m->monitor, &(struct monitor_own){.budget = (int64_t)o.budget});
    *out = m;
    return PLIM_OK;
}

void plim_monitor_close(struct plim_monitor *m)
{
    if (!handle_is(m, HANDLE_MONITOR, "plim_monitor_close", NULL)) return;
    monitor_close(m->monitor);
    pthread_mutex_destroy(&m->lock);
    free(m->first);
    handle_free(m);
}

enum plim_status plim_monitor_check(struct plim_monitor *m, int64_t batch_size, struct plim_health *out,
                                    struct plim_error *err)
{
    struct plim_health h;
    struct monitor_state state;
    if (!handle_is(m, HANDLE_MONITOR, "plim_monitor_check", err)) return PLIM_BAD_INPUT;
    if (!out) return plim_fail(err, PLIM_BAD_INPUT, "plim_monitor_check: nowhere to write the answer (NULL)");
    enum plim_status status = options_take(&h, sizeof h, out, "plim_monitor_check", err);
    if (status != PLIM_OK) return status;
    if (batch_size < 0 || h.step < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "plim_monitor_check: batch_size and step must be 0 or more");
    pthread_mutex_lock(&m->lock);
    m->checks++, m->batch = batch_size;
    if (m->most < batch_size) m->most = batch_size;
    pthread_mutex_unlock(&m->lock);
    if (!(m->options.interval > 0)) monitor_sample(m->monitor);
    monitor_look(m->monitor, &state);
    pthread_mutex_lock(&m->lock);
    m->calm = state.status == MEMORY_NORMAL ? m->calm + 1 : 0;
    h = health_of(m, &state, h.step);
    if (h.batch_size != batch_size) m->calm = 0;
    pthread_mutex_unlock(&m->lock);
    return figures_give(out, &h, sizeof h, "plim_monitor_check", err);
}

/* --- reports ------------------------------------------------------------------------------------------------------ */

char *plim_monitor_breakdown(struct plim_monitor *m)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    struct watch_reading reading;
    struct plim_memory memory;
    struct holder holders[HOLDERS_MAX];
    struct allocator_owner *owners;
    struct monitor_state state;
    if (!handle_is(m, HANDLE_MONITOR, "plim_monitor_breakdown", NULL)) return NULL;
    if (device_memory_read(m->options.device, NULL, &reading, &memory, "", NULL) != PLIM_OK) return NULL;
    int n = owners_of(m->options.device, &owners);
    monitor_look(m->monitor, &state);
    json_writer_init(&w, &text, 0);
    json_begin_object(&w, NULL);
    json_str(&w, "status", memory_status_name(state.status));
    device_memory_json(&memory, &w);
    holders_json(holders, holders_of(&reading, os_machine_root(), holders), &w, "processes");
    json_begin_object(&w, "owners");
    for (int i = 0; i < n; i++) json_int(&w, owners[i].name ? owners[i].name : "", owners[i].bytes);
    json_end_object(&w);
    json_end_object(&w);
    free(owners);
    return text_give(&text);
}

/* Adds the owners whose blocks have grown since the monitor was opened, the largest first. */
static void add_owners(const struct plim_monitor *m, struct strbuf *out)
{
    struct allocator_owner *now;
    int n = owners_of(m->options.device, &now);
    for (int i = 0, told = 0; i < n && told < 3; i++) {
        char bytes[BYTES_TEXT];
        int64_t before = 0;
        for (int k = 0; k < m->firsts; k++)
            if (m->first[k].name == now[i].name) before = m->first[k].bytes;
        if (now[i].bytes <= before) continue;
        strbuf_addf(out, "%s%.80s %s", told++ ? ", " : "; grown since the monitor was opened: ",
                    now[i].name ? now[i].name : "blocks without an owner",
                    bytes_format(bytes, (uint64_t)(now[i].bytes - before)));
    }
    free(now);
}

static void add_leak(const struct leak *leak, const char *what, struct strbuf *out)
{
    char bytes[BYTES_TEXT];
    strbuf_addf(out, "%s%s has grown by %s in %lld checks", out->len ? "\n" : "", what,
                bytes_format(bytes, (uint64_t)leak->growth), (long long)leak->growth_steps);
}

char *plim_monitor_leaks(struct plim_monitor *m)
{
    struct strbuf text = STRBUF_INIT;
    if (!handle_is(m, HANDLE_MONITOR, "plim_monitor_leaks", NULL)) return NULL;
    pthread_mutex_lock(&m->lock);
    const struct leak *host = &m->leak[LEAK_HOST];
    if (host->found) {
        add_leak(host, "memory of this process outside plans and allocators", &text);
        strbuf_add(&text, host->who == LEAK_PAGE_CACHE
                              ? ": pages of mapped files, which the system takes back when it needs them"
                              : ": objects that the program keeps, or a library's");
    }
    if (m->leak[LEAK_DEVICE].found) {
        add_leak(&m->leak[LEAK_DEVICE], "device memory of this process outside plans and allocators", &text);
        strbuf_add(&text, ": tensors that another allocator keeps");
    }
    if (m->leak[LEAK_BLOCKS].found) {
        add_leak(&m->leak[LEAK_BLOCKS], "memory in use of the allocator", &text);
        add_owners(m, &text);
    }
    pthread_mutex_unlock(&m->lock);
    if (text.len) return text_give(&text);
    strbuf_release(&text);
    return NULL;
}
