/* environment.h - describes a run's surroundings: device, system, limits, and the variables people set for allocators.
 *
 *     environment_json(device->context, &device->facts, device->ops->name, &w, "environment");
 */
#pragma once

#include "base/context.h"
#include "base/json.h"
#include "plan/facts.h"

/* `backend`: name of the device's, NULL: a preset. */
void environment_json(const struct context *context, const struct device_facts *facts, const char *backend,
                      struct json_writer *w, const char *key);
