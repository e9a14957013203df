/* pack_sweep.c - allocation as at run time, walking away from the fullest moment.
 *
 * Where the load peaks nothing may be wasted; elsewhere there is room to spare. So the rectangles alive at
 * the peak are stacked first, without gaps, and time is then walked away from the peak in both directions,
 * freeing and allocating as a run-time allocator would, only that it knows how long everything will live. On
 * tapes of transformers (activations freed in the reverse order of their making) the load falls as the walk
 * goes on and the free space stays in one piece, which is why these passes often end at the lower bound.
 *
 * Walking left is walking right on the mirror image of time: `view` holds the rectangles as the walk sees
 * them. The live rectangles form a ring in address order (prev, next; index n is the ground). The free space
 * is an array of gaps in address order, each remembering the rectangle below it; the last gap has no upper
 * end.
 *
 * Invariants: gaps are not empty and do not touch each other; a gap lies between gap.below and
 * next[gap.below]; offsets of the rectangles stacked at the start are never changed by a walk.
 *
 * A walk looks at every gap for every rectangle. Real tapes have few gaps; a walk that has looked at
 * WORK_PER_RECT gaps per rectangle gives up, so that no input makes it quadratic.
 */
#include "plan/pack_internal.h"
#include <string.h>

enum { WORK_PER_RECT = 300 };

struct gap {
    int64_t lo, hi;
    int below;
};

struct pack_sweep {
    struct pack_job *job;
    struct pack_rect *view;
    struct pack_key *keys; /* [2n] */
    int *base;  /* everything, long lives first: they choose first among those that begin together */
    int *stack; /* what is alive at the peak, from the ground up */
    int *bucket, *starts, *ends, *next, *prev;
    struct gap *gap;
    int gaps, peak, stacked;
    int64_t top, work;
};

struct place {
    int gap; /* -1: nowhere below the target */
    bool high;
};

typedef struct place (*choose_fn)(const struct pack_sweep *s, int r);
typedef uint64_t (*key_fn)(const struct pack_job *job, int r, int peak); /* smaller comes first */

struct rule {
    key_fn stack; /* the order of what is alive at the peak, from the ground up */
    choose_fn choose;
};

/* --- orders ----------------------------------------------------------------------------------------- */

static uint64_t longest(const struct pack_job *job, int r, int)
{
    return (uint64_t)(job->columns - (job->rect[r].b - job->rect[r].a));
}

static uint64_t earliest(const struct pack_job *job, int r, int) { return (uint64_t)job->rect[r].a; }

static uint64_t latest(const struct pack_job *job, int r, int)
{
    return (uint64_t)(job->columns - job->rect[r].b);
}

/* Those that reach far into the past low, those that reach far into the future high. */
static uint64_t leaning(const struct pack_job *job, int r, int peak)
{
    int past = peak - job->rect[r].a, future = job->rect[r].b - peak;
    return (uint64_t)(job->columns + future - past);
}

static int sort_by(struct pack_sweep *s, int *into, key_fn key, bool only_peak)
{
    int n = 0;
    for (int r = 0; r < s->job->n; r++) {
        const struct pack_rect *rect = &s->job->rect[r];
        if (only_peak && (s->peak < rect->a || s->peak >= rect->b)) continue;
        s->keys[n++] = (struct pack_key){key(s->job, r, s->peak), r};
    }
    pack_sort(s->keys, s->keys + s->job->n, n);
    for (int i = 0; i < n; i++) into[i] = s->keys[i].index;
    return n;
}

/* --- choosing a gap --------------------------------------------------------------------------------- */

static int64_t gap_end(const struct pack_sweep *s, int g)
{
    int64_t hi = s->gap[g].hi, target = s->job->target;
    return hi < target ? hi : target;
}

static struct place choose_best(const struct pack_sweep *s, int r)
{
    struct place best = {-1, false};
    int64_t size = s->job->rect[r].size, least = INT64_MAX;
    for (int g = 0; g < s->gaps; g++) {
        int64_t room = gap_end(s, g) - s->gap[g].lo;
        if (room < size || room >= least) continue;
        best.gap = g;
        least = room;
    }
    return best;
}

static struct place choose_first(const struct pack_sweep *s, int r)
{
    int64_t size = s->job->rect[r].size;
    for (int g = 0; g < s->gaps; g++)
        if (gap_end(s, g) - s->gap[g].lo >= size) return (struct place){g, false};
    return (struct place){-1, false};
}

/* Long lives low, short lives high. */
static struct place choose_ends(const struct pack_sweep *s, int r)
{
    int64_t size = s->job->rect[r].size;
    if (s->view[r].b - s->view[r].a > s->job->columns / 8) return choose_first(s, r);
    for (int g = s->gaps - 1; g >= 0; g--)
        if (gap_end(s, g) - s->gap[g].lo >= size) return (struct place){g, true};
    return (struct place){-1, false};
}

static int lives_apart(const struct pack_sweep *s, int r, int neighbour)
{
    int end = neighbour == s->job->n ? s->job->columns : s->view[neighbour].b;
    int apart = end - s->view[r].b;
    return apart < 0 ? -apart : apart;
}

/* Beside the neighbour that dies at about the same time, so that what they leave is one gap. */
static struct place choose_near(const struct pack_sweep *s, int r)
{
    struct place best = {-1, false};
    int64_t size = s->job->rect[r].size;
    int least = INT32_MAX;
    for (int g = 0; g < s->gaps; g++) {
        if (gap_end(s, g) - s->gap[g].lo < size) continue;
        int low = lives_apart(s, r, s->gap[g].below), high = lives_apart(s, r, s->next[s->gap[g].below]);
        if (low < least) best = (struct place){g, false}, least = low;
        if (high < least) best = (struct place){g, true}, least = high;
    }
    return best;
}

/* --- allocating and freeing ------------------------------------------------------------------------- */

static void ring_insert(struct pack_sweep *s, int r, int below)
{
    int above = s->next[below];
    s->next[below] = r, s->prev[r] = below;
    s->next[r] = above, s->prev[above] = r;
}

static void gap_shrink(struct pack_sweep *s, int at, int64_t lo, int64_t hi, int r)
{
    struct gap *g = &s->gap[at];
    bool above = hi<g->hi, under = lo> g->lo;
    if (above && under) {
        memmove(g + 1, g, (size_t)(s->gaps++ - at) * sizeof *g);
        g[0].hi = lo;
        g[1].lo = hi, g[1].below = r;
    } else if (above) {
        g->lo = hi, g->below = r;
    } else if (under) {
        g->hi = lo;
    } else {
        memmove(g, g + 1, (size_t)(--s->gaps - at) * sizeof *g);
    }
}

static bool allocate(struct pack_sweep *s, choose_fn choose, int r)
{
    struct place p = choose(s, r);
    int64_t size = s->job->rect[r].size;
    if (p.gap < 0) p = (struct place){s->gaps - 1, false}; /* above the target, if it must be */
    s->work -= s->gaps;
    if (s->gap[p.gap].lo >= s->job->height - size || s->work < 0) return false;
    int64_t lo = p.high ? gap_end(s, p.gap) - size : s->gap[p.gap].lo;
    s->job->offset[r] = lo;
    if (lo + size > s->top) s->top = lo + size;
    ring_insert(s, r, s->gap[p.gap].below);
    gap_shrink(s, p.gap, lo, lo + size, r);
    return true;
}

static void release(struct pack_sweep *s, int r)
{
    int64_t lo = s->job->offset[r], hi = lo + s->job->rect[r].size;
    int below = s->prev[r], above = s->next[r], first = 0, last = s->gaps;
    s->next[below] = above, s->prev[above] = below;
    while (first < last) { /* the first gap above lo */
        int mid = (first + last) / 2;
        if (s->gap[mid].lo > lo)
            last = mid;
        else
            first = mid + 1;
    }
    struct gap *up = &s->gap[first], *down = up - 1;
    bool joins_up = up->lo == hi, joins_down = first > 0 && down->hi == lo;
    if (joins_up && joins_down) {
        down->hi = up->hi;
        memmove(up, up + 1, (size_t)(--s->gaps - first) * sizeof *up);
    } else if (joins_up) {
        up->lo = lo, up->below = below;
    } else if (joins_down) {
        down->hi = hi;
    } else {
        memmove(up + 1, up, (size_t)(s->gaps++ - first) * sizeof *up);
        *up = (struct gap){lo, hi, below};
    }
}

/* --- walking ---------------------------------------------------------------------------------------- */

/* base[] sorted by the column in which rectangles begin (or end) for this walk; ties keep their order. */
static void sort_by_column(struct pack_sweep *s, int *into, bool end)
{
    int n = s->job->n, columns = s->job->columns;
    memset(s->bucket, 0, (size_t)(columns + 2) * sizeof *s->bucket);
    for (int i = 0; i < n; i++) s->bucket[(end ? s->view[i].b : s->view[i].a) + 1]++;
    for (int c = 0; c <= columns; c++) s->bucket[c + 1] += s->bucket[c];
    for (int i = 0; i < n; i++) {
        int r = s->base[i];
        into[s->bucket[end ? s->view[r].b : s->view[r].a]++] = r;
    }
}

static void look(struct pack_sweep *s, bool mirrored)
{
    int columns = s->job->columns;
    for (int i = 0; i < s->job->n; i++) {
        struct pack_rect r = s->job->rect[i];
        s->view[i] = mirrored ? (struct pack_rect){columns - r.b, columns - r.a, r.size} : r;
    }
    sort_by_column(s, s->starts, false);
    sort_by_column(s, s->ends, true);
}

static void stand_on_ground(struct pack_sweep *s)
{
    int ground = s->job->n;
    int64_t top = 0;
    s->next[ground] = s->prev[ground] = ground;
    for (int i = 0; i < s->stacked; i++) {
        int r = s->stack[i];
        ring_insert(s, r, s->prev[ground]);
        s->job->offset[r] = top;
        top += s->job->rect[r].size;
    }
    s->gap[0] = (struct gap){top, INT64_MAX, s->prev[ground]};
    s->gaps = 1;
    if (top > s->top) s->top = top;
}

/* Everything that begins after column `from`, in order. */
static bool walk(struct pack_sweep *s, choose_fn choose, int from)
{
    int n = s->job->n, start = 0, end = 0;
    stand_on_ground(s);
    while (start < n && s->view[s->starts[start]].a <= from) start++;
    while (end < n && s->view[s->ends[end]].b <= from) end++;
    while (start < n) {
        int column = s->view[s->starts[start]].a;
        for (; s->view[s->ends[end]].b <= column; end++) release(s, s->ends[end]);
        for (; start < n && s->view[s->starts[start]].a == column; start++)
            if (!allocate(s, choose, s->starts[start])) return false;
    }
    return true;
}

static const struct rule rules[] = {
    [SWEEP_LONGEST_NEAR] = {longest, choose_near}, [SWEEP_EARLIEST_BEST] = {earliest, choose_best},
    [SWEEP_LATEST_ENDS] = {latest, choose_ends},   [SWEEP_LONGEST_BEST] = {longest, choose_best},
    [SWEEP_LEANING_NEAR] = {leaning, choose_near}, [SWEEP_EARLIEST_FIRST] = {earliest, choose_first},
};

int64_t pack_sweep_run(struct pack_sweep *s, enum pack_sweep_rule rule)
{
    const struct rule *how = &rules[rule];
    s->top = 0;
    s->work = (int64_t)s->job->n * WORK_PER_RECT;
    sort_by(s, s->base, longest, false);
    s->stacked = sort_by(s, s->stack, how->stack, true);
    look(s, false);
    if (!walk(s, how->choose, s->peak)) return PACK_NONE;
    look(s, true);
    if (!walk(s, how->choose, s->job->columns - 1 - s->peak)) return PACK_NONE;
    return s->top;
}

struct pack_sweep *pack_sweep_new(struct pack_job *job)
{
    size_t n = (size_t)job->n + 2, columns = (size_t)job->columns + 2;
    struct pack_sweep *s = bump_alloc(job->store, sizeof *s);
    if (!s) return NULL;
    s->job = job;
    s->view = bump_alloc(job->store, n * sizeof *s->view);
    s->keys = bump_alloc(job->store, 2 * n * sizeof *s->keys);
    s->bucket = bump_alloc(job->store, columns * sizeof *s->bucket);
    s->gap = bump_alloc(job->store, n * sizeof *s->gap);
    int **list[] = {&s->base, &s->stack, &s->starts, &s->ends, &s->next, &s->prev};
    bool whole = s->view && s->keys && s->bucket && s->gap;
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        whole = (*list[i] = bump_alloc(job->store, n * sizeof **list[i])) && whole;
    for (int c = 1; c < job->columns; c++)
        if (job->load[c] > job->load[s->peak]) s->peak = c;
    return whole ? s : NULL;
}
