/* pjrt_device.h - a PJRT plug-in's device behind struct device (device/device.h).
 *
 * Programs are compiled from ranges of a tape (module.h); an op that runs alone is a program too. Offsets of the plan's layout remain
 * the addresses of tensors that outlive a program (pjrt_slots.h). The plug-in places all others itself, in memory of its own:
 * pjrt_measure says how many bytes it wants. */
#pragma once

#include "device/device.h"

/* budget: as for pjrt_open. */
enum plim_status device_pjrt_open(const struct context *context, const char *name, int index, uint64_t budget,
                                  int threads, struct device **out, struct plim_error *err);
bool device_pjrt_present(void);
