/* allocator.c - see plimsoll/allocator.h. */
#include "api/allocator.h"
#include "api/device.h"
#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

/* --- opening ----------------------------------------------------------------------------------------------------- */

static enum plim_status simulate(struct plim_allocator *a, const char *size, struct plim_error *err)
{
    uint64_t bytes;
    enum plim_status status = bytes_parse(size, &bytes, err);
    if (status != PLIM_OK)
        return plim_error_prefix(err, "plim_allocator_open: simulated:%.60s", size), status;
    backing_simulated_init(&a->simulated, bytes);
    a->backing = &a->simulated.base;
    return PLIM_OK;
}

static enum plim_status open_backing(struct plim_allocator *a, const char *device, struct plim_error *err)
{
    static const char simulated[] = "simulated:";
    struct device_name name;
    if (!strncmp(device, simulated, strlen(simulated))) return simulate(a, device + strlen(simulated), err);
    if (!device_name_read(strcmp(device, "host") ? device : backend_fallback()->name, &name) ||
        !name.backend || name.backend->plugin)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "plim_allocator_open: '%.60s' is not a memory; write host, cuda:N or simulated:24GiB", device);
    a->backend = name.backend, a->index = name.index;
    if (name.backend->backing_open) {
        enum plim_status status = name.backend->backing_open(name.index, &a->backing, err);
        if (status != PLIM_OK) plim_error_prefix(err, "plim_allocator_open");
        return status;
    }
    backing_host_init(&a->host, 0);
    a->backing = &a->host.base;
    return PLIM_OK;
}

static void close_backing(struct plim_allocator *a)
{
    if (a->backing == &a->simulated.base) backing_simulated_destroy(&a->simulated);
    if (a->backing && a->backend && a->backend->backing_close) a->backend->backing_close(a->backing);
}

/* Names of the option string, the strongest first. */
static const char *find_conf(const struct plim_allocator *a, const char *given, const char **where)
{
    static const char *const names[] = {"PLIMSOLL_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
                                        "PYTORCH_CUDA_ALLOC_CONF"};
    *where = "conf";
    if (given) return given;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = context_get(handle_context(&a->handle), *where = names[i]);
        if (value) return value;
    }
    return "";
}

static void describe(void *arg, const void *frames, char *text, size_t size)
{
    (void)arg;
    size_t n = strnlen(frames, size - 1);
    memcpy(text, frames, n), text[n] = '\0';
}

static enum plim_status open_cache(struct plim_allocator *a, const struct plim_allocator_options *o,
                                   struct plim_error *err)
{
    struct cache_options options = {.budget = o->budget,
                                    .overhead = o->overhead_bytes,
                                    .clean_every = o->cleanup_every,
                                    .describe = describe};
    const char *where, *conf = find_conf(a, o->conf, &where);
    if (o->record < 0 || o->cleanup_every < 0)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "plim_allocator_open: record and cleanup_every must be 0 or more");
    enum plim_status status = cache_conf_parse(conf, &options.conf, err);
    if (status != PLIM_OK) return plim_error_prefix(err, "plim_allocator_open: %s", where), status;
    status = open_backing(a, o->device ? o->device : "host", err);
    options.backing = a->backing;
    if (status == PLIM_OK) status = cache_new(&a->cache, &options, err);
    if (status == PLIM_OK && o->record) status = cache_history_start(a->cache, o->record, err);
    return status;
}

enum plim_status plim_allocator_open(struct plim_context *context,
                                     const struct plim_allocator_options *options,
                                     struct plim_allocator **out, struct plim_error *err)
{
    struct plim_allocator_options o;
    if (!out) return plim_fail(err, PLIM_BAD_INPUT, "plim_allocator_open: out is NULL");
    *out = NULL;
    if (!handle_is(context, HANDLE_CONTEXT, "plim_allocator_open", err)) return PLIM_BAD_INPUT;
    enum plim_status status = options_take(&o, sizeof o, options, "plim_allocator_open", err);
    if (status != PLIM_OK) return status;
    struct plim_allocator *a = handle_new(sizeof *a, HANDLE_ALLOCATOR, context, err);
    if (!a) return PLIM_NO_MEMORY;
    status = open_cache(a, &o, err);
    if (status != PLIM_OK) return plim_allocator_close(a), status;
    *out = a;
    return PLIM_OK;
}

void plim_allocator_close(struct plim_allocator *a)
{
    if (!handle_is(a, HANDLE_ALLOCATOR, "plim_allocator_close", NULL)) return;
    if (a->device) plim_device_attach(a->device, NULL, NULL);
    cache_destroy(a->cache);
    close_backing(a);
    handle_free(a);
}

/* --- blocks ------------------------------------------------------------------------------------------------------ */

/* Adds who holds the live bytes to a refusal. */
static void name_owners(struct plim_allocator *a, struct plim_error *err)
{
    struct allocator_owner *owners = NULL;
    struct strbuf text = STRBUF_INIT;
    int n = err ? allocator_owners(a, &owners) : 0;
    for (int i = 0, told = 0; i < n && told < 3; i++) {
        char bytes[BYTES_TEXT];
        if (!owners[i].name) continue;
        strbuf_addf(&text, "%s%.80s %s", told++ ? ", " : "; the largest holders: ", owners[i].name,
                    bytes_format(bytes, (uint64_t)owners[i].bytes));
    }
    size_t used = err ? strlen(err->text) : 0, more = strlen(strbuf_text(&text));
    if (more && used + more < sizeof err->text) memcpy(err->text + used, strbuf_text(&text), more + 1);
    free(owners);
    strbuf_release(&text);
}

enum plim_status plim_alloc_for(struct plim_allocator *a, size_t bytes, void *stream, const char *owner,
                                void **out, struct plim_error *err)
{
    struct cache_request request = {.bytes = bytes, .stream = (uint64_t)(uintptr_t)stream, .frames = owner};
    uint64_t address = 0;
    if (!handle_is(a, HANDLE_ALLOCATOR, "plim_alloc", err)) return PLIM_BAD_INPUT;
    if (!out) return plim_fail(err, PLIM_BAD_INPUT, "plim_alloc: out is NULL");
    enum plim_status status = cache_malloc_request(a->cache, &request, &address, err);
    if (status == PLIM_NO_MEMORY) name_owners(a, err);
    *out = status == PLIM_OK ? (void *)(uintptr_t)address : NULL;
    return status;
}

enum plim_status plim_alloc(struct plim_allocator *a, size_t bytes, void *stream, void **out,
                            struct plim_error *err)
{
    return plim_alloc_for(a, bytes, stream, NULL, out, err);
}

enum plim_status plim_dealloc(struct plim_allocator *a, void *block, struct plim_error *err)
{
    if (!handle_is(a, HANDLE_ALLOCATOR, "plim_dealloc", err)) return PLIM_BAD_INPUT;
    return cache_free(a->cache, (uint64_t)(uintptr_t)block, err);
}

enum plim_status plim_alloc_record_stream(struct plim_allocator *a, void *block, void *stream,
                                          struct plim_error *err)
{
    if (!handle_is(a, HANDLE_ALLOCATOR, "plim_alloc_record_stream", err)) return PLIM_BAD_INPUT;
    return cache_record_stream(a->cache, (uint64_t)(uintptr_t)block, (uint64_t)(uintptr_t)stream, err);
}

/* --- limits and clean-up ----------------------------------------------------------------------------------------- */

enum plim_status plim_allocator_clear(struct plim_allocator *a, int deep, uint64_t *freed,
                                      struct plim_error *err)
{
    if (!handle_is(a, HANDLE_ALLOCATOR, "plim_allocator_clear", err)) return PLIM_BAD_INPUT;
    uint64_t bytes = cache_clear(a->cache, deep);
    if (freed) *freed = bytes;
    return PLIM_OK;
}

enum plim_status plim_allocator_set_budget(struct plim_allocator *a, uint64_t budget, struct plim_error *err)
{
    if (!handle_is(a, HANDLE_ALLOCATOR, "plim_allocator_set_budget", err)) return PLIM_BAD_INPUT;
    cache_set_budget(a->cache, budget);
    return PLIM_OK;
}

enum plim_status plim_allocator_set_fraction(struct plim_allocator *a, double fraction,
                                             struct plim_error *err)
{
    if (!handle_is(a, HANDLE_ALLOCATOR, "plim_allocator_set_fraction", err)) return PLIM_BAD_INPUT;
    return cache_set_fraction(a->cache, fraction, err);
}

void plim_allocator_batch(struct plim_allocator *a)
{
    if (handle_is(a, HANDLE_ALLOCATOR, "plim_allocator_batch", NULL)) cache_batch_done(a->cache);
}

void plim_allocator_reset_peaks(struct plim_allocator *a)
{
    if (handle_is(a, HANDLE_ALLOCATOR, "plim_allocator_reset_peaks", NULL)) cache_reset_peaks(a->cache);
}

/* --- figures ----------------------------------------------------------------------------------------------------- */

void allocator_usage(struct plim_allocator *a, struct allocator_usage *out)
{
    struct cache_stats stats;
    cache_stats_read(a->cache, &stats);
    *out = (struct allocator_usage){(uint64_t)stats.of[CACHE_ACTIVE_BYTES][CACHE_ALL].current,
                                    (uint64_t)stats.of[CACHE_RESERVED_BYTES][CACHE_ALL].current};
}

struct owners {
    struct allocator_owner *list;
    size_t count, cap;
};

static void add_block(void *arg, const struct cache_block *block)
{
    struct owners *o = arg;
    if (block->state != CACHE_LIVE) return;
    if (o->count == o->cap) {
        size_t cap = o->cap ? 2 * o->cap : 256;
        struct allocator_owner *wide = realloc(o->list, cap * sizeof *wide);
        if (!wide) return;
        o->list = wide, o->cap = cap;
    }
    o->list[o->count++] = (struct allocator_owner){block->frames, (int64_t)block->bytes, 1};
}

static int by_name(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct allocator_owner *)a)->name,
              y = (uintptr_t)((const struct allocator_owner *)b)->name;
    return (x > y) - (x < y);
}

static int larger_first(const void *a, const void *b)
{
    int64_t x = ((const struct allocator_owner *)a)->bytes, y = ((const struct allocator_owner *)b)->bytes;
    return (x < y) - (x > y);
}

int allocator_owners(struct plim_allocator *a, struct allocator_owner **out)
{
    struct owners o = {0};
    size_t kept = 0;
    cache_walk(a->cache, &(struct cache_visitor){.block = add_block, .arg = &o});
    if (o.count) qsort(o.list, o.count, sizeof *o.list, by_name);
    for (size_t i = 0; i < o.count; i++) {
        if (kept && o.list[kept - 1].name == o.list[i].name)
            o.list[kept - 1].bytes += o.list[i].bytes, o.list[kept - 1].blocks++;
        else
            o.list[kept++] = o.list[i];
    }
    if (kept) qsort(o.list, kept, sizeof *o.list, larger_first);
    *out = o.list;
    return (int)kept;
}

char *plim_allocator_holders(struct plim_allocator *a)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    struct allocator_owner *owners;
    if (!handle_is(a, HANDLE_ALLOCATOR, "plim_allocator_holders", NULL)) return NULL;
    int n = allocator_owners(a, &owners);
    json_writer_init(&w, &text, 0);
    json_begin_array(&w, NULL);
    for (int i = 0; i < n; i++) {
        json_begin_object(&w, NULL);
        json_str(&w, "owner", owners[i].name);
        json_int(&w, "bytes", owners[i].bytes);
        json_int(&w, "blocks", owners[i].blocks);
        json_end_object(&w);
    }
    json_end_array(&w);
    free(owners);
    return text_give(&text);
}

static void put_figure(void *arg, const char *name, int64_t value) { json_int(arg, name, value); }

void allocator_json(struct plim_allocator *a, struct json_writer *w, const char *key)
{
    struct cache_stats stats;
    struct cache_fragmentation f;
    cache_stats_read(a->cache, &stats);
    cache_fragmentation_read(a->cache, &f);
    json_begin_object(w, key);
    cache_stats_each(&stats, put_figure, w);
    json_uint(w, "limit_bytes", stats.limit);
    json_uint(w, "budget_bytes", stats.budget);
    json_uint(w, "overhead_bytes", stats.overhead);
    json_int(w, "num_gc", stats.num_gc);
    json_int(w, "num_clean_ups", stats.num_clean_ups);
    json_double(w, "fragmentation.peak", f.peak);
    json_double(w, "fragmentation.external", f.external);
    json_double(w, "fragmentation.internal", f.internal);
    json_uint(w, "largest_free_bytes", f.largest_bytes);
    json_end_object(w);
}

char *plim_allocator_stats(struct plim_allocator *a)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    if (!handle_is(a, HANDLE_ALLOCATOR, "plim_allocator_stats", NULL)) return NULL;
    json_writer_init(&w, &text, 0);
    allocator_json(a, &w, NULL);
    return text_give(&text);
}

struct wanted {
    const char *name;
    int64_t value;
    bool found;
};

static void compare_figure(void *arg, const char *name, int64_t value)
{
    struct wanted *wanted = arg;
    if (!strcmp(name, wanted->name)) wanted->value = value, wanted->found = true;
}

enum plim_status plim_allocator_stat(struct plim_allocator *a, const char *name, int64_t *value,
                                     struct plim_error *err)
{
    struct cache_stats stats;
    struct wanted wanted = {.name = name};
    if (!handle_is(a, HANDLE_ALLOCATOR, "plim_allocator_stat", err)) return PLIM_BAD_INPUT;
    if (!name || !value) return plim_fail(err, PLIM_BAD_INPUT, "plim_allocator_stat: NULL");
    cache_stats_read(a->cache, &stats);
    cache_stats_each(&stats, compare_figure, &wanted);
    if (!wanted.found)
        return plim_fail(
            err, PLIM_NOT_FOUND,
            "plim_allocator_stat: no figure is called '%.60s'; plim_allocator_stats has them all", name);
    *value = wanted.value;
    return PLIM_OK;
}

char *plim_allocator_explain(struct plim_allocator *a)
{
    struct strbuf text = STRBUF_INIT;
    struct cache_refusal refusal;
    if (!handle_is(a, HANDLE_ALLOCATOR, "plim_allocator_explain", NULL)) return NULL;
    if (!cache_last_refusal(a->cache, &refusal)) return NULL;
    cache_explain(a->cache, &refusal, &text);
    return text_give(&text);
}

/* --- a device's ---------------------------------------------------------------------------------------------------- */

enum plim_status allocator_belong(struct plim_allocator *a, struct plim_device *d, struct plim_error *err)
{
    if (a->device)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "plim_device_attach: the allocator is attached to another device handle");
    if (!d->backend || a->backend != d->backend || a->index != d->index)
        return plim_fail(err, PLIM_BAD_INPUT, "plim_device_attach: the allocator's memory is not that of %s",
                         d->preset.facts.name);
    a->device = d;
    return PLIM_OK;
}

void allocator_leave(struct plim_allocator *a) { a->device = NULL; }
