/* device.c - see plimsoll/device.h and device.h. */
#include "api/device.h"
#include "api/allocator.h"
#include "api/open_device.h"
#include "base/json.h"

#include <stdio.h>
#include <string.h>

enum { CARDS_MAX = 64 }; /* of a machine, in lists */

/* "auto" is a GPU only where one is present, so that a machine without one loads no driver. */
static const struct backend *present_backend(void)
{
    int i = 0;
    while (!backend_at(i)->present()) i++;
    return backend_at(i);
}

static enum plim_status open_now(struct plim_device *d, const char *name, struct plim_error *err)
{
    struct device_wish wish = {.where = "plim_device_open", .name = name, .cpu = "\"cpu\""};
    enum plim_status status = open_device(handle_context(&d->handle), &wish, &d->opened, err);
    if (status == PLIM_OK) d->backend = backend_find(d->opened->ops->name);
    return status;
}

/* Fills what is known of a device of this machine. */
static enum plim_status meet_device(struct plim_device *d, const struct device_name *name, const char *text,
                                    struct plim_error *err)
{
    struct device_facts facts = {0};
    enum plim_status status = PLIM_OK;
    d->backend = name->backend ? name->backend : present_backend();
    d->index = name->index;
    if (d->backend != backend_fallback()) status = open_now(d, text, err);
    if (status != PLIM_OK) return status;
    if (d->opened)
        facts = d->opened->facts;
    else if (!d->backend->peek(handle_context(&d->handle), d->index, &facts))
        return plim_fail(err, PLIM_UNSUPPORTED, "plim_device_open: this system does not report its memory");
    if (!preset_detect(&facts, &d->preset)) d->preset = (struct preset){.cards = 1, .batch = 1};
    d->preset.facts = facts;
    return PLIM_OK;
}

static enum plim_status find_device(struct plim_device *d, const char *text, struct plim_error *err)
{
    struct device_name name;
    if (device_name_read(text, &name)) return meet_device(d, &name, text, err);
    if (!strncmp(text, "cuda", 4) || !strcmp(text, "gpu"))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "plim_device_open: '%.40s' is not a device; write " DEVICE_NAMES ", or a preset",
                         text);
    enum plim_status status = preset_find(text, &d->preset, err);
    if (status != PLIM_OK) plim_error_prefix(err, "plim_device_open");
    return status;
}

enum plim_status plim_device_open(struct plim_context *context, const char *name, struct plim_device **out,
                                  struct plim_error *err)
{
    if (!out) return plim_fail(err, PLIM_BAD_INPUT, "plim_device_open: out is NULL");
    *out = NULL;
    if (!handle_is(context, HANDLE_CONTEXT, "plim_device_open", err)) return PLIM_BAD_INPUT;
    struct plim_device *d = handle_new(sizeof *d, HANDLE_DEVICE, context, err);
    if (!d) return PLIM_NO_MEMORY;
    pthread_mutex_init(&d->lock, NULL);
    d->kernel_peak = true;
    enum plim_status status = find_device(d, name ? name : "auto", err);
    if (status != PLIM_OK) return plim_device_close(d), status;
    *out = d;
    return PLIM_OK;
}

void plim_device_close(struct plim_device *d)
{
    if (!handle_is(d, HANDLE_DEVICE, "plim_device_close", NULL)) return;
    plim_device_attach(d, NULL, NULL);
    if (d->opened) d->opened->ops->close(d->opened);
    pthread_mutex_destroy(&d->lock);
    handle_free(d);
}

enum plim_status device_ready(struct plim_device *d, struct device **out, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    pthread_mutex_lock(&d->lock);
    if (d->backend && !d->opened) status = open_now(d, d->backend->name, err);
    *out = d->opened;
    pthread_mutex_unlock(&d->lock);
    return status;
}

enum plim_status plim_device_facts(struct plim_device *d, struct plim_device_facts *out,
                                   struct plim_error *err)
{
    struct device *device;
    if (!handle_is(d, HANDLE_DEVICE, "plim_device_facts", err)) return PLIM_BAD_INPUT;
    enum plim_status status = device_ready(d, &device, err);
    if (status != PLIM_OK) return status;
    const struct device_facts *f = device ? &device->facts : &d->preset.facts;
    struct plim_device_facts facts = {.memory_bytes = f->memory_bytes,
                                      .free_bytes = f->free_bytes,
                                      .overhead_bytes = f->overhead_bytes,
                                      .host_bytes = f->host_bytes,
                                      .threads = f->threads,
                                      .capability = f->capability,
                                      .flops_f32 = f->flops[DT_F32],
                                      .flops_bf16 = f->flops[DT_BF16],
                                      .bandwidth = f->bandwidth};
    snprintf(facts.name, sizeof facts.name, "%s", f->name);
    snprintf(facts.backend, sizeof facts.backend, "%s", d->backend ? d->backend->name : "");
    return figures_give(out, &facts, sizeof facts, "plim_device_facts", err);
}

static void put_here(struct json_writer *w, const struct backend *b, int index, const struct device_facts *f)
{
    char name[32];
    snprintf(name, sizeof name, b->numbered ? "%s:%d" : "%s", b->name, index);
    json_begin_object(w, NULL);
    json_str(w, "kind", "device");
    json_str(w, "name", name);
    json_str(w, "model", f->name);
    json_uint(w, "memory_bytes", f->memory_bytes);
    if (f->capability) json_int(w, "capability", f->capability);
    json_end_object(w);
}

char *plim_device_list(struct plim_context *context)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    struct device_facts facts;
    const struct backend *b;
    if (!handle_is(context, HANDLE_CONTEXT, "plim_device_list", NULL)) return NULL;
    json_writer_init(&w, &text, 0);
    json_begin_array(&w, NULL);
    for (int i = 0; (b = backend_at(i)); i++)
        for (int n = 0; n < (b->numbered ? CARDS_MAX : 1) && b->peek(&context->context, n, &facts); n++)
            put_here(&w, b, n, &facts);
    preset_json(&w);
    json_end_array(&w);
    return text_give(&text);
}

enum plim_status plim_device_attach(struct plim_device *d, struct plim_allocator *allocator,
                                    struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    if (!handle_is(d, HANDLE_DEVICE, "plim_device_attach", err)) return PLIM_BAD_INPUT;
    if (allocator && !handle_is(allocator, HANDLE_ALLOCATOR, "plim_device_attach", err))
        return PLIM_BAD_INPUT;
    pthread_mutex_lock(&d->lock);
    if (allocator != d->allocator && allocator) status = allocator_belong(allocator, d, err);
    if (status == PLIM_OK && allocator != d->allocator) {
        if (d->allocator) allocator_leave(d->allocator);
        d->allocator = allocator;
    }
    pthread_mutex_unlock(&d->lock);
    return status;
}
