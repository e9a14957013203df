/* context.c - see plimsoll/context.h and plimsoll/status.h. */
#include "api/handle.h"
#include "base/bytes.h"
#include <plimsoll/context.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static_assert((int)PLIM_LOG_ERROR == LOG_LEVEL_ERROR && (int)PLIM_LOG_DEBUG == LOG_LEVEL_DEBUG,
              "levels of the public log are those of base/log.h");

static enum plim_status keep(const char *text, char **out, struct plim_error *err)
{
    if (!text) return PLIM_OK;
    *out = strdup(text);
    return *out ? PLIM_OK : plim_fail(err, PLIM_NO_MEMORY, "out of memory for a context");
}

/* Passes a line on: the public sink's level is an enum of its own. */
struct sink {
    void (*log)(void *arg, enum plim_log_level level, const char *line);
    void *arg;
};

struct open_context {
    struct plim_context base;
    struct sink sink;
};

static void pass_on(void *arg, enum log_level level, const char *line)
{
    const struct sink *sink = arg;
    sink->log(sink->arg, (enum plim_log_level)level, line);
}

enum plim_status plim_context_open(const struct plim_context_options *options, struct plim_context **out,
                                   struct plim_error *err)
{
    struct plim_context_options o;
    if (!out) return plim_fail(err, PLIM_BAD_INPUT, "plim_context_open: out is NULL");
    *out = NULL;
    enum plim_status status = options_take(&o, sizeof o, options, "plim_context_open", err);
    if (status != PLIM_OK) return status;
    struct open_context *c = handle_new(sizeof *c, HANDLE_CONTEXT, NULL, err);
    if (!c) return PLIM_NO_MEMORY;
    c->sink = (struct sink){o.log, o.log_arg};
    c->base.log = (struct log){(enum log_level)o.log_level, pass_on, &c->sink};
    c->base.context = (struct context){.environment = o.environment,
                                       .log = o.log ? &c->base.log : NULL,
                                       .overhead = (int64_t)o.overhead_bytes};
    status = keep(o.cache_dir ? o.cache_dir : "", &c->base.cache, err);
    if (status == PLIM_OK) status = keep(o.modules_dir, &c->base.modules, err);
    c->base.context.cache = c->base.cache, c->base.context.modules = c->base.modules;
    if (status != PLIM_OK) return plim_context_close(&c->base), status;
    *out = &c->base;
    return PLIM_OK;
}

void plim_context_close(struct plim_context *context)
{
    if (!handle_is(context, HANDLE_CONTEXT, "plim_context_close", NULL)) return;
    free(context->cache), free(context->modules);
    handle_free(context);
}

const char *plim_status_name(enum plim_status status)
{
    static const char *const names[] = {
        [PLIM_OK] = "ok",
        [PLIM_BAD_INPUT] = "bad input",
        [PLIM_NO_FIT] = "does not fit",
        [PLIM_NO_MEMORY] = "out of memory",
        [PLIM_IO] = "input or output failed",
        [PLIM_LINK] = "connection lost",
        [PLIM_NOT_FOUND] = "not found",
        [PLIM_UNSUPPORTED] = "unsupported",
        [PLIM_INTERRUPTED] = "interrupted",
        [PLIM_BUSY] = "busy",
        [PLIM_BUG] = "internal error",
    };
    return (unsigned)status < sizeof names / sizeof *names ? names[status] : "unknown";
}

const char *plim_version(void) { return PLIMSOLL_VERSION; }

_Static_assert(PLIM_VERSION == PLIMSOLL_VERSION_NUMBER,
               "PLIM_VERSION in plimsoll/status.h is not the version in CMakeLists.txt");
int plim_version_number(void) { return PLIM_VERSION; }

void plim_free(void *text) { free(text); }

enum plim_status plim_bytes_parse(const char *text, uint64_t *bytes, struct plim_error *err)
{
    if (!text || !bytes) return plim_fail(err, PLIM_BAD_INPUT, "plim_bytes_parse: NULL");
    return bytes_parse(text, bytes, err);
}
