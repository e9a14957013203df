/* pjrt_settings.h - how plug-ins are found, and the settings they read from the environment, from options and from flags. */
#pragma once

#include "base/context.h"
#include "base/status.h"
#include "base/strbuf.h"

/* The path of a plug-in: `name` is one ("/opt/.../plugin.so"), or cpu, neuron or tpu, which are looked for. PLIM_UNSUPPORTED: it is
 * not there, and err says where it was looked for. */
enum plim_status pjrt_find(const struct context *context, const char *name, struct strbuf *path,
                           struct plim_error *err);

/* Sets the variables that a plug-in reads when it is loaded. PLIM_UNSUPPORTED: one must be set, and this process may not
 * (context.process is NULL). */
enum plim_status pjrt_set_environment(const struct context *context, const char *path,
                                      struct plim_error *err);

/* A serialised CompileOptionsProto: one replica, one partition, any device. An empty one would abort the process. */
extern const char pjrt_compile_options[];
enum { PJRT_COMPILE_OPTIONS = 17 };
