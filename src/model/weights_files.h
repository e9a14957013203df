/* weights_files.h - the tensors of a model under their Hugging Face names, from any kind of file.
 *
 *     struct weights_files files;
 *     if (weights_files_open("model.gguf", &files, &err) != PLIM_OK) ...      // or a folder, or one .safetensors
 *     const struct safetensor *t = weights_files_find(&files, "model.norm.weight");
 *     if (t) weights_files_read(&files, t, DT_BF16, sink, arg, &err);
 *     weights_files_close(&files);
 *
 * Tensors of a GGUF file (gguf_weights.h) have the shape and element order of Hugging Face files. Their type is the file's,
 * or fp32 if the elements are in blocks. A pre-quantised folder (quantised_folder.h) has the original model's tensors.
 */
#pragma once

#include "store/safetensors.h"
#include <stdbool.h>

struct gguf_weights;
struct quantised_folder;

struct weights_files {
    const char *path;                 /* as passed to weights_files_open; borrowed */
    const struct safetensor *tensors; /* sorted by name */
    size_t count;
    struct safetensors set; /* used if gguf is NULL */
    struct gguf_weights *gguf;
    struct quantised_folder *quantised; /* NULL: the set's tensors are the model's */
};

/* On failure there is nothing to close. */
enum plim_status weights_files_open(const char *path, struct weights_files *out, struct plim_error *err);
void weights_files_close(struct weights_files *files);

/* True if the tensor is stored as quantised blocks. */
static inline bool weights_in_blocks(const struct safetensor *t)
{
    return t->type != DT_COUNT && t->bytes < (uint64_t)t->count * dtype_size(t->type);
}

/* Bytes that a quantised tensor takes in the files, and in *method the way in which it is: "awq", or a block type's name. 0: it
 * is not quantised. */
uint64_t weights_files_stored(const struct weights_files *files, const struct safetensor *t,
                              const char **method);

/* True if the tensor's rows are e4m3 numbers with one scale each (quantised_folder_f8_rows). */
bool weights_files_are_f8(const struct weights_files *files, const struct safetensor *t);

const struct safetensor *weights_files_find(const struct weights_files *files, const char *name);

/* Like safetensors_read: pieces arrive in order. */
enum plim_status weights_files_read(const struct weights_files *files, const struct safetensor *t,
                                    enum dtype type, safetensors_sink *sink, void *arg,
                                    struct plim_error *err);

/* Reads lines [first, first + n) of a matrix as the file has them, elements or blocks. A line is a row (a
 * tensor with more than two dimensions counts all its rows) or, with `columns`, a column. If *turned is set,
 * the lines are interleaved: the first elements of all n lines, then the second ones, and so on. */
struct weights_lines {
    bool columns;
    int64_t first, n;
};
enum plim_status weights_files_read_lines(const struct weights_files *files, const struct safetensor *t,
                                          const struct weights_lines *lines, void *out, bool *turned,
                                          struct plim_error *err);
