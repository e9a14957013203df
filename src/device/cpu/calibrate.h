/* calibrate.h - the speed of this CPU, measured once and stored.
 *
 *     struct calibration speed;
 *     calibrate_cpu(context, team, &speed, &err);  // from the cache file, or 60 ms of measuring
 *
 * The numbers are stored (device/calibration.h) per processor model, instruction set, number of threads and version of
 * Plimsoll; programs that start together share one measurement. `plimsoll calibrate` measures again. With
 * PLIMSOLL_CALIBRATE=0 fixed numbers of a modest machine are used.
 */
#pragma once

#include "base/status.h"
#include "base/threads.h"
#include "device/calibration.h"
#include <stddef.h>

/* PLIM_NO_MEMORY: no room to measure. The disk is measured separately, per folder: exec/disk_speed.h. */
enum plim_status calibrate_cpu(const struct context *context, struct threads *team, struct calibration *out,
                               struct plim_error *err);

/* The last-level cache for the planner's clock; 0 when the rates are fixed. */
size_t calibrate_cache_bytes(const struct context *context);

/* Measures now, ignoring the cache file. */
enum plim_status calibrate_measure(struct threads *team, struct calibration *out, struct plim_error *err);
