/* load.h - loads weights and constants into a tape before it runs.
 *
 *     exec_open(&exec, device, &tape, &layout, NULL, &err);
 *     weights_write_constants(&exec, &spec, &err);
 *     weights_from_directory(&exec, &spec, "checkpoint/", log, &err);
 *
 * Data go directly from the files to their final type and place, in pieces; nothing is held twice. A folder with an
 * adapter_config.json stands for its model with the adapter merged in.
 */
#pragma once

#include "base/log.h"
#include "exec/exec.h"
#include "model/adapter_slots.h"
#include "model/quantise.h"
#include "tape/pass.h"

/* Constants of a tape: the rotary frequencies. */
enum plim_status weights_write_constants(struct exec *exec, const struct model_spec *spec,
                                         struct plim_error *err);

/* Loads parameters, and masters if the tape has them, from a Hugging Face directory, one file or a GGUF file. Errors
 * are those of weights_files_open and weights_load. log may be NULL. */
enum plim_status weights_from_directory(struct exec *exec, const struct model_spec *spec, const char *dir,
                                        const struct log *log, struct plim_error *err);

/* Like weights_from_directory, for models in which no single tape reads all parameters and some are in blocks
 * (model/quantise.h). The ops of `whole` read every parameter; each is stored to the parameter of the same name in
 * the exec's tape. */
enum plim_status weights_from_directory_by(const struct tape *whole, struct exec *exec,
                                           const struct model_spec *spec, const char *dir,
                                           const struct log *log, struct plim_error *err);

/* Chooses the parameters to keep in blocks on this device, like quantise_choose. PLIM_UNSUPPORTED: it has no kernels
 * for that kind. A preset device (kernels NULL) is assumed to have all. */
enum plim_status weights_choose(struct quantisation *out, const struct device *device, enum weights_kind kind,
                                const char *dir, const struct model_spec *spec, const struct tape *tape,
                                struct plim_error *err);

/* weights_from_directory for a model to be trained: a head that the files lack (labels on a language model) keeps its
 * present values. */
enum plim_status weights_to_train(struct exec *exec, const struct model_spec *spec, const char *dir,
                                  const struct log *log, struct plim_error *err);

/* Folds an adapter of PEFT's files into the loaded parameters. PLIM_BAD_INPUT: it is of another model; PLIM_UNSUPPORTED: a
 * parameter that it changes is in blocks. */
enum plim_status weights_merge(struct exec *exec, const struct model_spec *spec, const char *adapter,
                               struct plim_error *err);

/* Loads an adapter's own parameters (TENSOR_ADDED), and those that are trained in full, from PEFT's files. */
enum plim_status weights_of_adapter(struct exec *exec, const struct model_spec *spec,
                                    const struct adapter *adapter, const char *dir, struct plim_error *err);

/* Reads an adapter of PEFT's files as it lies in a slot (model/adapter_slots.h): A and B of every layer, in the tape's types. put
 * receives them one by one; NULL: the files are only checked. PLIM_BAD_INPUT, PLIM_UNSUPPORTED: the files are damaged, of another model,
 * or have something that no slot has room for. */
struct slot_sink {
    enum plim_status (*put)(void *arg, int tensor, const void *bytes, int64_t count, struct plim_error *err);
    void *arg;
};
enum plim_status slot_read(const struct adapter_slots *slots, const struct model_spec *spec,
                           const struct tape *tape, const char *dir, const struct slot_sink *sink,
                           struct plim_error *err);
int64_t slot_bytes(const struct adapter_slots *slots,
                   const struct tape *tape); /* of all A and B of one slot */
int64_t slot_read_bytes(const struct adapter_slots *slots,
                        const struct tape *tape); /* memory that slot_read needs */

/* The type of most bytes of a folder's weights if we compute in it, else fp32. Quantised blocks of a GGUF file count as bf16. */
enum plim_status weights_precision(const char *dir, enum precision *out, struct plim_error *err);

/* A weights_sink's function; arg is the struct exec. */
enum plim_status weights_put(void *exec, int tensor, int64_t first, const void *elements, int64_t n,
                             struct plim_error *err);
