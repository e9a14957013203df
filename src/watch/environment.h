/* environment.h - describes a run's surroundings: device, system, limits, and the variables people set for allocators.
 *
 *     environment_json(device, &w, "environment");
 */
#pragma once

#include "base/json.h"
#include "device/device.h"

void environment_json(const struct device *device, struct json_writer *w, const char *key);
