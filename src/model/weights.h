/* weights.h - a tape's parameters from Hugging Face or GGUF files and back.
 *
 *     struct weights_files files;
 *     weights_files_open(path, &files, &err);
 *     weights_load(&files, &spec, &tape, &(struct weights_sink){put, &arena}, log, &err);
 *     ...
 *     weights_save(&tape, &spec, &(struct weights_source){get, &arena}, "out/", &options, &err);
 *
 * Parameters are matched by name before a byte is read. Names may lack the prefix ("model.", "transformer.", "bert.");
 * a tied output projection may be in the file or not. Where a parameter has a master (CLASS_MASTER owned by
 * it) both are written, so that an fp32 checkpoint starts training with all its bits.
 *
 * Parameters that quantise.h has put in blocks are filled with blocks: those of the file, or made of its numbers.
 *
 * A parameter whose name has {q,k,v} in it is three tensors of the files, one after the other: one product makes
 * queries, keys and values. One with {} is a tensor of the files for each expert, or
 * part of one that has them all (param_row.joint).
 */
#ifndef PLIM_MODEL_WEIGHTS_H
#define PLIM_MODEL_WEIGHTS_H

#include "base/log.h"
#include "base/threads.h"
#include "model/model.h"
#include "model/weights_files.h"

/* Gets elements [first, first + n) of a tensor, in the tensor's own type. Pieces of one tensor arrive in
 * order; those of a parameter and of its master alternate. Anything but PLIM_OK ends the loading. */
struct weights_sink {
    enum plim_status (*put)(void *arg, int tensor, int64_t first, const void *elements, int64_t n,
                            struct plim_error *err);
    void *arg;
    struct threads *team; /* makes blocks; NULL: the caller alone */
    bool new_head; /* a head of which the files have nothing is left as it is: it is about to be trained */
};

/* PLIM_BAD_INPUT names missing tensors or the two shapes that differ. Tensors nobody asked for are reported
 * to the log as warnings, a file already in the compute type as information. */
enum plim_status weights_load(const struct weights_files *files, const struct model_spec *spec,
                              const struct tape *tape, const struct weights_sink *sink, const struct log *log,
                              struct plim_error *err);

/* Fills elements [first, first + n) of a tensor, in the tensor's own type. */
struct weights_source {
    enum plim_status (*get)(void *arg, int tensor, int64_t first, void *elements, int64_t n,
                            struct plim_error *err);
    void *arg;
};

struct weights_save_options {
    enum dtype type;      /* of the files; DT_F32 takes masters where there are any */
    uint64_t shard_bytes; /* 0: SAFETENSORS_SHARD */
};

/* Makes the folder with config.json and model.safetensors, or shards and their index. */
enum plim_status weights_save(const struct tape *tape, const struct model_spec *spec,
                              const struct weights_source *source, const char *dir,
                              const struct weights_save_options *options, struct plim_error *err);

/* A tensor of the files and the elements of its parameter that it is. */
struct weights_part {
    char name[192];
    int ndim;
    int64_t dim[TENSOR_MAX_DIM];
    int64_t first, count;
};

/* A tensor of the files by its name, or by its name without the architecture's prefix. */
const struct safetensor *weights_find(const struct weights_files *files, const struct model_spec *spec,
                                      const char *name);

/* How many parts a parameter has, or a master or moment of its shape, and part `i` of them, in order. Another tensor is
 * one part. */
int weights_part_count(const struct tape *tape, int param);
struct weights_part weights_part(const struct model_spec *spec, const struct tape *tape, int param, int i);

/* The master of a parameter, -1 when it has none. */
int weights_master(const struct tape *tape, int param);

#endif
