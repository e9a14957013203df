/* cuda_calibrate.h - the speed of this GPU: from the cache (device/calibration.h), or measured in half a second with the
 * device's own kernels in its own arena, which must be empty and is empty again afterwards. Fills the rates of dev->facts.
 * Runs a matmul and an attention of each type once, which loads the libraries' common kernels, so that the overhead measured
 * next includes them. A card without the few hundred MiB for this gets the numbers of its data sheet class. `libraries`
 * names their versions, for the cache's key. */
#pragma once

#include "device/device.h"

enum plim_status cuda_calibrate(struct device *dev, const char *libraries, struct plim_error *err);
