/* cluster.c - see cluster.h. */
#include "job/cluster.h"
#include "base/nearest.h"
#include "base/strbuf.h"
#include "job/preset.h"

#include <string.h>

/* Rates at which a rank sends and receives at the same time in a collective of many ranks; approximate values from
 * practice. */
static const struct link {
    const char *name;
    double bandwidth, seconds;
} links[] = {
    {"shared-memory", 4e9, 20e-6}, /* processes of one machine */
    {"pcie", 12e9, 20e-6},         {"nvlink", 300e9, 15e-6}, {"1g", 0.11e9, 60e-6}, {"10g", 1.1e9, 40e-6},
    {"25g", 2.8e9, 30e-6},         {"100g", 11e9, 25e-6},    {"400g", 45e9, 20e-6},
};
enum { LINKS = sizeof links / sizeof *links };

void cluster_find(const char *machine, struct cluster *cluster)
{
    struct preset_machine found;
    if (!preset_machine(machine, &found) || found.cards < 2) return;
    int64_t nodes = cluster->nodes > 0 ? cluster->nodes : 1;
    if (!cluster->ranks) cluster->ranks = found.cards * nodes;
    for (int i = 0; i < LINKS && !cluster->link; i++)
        if (!strcmp(links[i].name, found.link)) cluster->link = links[i].name;
}

void cluster_from_keys(struct cluster *cluster, const char *link, const char *network)
{
    if (!cluster->link && link && strcmp(link, "auto")) cluster->link = link;
    if (!cluster->network && network && strcmp(network, "auto")) cluster->network = network;
}

static enum plim_status find_link(const char *name, const struct link **out, struct plim_error *err)
{
    struct nearest near = nearest_begin(name);
    for (int i = 0; i < LINKS; i++) {
        nearest_offer(&near, links[i].name);
        if (!strcmp(links[i].name, name)) return *out = &links[i], PLIM_OK;
    }
    return plim_fail(err, PLIM_BAD_INPUT,
                     "unknown link '%s'%s%s; write shared-memory, pcie, nvlink, 1g, 10g, 25g, 100g or 400g",
                     name, near.best ? "; did you mean " : "", near.best ? near.best : "");
}

/* Ranks of a node share its network and its host's memory. */
enum plim_status cluster_apply(const struct cluster *c, struct device_facts *facts, struct plim_error *err)
{
    int64_t ranks = c->ranks > 0 ? c->ranks : 1, nodes = c->nodes > 0 ? c->nodes : 1;
    const struct link *link = NULL, *network = NULL;
    if (ranks % nodes || ranks > 1000000)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%lld ranks on %lld nodes: write a multiple of the nodes, up to 1000000",
                         (long long)ranks, (long long)nodes);
    enum plim_status status = find_link(c->link                 ? c->link
                                        : facts->unified_memory ? "shared-memory"
                                                                : "pcie",
                                        &link, err);
    if (status == PLIM_OK) status = find_link(c->network ? c->network : "100g", &network, err);
    if (status != PLIM_OK) return status;
    facts->ranks = (int)ranks, facts->async_exchanges = ranks > 1;
    facts->host_bytes /= (size_t)(ranks / nodes);
    facts->link_bandwidth = link->bandwidth, facts->link_seconds = link->seconds;
    if (nodes == 1) return PLIM_OK;
    facts->node_ranks = (int)(ranks / nodes);
    facts->node_bandwidth = link->bandwidth, facts->node_seconds = link->seconds;
    double shared = network->bandwidth / (double)(ranks / nodes);
    if (ranks == nodes || shared < facts->link_bandwidth) facts->link_bandwidth = shared;
    facts->link_seconds += network->seconds;
    return PLIM_OK;
}
