/* open_model.c - the device and the model of a command that runs one. See cli.h. */
#include "cli/cli.h"
#include "api/open_device.h"
#include "device/registry.h"
#include "model/quantise.h"

#include <string.h>

const char *const cli_weights[] = {WEIGHTS_KIND_NAMES, NULL};

bool cli_is_device(const char *name)
{
    struct device_name unused;
    return device_name_read(name, &unused);
}

enum plim_status cli_open_model(const char *command, const struct model_flags *flags, model_opener *open,
                                void *arg, struct device **device, struct plim_error *err)
{
    struct device_wish wish = {command, flags->device, "--device cpu", flags->threads, flags->line.budget};
    enum plim_status status = open_device(cli_context(), &wish, device, err);
    if (status == PLIM_OK)
        status = device_line_check(cli_context(), command, &flags->line, &(*device)->facts, err);
    if (status == PLIM_OK) status = open(arg, *device, err);
    const struct backend *other = backend_fallback();
    bool chosen = *device && !strcmp(flags->device, "auto") && strcmp((*device)->ops->name, other->name);
    if (!chosen || (status != PLIM_NO_FIT && status != PLIM_NO_MEMORY)) return status;
    cli_say("using %s: %s", other->what, err->text);
    (*device)->ops->close(*device), *device = NULL;
    status = other->open(cli_context(), 0, flags->threads, device, err);
    return status == PLIM_OK ? open(arg, *device, err) : status;
}
