/* checkpoint_part.h - shared by writing and reading checkpoints. Only train/checkpoint*.c include this
 * header. */
#pragma once

#include "train/trainer.h"

enum { CHECKPOINT_FORMAT = 2 }; /* of trainer.json; since 2 there is a manifest */

/* True if the tensor is part of a checkpoint: with the state, or with the parameters. */
static inline bool checkpoint_keeps(const struct tensor *t, bool state)
{
    if (t->view_of >= 0 || !(t->flags & TENSOR_KEPT)) return false;
    return state ? t->cls == CLASS_MASTER || t->cls == CLASS_STATE : t->cls == CLASS_PARAM;
}
