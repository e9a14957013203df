/* checkpoint_part.h - shared by writing and reading checkpoints. Only train/checkpoint*.c include this
 * header. */
#pragma once

#include "model/peft.h"
#include "model/weights.h"
#include "train/trainer.h"

enum { CHECKPOINT_FORMAT = 2 }; /* of trainer.json; since 2 there is a manifest */

/* True if the tensor is part of a checkpoint: with the state, or with the parameters. Of a job with an adapter, the base is not:
 * it is where the job has it from. */
static inline bool checkpoint_keeps(const struct trainer *trainer, const struct tensor *t, bool state)
{
    if (t->view_of >= 0 || !(t->flags & TENSOR_KEPT)) return false;
    if (trainer->job->adapting && (t->flags & TENSOR_FROZEN)) return false;
    return state ? t->cls == CLASS_MASTER || t->cls == CLASS_STATE : t->cls == CLASS_PARAM;
}

/* The name that a checkpoint has for a part of a tensor. */
static inline const char *checkpoint_name(const struct trainer *trainer, const struct weights_part *part,
                                          bool state, char *buf, size_t size)
{
    const struct adapter *adapter = trainer->job->adapting;
    if (!adapter || state) return part->name;
    adapter_file_name(adapter, part->name, buf, size);
    return buf;
}
