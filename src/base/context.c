/* context.c - see context.h. */
#include "base/context.h"

#include <string.h>

const char *context_get(const struct context *context, const char *name)
{
    size_t n = strlen(name);
    for (char *const *pair = context ? context->environment : NULL; pair && *pair; pair++)
        if (!strncmp(*pair, name, n) && (*pair)[n] == '=') return *pair + n + 1;
    return NULL;
}

const struct log *context_log(const struct context *context) { return context ? context->log : NULL; }

bool context_cache(const struct context *context, struct strbuf *folder)
{
    if (context && context->cache) strbuf_add(folder, context->cache);
    if (!context || context->cache) return folder->len > 0;
    const char *base = context_get(context, "XDG_CACHE_HOME"), *home = context_get(context, "HOME");
    if (base && base[0] == '/')
        strbuf_addf(folder, "%s/plimsoll", base);
    else if (home && home[0])
        strbuf_addf(folder, "%s/.cache/plimsoll", home);
    return folder->len > 0;
}
