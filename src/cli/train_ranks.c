/* train_ranks.c - see train_ranks.h. */
#include "cli/train_ranks.h"
#include "base/bytes.h"
#include "comm/link.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void ranks_end_stuck(const char *why)
{
    cli_say("%s", why);
    _exit(plim_exit_code(PLIM_IO));
}

void ranks_share_cores(struct job *job, int local_ranks)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN) / local_ranks;
    if (!job->training.threads) job->training.threads = cores > 1 ? cores : 1;
}

void ranks_share_memory(struct device_facts *facts, int local_ranks)
{
    facts->memory_bytes /= (size_t)local_ranks;
    facts->free_bytes /= (size_t)local_ranks;
}

/* Rates that were measured, among all ranks. */
static void take_rates(const struct link_rates *r, struct device_facts *facts)
{
    facts->link_bandwidth = r->bandwidth, facts->link_seconds = r->seconds;
    facts->reduce_share = r->reduce_share, facts->link_beside = r->beside, facts->link_load = r->load;
    if (r->beside < r->load) facts->async_exchanges = false; /* together they take longer than in turn */
}

enum plim_status plan_find_link(const struct cluster *cluster, bool here, struct device_facts *facts,
                                struct plim_error *err)
{
    struct link_rates kept;
    enum plim_status status = cluster_apply(cluster, facts, err);
    bool one = here && facts->ranks > 1 && cluster->nodes <= 1 && !cluster->link;
    int threads = facts->unified_memory ? facts->threads : 0;
    if (status == PLIM_OK && one && link_recall_here(cli_context(), facts->ranks, threads, &kept))
        take_rates(&kept, facts);
    return status;
}

/* Rates that were kept, where the job names no preset: of the link inside a machine, and of all ranks. */
static enum plim_status take_kept(struct comm *comm, const struct cluster *cluster,
                                  struct device_facts *facts, struct plim_error *err)
{
    struct link_rates all, node;
    bool known = false, node_known = false;
    int threads = facts->unified_memory && comm->lane ? facts->threads : 0;
    bool named = cluster->nodes > 1 ? cluster->network != NULL : cluster->link != NULL;
    enum plim_status status = link_recall(comm, threads, &all, &known, err);
    if (status == PLIM_OK && comm->node) status = link_recall(comm->node, threads, &node, &node_known, err);
    if (status == PLIM_OK && known && !named) take_rates(&all, facts);
    if (status == PLIM_OK && node_known && !cluster->link)
        facts->node_bandwidth = node.bandwidth, facts->node_seconds = node.seconds;
    return status;
}

enum plim_status train_find_link(const struct job *job, struct device *device, struct plim_error *err)
{
    struct comm *comm = device->comm;
    struct device_facts *facts = &device->facts, own = *facts;
    struct cluster cluster = {.ranks = comm->ranks, .nodes = comm->ranks / comm->local_ranks};
    if (cluster.nodes * comm->local_ranks != comm->ranks)
        cluster.nodes = comm->ranks; /* uneven: all by the network */
    cluster_from_keys(&cluster, job->training.link, job->training.network);
    enum plim_status status = cluster_apply(&cluster, facts, err);
    if (status != PLIM_OK)
        plim_error_prefix(err, "%s: keys 'training.link' and 'training.network'", job->name);
    facts->async_exchanges = own.async_exchanges, facts->node_ranks = own.node_ranks;
    return status == PLIM_OK ? take_kept(comm, &cluster, facts, err) : status;
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
        cli_say("rank %d may use %s and rank %d %s; the smaller one counts for all", least,
                bytes_format(low, (uint64_t)all[least].budget), most,
                bytes_format(high, (uint64_t)all[most].budget));
    if (tells && other)
        cli_say("rank 0 has %.63s and rank %d %.63s; the slower one determines the step time", all[0].name,
                other, all[other].name);
    free(all);
    return status;
}
