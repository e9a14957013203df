/* caller.c - see caller.h. */
#include "api/caller.h"
#include "api/serve_plan.h"
#include "device/registry.h"
#include "model/quantise.h"

#include <stdarg.h>
#include <stdio.h>

const char *caller_option(const struct caller *caller, const char *option, char out[CALLER_OPTION])
{
    const char *form = caller->library ? "%s: options.%s" : "%s: option '--%s'";
    int n = snprintf(out, CALLER_OPTION, form, caller->name, option);
    for (int i = 0; caller->library && i < n && i < CALLER_OPTION - 1; i++)
        if (out[i] == '-') out[i] = '_';
    return out;
}

enum plim_status caller_refuse(const struct caller *caller, const char *option, struct plim_error *err,
                               const char *fmt, ...)
{
    char name[CALLER_OPTION], what[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return plim_fail(err, PLIM_BAD_INPUT, "%s: %s", caller_option(caller, option, name), what);
}

enum plim_status caller_check(const struct caller *caller, const char *device, bool planned,
                              const char *weights, int threads, struct plim_error *err)
{
    struct device_name unused;
    if (device && !device_name_read(device, &unused) && !(planned && serve_plan_absent(device)))
        return caller_refuse(caller, "device", err, "'%s' is no device; write " DEVICE_NAMES, device);
    if (weights && weights_kind_parse(weights) == WEIGHTS_KINDS)
        return caller_refuse(caller, "weights", err, "'%s'; write " WEIGHTS_KIND_CHOICE, weights);
    if (threads < 0 || threads > 1024)
        return caller_refuse(caller, "threads", err, "%d; write 0 for one per core, or up to 1024", threads);
    return PLIM_OK;
}
