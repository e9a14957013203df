/* serve_scratch.c - see serve_scratch.h. */
#include "cli/serve_scratch.h"
#include "base/file.h"
#include "cli/cli.h"
#include "runtime/load.h"

#include <linux/magic.h>
#include <stdio.h>
#include <sys/statfs.h>
#include <unistd.h>

static bool is_on_disk(const char *folder)
{
    struct statfs fs;
    if (statfs(folder, &fs) != 0) return false;
    return fs.f_type != TMPFS_MAGIC && (unsigned long)fs.f_type != RAMFS_MAGIC;
}

static bool will_do(const char *folder, int64_t bytes)
{
    int64_t room = file_free_bytes(folder);
    return access(folder, W_OK | X_OK) == 0 && is_on_disk(folder) && (room < 0 || room >= bytes);
}

const char *serve_scratch_find(const char *dir, const struct model_spec *spec, char *out, size_t size)
{
    STRBUF_AUTO cache = STRBUF_INIT;
    enum precision precision = PRECISION_F32;
    weights_precision(dir, &precision, NULL);
    int64_t bytes = model_param_count(spec) * (int64_t)dtype_size(precision_type(precision));
    bool good = context_cache(cli_context(), &cache) &&
                file_make_dirs(strbuf_text(&cache), NULL) == PLIM_OK && cache.len < size &&
                will_do(strbuf_text(&cache), bytes);
    snprintf(out, size, "%s", good ? strbuf_text(&cache) : "/var/tmp");
    return good || will_do(out, bytes) ? out : NULL;
}
