/* pjrt_plugin.h - a PJRT plug-in: a shared library that compiles and runs programs for some device.
 *
 *     struct pjrt_plugin plugin;
 *     pjrt_load(context, "/opt/aws/neuron/lib/libneuronpjrt.so", &index, &plugin, &err);
 *     union pjrt_args args = {.devices = {.client = client}};
 *     pjrt_do(&plugin, PJRT_CLIENT_DEVICES, &args, &err);
 *
 * pjrt_do is the only way to call a plug-in. It fills in the size of the arguments, and if the plug-in expects another one, takes
 * that. It turns errors into statuses and destroys them: RESOURCE_EXHAUSTED is PLIM_NO_MEMORY, UNIMPLEMENTED and a function that is
 * not in the plug-in's list are PLIM_UNSUPPORTED, anything else is PLIM_IO. UNAVAILABLE means that the device is lost.
 *
 * A plug-in stays loaded until the process ends: its threads outlive its clients.
 */
#pragma once

#include "base/context.h"
#include "base/status.h"
#include "device/pjrt/pjrt_abi.h"

struct pjrt_plugin {
    const struct pjrt_api *api;
    char path[1024];
    size_t sizes[PJRT_FUNCTIONS]; /* that the plug-in asked for; 0: our own */
    int code;                     /* PJRT's code of the last error */
    bool lost;                    /* an error was UNAVAILABLE: the device is gone */
};

/* PLIM_BAD_INPUT: there is no such file, or it is no plug-in; PLIM_UNSUPPORTED: its version, or a function that is missing. Sets
 * the variables that plug-ins read once (pjrt_settings.h, also for *index) before it loads the library. */
enum plim_status pjrt_load(const struct context *context, const char *path, int *index,
                           struct pjrt_plugin *out, struct plim_error *err);

enum plim_status pjrt_do(struct pjrt_plugin *plugin, enum pjrt_function function, union pjrt_args *args,
                         struct plim_error *err);

/* Whether the plug-in has a function at all. */
bool pjrt_has(const struct pjrt_plugin *plugin, enum pjrt_function function);

/* Destroys a handle; NULL is allowed. */
void pjrt_destroy(struct pjrt_plugin *plugin, enum pjrt_function function, void *handle);
/* Waits for an event and destroys it; NULL: it has happened. */
enum plim_status pjrt_await(struct pjrt_plugin *plugin, struct pjrt_event *event, struct plim_error *err);

/* An attribute's first number, or `otherwise`. */
int64_t pjrt_attribute(struct pjrt_plugin *plugin, const char *name, int64_t otherwise);
