/* open_device.c - see open_device.h. */
#include "api/open_device.h"
#include "base/bytes.h"
#include "device/registry.h"
#include "job/preset.h"

#include <stdio.h>
#include <string.h>

/* Bytes that a device takes for itself, as far as is known before it is opened: what it took when it was last open, what its
 * preset says, or the least of its backend. */
static uint64_t known_bytes(const struct context *context, const struct backend *backend, int index)
{
    struct device_facts facts;
    struct preset preset;
    if (!backend->least || !backend->peek(context, index, &facts)) return backend->least;
    if (facts.overhead_bytes) return facts.overhead_bytes;
    return preset_detect(&facts, &preset) ? preset.facts.overhead_bytes : backend->least;
}

/* A device that takes the whole budget for itself is no use. */
static enum plim_status check_room(const struct backend *backend, uint64_t own, uint64_t budget,
                                   struct plim_error *why)
{
    char takes[BYTES_TEXT], have[BYTES_TEXT];
    if (!budget || own < budget) return PLIM_OK;
    return plim_fail(why, PLIM_NO_FIT, "the driver and libraries of %s alone need %s of the budget of %s",
                     backend->what, bytes_format(takes, own), bytes_format(have, budget));
}

/* Opened only where what is known of it leaves room; what it really takes is held against the budget again. */
static enum plim_status open_one(const struct context *context, const struct device_name *name,
                                 const struct device_wish *wish, struct device **out, struct plim_error *why)
{
    const struct backend *backend = name->backend;
    enum plim_status status =
        wish->budget ? check_room(backend, known_bytes(context, backend, name->index), wish->budget, why)
                     : PLIM_OK;
    struct device_name limited = *name;
    limited.budget = wish->budget;
    if (status == PLIM_OK) status = backend->open(context, &limited, wish->threads, out, why);
    if (status != PLIM_OK) return status;
    status = check_room(backend, (*out)->facts.overhead_bytes, wish->budget, why);
    if (status != PLIM_OK) (*out)->ops->close(*out), *out = NULL;
    return status;
}

/* The first of the registry that works and leaves room in the budget. */
static enum plim_status open_any(const struct context *context, const struct device_wish *wish,
                                 struct device **out, struct plim_error *err)
{
    const struct backend *b, *last = backend_fallback();
    for (int i = 0; (b = backend_at(i)) != last; i++) {
        struct plim_error why = {0};
        if (b->asked) continue;
        if (open_one(context, &(struct device_name){.backend = b}, wish, out, &why) == PLIM_OK)
            return PLIM_OK;
        if (b->present()) /* else there is nothing to miss */
            log_info(context_log(context), "using %s: %s", last->what, why.text);
    }
    return backend_open_fallback(context, wish->threads, out, err);
}

enum plim_status open_device(const struct context *context, const struct device_wish *wish,
                             struct device **out, struct plim_error *err)
{
    struct device_name name;
    struct plim_error why = {0};
    device_name_read(wish->name, &name);
    if (!name.backend) return open_any(context, wish, out, err);
    enum plim_status status = open_one(context, &name, wish, out, &why);
    if (status == PLIM_OK) return status;
    if (name.backend == backend_fallback()) return *err = why, status;
    if (status == PLIM_BAD_INPUT) return plim_fail(err, status, "%s: %s", wish->where, why.text);
    return plim_fail(err, status, "%s: %s; %s runs without a GPU", wish->where, why.text, wish->cpu);
}

enum plim_status open_model(const struct context *context, const struct device_wish *wish,
                            const struct device_line *line, model_opener *open, void *arg,
                            struct device **device, struct plim_error *err)
{
    enum plim_status status = open_device(context, wish, device, err);
    if (status == PLIM_OK) status = device_line_check(context, wish->where, line, &(*device)->facts, err);
    if (status == PLIM_OK) status = open(arg, *device, err);
    const struct backend *other = backend_fallback();
    bool chosen = *device && !strcmp(wish->name, "auto") && strcmp((*device)->ops->name, other->name);
    if (!chosen || (status != PLIM_NO_FIT && status != PLIM_NO_MEMORY)) return status;
    log_info(context_log(context), "using %s: %s", other->what, err->text);
    (*device)->ops->close(*device), *device = NULL;
    status = backend_open_fallback(context, wish->threads, device, err);
    return status == PLIM_OK ? open(arg, *device, err) : status;
}

struct device_wish device_wish_of(const struct job *job)
{
    return (struct device_wish){job->name, job->training.device, "training.device: cpu",
                                (int)job->training.threads, job->budget};
}

enum plim_status open_job_device(const struct context *context, const struct job *job, struct device **out,
                                 struct plim_error *err)
{
    struct device_wish wish = device_wish_of(job);
    return open_device(context, &wish, out, err);
}
