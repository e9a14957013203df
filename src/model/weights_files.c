/* weights_files.c - see weights_files.h. */
#include "model/weights_files.h"
#include "model/gguf_weights.h"
#include "model/quantised_folder.h"

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
    if (status != PLIM_OK) return status;
    out->tensors = out->set.tensors, out->count = out->set.count;
    status = quantised_folder_open(path, &out->set, &out->quantised, err);
    if (out->quantised) out->tensors = quantised_folder_list(out->quantised, &out->count);
    if (status != PLIM_OK) safetensors_close(&out->set);
    return status;
}

void weights_files_close(struct weights_files *files)
{
    quantised_folder_close(files->quantised);
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
    if (files->quantised) return quantised_folder_read(files->quantised, t, type, sink, arg, err);
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
    uint64_t stored;
    if (files->gguf) return gguf_weights_read_rows(files->gguf, t, lines->first, lines->n, out, err);
    if (files->quantised && quantised_folder_has(files->quantised, t, &stored)) {
        *turned = false;
        if (!lines->columns)
            return quantised_folder_rows(files->quantised, t, lines->first, lines->n, out, err);
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "%s: tensor '%.160s' is quantised by rows, and this model has it by columns; use the original "
            "checkpoint",
            t->path, t->name);
    }
    return safetensors_read_rows(t, &which, out, err);
}

bool weights_files_are_f8(const struct weights_files *files, const struct safetensor *t)
{
    return files->quantised && quantised_folder_is_f8(files->quantised, t);
}

uint64_t weights_files_stored(const struct weights_files *files, const struct safetensor *t,
                              const char **method)
{
    uint64_t stored = 0;
    *method = t->type_name;
    if (weights_in_blocks(t)) stored = t->bytes;
    if (files->quantised && quantised_folder_has(files->quantised, t, &stored))
        *method = quantised_folder_method(files->quantised);
    return stored;
}
