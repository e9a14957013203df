/* safetensors.h - weights in files: one file, a folder with shards and an index, or a folder of pieces.
 *
 *     struct safetensors set;
 *     if (safetensors_open("checkpoint/", &set, &err) != PLIM_OK) ...
 *     const struct safetensor *t = safetensors_find(&set, "model.norm.weight");
 *     if (t && safetensors_read(&set, t, DT_BF16, put, &place, &err) != PLIM_OK) ...
 *     safetensors_close(&set);
 *
 * Files are strangers: header length, JSON, names, types, shapes and offsets are all checked when the set is
 * opened, and every lie is PLIM_BAD_INPUT with one line naming file and tensor. Data are read with pread in
 * pieces through a buffer of at most SAFETENSORS_BUFFER bytes and never mapped: mapped pages would count in
 * the process's resident memory, which is the thing being budgeted.
 *
 * A folder of pieces is what several ranks write at once: piece-00001-of-0000N.safetensors has a run of elements of each tensor,
 * that of the next file goes on where it ends, and model.pieces.json has the names of the files and the shapes of the tensors.
 * Whoever reads a set does not see the difference.
 */
#pragma once

#include "base/bump.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/status.h"
#include "tensor/dtype.h"
#include <stddef.h>
#include <stdint.h>

#define SAFETENSORS_MAX_DIM    8
#define SAFETENSORS_BUFFER     (1 << 20)
#define SAFETENSORS_MAX_HEADER 100000000u
#define SAFETENSORS_SHARD      UINT64_C(5000000000) /* usual size of a shard, bytes */
#define SAFETENSORS_PIECES     "model.pieces.json"

/* Elements [first, first + count) of a tensor, which begin at `offset` of a file. */
struct safetensor_piece {
    const char *path;
    uint64_t offset;
    int64_t first, count;
};

struct safetensor {
    const char *name;
    const char *type_name; /* as in the file: "BF16" */
    enum dtype type;       /* DT_COUNT: a type of the format that we cannot read */
    int ndim;              /* 0: a scalar */
    int64_t dim[SAFETENSORS_MAX_DIM];
    int64_t count;   /* elements */
    uint64_t offset; /* of its first byte in its file */
    uint64_t bytes;
    const char *path;                      /* the file that holds it, or its first piece */
    const struct safetensor_piece *pieces; /* NULL: it lies in one place */
    int npieces;
};

/* Owns everything it points to; tensors are sorted by name. */
struct safetensors {
    struct safetensor *tensors;
    size_t count, cap;
    struct bump store;
};

/* `path` is a file, or a folder with model.safetensors, model.safetensors.index.json or model.pieces.json. On failure there
 * is nothing to close. */
enum plim_status safetensors_open(const char *path, struct safetensors *set, struct plim_error *err);
void safetensors_close(struct safetensors *set);

const struct safetensor *safetensors_find(const struct safetensors *set, const char *name);

/* Gets elements [first, first + n) of the tensor being read, in the type asked for. The pointer is good for
 * the call only. Anything but PLIM_OK ends the reading and is returned. */
typedef enum plim_status safetensors_sink(void *arg, int64_t first, const void *elements, int64_t n,
                                          struct plim_error *err);

/* Pieces arrive in order. A conversion is made only between floating types; asking for any other type than
 * the file's is PLIM_UNSUPPORTED. */
enum plim_status safetensors_read(const struct safetensors *set, const struct safetensor *t, enum dtype type,
                                  safetensors_sink *sink, void *arg, struct plim_error *err);

/* Reads only elements [first, first + count); the sink gets their indexes within the tensor. */
enum plim_status safetensors_read_part(const struct safetensors *set, const struct safetensor *t,
                                       enum dtype type, int64_t first, int64_t count, safetensors_sink *sink,
                                       void *arg, struct plim_error *err);

/* Where an element of a tensor lies, and those behind it. */
struct safetensor_piece safetensor_piece_at(const struct safetensor *t, int64_t element);

/* Reads all elements into memory for t->count of them. */
enum plim_status safetensors_read_all(const struct safetensors *set, const struct safetensor *t,
                                      enum dtype type, void *out, struct plim_error *err);

/* Elements [column, column + n) of each of `rows` rows from `row` on, as the file has them, one row after the other; a row is
 * the last dimension, whatever is before it. */
struct safetensors_rows {
    int64_t row, rows, column, n;
};
enum plim_status safetensors_read_rows(const struct safetensor *t, const struct safetensors_rows *which,
                                       void *out, struct plim_error *err);

/* Elements [first, first + n) as the file has them, of any type with whole bytes. The tensor may not lie in pieces. */
enum plim_status safetensors_read_raw(const struct safetensor *t, int64_t first, int64_t n, void *out,
                                      struct plim_error *err);

/* "[2,3]" */
const char *safetensors_shape_text(int ndim, const int64_t *dim, char *buf, size_t size);

/* --- writing ----------------------------------------------------------------------------------------------
 *
 *     struct safetensors_entry entries[] = {{"a", DT_F32, 2, {4, 8}}, ...};
 *     struct safetensors_writer w;
 *     safetensors_writer_begin(&w, "out/", entries, n, SAFETENSORS_SHARD, &err);
 *     safetensors_writer_put(&w, bytes, size, &err);     // all data of all entries, in order, in any pieces
 *     safetensors_writer_end(&w, &err);                  // or safetensors_writer_abandon(&w)
 *
 * The folder gets model.safetensors, or model-00001-of-000NN.safetensors with an index when the data are
 * larger than one shard may be (a single tensor may exceed it). All files keep temporary names until the end,
 * so an older set in the folder stays whole until the new one is complete and on disk; its index goes before
 * the first new shard takes its name, so that a crash in between can leave an unreadable set but never a
 * mixed one.
 */
struct safetensors_entry {
    const char *name;
    enum dtype type;
    int ndim;
    int64_t dim[SAFETENSORS_MAX_DIM];
};

struct safetensors_writer {
    const struct safetensors_entry *entries; /* the caller's, until the end */
    size_t count;
    const char *dir; /* the caller's, until the end */
    char name[64];   /* of the only file; empty: as above */
    size_t *last;    /* by shard: one past its last entry */
    size_t shards, shard;
    struct file_atomic *files; /* by shard */
    uint64_t at, end;          /* offsets in the open file; the shard is complete at end */
    uint64_t total;            /* data bytes of all entries */
    struct checksum sum;       /* of the file that is being written, header included */
};

/* The folder must exist. After a failed begin there is nothing to clean up. */
enum plim_status safetensors_writer_begin(struct safetensors_writer *w, const char *dir,
                                          const struct safetensors_entry *entries, size_t count,
                                          uint64_t shard_bytes, struct plim_error *err);
/* Likewise for one file of another name. */
enum plim_status safetensors_file_begin(struct safetensors_writer *w, const char *dir, const char *name,
                                        const struct safetensors_entry *entries, size_t count,
                                        struct plim_error *err);
/* One file of pieces, number `file` of `files`, from 0; an entry has this file's elements of its tensor. Other files of the folder
 * are left alone. */
enum plim_status safetensors_piece_begin(struct safetensors_writer *w, const char *dir, int file, int files,
                                         const struct safetensors_entry *entries, size_t count,
                                         struct plim_error *err);
void safetensors_piece_name(int file, int files, char name[64]);
/* model.pieces.json; entries are the whole tensors. */
enum plim_status safetensors_write_pieces_index(const char *dir, int files,
                                                const struct safetensors_entry *entries, size_t count,
                                                struct plim_error *err);
enum plim_status safetensors_writer_put(struct safetensors_writer *w, const void *bytes, size_t n,
                                        struct plim_error *err);
/* Too little or too much data is PLIM_BUG. Releases the writer whatever it returns. */
enum plim_status safetensors_writer_end(struct safetensors_writer *w, struct plim_error *err);
void safetensors_writer_abandon(struct safetensors_writer *w);
