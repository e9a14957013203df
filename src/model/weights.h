/* weights.h - a tape's parameters from Hugging Face or GGUF files and back.
 *
 *     struct weights_files files;
 *     weights_files_open(path, &files, &err);
 *     weights_load(&files, &spec, &tape, &(struct weights_sink){put, &arena}, log, &err);
 *     ...
 *     weights_save(&tape, &spec, &(struct weights_source){get, &arena}, "out/", &options, &err);
 *
 * Parameters are matched by name before a byte is read. Names may lack the prefix ("model.", "transformer.", "bert.");
 * a tied output projection may be present or missing. If a parameter has a master (CLASS_MASTER owned by it), loading fills
 * both, so training from an fp32 checkpoint keeps all its bits.
 *
 * Parameters that quantise.h put in blocks receive the file's blocks, or blocks quantised from its numbers.
 *
 * A parameter with {q,k,v} in its name is three tensors of the files, concatenated: one product computes queries, keys and
 * values; so are both matrices of an adapter of all three. A parameter with {} is one tensor per expert, or part of a tensor that holds them all (param_row.joint).
 */
#pragma once

#include "base/log.h"
#include "base/threads.h"
#include "model/model.h"
#include "model/weights_files.h"

/* Receives elements [first, first + n) of a tensor, in the tensor's own type. Pieces of one tensor arrive in
 * order; pieces of a parameter and of its master alternate. Any status but PLIM_OK stops loading. */
struct weights_sink {
    enum plim_status (*put)(void *arg, int tensor, int64_t first, const void *elements, int64_t n,
                            struct plim_error *err);
    void *arg;
    struct threads *team; /* quantises blocks; NULL: the calling thread does */
    bool new_head; /* a head that is missing in the files keeps its values, because it will be trained */
};

/* PLIM_BAD_INPUT names missing tensors, or the two shapes that differ. The log receives a warning for unused
 * tensors and a note for a file already in the compute type. */
enum plim_status weights_load(const struct weights_files *files, const struct model_spec *spec,
                              const struct tape *tape, const struct weights_sink *sink, const struct log *log,
                              struct plim_error *err);

/* Supplies elements [first, first + n) of a tensor, in the tensor's own type. */
struct weights_source {
    enum plim_status (*get)(void *arg, int tensor, int64_t first, void *elements, int64_t n,
                            struct plim_error *err);
    void *arg;
};

struct weights_save_options {
    enum dtype type;      /* of the files; DT_F32 saves masters where they exist */
    uint64_t shard_bytes; /* 0: SAFETENSORS_SHARD */
};

/* Creates the folder with config.json and model.safetensors, or shards and their index. */
enum plim_status weights_save(const struct tape *tape, const struct model_spec *spec,
                              const struct weights_source *source, const char *dir,
                              const struct weights_save_options *options, struct plim_error *err);

/* A tensor of the files, and the elements of the parameter that it holds. */
struct weights_part {
    char name[192];
    int ndim;
    int64_t dim[TENSOR_MAX_DIM];
    int64_t first, count;
};

/* Finds a tensor of the files by its name, with or without the architecture's prefix. */
const struct safetensor *weights_find(const struct weights_files *files, const struct model_spec *spec,
                                      const char *name);

/* Number of parts of a parameter, or of a master or moment with its shape; then part `i`, in order. Any other
 * tensor has one part. */
int weights_part_count(const struct tape *tape, int param);
struct weights_part weights_part(const struct model_spec *spec, const struct tape *tape, int param, int i);

/* The master of a parameter; -1: none. */
int weights_master(const struct tape *tape, int param);
