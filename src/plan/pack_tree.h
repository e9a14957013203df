/* pack_tree.h - the state of the backtracking search, shared by the tree (pack_tree.c) and its bounds
 * (pack_bound.c).
 *
 * The state is a floor for every column and the rectangles not yet placed. Floors only rise on the way down the tree; the
 * trail records how to undo this.
 *
 * Invariants: rest[c] is the sum of the unplaced rectangles over c; the trail holds every change of floor[], top[] and
 * rest[] since the root, newest last. The lists of unplaced rectangles are on a separate stack (pool) and addressed by
 * index, because it may move; each is sorted by support.
 */
#pragma once

#include "plan/pack_internal.h"

/* A rectangle not yet placed. It cannot start below its support, the highest floor of its columns. */
struct todo {
    int64_t support;
    int r;
};

struct change {
    int column; /* ~r: rectangle r was placed */
    int top;
    int64_t floor;
};

/* Columns [first,end): an interval of time that no unplaced rectangle crosses. */
struct part {
    int first, end;
};

struct pack_tree {
    struct pack_job *job;
    int64_t goal;
    const struct pack_taste *taste;
    /* per column */
    int64_t *floor, *rest, *lowest, *pile;
    int *top, *choices, *cross; /* top: the rectangle whose top is the floor, -1: none */
    double *grudge;             /* 1 + how often a branch ended at the column */
    /* per rectangle */
    int *rank, *twin; /* order of preference; the first rectangle equal to this one */
    bool *flat;       /* true if its floor is even */
    struct pack_key *keys;
    struct todo *moved, *kept;
    int64_t *was; /* supports before the floors rose */
    /* stacks */
    struct change *trail;
    struct todo *pool;
    struct part *part;
    size_t trail_len, trail_cap, pool_len, pool_cap, part_len, part_cap;
    long nodes, nodes_most;
    double columns_left; /* that may be looked at: nodes of a large job cost more */
    double deadline;
    bool stop; /* out of nodes, time or memory */
    int last;  /* the column of the last branching */
    int depth;
};

/* Makes room for `count` more changes. Without memory the search ends. */
bool pack_tree_reserve(struct pack_tree *tree, int count);

/* Reserve first. `top` is the rectangle whose top is now the floor, -1: none. */
static inline void pack_tree_set_floor(struct pack_tree *t, int c, int64_t floor, int top)
{
    t->trail[t->trail_len++] = (struct change){c, t->top[c], t->floor[c]};
    t->floor[c] = floor;
    t->top[c] = top;
}

/* Raises floors as far as the list requires, and computes and sorts the supports. Returns false if the goal
 * is out of reach (or stop); changes are on the trail. */
bool pack_tree_tighten(struct pack_tree *tree, struct todo *list, int n, struct part part);
