/* weights_start.h - what the kept tensors hold before the first step. */
#ifndef PLIM_TRAIN_WEIGHTS_START_H
#define PLIM_TRAIN_WEIGHTS_START_H

#include "base/log.h"
#include "exec/exec.h"
#include "model/model.h"

struct trainer;

/* Constants of a tape: the rotary frequencies. */
enum plim_status weights_write_constants(struct exec *exec, const struct model_spec *spec, struct plim_error *err);

/* Weights from model.path, straight from the files to their final type and place, or fresh ones from the seed.
 * Element i of a tensor depends on seed, name and i alone. */
enum plim_status weights_start(struct trainer *trainer, struct plim_error *err);

/* The same for any exec whose tape has the model's parameters: from a Hugging Face directory. */
enum plim_status weights_from_directory(struct exec *exec, const struct model_spec *spec, const char *dir,
                                        const struct log *log, struct plim_error *err);

#endif
