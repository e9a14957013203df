/* train_ranks.h - what several ranks find out of each other before they plan. */
#ifndef PLIM_CLI_TRAIN_RANKS_H
#define PLIM_CLI_TRAIN_RANKS_H

#include "cli/cli.h"
#include "comm/comm.h"

/* The link's rates into the device's facts: those of training.link and training.network, or measured; told on stderr by rank 0
 * when they are new. PLIM_BAD_INPUT: such a link is not known. */
enum plim_status train_find_link(const struct job *job, struct device *device,
                                 const struct job_options *options, struct plim_error *err);

/* Rank 0 says on stderr where ranks differ in their device or in what they may take of it: the least counts for all. */
enum plim_status train_tell_uneven(const struct job *job, struct device *device,
                                   const struct job_options *options, struct plim_error *err);

#endif
