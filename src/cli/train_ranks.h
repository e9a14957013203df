/* train_ranks.h - facts that several ranks exchange before they plan. */
#pragma once

#include "cli/cli.h"
#include "job/cluster.h"
#include "comm/comm.h"

/* For comm_open: prints the reason and ends the process. */
void ranks_end_stuck(const char *why);

/* Divides the cores and the memory of a machine among its ranks. Cores: before the device is opened, if the
 * job does not set them. */
void ranks_share_cores(struct job *job, int local_ranks);
void ranks_share_memory(struct device_facts *facts, int local_ranks);

/* Sets the link's rates in the device's facts: those named by training.link and training.network, those
 * measured by `plimsoll calibrate` for these ranks, or presets. PLIM_BAD_INPUT: unknown link. */
enum plim_status train_find_link(const struct job *job, struct device *device, struct plim_error *err);

/* Link rates for a plan of ranks that are not running; `here`: they would run on this machine. */
enum plim_status plan_find_link(const struct cluster *cluster, bool here, struct device_facts *facts,
                                struct plim_error *err);

/* Rank 0 reports on stderr if ranks differ in their device or in their memory; the smallest counts for
 * all. */
enum plim_status train_tell_uneven(const struct job *job, struct device *device,
                                   const struct job_options *options, struct plim_error *err);
