/* cluster.h - ranks that are not here: how many, on how many nodes, and what connects them.
 *
 *     struct cluster cluster = {.ranks = 1024, .nodes = 128};
 *     cluster_find("g5.12xlarge", &cluster);             // a machine by its name: its ranks and link
 *     cluster_apply(&cluster, &facts, &err);             // the planner counts with them from now on
 */
#ifndef PLIM_JOB_CLUSTER_H
#define PLIM_JOB_CLUSTER_H

#include "plan/facts.h"

struct cluster {
    int64_t ranks, nodes; /* in all; 0: one */
    const char *link;     /* between the ranks of a node, and between nodes; NULL: the usual one */
    const char *network;
};

/* A machine with several devices: ranks and link are set where they are open. Other names change nothing. */
void cluster_find(const char *machine, struct cluster *cluster);

/* Applies training.link and training.network where no flag is given; "auto" sets nothing. */
void cluster_from_keys(struct cluster *cluster, const char *link, const char *network);

/* PLIM_BAD_INPUT: nodes that ranks do not divide, or a link nobody knows. */
enum plim_status cluster_apply(const struct cluster *cluster, struct device_facts *facts,
                               struct plim_error *err);

#endif
