/* cluster.h - ranks that are not running yet: how many, on how many nodes, and their links.
 *
 *     struct cluster cluster = {.ranks = 1024, .nodes = 128};
 *     cluster_find("g5.12xlarge", &cluster);             // a machine by its name: its ranks and link
 *     cluster_apply(&cluster, &facts, &err);             // planning now assumes them
 */
#pragma once

#include "plan/facts.h"

struct cluster {
    int64_t ranks, nodes; /* in total; 0: one */
    const char *link;     /* link between the ranks of a node, and between nodes; NULL: the usual one */
    const char *network;
};

/* Sets ranks and link of a machine with several devices, if they are open. Other names have no effect. */
void cluster_find(const char *machine, struct cluster *cluster);

/* Applies training.link and training.network where no flag is given; "auto" sets nothing. */
void cluster_from_keys(struct cluster *cluster, const char *link, const char *network);

/* PLIM_BAD_INPUT: the nodes do not divide the ranks, or a link is unknown. */
enum plim_status cluster_apply(const struct cluster *cluster, struct device_facts *facts,
                               struct plim_error *err);
