/* pjrt_find.h - where plug-ins are. */
#pragma once

#include "base/context.h"
#include "base/status.h"

/* Names of plug-ins, by number from 0; NULL after the last. */
const char *pjrt_known(int number);

/* The path of a plug-in. `name` is one ("/opt/.../plugin.so"), or cpu, cuda, neuron or tpu, or empty: the one that
 * PJRT_PLUGIN_LIBRARY_PATH names. A plug-in with a name is looked for in this order: the file or folder that
 * PJRT_PLUGIN_LIBRARY_PATH names, the program's folder and its ../lib/plimsoll, the Python environment (VIRTUAL_ENV), the folders of
 * packages, the system's Python. PLIM_UNSUPPORTED: it is not there, and err says where to get it. */
enum plim_status pjrt_find(const struct context *context, const char *name, struct strbuf *path,
                           struct plim_error *err);
