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
#include "model/quantise.h"
#include "tape/pass.h"

/* Constants of a tape: the rotary frequencies. */
enum plim_status weights_write_constants(struct exec *exec, const struct model_spec *spec,
                                         struct plim_error *err);

/* Parameters (and their masters, where the tape has them) from a Hugging Face directory, one file or a GGUF file. The
 * errors are those of weights_files_open and weights_load. log may be NULL. */
enum plim_status weights_from_directory(struct exec *exec, const struct model_spec *spec, const char *dir,
                                        const struct log *log, struct plim_error *err);

/* The same where no single tape reads all parameters, and some are in blocks (model/quantise.h): `whole` is a tape whose ops
 * read every one. Its parameters go to those of the exec's tape with the same names. */
enum plim_status weights_from_directory_by(const struct tape *whole, struct exec *exec,
                                           const struct model_spec *spec, const char *dir,
                                           const struct log *log, struct plim_error *err);

/* Which parameters of the tape are in blocks on this device, as quantise_choose. PLIM_UNSUPPORTED: it has no kernels for
 * that kind. A device that is not here (kernels NULL) has them all. */
enum plim_status weights_choose(struct quantisation *out, const struct device *device, enum weights_kind kind,
                                const char *dir, const struct model_spec *spec, const struct tape *tape,
                                struct plim_error *err);

/* weights_from_directory for a model that is about to be trained: a head of which the files have nothing (labels on top of a model that
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
