/* pack_tree.h - the state of the backtracking search, shared by the tree (pack_tree.c) and its bounds
 * (pack_bound.c).
 *
 * The state is a floor for every column and the rectangles not yet placed. Floors only rise on the way down
 * the tree; the trail remembers the way back up.
 *
 * Invariants: rest[c] is the sum of the unplaced rectangles over c; the trail holds, newest last, every
 * change of floor[], top[] and rest[] since the root. The lists of unplaced rectangles lie on a stack of
 * their own (pool), addressed by index because it may move; each is in the order of the supports it holds.
 */
#ifndef PLIM_PLAN_PACK_TREE_H
#define PLIM_PLAN_PACK_TREE_H

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

/* Columns [first,end): a stretch of time that no unplaced rectangle leaves. */
struct part {
    int first, end;
};

struct pack_tree {
    struct pack_job *job;
    int64_t goal;
    const struct pack_taste *taste;
    /* per column */
    int64_t *floor, *rest, *lowest, *pile;
    int *top, *choices, *cross; /* top: the rectangle whose upper side is the floor, -1: none */
    double *grudge;             /* 1 + how often the column was the end of a branch */
    /* per rectangle */
    int *rank, *twin; /* order of preference; the first rectangle equal to this one */
    bool *flat;       /* does it stand on even floor? */
    struct pack_key *keys;
    struct todo *moved, *kept;
    int64_t *was; /* supports before the floors rose */
    /* stacks */
    struct change *trail;
    struct todo *pool;
    struct part *part;
    size_t trail_len, trail_cap, pool_len, pool_cap, part_len, part_cap;
    long nodes, nodes_most;
    double deadline;
    bool stop; /* nodes, time or memory are spent */
    int last;  /* the column of the last branching */
    int depth;
};

/* Room for `count` more changes; without memory the search is over. */
bool pack_tree_reserve(struct pack_tree *tree, int count);

/* Reserve first. `top` is the rectangle whose upper side the floor now is, -1: none. */
static inline void pack_tree_set_floor(struct pack_tree *t, int c, int64_t floor, int top)
{
    t->trail[t->trail_len++] = (struct change){c, t->top[c], t->floor[c]};
    t->floor[c] = floor;
    t->top[c] = top;
}

/* Raise floors as far as the list forces them, find and sort the supports. False: the goal is out of reach
 * (or stop); what has risen is on the trail. */
bool pack_tree_tighten(struct pack_tree *tree, struct todo *list, int n, struct part part);

#endif
