/* plimsoll/context.h - what the host program lets the library know and do.
 *
 *     struct plim_context_options options = {.size = sizeof options, .environment = environ, .log = my_sink};
 *     struct plim_context *context;
 *     plim_context_open(&options, &context, &err);
 *     ...
 *     plim_context_close(context);
 *
 * The library has no global state. It never prints, exits, forks, handles signals, or changes environment, locale or
 * rounding mode. It reads no environment variable except those in `environment`. Several contexts may be open at once.
 *
 * Handles. Every object of the library is an opaque handle that its _open function makes and its _close function ends.
 * Close objects before their context. A handle may be used by one thread at a time unless its header says otherwise. A
 * wrong or closed handle is PLIM_BAD_INPUT with a line that names it; a closed handle is recognised for certain only in
 * builds with PLIMSOLL_HANDLES=ON (the debug build), which never reuse a handle's memory.
 *
 * Options. Every options struct begins with its size, so that programs compiled with an older header keep working. Set
 * it to sizeof and the rest to zero; zero is always the default.
 */
#ifndef PLIMSOLL_CONTEXT_H
#define PLIMSOLL_CONTEXT_H

#include <plimsoll/status.h>

#ifdef __cplusplus
extern "C" {
#endif

struct plim_context;

enum plim_log_level { PLIM_LOG_DEBUG = 0, PLIM_LOG_INFO = 1, PLIM_LOG_WARN = 2, PLIM_LOG_ERROR = 3 };

struct plim_context_options {
    size_t size;
    /* "NAME=value" strings, NULL after the last, borrowed until plim_context_close; NULL: no variable is set. */
    char *const *environment;
    /* Called with one line without newline, from any of the library's threads; NULL: silent. */
    void (*log)(void *arg, enum plim_log_level level, const char *line);
    void *log_arg;
    enum plim_log_level log_level; /* the least that is logged */
    /* Memory of the host program that budgets must also cover, in bytes. 0: budgets count only what the library takes. */
    uint64_t overhead_bytes;
    /* Folder for measurements and plans that later runs reuse; NULL: nothing is kept. */
    const char *cache_dir;
    /* Folder with the modules for MPI; NULL: none are loaded. */
    const char *modules_dir;
};

/* options may be NULL. */
PLIM_API enum plim_status plim_context_open(const struct plim_context_options *options,
                                            struct plim_context **out, struct plim_error *err);
/* NULL is ignored, here and in every other _close function. */
PLIM_API void plim_context_close(struct plim_context *context);

#ifdef __cplusplus
}
#endif
#endif
