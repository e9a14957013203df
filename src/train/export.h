/* export.h - a Hugging Face directory from a checkpoint, in any floating type, streamed.
 *
 *     struct exported e;
 *     struct export_options options = {.type = DT_F32};
 *     export_model("runs/small/checkpoint-00000100", "small-hf", &options, &e, &err);
 *
 * Masters saved beside narrow parameters (state/) are joined with them, so fp32 gets back every bit the
 * optimizer had. Any Hugging Face directory will do as a source. Two blocks of elements are all that is held
 * in memory, whatever the model.
 */
#ifndef PLIM_TRAIN_EXPORT_H
#define PLIM_TRAIN_EXPORT_H

#include "base/status.h"
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct export_options {
    enum dtype type;      /* of the files written; DT_COUNT: as they are */
    uint64_t shard_bytes; /* largest file; 0: SAFETENSORS_SHARD */
    bool force;           /* write into a folder that holds something */
};

struct exported {
    size_t tensors;
    int64_t parameters;
    uint64_t bytes;
    enum dtype type;
    bool sparse;       /* attention over blocks, which other programs do not read of its config.json */
    bool from_masters; /* some values have more bits than the parameters saved */
};

/* A new folder appears complete or not at all. With force, an existing one keeps its old weights until the
 * new ones are on disk; files of other names stay. PLIM_BAD_INPUT when `to` holds something and force is not
 * set, or when `from` is a checkpoint and not what its manifest says. */
enum plim_status export_model(const char *from, const char *to, const struct export_options *options,
                              struct exported *out, struct plim_error *err);

#endif
