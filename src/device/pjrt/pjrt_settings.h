/* pjrt_settings.h - settings of plug-ins: variables that they read when they are loaded, options of a client, and of the compiler. */
#pragma once

#include "base/context.h"
#include "base/status.h"
#include "device/pjrt/pjrt_abi.h"

/* Sets the variables that a plug-in reads when it is loaded. A variable that is set already stays, and flags are only added.
 * *index is the device's number; a plug-in that is told to show this device alone shows it as number 0. PLIM_UNSUPPORTED: a
 * variable must be set, and this process may not (context.process is NULL). */
enum plim_status pjrt_set_environment(const struct context *context, const char *path, int *index,
                                      struct plim_error *err);

/* Options for a plug-in's client. Plug-ins refuse those they do not know, so the caller drops what is refused. A plug-in that limits
 * itself to a share of a card's memory is given the budget's share of device `index`; budget 0: nearly all of it. */
enum { PJRT_OPTIONS = 4 };
int pjrt_client_options(const char *path, int index, uint64_t budget, struct pjrt_value out[PJRT_OPTIONS]);

/* A serialised CompileOptionsProto: one replica, one partition, any device. An empty one would abort the process. */
extern const char pjrt_compile_options[];
enum { PJRT_COMPILE_OPTIONS = 17 };
