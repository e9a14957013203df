/* weights_start.h - what the kept tensors hold before the first step. */
#ifndef PLIM_TRAIN_WEIGHTS_START_H
#define PLIM_TRAIN_WEIGHTS_START_H

#include "base/status.h"

struct trainer;

/* Weights from model.path, straight from the files to their final type and place, or fresh ones from the seed.
 * Element i of a tensor depends on seed, name and i alone. */
enum plim_status weights_start(struct trainer *trainer, struct plim_error *err);

#endif
