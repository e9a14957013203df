/* disk_speed.h - how fast the disk under a folder is, measured once per file system and remembered.
 *
 *     struct disk_speed speed;
 *     bool known = disk_speed_recall(&context, "runs/small", &speed);      // what the cache has, or an assumption
 *     if (!known) disk_speed_measure(&context, "runs/small", &speed, &err); // about a second, and the cache has it
 *     disk_speed_apply(&speed, &facts);
 *
 * A file of 32 MiB is read and written past the page cache with pieces of several sizes, several at once: the smallest
 * buffers that come within 5 % of the fastest are the ones to use. The file lies in the folder or, where that is not there
 * yet, in the nearest one above it, and has no name.
 *
 * With PLIMSOLL_CALIBRATE=0 (device/calibration.h) nothing is measured, and the disk is a modest one, always the same.
 */
#pragma once

#include "base/context.h"
#include "plan/facts.h"

struct disk_speed {
    double bandwidth;   /* bytes/s, reading and writing by turns */
    double read, write; /* each by itself */
    int depth;          /* pieces under way */
    size_t piece;       /* bytes of one */
};

/* Loads the stored speed of the folder's file system. Returns false when none is stored; `out` is then an assumption.
 * Also returns false when measuring is disabled, and none will ever be stored. */
bool disk_speed_recall(const struct context *context, const char *folder, struct disk_speed *out);

/* May it be measured? Not where the environment forbids it. */
bool disk_speed_wanted(const struct context *context);

/* PLIM_IO: the folder cannot be written; `out` is an assumption then. */
enum plim_status disk_speed_measure(const struct context *context, const char *folder, struct disk_speed *out,
                                    struct plim_error *err);

/* One ladder's rung: bytes/s of `seconds` at most with these pieces, reading and writing by turns, or one of the two. `fd` has
 * `bytes`, whole pieces; direct or not. For benchmarks. */
enum disk_mix { DISK_MIXED, DISK_READS, DISK_WRITES };
enum plim_status disk_speed_rung(int fd, uint64_t bytes, int depth, size_t piece, enum disk_mix mix,
                                 double seconds, double *out, struct plim_error *err);

/* Below the device itself, or below the host's memory beside it. */
void disk_speed_apply(const struct disk_speed *speed, struct device_facts *facts);
