/* calibrate.h - how fast this CPU is, measured once and remembered.
 *
 *     struct calibration speed;
 *     calibrate_cpu(context, team, &speed, &err);  // from the cache file, or 60 ms of measuring
 *
 * The numbers are remembered (device/calibration.h) for one processor model, instruction set, number of threads and
 * version of Plimsoll. A measurement beside which other programs took more than a tenth of the processors is repeated at the
 * next starts, five times at most, and the better numbers are kept. With PLIMSOLL_CALIBRATE=0 they are those of a modest machine instead, always the same.
 */
#ifndef PLIM_DEVICE_CPU_CALIBRATE_H
#define PLIM_DEVICE_CPU_CALIBRATE_H

#include "base/status.h"
#include "base/threads.h"
#include "device/calibration.h"
#include <stddef.h>

/* PLIM_NO_MEMORY when there is no room to measure. The disk below belongs to the folder of a run: exec/disk_speed.h. */
enum plim_status calibrate_cpu(const struct context *context, struct threads *team, struct calibration *out,
                               struct plim_error *err);

/* The last-level cache as the planner's clock sees it; it belongs to the rates: 0 when they are fixed. */
size_t calibrate_cache_bytes(const struct context *context);

/* Measure now, whatever the cache says, and do not touch it. */
enum plim_status calibrate_measure(struct threads *team, struct calibration *out, struct plim_error *err);

#endif
