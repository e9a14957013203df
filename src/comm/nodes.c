/* nodes.c - which ranks are on one machine, and the groups of them: those of a node, and one of each node.
 *
 * Rank r is number r % per of node r / per. Ranks that a launcher dealt out otherwise have no such groups, for the pieces of a
 * group would lie in another order than ranks. */
#include "comm/lane.h"

#include <stdlib.h>

/* PLIMSOLL_RANKS_PER_NODE says what counts as a node where that is not the machine: sockets, or machines that are played. */
static int ranks_per_node(const struct comm *comm)
{
    const char *text = context_get(comm->context, "PLIMSOLL_RANKS_PER_NODE");
    long n = text ? strtol(text, NULL, 10) : 0;
    return n > 0 && n <= comm->ranks ? (int)n : comm->local_ranks;
}

/* As every rank sees it: the same number on all nodes, one node after the other. */
static enum plim_status agree_on_nodes(struct comm *comm, int per, bool *even, struct plim_error *err)
{
    bool named = context_get(comm->context, "PLIMSOLL_RANKS_PER_NODE") != NULL;
    double wrong = named || comm->rank % per == comm->local_rank ? 0 : 1, sums[2] = {wrong, per};
    enum plim_status status = comm_sum_numbers(comm, sums, 2, err);
    *even = sums[0] == 0 && sums[1] == (double)per * comm->ranks && comm->ranks % per == 0;
    return status;
}

static enum plim_status make_group(struct comm *comm, int part, struct comm **out, struct plim_error *err)
{
    struct comm *group = calloc(1, sizeof *group);
    if (!group) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while ranks were connected");
    group->ops = comm->ops, group->context = comm->context, group->any_thread = comm->any_thread,
    group->lane = comm->lane;
    group->pmi = comm->pmi, group->gone = comm->gone;
    const char *why = comm->ops->split(comm, part, group);
    if (!why) return *out = group, PLIM_OK;
    free(group);
    return plim_fail(err, PLIM_LINK, "rank %d of %d: %s", comm->rank, comm->ranks, why);
}

enum plim_status comm_find_nodes(struct comm *comm, struct plim_error *err)
{
    int per = ranks_per_node(comm);
    bool even = false;
    if (!comm->ops->split) return PLIM_OK;
    enum plim_status status = agree_on_nodes(comm, per, &even, err);
    if (status != PLIM_OK || !even || per < 2 || per == comm->ranks) return status;
    status = make_group(comm, comm->rank / per, &comm->node, err);
    return status == PLIM_OK ? make_group(comm, comm->rank % per, &comm->across, err) : status;
}
