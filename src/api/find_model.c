/* find_model.c - see find_model.h. */
#include "api/find_model.h"
#include "base/file.h"
#include "store/gguf.h"
#include "text/codec.h"
#include "train/best_model.h"
#include "train/checkpoint.h"
#include "train/manifest.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static bool holds(const char *dir, const char *file)
{
    char path[MODEL_PATH + 32];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    return file_exists(path);
}

static enum plim_status from_config(const char *config, char *path, size_t size, struct plim_error *err)
{
    struct job job;
    job_init(&job);
    enum plim_status status = job_load(&job, config, NULL, err);
    if (status == PLIM_OK && !best_model_or_newest(job.output_dir, path, size))
        status = plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key 'output.dir': there is no checkpoint in %s; train first, or point at a model folder",
            config, job.output_dir);
    job_release(&job);
    return status;
}

enum plim_status check_weights(const struct context *context, const char *path, struct plim_error *err)
{
    bool checked;
    enum plim_status status = checkpoint_check(path, MANIFEST_WEIGHTS, &checked, err);
    if (status == PLIM_OK && !checked)
        log_warn(context_log(context),
                 "%s: saved by an earlier version without checksums and read unchecked; train --resume "
                 "--change manifest saves one with checksums",
                 path);
    return status;
}

static enum plim_status find(const char *what, char *path, size_t size, struct plim_error *err)
{
    struct stat st;
    if (stat(what, &st))
        return plim_fail(err, PLIM_BAD_INPUT, "%s: %s; point at a model folder", what, strerror(errno));
    if (!S_ISDIR(st.st_mode) && !gguf_is(what)) return from_config(what, path, size, err);
    if ((size_t)snprintf(path, size, "%s", what) >= size)
        return plim_fail(err, PLIM_BAD_INPUT, "%.100s...: the path is too long", what);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--) path[n - 1] = '\0';
    if (gguf_is(path) || holds(path, "config.json") || best_model_or_newest(what, path, size)) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: neither config.json nor a checkpoint is there; point at a Hugging Face folder, a "
                     "checkpoint or a run folder",
                     what);
}

enum plim_status find_model(const struct context *context, const char *what, char *path, size_t size,
                            struct plim_error *err)
{
    enum plim_status status = find(what, path, size, err);
    return status == PLIM_OK ? check_weights(context, path, err) : status;
}

const char *find_tokenizer(const char *asked, const char *model, char *path, size_t size)
{
    if (asked) return asked;
    return codec_find(model, path, size) ? path : NULL;
}

void model_name(const char *what, char *name, size_t size)
{
    size_t len = strlen(what);
    while (len > 1 && what[len - 1] == '/') len--;
    size_t from = len;
    while (from && what[from - 1] != '/') from--;
    snprintf(name, size, "%.*s", (int)(len - from), what + from);
}
