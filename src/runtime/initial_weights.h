/* initial_weights.h - fresh parameters from a seed, and their masters where the tape has them.
 *
 *     initial_weights(&exec, &spec, seed, &err);
 *
 * Element i of a tensor depends only on seed, name and i, not on threads or on where the tensor is. */
#pragma once

#include "exec/exec.h"
#include "model/adapter.h"

enum plim_status initial_weights(struct exec *exec, const struct model_spec *spec, uint64_t seed,
                                 struct plim_error *err);

/* Initialises the parameters of an adapter alone (TENSOR_ADDED). Those of the model must be loaded: DoRA begins with the norms of
 * their rows. */
enum plim_status initial_adapter(struct exec *exec, const struct model_spec *spec,
                                 const struct adapter *adapter, uint64_t seed, struct plim_error *err);

/* Initialises an encoder's head alone (model_param_is_head). */
enum plim_status initial_head(struct exec *exec, const struct model_spec *spec, uint64_t seed,
                              struct plim_error *err);
