/* pack_tree.c - backtracking search for a packing of a given height.
 *
 * In a packing that cannot be pushed down any further, take a valley (a stretch of equal floors between
 * higher ones) and one of its columns. Either a rectangle that lies wholly inside the valley stands on its
 * floor there, or there is a hole: nothing in that column starts at the floor. So a node of the tree picks a
 * column in a valley and tries each such rectangle, then the hole, which raises the floor of that column to
 * the next height at which something could start. The branches exclude each other and miss nothing. A dive
 * that was not cut off has therefore looked everywhere: without a packing there is none of that height.
 *
 * What makes it fast, in the order of importance:
 *
 * 1. Parts. What no unplaced rectangle connects is solved separately, so that a failure on one side never
 *    makes the search try again what it did on the other.
 * 2. Twins. Of rectangles with the same columns stacked directly on each other only one order is tried, the
 *    one in which the search prefers them anyway. Equal rectangles count as one choice.
 * 3. Bounds (pack_bound.c).
 * 4. Choice. The column with the fewest choices comes first, weighed by a taste: near to the last choice,
 *    without slack, or in trouble before. Tastes differ from dive to dive (pack_search.c).
 *
 * Invariants: see pack_tree.h. A function that returns false leaves its changes for the caller to rewind.
 */
#include "plan/pack_tree.h"
#include "base/clock.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CLOCK_EVERY = 64, DEEPEST = 2 * PACK_CORE_MOST }; /* a level takes some 400 bytes of stack */

/* --- stacks ----------------------------------------------------------------------------------------- */

static bool grow(void **data, size_t *cap, size_t need, size_t size)
{
    size_t room = need + need / 2 + 256;
    if (need <= *cap) return true;
    void *more = realloc(*data, room * size);
    if (!more) return false;
    *data = more, *cap = room;
    return true;
}

bool pack_tree_reserve(struct pack_tree *t, int count)
{
    void *data = t->trail;
    if (!grow(&data, &t->trail_cap, t->trail_len + (size_t)count, sizeof *t->trail)) t->stop = true;
    t->trail = data;
    return !t->stop;
}

static bool reserve_pool(struct pack_tree *t, int count)
{
    void *data = t->pool;
    if (!grow(&data, &t->pool_cap, t->pool_len + (size_t)count, sizeof *t->pool)) t->stop = true;
    t->pool = data;
    return !t->stop;
}

static void put(struct pack_tree *t, int r)
{
    const struct pack_rect *x = &t->job->rect[r];
    int64_t at = t->floor[x->a];
    t->job->offset[r] = at;
    for (int c = x->a; c < x->b; c++) {
        t->rest[c] -= x->size;
        pack_tree_set_floor(t, c, at + x->size, r);
    }
    t->trail[t->trail_len++] = (struct change){.column = ~r};
}

static void rewind_to(struct pack_tree *t, size_t mark)
{
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

/* --- choosing where to branch ----------------------------------------------------------------------- */

static void count_choices(struct pack_tree *t, const struct todo *list, int n, struct part p)
{
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
static double column_cost(const struct pack_tree *t, int c)
{
    int64_t slack = t->goal - t->floor[c] - t->rest[c];
    if (t->choices[c] + (slack > 0) <= 1) return -1;
    double cost = t->choices[c] + (slack > 0 ? 0.5 : 0);
    if (t->taste->grudge) cost /= t->grudge[c];
    cost *= 1 + t->taste->near * abs(c - t->last);
    return cost * (1 + t->taste->tight * 1024 * (double)slack / (double)t->goal);
}

static int choose_column(const struct pack_tree *t, struct part p)
{
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

/* The lowest height above its floor at which something could start in column c, if nothing starts at the
 * floor: where a rectangle through c that leaves the valley finds support, or, for one inside the valley, on
 * top of something beside c. */
static int64_t height_of_hole(const struct pack_tree *t, const struct todo *list, int n, int c, struct part p)
{
    int first = c, end = c + 1;
    while (first > p.first && t->floor[first - 1] == t->floor[c]) first--;
    while (end < p.end && t->floor[end] == t->floor[c]) end++;
    int64_t start = INT64_MAX;
    for (int i = 0; i < n; i++) {
        const struct pack_rect *x = &t->job->rect[list[i].r];
        int64_t support = list[i].support;
        if (x->a <= c && c < x->b) {
            if (!t->flat[list[i].r] && support < start) start = support;
        } else if (t->choices[c] && x->a < end && x->b > first) {
            if (support + x->size < start) start = support + x->size;
        }
    }
    return start;
}

/* --- the tree --------------------------------------------------------------------------------------- */

static bool solve(struct pack_tree *t, size_t list, int n, struct part p);

/* The rectangles to try in column c, preferred ones first, onto the pool. Returns how many. */
static int gather(struct pack_tree *t, size_t list, int n, int c)
{
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
static bool is_twin(const struct pack_tree *t, const struct todo *choice, int i)
{
    int r = choice[i].r, under = t->top[t->job->rect[r].a];
    if (i > 0 && t->twin[choice[i - 1].r] == t->twin[r]) return true;
    if (under < 0 || t->rank[under] < t->rank[r]) return false;
    const struct pack_rect *x = &t->job->rect[r], *y = &t->job->rect[under];
    return x->a == y->a && x->b == y->b;
}

static bool try_rect(struct pack_tree *t, size_t list, int n, int r, struct part p)
{
    size_t child = t->pool_len;
    const struct pack_rect *x = &t->job->rect[r];
    if (!reserve_pool(t, n) || !pack_tree_reserve(t, x->b - x->a + 1)) return false;
    for (int i = 0; i < n; i++)
        if (t->pool[list + (size_t)i].r != r) t->pool[t->pool_len++] = t->pool[list + (size_t)i];
    put(t, r);
    bool found = solve(t, child, n - 1, p);
    t->pool_len = child;
    return found;
}

static bool try_hole(struct pack_tree *t, size_t list, int n, int c, int64_t start, struct part p)
{
    if (start == INT64_MAX || start > t->goal - t->rest[c] || !pack_tree_reserve(t, 1)) return false;
    pack_tree_set_floor(t, c, start, -1);
    return solve(t, list, n, p);
}

static bool branch(struct pack_tree *t, size_t list, int n, struct part p)
{
    if (!reserve_pool(t, n)) return false;
    count_choices(t, t->pool + list, n, p);
    int c = choose_column(t, p);
    int64_t start = height_of_hole(t, t->pool + list, n, c, p);
    size_t choice = t->pool_len, mark = t->trail_len;
    int choices = gather(t, list, n, c);
    bool found = false;
    for (int i = 0; i <= choices && !found && !t->stop; i++) { /* the last one is the hole */
        if (i < choices && is_twin(t, t->pool + choice, i)) continue;
        t->last = c;
        found = i < choices ? try_rect(t, list, n, t->pool[choice + (size_t)i].r, p)
                            : try_hole(t, list, n, c, start, p);
        if (!found) rewind_to(t, mark);
    }
    t->pool_len = choice;
    return found;
}

static bool push_part(struct pack_tree *t, size_t base, struct part p)
{
    void *data = t->part;
    if (!grow(&data, &t->part_cap, t->part_len + 1, sizeof *t->part)) t->stop = true;
    t->part = data;
    if (t->stop) return false;
    size_t at = t->part_len++;
    for (; at > base && t->part[at - 1].end - t->part[at - 1].first > p.end - p.first; at--)
        t->part[at] = t->part[at - 1];
    t->part[at] = p;
    return true;
}

/* Push the parts that no rectangle connects, narrow ones first. Returns how many, 0 without memory. */
static int split(struct pack_tree *t, const struct todo *list, int n, struct part p)
{
    size_t base = t->part_len;
    memset(t->cross + p.first, 0, (size_t)(p.end - p.first + 1) * sizeof *t->cross);
    for (int i = 0; i < n; i++) {
        const struct pack_rect *x = &t->job->rect[list[i].r];
        t->cross[x->a + 1]++, t->cross[x->b]--;
    }
    int first = p.first, crossing = 0; /* crossing: rectangles that cover both column c-1 and c */
    for (int c = p.first + 1; c <= p.end; c++) {
        crossing += t->cross[c];
        if (c < p.end && crossing > 0) continue;
        if (t->rest[first] && !push_part(t, base, (struct part){first, c})) return 0;
        first = c;
    }
    return (int)(t->part_len - base);
}

static bool solve_part(struct pack_tree *t, size_t list, int n, struct part p)
{
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

static bool spent(struct pack_tree *t)
{
    if (++t->nodes > t->nodes_most || t->depth > DEEPEST || t->columns_left < 0) t->stop = true;
    if (t->nodes % CLOCK_EVERY == 0 && clock_seconds() > t->deadline) t->stop = true;
    return t->stop;
}

static bool solve(struct pack_tree *t, size_t list, int n, struct part p)
{
    if (n == 0) return true;
    if (spent(t) || !pack_tree_tighten(t, t->pool + list, n, p)) return false;
    t->depth++;
    size_t base = t->part_len;
    int parts = split(t, t->pool + list, n, p);
    bool found = parts > 0;
    for (int i = 0; i < parts && found; i++) {
        struct part q = t->part[base + (size_t)i];
        found = parts == 1 ? branch(t, list, n, q) : solve_part(t, list, n, q);
    }
    t->part_len = base;
    t->depth--;
    return found;
}

/* --- dives ------------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30, x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27, x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static double chance(uint64_t seed, int i)
{
    return (double)(mix((seed << 32) + (uint64_t)i * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
}

static void rank_rects(struct pack_tree *t, uint64_t seed)
{
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

enum pack_dive pack_tree_dive(struct pack_tree *t, int64_t goal, const struct pack_taste *taste,
                              uint64_t seed, long nodes, double *columns, double deadline)
{
    struct pack_job *job = t->job;
    t->goal = goal, t->taste = taste, t->columns_left = *columns;
    t->nodes = 0, t->nodes_most = nodes, t->deadline = deadline, t->stop = false;
    t->trail_len = t->pool_len = t->part_len = 0;
    t->last = job->columns / 2, t->depth = 0;
    for (int c = 0; c < job->columns; c++) t->floor[c] = 0, t->rest[c] = job->load[c], t->top[c] = -1;
    rank_rects(t, seed);
    if (!reserve_pool(t, job->n)) return PACK_DIVE_CUT;
    for (int r = 0; r < job->n; r++) t->pool[t->pool_len++] = (struct todo){0, r};
    bool found = solve(t, 0, job->n, (struct part){0, job->columns});
    *columns = t->columns_left;
    if (found) return PACK_DIVE_FOUND;
    return t->stop ? PACK_DIVE_CUT : PACK_DIVE_IMPOSSIBLE;
}

/* Equal rectangles stand next to each other once sorted by a hash of what they are. */
static void find_twins(struct pack_tree *t)
{
    int n = t->job->n;
    for (int r = 0; r < n; r++) {
        const struct pack_rect *x = &t->job->rect[r];
        uint64_t shape = mix(mix((uint64_t)x->a << 32 | (uint64_t)x->b) + (uint64_t)x->size);
        t->keys[r] = (struct pack_key){shape, r};
    }
    pack_sort(t->keys, t->keys + n, n);
    for (int i = 0; i < n; i++) {
        int r = t->keys[i].index, before = i ? t->keys[i - 1].index : r;
        const struct pack_rect *x = &t->job->rect[r], *y = &t->job->rect[before];
        bool equal = i && x->a == y->a && x->b == y->b && x->size == y->size;
        t->twin[r] = equal ? t->twin[before] : r;
    }
}

static bool tree_alloc(struct pack_tree *t, struct bump *store, size_t n, size_t columns)
{
    int64_t **heights[] = {&t->floor, &t->rest, &t->lowest, &t->pile};
    int **counts[] = {&t->top, &t->choices, &t->cross};
    bool whole = true;
    for (size_t i = 0; i < sizeof heights / sizeof heights[0]; i++)
        whole = (*heights[i] = bump_alloc(store, columns * sizeof **heights[i])) && whole;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        whole = (*counts[i] = bump_alloc(store, columns * sizeof **counts[i])) && whole;
    t->grudge = bump_alloc(store, columns * sizeof *t->grudge);
    t->rank = bump_alloc(store, n * sizeof *t->rank), t->twin = bump_alloc(store, n * sizeof *t->twin);
    t->flat = bump_alloc(store, n * sizeof *t->flat), t->was = bump_alloc(store, n * sizeof *t->was);
    t->keys = bump_alloc(store, 2 * n * sizeof *t->keys);
    t->moved = bump_alloc(store, n * sizeof *t->moved), t->kept = bump_alloc(store, n * sizeof *t->kept);
    return whole && t->grudge && t->rank && t->twin && t->flat && t->was && t->keys && t->moved && t->kept;
}

struct pack_tree *pack_tree_new(struct pack_job *job)
{
    struct pack_tree *t = bump_alloc(job->store, sizeof *t);
    if (!t || !tree_alloc(t, job->store, (size_t)job->n + 1, (size_t)job->columns + 2)) return NULL;
    t->job = job;
    for (int c = 0; c < job->columns; c++) t->grudge[c] = 1;
    find_twins(t);
    return t;
}

void pack_tree_release(struct pack_tree *t)
{
    if (!t) return;
    free(t->trail);
    free(t->pool);
    free(t->part);
    t->trail = NULL, t->pool = NULL, t->part = NULL;
}
