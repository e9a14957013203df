/* cuda_calibrate.h - how fast this GPU is: from the cache (device/calibration.h), or half a second of measuring with
 * the device's own kernels in its own arena, which must be empty and is empty again afterwards. Fills the rates of
 * dev->facts and, by running a matmul and an attention of each type once, loads the libraries' common kernels, so that
 * the overhead measured next includes them. A card without the few hundred MiB it takes is judged by the numbers of
 * its data sheet class. `libraries` names their versions, for the cache's key. */
#ifndef PLIM_DEVICE_CUDA_CUDA_CALIBRATE_H
#define PLIM_DEVICE_CUDA_CUDA_CALIBRATE_H

#include "device/device.h"

enum plim_status cuda_calibrate(struct device *dev, const char *libraries, struct plim_error *err);

#endif
