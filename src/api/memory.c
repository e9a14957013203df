/* memory.c - the device manager: summaries, caches, peaks. See plimsoll/device.h and device.h.
 *
 * All figures come from one reading of the system or the driver. An attached allocator knows which of the bytes are blocks in
 * use and which are cached; the rest of what the process has is overhead. */
#include "api/allocator.h"
#include "api/device.h"
#include "mem/os.h"
#include "watch/explain.h"
#include "watch/holders.h"

static uint64_t above(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }
static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Fills what the driver says of a device with its own memory. */
static void take_card(const struct watch_reading *r, struct device *device, struct plim_memory *m)
{
    m->reserved = r->device.ours ? r->device.ours : device->ops->used ? device->ops->used(device) : 0;
    m->total = r->device.total ? r->device.total : device->facts.memory_bytes;
    m->free = r->device.total ? above(m->total, r->device.used) : above(m->total, m->reserved);
    m->tensors = (uint64_t)r->device_arena;
    m->others = above(r->device.used, m->reserved);
}

static void take_machine(const struct watch_reading *r, struct plim_memory *m)
{
    m->reserved = r->process.rss;
    m->total = r->machine.total;
    m->free = r->machine.available < m->total ? r->machine.available : m->total;
    m->tensors = (uint64_t)r->arena;
    m->others = above(m->total - m->free, m->reserved);
}

/* Needs the lock. Pages of the host that were reserved and never touched are in no figure of the system. */
static void take_allocator(struct plim_device *d, struct watch_reading *r, struct plim_memory *m)
{
    struct allocator_usage usage = {0};
    if (d->allocator) allocator_usage(d->allocator, &usage);
    m->tensors += usage.active;
    m->cached = usage.reserved - usage.active;
    *(d->backend == backend_fallback() ? &r->arena : &r->device_arena) += (int64_t)usage.reserved;
    m->reserved = larger(m->reserved, m->tensors + m->cached);
    m->overhead = m->reserved - m->tensors - m->cached;
    m->allocated = m->reserved - m->cached;
    m->utilization = m->total ? (double)(m->total - m->free) / (double)m->total : 0;
    m->fragmentation = m->cached ? (double)m->cached / (double)(m->tensors + m->cached) : 0;
}

/* Needs the lock. */
static void remember(struct plim_device *d, const struct watch_reading *r, struct plim_memory *m)
{
    d->peak = larger(d->peak, m->reserved);
    m->peak =
        d->backend == backend_fallback() && d->kernel_peak ? larger(r->process.peak, m->reserved) : d->peak;
    d->sample[d->samples++ % MEMORY_SAMPLES] =
        (struct memory_sample){r->seconds, m->tensors, m->cached, m->overhead, m->others, m->free};
}

enum plim_status device_memory_read(struct plim_device *d, const struct os_groups *groups,
                                    struct watch_reading *reading, struct plim_memory *out,
                                    const char *function, struct plim_error *err)
{
    struct watch_source source = {.root = os_machine_root(), .groups = groups};
    struct plim_memory m = {.size = sizeof m};
    if (!d->backend)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "%s: the preset %s has no memory of its own; open a device of this machine",
                         function, d->preset.facts.name);
    pthread_mutex_lock(&d->lock);
    source.device = d->opened;
    watch_read(watch_readers, &source, reading);
    if (d->backend == backend_fallback())
        take_machine(reading, &m);
    else
        take_card(reading, d->opened, &m);
    take_allocator(d, reading, &m);
    remember(d, reading, &m);
    pthread_mutex_unlock(&d->lock);
    if (out) *out = m;
    return PLIM_OK;
}

enum plim_status plim_memory_summary(struct plim_device *d, struct plim_memory *out, struct plim_error *err)
{
    struct watch_reading reading;
    struct plim_memory memory;
    if (!handle_is(d, HANDLE_DEVICE, "plim_memory_summary", err)) return PLIM_BAD_INPUT;
    enum plim_status status = device_memory_read(d, NULL, &reading, &memory, "plim_memory_summary", err);
    return status == PLIM_OK ? figures_give(out, &memory, sizeof memory, "plim_memory_summary", err) : status;
}

void device_memory_json(const struct plim_memory *m, struct json_writer *w)
{
    json_begin_object(w, "total");
    json_uint(w, "allocated", m->allocated);
    json_uint(w, "reserved", m->reserved);
    json_uint(w, "free", m->free);
    json_uint(w, "total", m->total);
    json_uint(w, "peak", m->peak);
    json_double(w, "utilization", m->utilization);
    json_end_object(w);
    json_begin_object(w, "fragmentation");
    json_double(w, "ratio", m->fragmentation);
    json_uint(w, "bytes", m->cached);
    json_end_object(w);
    json_begin_object(w, "classes");
    json_uint(w, "tensors", m->tensors);
    json_uint(w, "cached", m->cached);
    json_uint(w, "overhead", m->overhead);
    json_uint(w, "others", m->others);
    json_end_object(w);
}

char *plim_memory_report(struct plim_device *d)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    struct watch_reading reading;
    struct plim_memory memory;
    struct holder holders[HOLDERS_MAX];
    if (!handle_is(d, HANDLE_DEVICE, "plim_memory_report", NULL)) return NULL;
    bool here = device_memory_read(d, NULL, &reading, &memory, "plim_memory_report", NULL) == PLIM_OK;
    json_writer_init(&w, &text, 0);
    json_begin_object(&w, NULL);
    if (here) device_memory_json(&memory, &w);
    if (here) holders_json(holders, holders_of(&reading, os_machine_root(), holders), &w, "processes");
    pthread_mutex_lock(&d->lock);
    if (d->allocator) allocator_json(d->allocator, &w, "allocator");
    pthread_mutex_unlock(&d->lock);
    environment_json(handle_context(&d->handle), &d->preset.facts, d->backend ? d->backend->name : NULL, &w,
                     "environment");
    json_end_object(&w);
    return text_give(&text);
}

/* Bytes of the process that go back when the C library gives up its free pages. */
static uint64_t trim_heap(void)
{
    struct os_process before = {0}, after = {0};
    os_process_memory(&before, NULL);
    os_trim_heap();
    os_process_memory(&after, NULL);
    return above(before.rss, after.rss);
}

enum plim_status plim_clear_cache(struct plim_device *d, int deep, uint64_t *freed, struct plim_error *err)
{
    uint64_t bytes = 0;
    if (!handle_is(d, HANDLE_DEVICE, "plim_clear_cache", err)) return PLIM_BAD_INPUT;
    pthread_mutex_lock(&d->lock);
    if (d->allocator) bytes = cache_clear(d->allocator->cache, deep);
    pthread_mutex_unlock(&d->lock);
    if (deep) bytes += trim_heap();
    if (freed) *freed = bytes;
    return PLIM_OK;
}

void plim_reset_peaks(struct plim_device *d)
{
    if (!handle_is(d, HANDLE_DEVICE, "plim_reset_peaks", NULL)) return;
    pthread_mutex_lock(&d->lock);
    d->peak = 0;
    if (d->backend == backend_fallback()) d->kernel_peak = os_reset_peak(NULL) == PLIM_OK;
    if (d->allocator) plim_allocator_reset_peaks(d->allocator);
    pthread_mutex_unlock(&d->lock);
}
