/* pjrt_calibrate.h - the speed of a plug-in's device: from the cache (device/calibration.h), or measured with a few programs of its own in
 * an empty arena, which is empty again afterwards. Fills the rates of dev->facts. */
#pragma once

#include "device/device.h"

/* `version` identifies the plug-in, for the cache's key. */
void pjrt_calibrate(struct device *dev, const char *version);
