/* export.h - a Hugging Face directory from a checkpoint, in any floating type, streamed.
 *
 *     struct exported e;
 *     struct export_options options = {.type = DT_F32};
 *     export_model("runs/small/checkpoint-00000100", "small-hf", &options, &e, &err);
 *
 * Masters saved with narrow parameters (state/) are combined with them, so fp32 has every bit of the optimizer. Any Hugging
 * Face directory can be the source. An adapter's checkpoint becomes a PEFT folder, a GGUF file (a target that ends with .gguf) or, merged, a model. Only two blocks of elements are held in memory for a model of any size.
 */
#pragma once

#include "base/status.h"
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct export_options {
    enum dtype type;      /* of the files written; DT_COUNT: as they are */
    uint64_t shard_bytes; /* largest file; 0: SAFETENSORS_SHARD */
    bool force;           /* write into a folder that is not empty */
    bool merge;           /* an adapter's folder becomes its model with the adapter merged in */
    const char *adapter;  /* PEFT folder to merge into `from`; NULL: none, or that which `from` is */
};

struct exported {
    size_t tensors;
    int64_t parameters;
    uint64_t bytes;
    enum dtype type;
    bool sparse;       /* has block-sparse attention, which other programs do not find in config.json */
    bool from_masters; /* some values have more bits than the saved parameters */
};

/* PLIM_BAD_INPUT: there is nothing to merge, or the adapter is of another model. A new folder appears complete or not at all. With force, an existing one keeps its old weights until the
 * new ones are on disk; files with other names stay. PLIM_BAD_INPUT: `to` is not empty and force is not set,
 * or `from` is a checkpoint that differs from its manifest. */
enum plim_status export_model(const char *from, const char *to, const struct export_options *options,
                              struct exported *out, struct plim_error *err);
