/* train_ranks.h - what several ranks find out of each other before they plan. */
#ifndef PLIM_CLI_TRAIN_RANKS_H
#define PLIM_CLI_TRAIN_RANKS_H

#include "cli/cli.h"
#include "job/cluster.h"
#include "comm/comm.h"

/* For comm_open: tells why and ends the process. */
void ranks_end_stuck(const char *why);

/* Ranks of one machine share its cores and its memory. Cores before the device is opened, where the job does not say how many. */
void ranks_share_cores(struct job *job, int local_ranks);
void ranks_share_memory(struct device_facts *facts, int local_ranks);

/* The link's rates into the device's facts: those that training.link and training.network name, what `plimsoll calibrate` has
 * kept for these ranks, or presets. PLIM_BAD_INPUT: such a link is not known. */
enum plim_status train_find_link(const struct job *job, struct device *device, struct plim_error *err);

/* Link rates for a plan of ranks that are not running; `here`: they would run on this machine. */
enum plim_status plan_find_link(const struct cluster *cluster, bool here, struct device_facts *facts,
                                struct plim_error *err);

/* Rank 0 says on stderr where ranks differ in their device or in what they may take of it: the least counts for all. */
enum plim_status train_tell_uneven(const struct job *job, struct device *device,
                                   const struct job_options *options, struct plim_error *err);

#endif
