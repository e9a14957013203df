/* pack_tree.c - backtracking search for a packing of a given height.
 *
 * The state is a floor for every column and the rectangles not yet placed. Floors only rise. In every packing
 * that cannot be pushed down any further, the lowest thing above a valley (a stretch of equal floors
 * between higher ones) in one of its columns is either a rectangle that lies wholly inside the valley and stands
 * on its floor, or there is a hole: nothing in that column starts at the floor. So a node of the tree picks a
 * column in a valley and tries each such rectangle, then the hole, which raises the floor of that column to the
 * next height at which something could start. The branches exclude each other and miss nothing.
 *
 * What makes it fast, in the order of importance:
 *   parts      What no unplaced rectangle connects is solved separately, so that a failure on one side never
 *              makes the search try again what it did on the other.
 *   twins      Of rectangles with the same columns stacked directly on each other only one order is tried, the
 *              order in which the search prefers them. Equal rectangles count as one choice.
 *   bounds     A rectangle cannot start below the highest floor of its columns (its support), and a column whose
 *              rectangles all have higher supports rises to the lowest of them. Piling up the rectangles of
 *              a column by support must not get above the goal.
 *   choice     The column with the fewest choices comes first, weighed by a taste: near to the last choice, without
 *              slack, or in trouble before. Tastes differ from dive to dive; see pack_search.c.
 *   memory     States of a part that were proved hopeless are remembered by a hash, across dives of one goal.
 *
 * Invariants: rest[c] is the sum of the unplaced rectangles over c; the trail holds, newest last, every change
 * of floor[], top[] and rest[] since the root; a failing call leaves its changes for the caller to rewind.
 * The lists of unplaced rectangles lie on a stack of their own (pool), addressed by index because it may move.
 */
#include "plan/pack_internal.h"
#include "base/clock.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MEMORY_BITS = 18, CLOCK_EVERY = 64 };

struct todo {
    int64_t support;
    int r;
};

struct change {
    int column; /* ~r: rectangle r was placed */
    int top;
    int64_t floor;
};

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
    double *grudge;
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
    uint64_t *hopeless, salt;
    long nodes, nodes_most;
    double deadline;
    bool stop;
    int last;
};

/* --- stacks ---------------------------------------------------------------------------------------------- */

static bool grow(void **data, size_t *cap, size_t need, size_t size) {
    size_t room = need + need / 2 + 256;
    if (need <= *cap) return true;
    void *more = realloc(*data, room * size);
    if (!more) return false;
    *data = more, *cap = room;
    return true;
}

/* Room for `count` more; without memory the search is over. */
static bool reserve_trail(struct pack_tree *t, int count) {
    if (!grow((void **)&t->trail, &t->trail_cap, t->trail_len + (size_t)count, sizeof *t->trail)) t->stop = true;
    return !t->stop;
}

static bool reserve_pool(struct pack_tree *t, int count) {
    if (!grow((void **)&t->pool, &t->pool_cap, t->pool_len + (size_t)count, sizeof *t->pool)) t->stop = true;
    return !t->stop;
}

static void set_floor(struct pack_tree *t, int c, int64_t floor, int top) {
    t->trail[t->trail_len++] = (struct change){c, t->top[c], t->floor[c]};
    t->floor[c] = floor;
    t->top[c] = top;
}

static void put(struct pack_tree *t, int r) {
    const struct pack_rect *x = &t->job->rect[r];
    int64_t at = t->floor[x->a];
    t->job->offset[r] = at;
    for (int c = x->a; c < x->b; c++) {
        t->rest[c] -= x->size;
        set_floor(t, c, at + x->size, r);
    }
    t->trail[t->trail_len++] = (struct change){.column = ~r};
}

static void rewind_to(struct pack_tree *t, size_t mark) {
    while (t->trail_len > mark) {
        const struct change *was = &t->trail[--t->trail_len];
        if (was->column >= 0) {
            t->floor[was->column] = was->floor;
            t->top[was->column] = was->top;
            continue;
        }
        const struct pack_rect *x = &t->job->rect[~was->column];
        for (int c = x->a; c < x->b; c++) t->rest[c] += x->size;
    }
}

/* --- bounds ------------------------------------------------------------------------------------------------ */

static bool fail_at(struct pack_tree *t, int c) {
    t->grudge[c] += 1;
    return false;
}

static void find_supports(struct pack_tree *t, struct todo *list, int n, struct part p) {
    for (int c = p.first; c < p.end; c++) t->lowest[c] = INT64_MAX;
    for (int i = 0; i < n; i++) {
        const struct pack_rect *x = &t->job->rect[list[i].r];
        int64_t support = 0;
        for (int c = x->a; c < x->b; c++) support = t->floor[c] > support ? t->floor[c] : support;
        for (int c = x->a; c < x->b; c++) t->lowest[c] = support < t->lowest[c] ? support : t->lowest[c];
        list[i].support = support;
    }
}

/* Floors rise to the lowest support above them until nothing changes. */
static bool raise_floors(struct pack_tree *t, struct todo *list, int n, struct part p) {
    for (bool again = true; again;) {
        again = false;
        find_supports(t, list, n, p);
        if (!reserve_trail(t, p.end - p.first)) return false;
        for (int c = p.first; c < p.end; c++) {
            if (!t->rest[c]) continue;
            if (t->lowest[c] > t->floor[c]) {
                set_floor(t, c, t->lowest[c], -1);
                again = true;
            }
            if (t->floor[c] > t->goal - t->rest[c]) return fail_at(t, c);
        }
    }
    return true;
}

/* The list was in the order of the supports; most of them have not changed, and those that have moved up. */
static void sort_by_support(struct pack_tree *t, struct todo *list, int n) {
    int kept = 0, moved = 0;
    for (int i = 0; i < n; i++) {
        if (list[i].support == t->was[i]) {
            t->kept[kept++] = list[i];
            continue;
        }
        int at = moved++;
        for (; at > 0 && t->moved[at - 1].support > list[i].support; at--) t->moved[at] = t->moved[at - 1];
        t->moved[at] = list[i];
    }
    for (int i = 0, k = 0, m = 0; i < n; i++) {
        bool take_kept = m == moved || (k < kept && t->kept[k].support <= t->moved[m].support);
        list[i] = take_kept ? t->kept[k++] : t->moved[m++];
    }
}

static bool piles_fit(struct pack_tree *t, const struct todo *list, int n, struct part p) {
    memcpy(t->pile + p.first, t->floor + p.first, (size_t)(p.end - p.first) * sizeof *t->pile);
    for (int i = 0; i < n; i++) {
        const struct pack_rect *x = &t->job->rect[list[i].r];
        int64_t support = list[i].support;
        for (int c = x->a; c < x->b; c++) t->pile[c] = (t->pile[c] > support ? t->pile[c] : support) + x->size;
    }
    for (int c = p.first; c < p.end; c++)
        if (t->rest[c] && t->pile[c] > t->goal) return fail_at(t, c);
    return true;
}

static bool tighten(struct pack_tree *t, struct todo *list, int n, struct part p) {
    for (int i = 0; i < n; i++) t->was[i] = list[i].support;
    if (!raise_floors(t, list, n, p)) return false;
    sort_by_support(t, list, n);
    return piles_fit(t, list, n, p);
}

/* --- memory ------------------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t x) {
    x ^= x >> 30, x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27, x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t state_hash(const struct pack_tree *t, const struct todo *list, int n, struct part p) {
    uint64_t hash = t->salt;
    for (int i = 0; i < n; i++) hash += mix(((uint64_t)list[i].r << 1 | 1) * 0x9e3779b97f4a7c15u);
    for (int c = p.first; c < p.end; c++)
        if (t->rest[c]) hash += mix((uint64_t)t->floor[c] * 0x9e3779b97f4a7c15u + ((uint64_t)c << 32));
    return hash | 1;
}

static uint64_t *remembered(struct pack_tree *t, uint64_t hash) {
    return &t->hopeless[hash >> (64 - MEMORY_BITS)];
}

/* --- choosing where to branch --------------------------------------------------------------------------------- */

static void count_choices(struct pack_tree *t, const struct todo *list, int n, struct part p) {
    memset(t->choices + p.first, 0, (size_t)(p.end - p.first) * sizeof *t->choices);
    for (int i = 0; i < n; i++) {
        const struct pack_rect *x = &t->job->rect[list[i].r];
        int c = x->a;
        while (c < x->b && t->floor[c] == list[i].support) c++;
        t->flat[list[i].r] = c == x->b;
        if (c < x->b) continue;
        for (c = x->a; c < x->b; c++) t->choices[c]++;
    }
}

/* Less is better. A column with one choice or none is no choice at all: it goes first. */
static double column_cost(const struct pack_tree *t, int c) {
    int64_t slack = t->goal - t->floor[c] - t->rest[c];
    if (t->choices[c] + (slack > 0) <= 1) return -1;
    double cost = t->choices[c] + (slack > 0 ? 0.5 : 0);
    if (t->taste->grudge) cost /= t->grudge[c];
    cost *= 1 + t->taste->near * abs(c - t->last);
    return cost * (1 + t->taste->tight * 1024 * (double)slack / (double)t->goal);
}

static int choose_column(const struct pack_tree *t, struct part p) {
    int best = -1, end;
    double least = INFINITY;
    for (int first = p.first; first < p.end; first = end) {
        for (end = first + 1; end < p.end && t->floor[end] == t->floor[first];) end++;
        if (first > p.first && t->floor[first - 1] < t->floor[first]) continue;
        if (end < p.end && t->floor[end] < t->floor[first]) continue;
        for (int c = first; c < end; c++) {
            double cost = column_cost(t, c);
            if (cost < least) least = cost, best = c;
        }
    }
    return best;
}

/* The lowest height above its floor at which something could start in column c, if nothing starts at the floor. */
static int64_t height_of_hole(const struct pack_tree *t, const struct todo *list, int n, int c, struct part p) {
    int first = c, end = c + 1;
    while (first > p.first && t->floor[first - 1] == t->floor[c]) first--;
    while (end < p.end && t->floor[end] == t->floor[c]) end++;
    int64_t start = INT64_MAX, beside = INT64_MAX; /* beside: the least size of what could lie next to c */
    for (int i = 0; i < n; i++) {
        const struct pack_rect *x = &t->job->rect[list[i].r];
        bool covers = x->a <= c && c < x->b;
        if (covers && !t->flat[list[i].r] && list[i].support < start) start = list[i].support;
        if (!covers && x->a >= first && x->b <= end && x->size < beside) beside = x->size;
    }
    if (t->choices[c] && beside < INT64_MAX && t->floor[c] + beside < start) start = t->floor[c] + beside;
    return start;
}

/* --- the tree ------------------------------------------------------------------------------------------------- */

static bool solve(struct pack_tree *t, size_t list, int n, struct part p);

/* The rectangles to try in column c, preferred ones first, onto the pool. Returns how many. */
static int gather(struct pack_tree *t, size_t list, int n, int c) {
    int count = 0;
    struct todo *into = t->pool + t->pool_len;
    for (int i = 0; i < n; i++) {
        struct todo x = t->pool[list + (size_t)i];
        const struct pack_rect *rect = &t->job->rect[x.r];
        if (!t->flat[x.r] || c < rect->a || c >= rect->b) continue;
        int at = count++;
        for (; at > 0 && t->rank[into[at - 1].r] > t->rank[x.r]; at--) into[at] = into[at - 1];
        into[at] = x;
    }
    t->pool_len += (size_t)count;
    return count;
}

/* Equal to the choice before it, or out of order on a rectangle with the same columns? */
static bool is_twin(const struct pack_tree *t, const struct todo *choice, int i) {
    int r = choice[i].r, under = t->top[t->job->rect[r].a];
    if (i > 0 && t->twin[choice[i - 1].r] == t->twin[r]) return true;
    if (under < 0 || t->rank[under] < t->rank[r]) return false;
    const struct pack_rect *x = &t->job->rect[r], *y = &t->job->rect[under];
    return x->a == y->a && x->b == y->b;
}

static bool try_rect(struct pack_tree *t, size_t list, int n, int r, struct part p) {
    size_t child = t->pool_len;
    if (!reserve_pool(t, n) || !reserve_trail(t, t->job->rect[r].b - t->job->rect[r].a + 1)) return false;
    for (int i = 0; i < n; i++)
        if (t->pool[list + (size_t)i].r != r) t->pool[t->pool_len++] = t->pool[list + (size_t)i];
    put(t, r);
    bool found = solve(t, child, n - 1, p);
    t->pool_len = child;
    return found;
}

static bool try_hole(struct pack_tree *t, size_t list, int n, int c, int64_t start, struct part p) {
    if (start == INT64_MAX || start > t->goal - t->rest[c] || !reserve_trail(t, 1)) return false;
    set_floor(t, c, start, -1);
    return solve(t, list, n, p);
}

static bool branch(struct pack_tree *t, size_t list, int n, struct part p) {
    uint64_t hash = state_hash(t, t->pool + list, n, p);
    if (*remembered(t, hash) == hash || !reserve_pool(t, n)) return false;
    count_choices(t, t->pool + list, n, p);
    int c = choose_column(t, p);
    int64_t start = height_of_hole(t, t->pool + list, n, c, p);
    size_t choice = t->pool_len, mark = t->trail_len;
    int choices = gather(t, list, n, c);
    bool found = false;
    for (int i = 0; i < choices && !found && !t->stop; i++) {
        if (is_twin(t, t->pool + choice, i)) continue;
        t->last = c;
        found = try_rect(t, list, n, t->pool[choice + (size_t)i].r, p);
        if (!found) rewind_to(t, mark);
    }
    if (!found && !t->stop) {
        t->last = c;
        found = try_hole(t, list, n, c, start, p);
        if (!found) rewind_to(t, mark);
    }
    t->pool_len = choice;
    if (!found && !t->stop) *remembered(t, hash) = hash;
    return found;
}

/* Push the parts that no rectangle connects, narrow ones first. Returns how many. */
static int split(struct pack_tree *t, const struct todo *list, int n, struct part p) {
    size_t base = t->part_len;
    memset(t->cross + p.first, 0, (size_t)(p.end - p.first + 1) * sizeof *t->cross);
    for (int i = 0; i < n; i++) t->cross[t->job->rect[list[i].r].a + 1]++, t->cross[t->job->rect[list[i].r].b]--;
    for (int c = p.first, first = c; c < p.end; c++) {
        t->cross[c + 1] += c + 1 < p.end ? t->cross[c] : 0;
        if (c + 1 < p.end && t->cross[c + 1] > 0) continue;
        if (t->rest[first]) {
            if (!grow((void **)&t->part, &t->part_cap, t->part_len + 1, sizeof *t->part)) t->stop = true;
            if (t->stop) return 0;
            size_t at = t->part_len++;
            for (; at > base && t->part[at - 1].end - t->part[at - 1].first > c + 1 - first; at--)
                t->part[at] = t->part[at - 1];
            t->part[at] = (struct part){first, c + 1};
        }
        first = c + 1;
    }
    return (int)(t->part_len - base);
}

static bool solve_part(struct pack_tree *t, size_t list, int n, struct part p) {
    size_t sub = t->pool_len;
    if (!reserve_pool(t, n)) return false;
    for (int i = 0; i < n; i++) {
        struct todo x = t->pool[list + (size_t)i];
        if (t->job->rect[x.r].a >= p.first && t->job->rect[x.r].b <= p.end) t->pool[t->pool_len++] = x;
    }
    bool found = branch(t, sub, (int)(t->pool_len - sub), p);
    t->pool_len = sub;
    return found;
}

static bool out_of_time(struct pack_tree *t) {
    if (++t->nodes > t->nodes_most) t->stop = true;
    if (t->nodes % CLOCK_EVERY == 0 && clock_seconds() > t->deadline) t->stop = true;
    return t->stop;
}

static bool solve(struct pack_tree *t, size_t list, int n, struct part p) {
    if (n == 0) return true;
    if (out_of_time(t) || !tighten(t, t->pool + list, n, p)) return false;
    size_t base = t->part_len;
    int parts = split(t, t->pool + list, n, p);
    bool found = parts > 0;
    for (int i = 0; i < parts && found; i++) {
        struct part q = t->part[base + (size_t)i];
        found = parts == 1 ? branch(t, list, n, q) : solve_part(t, list, n, q);
    }
    t->part_len = base;
    return found;
}

/* --- dives ------------------------------------------------------------------------------------------------- */

static double chance(uint64_t seed, int i) {
    return (double)(mix(seed + (uint64_t)i * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
}

static void rank_rects(struct pack_tree *t, uint64_t seed) {
    const struct pack_taste *taste = t->taste;
    int n = t->job->n;
    for (int r = 0; r < n; r++) {
        const struct pack_rect *x = &t->job->rect[r];
        double life = x->b - x->a, size = (double)x->size;
        double worth = taste->size_power < 0 ? size : life * pow(size, taste->size_power);
        worth *= 1 + taste->noise * chance(seed, t->twin[r]);
        t->keys[r] = (struct pack_key){~pack_key_of(worth), r};
    }
    pack_sort(t->keys, t->keys + n, n);
    for (int i = 0; i < n; i++) t->rank[t->keys[i].index] = i;
}

bool pack_tree_dive(struct pack_tree *t, int64_t goal, const struct pack_taste *taste, uint64_t seed, long nodes,
                    double deadline) {
    struct pack_job *job = t->job;
    t->goal = goal, t->salt = mix((uint64_t)goal); /* what is hopeless for one goal may not be so for another */
    t->taste = taste, t->nodes = 0, t->nodes_most = nodes, t->deadline = deadline, t->stop = false;
    t->trail_len = t->pool_len = t->part_len = 0;
    t->last = job->columns / 2;
    for (int c = 0; c < job->columns; c++) t->floor[c] = 0, t->rest[c] = job->load[c], t->top[c] = -1;
    rank_rects(t, seed);
    if (!reserve_pool(t, job->n)) return false;
    for (int r = 0; r < job->n; r++) t->pool[t->pool_len++] = (struct todo){0, r};
    return solve(t, 0, job->n, (struct part){0, job->columns});
}

static uint64_t shape_key(const struct pack_rect *x) {
    return mix(mix((uint64_t)x->a << 32 | (uint64_t)x->b) + (uint64_t)x->size);
}

/* Equal rectangles stand next to each other once sorted by a hash of what they are. */
static void find_twins(struct pack_tree *t) {
    int n = t->job->n;
    for (int r = 0; r < n; r++) t->keys[r] = (struct pack_key){shape_key(&t->job->rect[r]), r};
    pack_sort(t->keys, t->keys + n, n);
    for (int i = 0; i < n; i++) {
        int r = t->keys[i].index, before = i ? t->keys[i - 1].index : r;
        const struct pack_rect *x = &t->job->rect[r], *y = &t->job->rect[before];
        bool equal = x->a == y->a && x->b == y->b && x->size == y->size;
        t->twin[r] = i && equal ? t->twin[before] : r;
    }
}

struct pack_tree *pack_tree_new(struct pack_job *job) {
    struct pack_tree *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    size_t n = (size_t)job->n + 1, columns = (size_t)job->columns + 2;
    struct bump *store = job->store;
    t->job = job;
    t->floor = bump_alloc(store, columns * sizeof *t->floor), t->rest = bump_alloc(store, columns * sizeof *t->rest);
    t->lowest = bump_alloc(store, columns * sizeof *t->lowest), t->pile = bump_alloc(store, columns * sizeof *t->pile);
    t->top = bump_alloc(store, columns * sizeof *t->top), t->cross = bump_alloc(store, columns * sizeof *t->cross);
    t->choices = bump_alloc(store, columns * sizeof *t->choices);
    t->grudge = bump_alloc(store, columns * sizeof *t->grudge);
    t->rank = bump_alloc(store, n * sizeof *t->rank), t->twin = bump_alloc(store, n * sizeof *t->twin);
    t->flat = bump_alloc(store, n * sizeof *t->flat), t->keys = bump_alloc(store, 2 * n * sizeof *t->keys);
    t->moved = bump_alloc(store, n * sizeof *t->moved), t->kept = bump_alloc(store, n * sizeof *t->kept);
    t->was = bump_alloc(store, n * sizeof *t->was);
    t->hopeless = bump_alloc(store, sizeof *t->hopeless << MEMORY_BITS);
    if (!t->floor || !t->rest || !t->lowest || !t->pile || !t->top || !t->cross || !t->choices || !t->grudge ||
        !t->rank || !t->twin || !t->flat || !t->keys || !t->moved || !t->kept || !t->was || !t->hopeless) {
        free(t);
        return NULL;
    }
    for (int c = 0; c < job->columns; c++) t->grudge[c] = 1;
    find_twins(t);
    return t;
}

void pack_tree_release(struct pack_tree *t) {
    if (!t) return;
    free(t->trail);
    free(t->pool);
    free(t->part);
    free(t);
}
