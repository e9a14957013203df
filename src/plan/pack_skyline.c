/* pack_skyline.c - fill the valleys.
 *
 * The skyline is the height used so far in every column. A valley is a stretch of equal height between
 * higher ones. It takes the first rectangle of the given order that lies wholly inside it; when none does, it
 * is filled up to its lower wall: that space is lost, for nothing that is left could have used it. Valleys do
 * not know of each other, so it does not matter which one comes next; the pass simply walks downhill to one.
 *
 * The skyline is a list of stretches, known by their first columns; neighbours always differ in height.
 * Which rectangle comes first among those inside [a,b) is answered by a binary tree over the rectangles
 * sorted by their first column: a node knows the best rank and the least end below it, so a search skips
 * every subtree that is too late in the order or ends too far right.
 */
#include "plan/pack_internal.h"

struct stretch {
    int end, left; /* one past its last column; first column of its left neighbour, -1: none */
    int64_t height;
};

struct node {
    int rank, end;
};

struct pack_skyline {
    struct pack_job *job;
    struct stretch *stretch; /* [columns], only first columns of stretches mean anything */
    struct node *node;       /* [2 * leaves] */
    int leaves;
    int *leaf_of, *rect_of_rank; /* [n] */
    int *first_leaf; /* [columns + 1] the first leaf whose rectangle begins at that column or later */
};

/* --- which rectangle -------------------------------------------------------------------------------- */

static void node_update(struct pack_skyline *s, int at)
{
    const struct node *l = &s->node[2 * at], *r = &s->node[2 * at + 1];
    s->node[at].rank = l->rank < r->rank ? l->rank : r->rank;
    s->node[at].end = l->end < r->end ? l->end : r->end;
}

static void forget(struct pack_skyline *s, int r)
{
    int at = s->leaves + s->leaf_of[r];
    s->node[at] = (struct node){INT32_MAX, INT32_MAX};
    for (at /= 2; at; at /= 2) {
        struct node was = s->node[at];
        node_update(s, at);
        if (was.rank == s->node[at].rank && was.end == s->node[at].end) return;
    }
}

/* The best rank below `at` that beats `best` and ends by `end`; leaves of the subtree are all allowed. */
static int best_below(const struct pack_skyline *s, int at, int end, int best)
{
    if (s->node[at].rank >= best || s->node[at].end > end) return best;
    if (at >= s->leaves) return s->node[at].rank;
    int first = 2 * at + (s->node[2 * at].rank > s->node[2 * at + 1].rank);
    best = best_below(s, first, end, best);
    return best_below(s, first ^ 1, end, best);
}

static int first_inside(const struct pack_skyline *s, int a, int b)
{
    int best = INT32_MAX;
    int l = s->leaves + s->first_leaf[a], r = s->leaves + s->first_leaf[b];
    for (; l < r; l /= 2, r /= 2) {
        if (l & 1) best = best_below(s, l++, b, best);
        if (r & 1) best = best_below(s, --r, b, best);
    }
    return best == INT32_MAX ? -1 : s->rect_of_rank[best];
}

/* --- the skyline ------------------------------------------------------------------------------------ */

static void join_right(struct pack_skyline *s, int first)
{
    struct stretch *x = &s->stretch[first];
    if (x->end == s->job->columns || s->stretch[x->end].height != x->height) return;
    x->end = s->stretch[x->end].end;
    if (x->end < s->job->columns) s->stretch[x->end].left = first;
}

/* After a change of height: one stretch again with neighbours of the same height. Returns its first column.
 */
static int settle(struct pack_skyline *s, int first)
{
    int left = s->stretch[first].left;
    join_right(s, first);
    if (left < 0 || s->stretch[left].height != s->stretch[first].height) return first;
    join_right(s, left);
    return left;
}

/* Columns [a,b) of a stretch become a stretch of their own. */
static void cut(struct pack_skyline *s, int first, int a, int b)
{
    struct stretch whole = s->stretch[first];
    int last = a; /* the last piece of the whole */
    s->stretch[a] = (struct stretch){b, a > first ? first : whole.left, whole.height};
    if (a > first) s->stretch[first].end = a;
    if (b < whole.end) s->stretch[last = b] = (struct stretch){whole.end, a, whole.height};
    if (whole.end < s->job->columns) s->stretch[whole.end].left = last;
}

/* Returns a stretch nearby from which the walk goes on. */
static int place(struct pack_skyline *s, int first, int r)
{
    const struct pack_rect *rect = &s->job->rect[r];
    s->job->offset[r] = s->stretch[first].height;
    cut(s, first, rect->a, rect->b);
    s->stretch[rect->a].height += rect->size;
    forget(s, r);
    return settle(s, rect->a);
}

static int64_t wall(const struct pack_skyline *s, int first, bool right)
{
    const struct stretch *x = &s->stretch[first];
    int neighbour = right ? x->end : x->left;
    return neighbour < 0 || neighbour == s->job->columns ? INT64_MAX : s->stretch[neighbour].height;
}

static int valley_from(const struct pack_skyline *s, int first)
{
    for (;;) {
        int64_t height = s->stretch[first].height;
        if (wall(s, first, false) < height)
            first = s->stretch[first].left;
        else if (wall(s, first, true) < height)
            first = s->stretch[first].end;
        else
            return first;
    }
}

static int fill_up(struct pack_skyline *s, int first)
{
    int64_t left = wall(s, first, false), right = wall(s, first, true);
    s->stretch[first].height = left < right ? left : right;
    return settle(s, first);
}

/* --- a pass ----------------------------------------------------------------------------------------- */

static void reset(struct pack_skyline *s, const int *order)
{
    for (int rank = 0; rank < s->job->n; rank++) {
        int r = order[rank];
        s->rect_of_rank[rank] = r;
        s->node[s->leaves + s->leaf_of[r]] = (struct node){rank, s->job->rect[r].b};
    }
    for (int i = s->job->n; i < s->leaves; i++) s->node[s->leaves + i] = (struct node){INT32_MAX, INT32_MAX};
    for (int at = s->leaves - 1; at; at--) node_update(s, at);
    s->stretch[0] = (struct stretch){s->job->columns, -1, 0};
}

int64_t pack_skyline_run(struct pack_skyline *s, const int *order)
{
    reset(s, order);
    int64_t top = 0;
    int at = 0;
    for (int left = s->job->n; left > 0;) {
        at = valley_from(s, at);
        const struct stretch *valley = &s->stretch[at];
        int r = first_inside(s, at, valley->end);
        if (r < 0) {
            at = fill_up(s, at);
            continue;
        }
        int64_t size = s->job->rect[r].size, height = valley->height;
        if (height >= s->job->height - size) return PACK_NONE;
        if (height + size > top) top = height + size;
        at = place(s, at, r);
        left--;
    }
    return top;
}

static void sort_leaves(struct pack_skyline *s)
{
    const struct pack_job *job = s->job;
    for (int i = 0; i < job->n; i++) s->first_leaf[job->rect[i].a + 1]++;
    for (int c = 0; c < job->columns; c++) s->first_leaf[c + 1] += s->first_leaf[c];
    for (int i = 0; i < job->n; i++) s->leaf_of[i] = s->first_leaf[job->rect[i].a]++;
    for (int c = job->columns; c > 0; c--) s->first_leaf[c] = s->first_leaf[c - 1];
    s->first_leaf[0] = 0;
}

struct pack_skyline *pack_skyline_new(struct pack_job *job)
{
    size_t n = (size_t)job->n, columns = (size_t)job->columns;
    struct pack_skyline *s = bump_alloc(job->store, sizeof *s);
    if (!s) return NULL;
    s->job = job;
    for (s->leaves = 1; s->leaves < job->n;) s->leaves *= 2;
    s->stretch = bump_alloc(job->store, columns * sizeof *s->stretch);
    s->node = bump_alloc(job->store, 2 * (size_t)s->leaves * sizeof *s->node);
    s->leaf_of = bump_alloc(job->store, n * sizeof *s->leaf_of);
    s->rect_of_rank = bump_alloc(job->store, n * sizeof *s->rect_of_rank);
    s->first_leaf = bump_alloc(job->store, (columns + 2) * sizeof *s->first_leaf);
    if (!s->stretch || !s->node || !s->leaf_of || !s->rect_of_rank || !s->first_leaf) return NULL;
    sort_leaves(s);
    return s;
}
