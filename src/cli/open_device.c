/* open_device.c - the device a command runs on: by name, or what there is. See cli.h. */
#include "cli/cli.h"
#include "base/bytes.h"
#include "device/registry.h"

#include <stdio.h>

/* A device that takes the whole budget for itself. */
static enum plim_status check_room(struct device **device, uint64_t budget, const struct backend *backend,
                                   struct plim_error *why)
{
    char takes[BYTES_TEXT], have[BYTES_TEXT];
    uint64_t own = (*device)->facts.overhead_bytes;
    if (!budget || own < budget) return PLIM_OK;
    (*device)->ops->close(*device), *device = NULL;
    return plim_fail(why, PLIM_NO_FIT, "%s's driver and libraries alone take %s of the budget of %s",
                     backend->what, bytes_format(takes, own), bytes_format(have, budget));
}

/* The first of the registry that works and leaves room in the budget; a backend that cannot is not even opened. */
static enum plim_status open_any(const struct device_wish *wish, struct device **out, struct plim_error *err)
{
    const struct backend *b, *last = backend_fallback();
    for (int i = 0; (b = backend_at(i)) != last; i++) {
        struct plim_error why = {0};
        if (wish->budget && wish->budget < b->least) continue;
        enum plim_status status = b->open(0, wish->threads, out, &why);
        if (status == PLIM_OK) status = check_room(out, wish->budget, b, &why);
        if (status == PLIM_OK) return status;
        if (b->present()) /* else there is nothing to miss */
            fprintf(stderr, "plimsoll: using %s: %s\n", last->what, why.text);
    }
    return last->open(0, wish->threads, out, err);
}

enum plim_status cli_open_device_as(const struct device_wish *wish, struct device **out,
                                    struct plim_error *err)
{
    struct device_name name;
    struct plim_error why = {0};
    device_name_read(wish->name, &name);
    if (!name.backend) return open_any(wish, out, err);
    enum plim_status status = name.backend->open(name.index, wish->threads, out, &why);
    if (status == PLIM_OK) return status;
    if (name.backend == backend_fallback()) return *err = why, status;
    if (status == PLIM_BAD_INPUT) return plim_fail(err, status, "%s: %s", wish->where, why.text);
    return plim_fail(err, status, "%s: %s; %s goes without a GPU", wish->where, why.text, wish->cpu);
}

enum plim_status cli_open_device(const struct job *job, struct device **out, struct plim_error *err)
{
    struct device_wish wish = {job->name, job->training.device, "training.device: cpu",
                               (int)job->training.threads, 0};
    return cli_open_device_as(&wish, out, err);
}
