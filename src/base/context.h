/* context.h - the environment that the host program gives this code.
 *
 *     struct context context = {.environment = environ, .modules = "/usr/bin", .process = &ours};
 *     backend->open(&context, 0, threads, &device, &err);
 *     context_get(device->context, "PLIMSOLL_GPU");
 *
 * Code below cli does not read or change the process's environment, fork, or exit. The caller's context supplies the
 * variables and does these things on request. A program that links this code passes its own context, or NULL: then no
 * variable is set, nothing is measured, and nothing is cached between runs.
 */
#pragma once

#include "base/log.h"
#include "base/strbuf.h"
#include <stddef.h>
#include <stdint.h>

/* Things that only the owner of the process may do. */
struct context_process {
    /* Runs work(arg, result) in a separate process, whose memory does not count here. Returns false if that
     * fails. */
    bool (*apart)(bool (*work)(void *arg, void *result), void *arg, void *result, size_t bytes);
    /* context.environment must have the variable afterwards: the list may move. */
    void (*set_variable)(const char *name, const char *value);
    void (*end)(int code);
};

struct context {
    char *const *environment; /* "NAME=value", NULL after the last; NULL: no variable is set */
    /* Folder of the program; modules for MPI libraries are looked up near it. NULL: there are none. */
    const char *modules;
    const struct context_process *process; /* NULL: the process belongs to somebody else */
    const struct log *log;                 /* for notes to people; NULL: silent */
    /* Folder for files that are reused by later runs. NULL: as the environment says; empty: none. */
    const char *cache;
    /* If the process is not ours: its memory that budgets must cover, in bytes. Ours is measured. */
    int64_t overhead;
};

/* The value of a variable; NULL: it is not set. */
const char *context_get(const struct context *context, const char *name);

/* Where to log; NULL: nowhere. */
const struct log *context_log(const struct context *context);

/* Folder for files that are reused by later runs: context.cache, else $XDG_CACHE_HOME/plimsoll or ~/.cache/plimsoll. Returns
 * false if there is none. */
bool context_cache(const struct context *context, struct strbuf *folder);
