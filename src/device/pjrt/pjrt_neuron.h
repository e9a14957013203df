/* pjrt_neuron.h - what AWS Neuron's plug-in, runtime and compiler need to be told before the plug-in is loaded.
 *
 * All of it is in the environment, because the compiler is another program and the runtime has no other settings. Our choices are
 * conservative: one core, no automatic casts, optimisation level 1. A variable that the user has set stays as it is; to
 * NEURON_CC_FLAGS only flags are added that are not in it.
 */
#pragma once

#include "base/context.h"
#include "base/status.h"

/* Checks that there is a device, warns if there is no compiler, and sets the variables. The process takes core *index alone, which the
 * plug-in then numbers 0, unless NEURON_RT_VISIBLE_CORES or NEURON_RT_NUM_CORES say which cores it takes. PLIM_UNSUPPORTED: there is
 * no device, or this process's environment is not ours to set. */
enum plim_status neuron_prepare(const struct context *context, int *index, struct plim_error *err);
