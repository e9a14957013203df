/* load.h - weights and constants into a tape that is about to run.
 *
 *     exec_open(&exec, device, &tape, &layout, NULL, &err);
 *     weights_write_constants(&exec, &spec, &err);
 *     weights_from_directory(&exec, &spec, "checkpoint/", log, &err);
 *
 * Data go straight from the files to their final type and place, in pieces; nothing is held twice.
 */
#ifndef PLIM_RUNTIME_LOAD_H
#define PLIM_RUNTIME_LOAD_H

#include "base/log.h"
#include "exec/exec.h"
#include "model/model.h"
#include "tape/pass.h"

/* Constants of a tape: the rotary frequencies. */
enum plim_status weights_write_constants(struct exec *exec, const struct model_spec *spec,
                                         struct plim_error *err);

/* Parameters (and their masters, where the tape has them) from a Hugging Face directory, one file or a GGUF file. The
 * errors are those of weights_files_open and weights_load. log may be NULL. */
enum plim_status weights_from_directory(struct exec *exec, const struct model_spec *spec, const char *dir,
                                        const struct log *log, struct plim_error *err);

/* The same for a model that is about to be trained: a head of which the files have nothing (labels on top of a model that
 * said tokens) keeps what is in its place. */
enum plim_status weights_to_train(struct exec *exec, const struct model_spec *spec, const char *dir,
                                  const struct log *log, struct plim_error *err);

/* The type most of the bytes of a folder's weights have, when we compute in it; fp32 otherwise. Blocks of few bits count as
 * bf16: no kernel is needed that they would be too precise for. */
enum plim_status weights_precision(const char *dir, enum precision *out, struct plim_error *err);

/* A weights_sink's function; arg is the struct exec. */
enum plim_status weights_put(void *exec, int tensor, int64_t first, const void *elements, int64_t n,
                             struct plim_error *err);

#endif
