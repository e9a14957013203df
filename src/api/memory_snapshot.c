/* memory_snapshot.c - plim_memory_snapshot: the memory of a device over time, and the blocks of its allocator, as a file. See
 * plimsoll/device.h.
 *
 * In the Trace Event Format one process has counters, memory by class at each summary, in real time. A second one is a map of
 * the allocator: a lane for each segment, in which a microsecond is a KiB of addresses. */
#include "api/allocator.h"
#include "api/device.h"
#include "base/file.h"

#include <stdio.h>
#include <string.h>

enum process { MEMORY = 1, BLOCKS };

struct map {
    struct json_writer *w;
    int segment;
    uint64_t start; /* address of the segment */
};

static void begin_event(struct json_writer *w, const char *phase, const char *name, enum process process,
                        int tid)
{
    json_begin_object(w, NULL);
    json_str(w, "ph", phase);
    json_str(w, "name", name);
    json_int(w, "pid", process);
    json_int(w, "tid", tid);
}

static void put_name(struct json_writer *w, const char *what, enum process process, int tid, const char *name)
{
    begin_event(w, "M", what, process, tid);
    json_begin_object(w, "args");
    json_str(w, "name", name);
    json_end_object(w);
    json_end_object(w);
}

static void put_counter(struct json_writer *w, const struct memory_sample *s, double from)
{
    begin_event(w, "C", "bytes", MEMORY, 0);
    json_double(w, "ts", 1e6 * (s->seconds - from));
    json_begin_object(w, "args");
    json_uint(w, "tensors", s->tensors);
    json_uint(w, "cached", s->cached);
    json_uint(w, "overhead", s->overhead);
    json_uint(w, "others", s->others);
    json_uint(w, "free", s->free);
    json_end_object(w);
    json_end_object(w);
}

static void put_segment(void *arg, const struct cache_segment *s)
{
    struct map *map = arg;
    char name[64];
    map->start = s->address;
    snprintf(name, sizeof name, "segment 0x%llx, %s pool", (unsigned long long)s->address,
             s->pool == CACHE_SMALL ? "small" : "large");
    put_name(map->w, "thread_name", BLOCKS, ++map->segment, name);
}

static void put_block(void *arg, const struct cache_block *b)
{
    static const char *const states[] = {
        [CACHE_LIVE] = "live", [CACHE_PENDING] = "pending free", [CACHE_CACHED] = "cached"};
    struct map *map = arg;
    bool named = b->state == CACHE_LIVE && b->frames;
    begin_event(map->w, "X", named ? b->frames : states[b->state], BLOCKS, map->segment);
    json_double(map->w, "ts", (double)(b->address - map->start) / 1024);
    json_double(map->w, "dur", (double)b->bytes / 1024);
    json_begin_object(map->w, "args");
    json_str(map->w, "state", states[b->state]);
    json_uint(map->w, "bytes", b->bytes);
    json_uint(map->w, "requested", b->requested);
    json_uint(map->w, "stream", b->stream);
    json_end_object(map->w);
    json_end_object(map->w);
}

/* Needs the lock. */
static void put_trace(struct plim_device *d, struct strbuf *out)
{
    struct json_writer w;
    int64_t first = d->samples > MEMORY_SAMPLES ? d->samples - MEMORY_SAMPLES : 0;
    json_writer_init(&w, out, 0);
    json_begin_object(&w, NULL);
    json_begin_array(&w, "traceEvents");
    put_name(&w, "process_name", MEMORY, 0, "memory");
    double from = d->sample[first % MEMORY_SAMPLES].seconds;
    for (int64_t i = first; i < d->samples; i++) put_counter(&w, &d->sample[i % MEMORY_SAMPLES], from);
    if (d->allocator) {
        struct map map = {.w = &w};
        put_name(&w, "process_name", BLOCKS, 0, "allocator: 1 us is 1 KiB");
        cache_walk(d->allocator->cache,
                   &(struct cache_visitor){.segment = put_segment, .block = put_block, .arg = &map});
    }
    json_end_array(&w);
    json_str(&w, "displayTimeUnit", "ms");
    json_end_object(&w);
}

static enum plim_status save_trace(struct plim_device *d, const char *path, struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    struct watch_reading reading;
    enum plim_status status = device_memory_read(d, NULL, &reading, NULL, "plim_memory_snapshot", err);
    if (status != PLIM_OK) return status;
    pthread_mutex_lock(&d->lock);
    put_trace(d, &text);
    pthread_mutex_unlock(&d->lock);
    status = strbuf_status(&text, err);
    if (status == PLIM_OK) status = file_write_atomic(path, text.data, text.len, err);
    strbuf_release(&text);
    return status;
}

enum plim_status plim_memory_snapshot(struct plim_device *d, const char *path, struct plim_error *err)
{
    size_t n = path ? strlen(path) : 0;
    if (!handle_is(d, HANDLE_DEVICE, "plim_memory_snapshot", err)) return PLIM_BAD_INPUT;
    if (!n) return plim_fail(err, PLIM_BAD_INPUT, "plim_memory_snapshot: path is empty; write memory.json");
    if (n < 7 || strcmp(path + n - 7, ".pickle")) return save_trace(d, path, err);
    pthread_mutex_lock(&d->lock);
    enum plim_status status =
        d->allocator
            ? allocator_snapshot(d->allocator, true, path, err)
            : plim_fail(
                  err, PLIM_BAD_INPUT,
                  "plim_memory_snapshot: a .pickle has the blocks of an allocator, and none is attached "
                  "(plim_device_attach); write memory.json for memory by class");
    pthread_mutex_unlock(&d->lock);
    return status;
}
