/* caller.h - who opens a model, so that errors name its options as the caller wrote them.
 *
 *     struct caller caller = {cli_context(), "embed", false};
 *     caller_option(&caller, "max-length", name)        // "embed: option '--max-length'"
 *     struct caller program = {context, "plim_embedder_open", true};
 *     caller_option(&program, "max-length", name)       // "plim_embedder_open: options.max_length"
 */
#pragma once

#include "base/context.h"
#include "base/status.h"

struct caller {
    const struct context *context;
    const char *name; /* a command or a public function */
    bool library;     /* options are members of a struct, not flags */
};

enum { CALLER_OPTION = 96 };
const char *caller_option(const struct caller *caller, const char *option, char out[CALLER_OPTION]);

/* PLIM_BAD_INPUT: "<the option>: <what>". */
enum plim_status caller_refuse(const struct caller *caller, const char *option, struct plim_error *err,
                               const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Checks options that every public function for a model has. NULL stands for "auto" and "as-is". `planned`: the device may
 * be a preset. */
enum plim_status caller_check(const struct caller *caller, const char *device, bool planned,
                              const char *weights, int threads, struct plim_error *err);
