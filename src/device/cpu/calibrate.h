/* calibrate.h - how fast this CPU is, measured once and remembered.
 *
 *     struct calibration speed;
 *     calibrate_cpu(team, NULL, &speed, &err);           // from the cache file, or 60 ms of measuring
 *     calibrate_cpu(team, "/data/run1", &speed, &err);   // and the disk behind that folder
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

/* With a folder, the disk it lies on is measured too (a file of 8 MiB, removed again) unless the cache has
 * it. PLIM_NO_MEMORY when there is no room to measure, PLIM_IO when the folder cannot be written. */
enum plim_status calibrate_cpu(struct threads *team, const char *folder, struct calibration *out,
                               struct plim_error *err);

/* The last-level cache as the planner's clock sees it; it belongs to the rates: 0 when they are fixed. */
size_t calibrate_cache_bytes(void);

/* Measure now, whatever the cache says, and do not touch it. */
enum plim_status calibrate_measure(struct threads *team, struct calibration *out, struct plim_error *err);
enum plim_status calibrate_disk(const char *folder, double *bytes_per_second, struct plim_error *err);

#endif
