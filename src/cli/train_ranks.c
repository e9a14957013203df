/* train_ranks.c - see train_ranks.h. */
#include "cli/train_ranks.h"
#include "base/bytes.h"
#include "comm/link.h"
#include "job/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Presets where the job names one: of the link inside a machine, of the network between machines, or of both. */
static enum plim_status take_presets(const struct job *job, const struct cluster *wish,
                                     const struct comm *comm, struct device_facts *facts,
                                     struct plim_error *err)
{
    struct device_facts named = *facts;
    struct cluster cluster = *wish;
    cluster.ranks = comm->ranks, cluster.nodes = comm->ranks / comm->local_ranks;
    if (cluster.nodes * comm->local_ranks != comm->ranks)
        cluster.nodes = comm->ranks; /* uneven: all by the network */
    enum plim_status status = cluster_apply(&cluster, &named, err);
    if (status != PLIM_OK)
        plim_error_prefix(err, "%s: keys 'training.link' and 'training.network'", job->name);
    bool whole = cluster.nodes > 1 ? wish->network != NULL : wish->link != NULL;
    if (status == PLIM_OK && wish->link)
        facts->node_bandwidth = named.node_bandwidth, facts->node_seconds = named.node_seconds;
    if (status == PLIM_OK && whole)
        facts->link_bandwidth = named.link_bandwidth, facts->link_seconds = named.link_seconds;
    return status;
}

enum plim_status train_find_link(const struct job *job, struct device *device,
                                 const struct job_options *options, struct plim_error *err)
{
    struct comm *comm = device->comm;
    struct device_facts *facts = &device->facts;
    struct cluster wish = {0};
    struct link_rates all, node = {0};
    char load[96];
    cluster_from_keys(&wish, job->training.link, job->training.network);
    struct threads *team = facts->unified_memory ? device->team : NULL;
    enum plim_status status = link_measure(comm, team, &all, err);
    if (status == PLIM_OK && comm->node) status = link_measure(comm->node, team, &node, err);
    if (!comm->node) node = all;
    facts->link_bandwidth = all.bandwidth, facts->link_seconds = all.seconds;
    facts->node_bandwidth = node.bandwidth, facts->node_seconds = node.seconds;
    facts->reduce_share = all.reduce_share, facts->link_beside = all.beside, facts->link_load = all.load;
    if (all.beside < all.load) facts->async_exchanges = false; /* together they take longer than in turn */
    if (status == PLIM_OK && (wish.link || wish.network)) status = take_presets(job, &wish, comm, facts, err);
    snprintf(load, sizeof load, "; beside computing %.3g GB/s, of which they take %.0f %%",
             all.bandwidth * all.beside * 1e-9, 100 * all.load);
    if (status == PLIM_OK && all.fresh && comm->rank == 0 && !options->quiet)
        cli_say("%d ranks exchange %.3g GB/s, after %.0f us%s", comm->ranks, all.bandwidth * 1e-9,
                all.seconds * 1e6, all.load > 0.005 || all.beside < 0.995 ? load : "");
    return status;
}

struct rank_line {
    int64_t budget;
    char name[64];
};

enum plim_status train_tell_uneven(const struct job *job, struct device *device,
                                   const struct job_options *options, struct plim_error *err)
{
    struct comm *comm = device->comm;
    if (!comm) return PLIM_OK;
    struct rank_line mine = {.budget = job_budget(job, &device->facts)};
    struct rank_line *all = calloc((size_t)comm->ranks, sizeof *all);
    if (!all) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while ranks compared their devices");
    memcpy(mine.name, device->facts.name, sizeof mine.name);
    enum plim_status status =
        comm_gather(comm, &mine, sizeof mine, all, (size_t)comm->ranks * sizeof mine, err);
    int least = 0, most = 0, other = 0;
    for (int r = 1; r < comm->ranks && status == PLIM_OK; r++) {
        if (all[r].budget < all[least].budget) least = r;
        if (all[r].budget > all[most].budget) most = r;
        if (!other && strcmp(all[r].name, all[0].name)) other = r;
    }
    bool tells = status == PLIM_OK && comm->rank == 0 && !options->quiet;
    char low[BYTES_TEXT], high[BYTES_TEXT];
    /* Free memory of a machine moves from one look to the next. */
    bool uneven = (double)all[least].budget < 0.95 * (double)all[most].budget;
    if (tells && uneven)
        cli_say("rank %d may take %s and rank %d %s: the least counts for all", least,
                bytes_format(low, (uint64_t)all[least].budget), most,
                bytes_format(high, (uint64_t)all[most].budget));
    if (tells && other)
        cli_say("rank 0 has %.63s and rank %d %.63s: steps take as long as the slower one", all[0].name,
                other, all[other].name);
    free(all);
    return status;
}
