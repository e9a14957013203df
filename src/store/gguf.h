/* gguf.h - one file with everything of a model: metadata, tokenizer, weights in blocks.
 *
 *     struct gguf *file;
 *     if (gguf_open("model.gguf", &file, &err) != PLIM_OK) ...
 *     int64_t layers = node_int(node_get(gguf_metadata(file), "llama.block_count"), 0);
 *     const struct gguf_tensor *t = gguf_find(file, "blk.0.attn_q.weight");
 *     if (t) gguf_read(file, t, DT_BF16, sink, arg, &err);
 *     gguf_close(file);
 *
 * Versions 2 and 3, little-endian. Files are strangers: counts, texts, types, shapes and offsets are checked when the file
 * is opened, and every lie is one line naming file and tensor. What metadata may take has a limit (GGUF_METADATA_MOST);
 * data are read with pread in pieces and never mapped, as those of safetensors are.
 */
#pragma once

#include "base/node.h"
#include "base/status.h"
#include "tensor/blocks.h"
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stdint.h>

#define GGUF_MAX_DIM       4
#define GGUF_MAX_TENSORS   (1 << 20)
#define GGUF_METADATA_MOST ((uint64_t)256 << 20) /* bytes of the tree made of a file's metadata */

struct gguf_tensor {
    const char *name;
    const struct block_type *type;
    int ndim;
    /* The last dimension varies fastest, as everywhere here; files have the opposite order. */
    int64_t dim[GGUF_MAX_DIM];
    int64_t count;   /* elements */
    uint64_t offset; /* of its first byte in the file */
    uint64_t bytes;
};

struct gguf;

/* Is it a file that begins as a GGUF file does? */
bool gguf_is(const char *path);

enum plim_status gguf_open(const char *path, struct gguf **out, struct plim_error *err);
void gguf_close(struct gguf *file);

const char *gguf_path(const struct gguf *file);

/* A map: keys as in the file ("general.architecture"), arrays as lists. */
const struct node *gguf_metadata(const struct gguf *file);
/* Its memory back, a tokenizer's lists among it, for one who goes on with the tensors alone. */
void gguf_drop_metadata(struct gguf *file);

/* Tensors sorted by name; NULL after the last. */
const struct gguf_tensor *gguf_at(const struct gguf *file, size_t i);
const struct gguf_tensor *gguf_find(const struct gguf *file, const char *name);

/* Gets elements [first, first + n) of the tensor that is read, in the type asked for; the pointer is good for the call
 * only. Anything but PLIM_OK ends the reading and is returned. */
typedef enum plim_status gguf_sink(void *arg, int64_t first, const void *elements, int64_t n,
                                   struct plim_error *err);

/* Pieces arrive in order, each a whole number of blocks. A floating type; PLIM_UNSUPPORTED names a block type that we do
 * not read and those that we do. */
enum plim_status gguf_read(const struct gguf *file, const struct gguf_tensor *t, enum dtype type,
                           gguf_sink *sink, void *arg, struct plim_error *err);

/* The bytes of elements [first, first + n), both whole blocks, as the file has them. */
enum plim_status gguf_read_blocks(const struct gguf *file, const struct gguf_tensor *t, int64_t first,
                                  int64_t n, void *out, struct plim_error *err);

/* Elements [first, first + n), both whole blocks, as f32. PLIM_UNSUPPORTED as above. */
enum plim_status gguf_read_at(const struct gguf *file, const struct gguf_tensor *t, int64_t first, int64_t n,
                              float *out, struct plim_error *err);
