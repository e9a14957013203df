/* weights_files.c - see weights_files.h. */
#include "model/weights_files.h"
#include "model/gguf_weights.h"

#include <stdlib.h>
#include <string.h>

enum plim_status weights_files_open(const char *path, struct weights_files *out, struct plim_error *err)
{
    *out = (struct weights_files){.path = path};
    enum plim_status status;
    if (gguf_is(path)) {
        status = gguf_weights_open(path, &out->gguf, err);
        if (status == PLIM_OK) out->tensors = gguf_weights_list(out->gguf, &out->count);
        return status;
    }
    status = safetensors_open(path, &out->set, err);
    if (status == PLIM_OK) out->tensors = out->set.tensors, out->count = out->set.count;
    return status;
}

void weights_files_close(struct weights_files *files)
{
    if (files->gguf)
        gguf_weights_close(files->gguf);
    else if (files->tensors)
        safetensors_close(&files->set);
    *files = (struct weights_files){0};
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct safetensor *)a)->name, ((const struct safetensor *)b)->name);
}

const struct safetensor *weights_files_find(const struct weights_files *files, const char *name)
{
    struct safetensor key = {.name = name};
    return files->count ? bsearch(&key, files->tensors, files->count, sizeof key, by_name) : NULL;
}

enum plim_status weights_files_read(const struct weights_files *files, const struct safetensor *t,
                                    enum dtype type, safetensors_sink *sink, void *arg,
                                    struct plim_error *err)
{
    if (files->gguf) return gguf_weights_read(files->gguf, t, type, sink, arg, err);
    return safetensors_read(&files->set, t, type, sink, arg, err);
}

/* Columns of a tensor with Hugging Face's shape are rows of a GGUF file. */
enum plim_status weights_files_read_lines(const struct weights_files *files, const struct safetensor *t,
                                          const struct weights_lines *lines, void *out, bool *turned,
                                          struct plim_error *err)
{
    int64_t width = t->dim[t->ndim - 1];
    struct safetensors_rows which = {.row = lines->first, .rows = lines->n, .n = width};
    if (lines->columns) which = (struct safetensors_rows){0, t->count / width, lines->first, lines->n};
    *turned = lines->columns && !files->gguf;
    if (files->gguf) return gguf_weights_read_rows(files->gguf, t, lines->first, lines->n, out, err);
    return safetensors_read_rows(t, &which, out, err);
}
