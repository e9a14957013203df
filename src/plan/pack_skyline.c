/* pack_skyline.c - fill the lowest valley.
 *
 * The skyline is the height used so far in every column. Its lowest stretch, the valley, takes the first rectangle
 * of the given order that lies wholly inside it. When none does, the valley is filled up to its lower wall:
 * that space is lost, and nothing else could have used it in this order of things.
 *
 * The skyline is a list of stretches of equal height, known by their first column; neighbours always
 * differ in height. A heap finds the lowest one (the leftmost of equals); its entries go stale when a stretch
 * changes and are then skipped. Which rectangle comes first among those inside [a,b) is answered by a binary tree
 * over the rectangles sorted by their first column: a node knows the best rank and the least end below it, so
 * a search skips every subtree that is too late in the order or ends too far right.
 */
#include "plan/pack_internal.h"

struct stretch {
    int end, left; /* one past its last column; first column of its left neighbour, -1: none */
    bool live;
    int64_t height;
};

struct entry {
    int64_t height;
    int first;
};

struct node {
    int rank, end;
};

struct pack_skyline {
    struct pack_job *job;
    struct stretch *stretch; /* [columns], those that are not live mean nothing */
    struct entry *heap;
    int entries;
    struct node *node; /* [2 * leaves] */
    int leaves;
    int *leaf_of, *rect_of_rank; /* [n] */
    int *first_leaf;             /* [columns + 1] the first leaf whose rectangle begins at that column or later */
};

/* --- the heap ---------------------------------------------------------------------------------------------- */

static bool lower(const struct entry *x, const struct entry *y) {
    return x->height < y->height || (x->height == y->height && x->first < y->first);
}

static void heap_push(struct pack_skyline *s, int first) {
    struct entry e = {s->stretch[first].height, first};
    int at = s->entries++;
    for (int up; at > 0 && lower(&e, &s->heap[up = (at - 1) / 2]); at = up) s->heap[at] = s->heap[up];
    s->heap[at] = e;
}

static struct entry heap_pop(struct pack_skyline *s) {
    struct entry top = s->heap[0], e = s->heap[--s->entries];
    int at = 0;
    for (int child; (child = 2 * at + 1) < s->entries; at = child) {
        if (child + 1 < s->entries && lower(&s->heap[child + 1], &s->heap[child])) child++;
        if (!lower(&s->heap[child], &e)) break;
        s->heap[at] = s->heap[child];
    }
    s->heap[at] = e;
    return top;
}

/* --- which rectangle ------------------------------------------------------------------------------------------ */

static void node_update(struct pack_skyline *s, int at) {
    const struct node *l = &s->node[2 * at], *r = &s->node[2 * at + 1];
    s->node[at].rank = l->rank < r->rank ? l->rank : r->rank;
    s->node[at].end = l->end < r->end ? l->end : r->end;
}

static void forget(struct pack_skyline *s, int r) {
    int at = s->leaves + s->leaf_of[r];
    s->node[at] = (struct node){INT32_MAX, INT32_MAX};
    for (at /= 2; at; at /= 2) node_update(s, at);
}

/* The best rank below `at` that beats `best` and ends by `end`; leaves of the subtree are all allowed. */
static int best_below(const struct pack_skyline *s, int at, int end, int best) {
    if (s->node[at].rank >= best || s->node[at].end > end) return best;
    if (at >= s->leaves) return s->node[at].rank;
    int first = 2 * at + (s->node[2 * at].rank > s->node[2 * at + 1].rank);
    best = best_below(s, first, end, best);
    return best_below(s, first ^ 1, end, best);
}

static int first_inside(const struct pack_skyline *s, int a, int b) {
    int best = INT32_MAX;
    int l = s->leaves + s->first_leaf[a], r = s->leaves + s->first_leaf[b];
    for (; l < r; l /= 2, r /= 2) {
        if (l & 1) best = best_below(s, l++, b, best);
        if (r & 1) best = best_below(s, --r, b, best);
    }
    return best == INT32_MAX ? -1 : s->rect_of_rank[best];
}

/* --- the skyline ------------------------------------------------------------------------------------------------ */

static void join_right(struct pack_skyline *s, int first) {
    struct stretch *x = &s->stretch[first];
    if (x->end == s->job->columns || s->stretch[x->end].height != x->height) return;
    struct stretch *right = &s->stretch[x->end];
    right->live = false;
    x->end = right->end;
    if (x->end < s->job->columns) s->stretch[x->end].left = first;
}

static void settle(struct pack_skyline *s, int first) {
    join_right(s, first);
    int left = s->stretch[first].left;
    if (left >= 0 && s->stretch[left].height == s->stretch[first].height) {
        join_right(s, left);
        first = left;
    }
    heap_push(s, first);
}

/* Columns [a,b) of the stretch that holds them become a stretch of their own. */
static void cut(struct pack_skyline *s, int first, int a, int b) {
    struct stretch whole = s->stretch[first];
    if (b < whole.end) {
        s->stretch[b] = (struct stretch){whole.end, a, true, whole.height};
        if (whole.end < s->job->columns) s->stretch[whole.end].left = b;
    }
    s->stretch[a] = (struct stretch){b, a > first ? first : whole.left, true, whole.height};
    if (b == whole.end && b < s->job->columns) s->stretch[b].left = a;
    if (a > first) s->stretch[first].end = a, heap_push(s, first);
    if (b < whole.end) heap_push(s, b);
}

static void place(struct pack_skyline *s, int first, int r) {
    const struct pack_rect *rect = &s->job->rect[r];
    s->job->offset[r] = s->stretch[first].height;
    cut(s, first, rect->a, rect->b);
    s->stretch[rect->a].height += rect->size;
    settle(s, rect->a);
    forget(s, r);
}

static bool fill_up(struct pack_skyline *s, int first) {
    struct stretch *x = &s->stretch[first];
    int64_t wall = INT64_MAX;
    if (x->left >= 0) wall = s->stretch[x->left].height;
    if (x->end < s->job->columns && s->stretch[x->end].height < wall) wall = s->stretch[x->end].height;
    if (wall == INT64_MAX) return false; /* the whole width, and nothing left to place */
    x->height = wall;
    settle(s, first);
    return true;
}

/* --- a pass ------------------------------------------------------------------------------------------------------ */

static void reset(struct pack_skyline *s, const int *order) {
    for (int rank = 0; rank < s->job->n; rank++) {
        int r = order[rank];
        s->rect_of_rank[rank] = r;
        s->node[s->leaves + s->leaf_of[r]] = (struct node){rank, s->job->rect[r].b};
    }
    for (int i = s->job->n; i < s->leaves; i++) s->node[s->leaves + i] = (struct node){INT32_MAX, INT32_MAX};
    for (int at = s->leaves - 1; at; at--) node_update(s, at);
    for (int c = 0; c < s->job->columns; c++) s->stretch[c].live = false;
    s->stretch[0] = (struct stretch){s->job->columns, -1, true, 0};
    s->entries = 0;
    heap_push(s, 0);
}

int64_t pack_skyline_run(struct pack_skyline *s, const int *order) {
    reset(s, order);
    int64_t top = 0;
    for (int left = s->job->n; left > 0;) {
        struct entry lowest = heap_pop(s);
        const struct stretch *x = &s->stretch[lowest.first];
        if (!x->live || x->height != lowest.height) continue;
        int r = first_inside(s, lowest.first, x->end);
        if (r < 0) {
            if (!fill_up(s, lowest.first)) return PACK_NONE;
            continue;
        }
        if (lowest.height >= s->job->height - s->job->rect[r].size) return PACK_NONE;
        if (lowest.height + s->job->rect[r].size > top) top = lowest.height + s->job->rect[r].size;
        place(s, lowest.first, r);
        left--;
    }
    return top;
}

static void sort_leaves(struct pack_skyline *s) {
    const struct pack_job *job = s->job;
    for (int i = 0; i < job->n; i++) s->first_leaf[job->rect[i].a + 1]++;
    for (int c = 0; c < job->columns; c++) s->first_leaf[c + 1] += s->first_leaf[c];
    for (int i = 0; i < job->n; i++) s->leaf_of[i] = s->first_leaf[job->rect[i].a]++;
    for (int c = job->columns; c > 0; c--) s->first_leaf[c] = s->first_leaf[c - 1];
    s->first_leaf[0] = 0;
}

struct pack_skyline *pack_skyline_new(struct pack_job *job) {
    size_t n = (size_t)job->n, columns = (size_t)job->columns;
    struct pack_skyline *s = bump_alloc(job->store, sizeof *s);
    if (!s) return NULL;
    s->job = job;
    for (s->leaves = 1; s->leaves < job->n;) s->leaves *= 2;
    s->stretch = bump_alloc(job->store, columns * sizeof *s->stretch);
    s->heap = bump_alloc(job->store, (4 * n + 2 * columns + 4) * sizeof *s->heap);
    s->node = bump_alloc(job->store, 2 * (size_t)s->leaves * sizeof *s->node);
    s->leaf_of = bump_alloc(job->store, n * sizeof *s->leaf_of);
    s->rect_of_rank = bump_alloc(job->store, n * sizeof *s->rect_of_rank);
    s->first_leaf = bump_alloc(job->store, (columns + 2) * sizeof *s->first_leaf);
    if (!s->stretch || !s->heap || !s->node || !s->leaf_of || !s->rect_of_rank || !s->first_leaf) return NULL;
    sort_leaves(s);
    return s;
}
