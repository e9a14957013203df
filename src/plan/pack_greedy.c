/* pack_greedy.c - which greedy passes run, in which order, and first fit in an order fixed beforehand.
 *
 * An order is a list of rectangles, the most difficult first. Two kinds of difficulty count: how full the
 * fullest column is that a rectangle must go through (the load), and how much of the plane it takes
 * (lifetime, size, area). The skyline passes draw from such an order what fits into a valley; first fit goes
 * through it one by one.
 */
#include "plan/pack_internal.h"
#include <string.h>

struct greedy {
    struct pack_job *job;
    struct pack_sweep *sweep;
    struct pack_skyline *skyline;
    struct pack_key *keys; /* [2n] */
    struct pack_fit *fit;
    int *order;       /* [n] */
    int64_t *through; /* [n] the load of the fullest column it goes through */
};

/* --- orders ----------------------------------------------------------------------------------------- */

typedef uint64_t (*order_fn)(const struct greedy *g, int r); /* smaller comes first */

static uint64_t by_life(const struct greedy *g, int r)
{
    return (uint64_t)(g->job->columns - (g->job->rect[r].b - g->job->rect[r].a));
}

static uint64_t by_size(const struct greedy *g, int r)
{
    return (uint64_t)(INT64_MAX - g->job->rect[r].size);
}

static uint64_t by_area(const struct greedy *g, int r)
{
    const struct pack_rect *x = &g->job->rect[r];
    return ~pack_key_of((double)x->size * (double)(x->b - x->a)) >> 32; /* half of it sorts well enough */
}

static uint64_t by_load(const struct greedy *g, int r) { return (uint64_t)(INT64_MAX - g->through[r]); }

/* The load of the fullest column of a rectangle, from a binary tree of the larger loads. */
static int64_t fullest(const struct greedy *g, const int64_t *larger, int leaves, int r)
{
    int64_t most = 0;
    int a = leaves + g->job->rect[r].a, b = leaves + g->job->rect[r].b;
    for (; a < b; a /= 2, b /= 2) {
        if (a & 1) most = larger[a] > most ? larger[a] : most, a++;
        if (b & 1) b--, most = larger[b] > most ? larger[b] : most;
    }
    return most;
}

static bool find_loads(struct greedy *g)
{
    const struct pack_job *job = g->job;
    int leaves = 1;
    while (leaves < job->columns) leaves *= 2;
    int64_t *larger = bump_alloc(job->store, 2 * (size_t)leaves * sizeof *larger);
    g->through = bump_alloc(job->store, (size_t)job->n * sizeof *g->through);
    if (!larger || !g->through) return false;
    memcpy(larger + leaves, job->load, (size_t)job->columns * sizeof *job->load);
    for (int at = leaves - 1; at > 0; at--)
        larger[at] = larger[2 * at] > larger[2 * at + 1] ? larger[2 * at] : larger[2 * at + 1];
    for (int r = 0; r < job->n; r++) g->through[r] = fullest(g, larger, leaves, r);
    return true;
}

static void sort_order(struct greedy *g, order_fn first, order_fn then)
{
    int n = g->job->n;
    for (int i = 0; i < n; i++) g->keys[i] = (struct pack_key){then(g, i), i};
    pack_sort(g->keys, g->keys + n, n);
    if (first) {
        for (int i = 0; i < n; i++) g->keys[i].key = first(g, g->keys[i].index);
        pack_sort(g->keys, g->keys + n, n);
    }
    for (int i = 0; i < n; i++) g->order[i] = g->keys[i].index;
}

static int64_t first_fit(struct greedy *g)
{
    struct pack_job *job = g->job;
    int64_t top = 0;
    pack_fit_clear(g->fit);
    for (int i = 0; i < job->n; i++) {
        int r = g->order[i];
        int64_t lo = pack_fit_lowest(g->fit, r), size = job->rect[r].size;
        if (lo >= job->height - size) return PACK_NONE;
        job->offset[r] = lo;
        if (lo + size > top) top = lo + size;
        pack_fit_add(g->fit, r);
    }
    return top;
}

/* --- all of it -------------------------------------------------------------------------------------- */

enum kind { SWEEP, SKYLINE, FIRST_FIT };

/* In the order of what they find for what they cost, as measured on tapes of transformers. */
static const struct pass {
    const char *name;
    enum kind kind;
    enum pack_sweep_rule rule;
    order_fn first, then;
} passes[] = {
    {"sweep: longest low, near in death", SWEEP, .rule = SWEEP_LONGEST_NEAR},
    {"sweep: earliest low, best fit", SWEEP, .rule = SWEEP_EARLIEST_BEST},
    {"skyline: load, lifetime", SKYLINE, .first = by_load, .then = by_life},
    {"first fit: load, size", FIRST_FIT, .first = by_load, .then = by_size},
    {"skyline: area", SKYLINE, .then = by_area},
    {"sweep: latest low, two-ended", SWEEP, .rule = SWEEP_LATEST_ENDS},
    {"skyline: load, area", SKYLINE, .first = by_load, .then = by_area},
    {"skyline: load, size", SKYLINE, .first = by_load, .then = by_size},
    {"skyline: lifetime", SKYLINE, .then = by_life},
    {"sweep: longest low, best fit", SWEEP, .rule = SWEEP_LONGEST_BEST},
    {"sweep: leaning, near in death", SWEEP, .rule = SWEEP_LEANING_NEAR},
    {"sweep: earliest low, first fit", SWEEP, .rule = SWEEP_EARLIEST_FIRST},
    {"skyline: size", SKYLINE, .then = by_size},
    {"first fit: size", FIRST_FIT, .then = by_size},
    {"first fit: load, lifetime", FIRST_FIT, .first = by_load, .then = by_life},
    {"first fit: area", FIRST_FIT, .then = by_area},
};

/* Roughly nanoseconds. Estimates and not clocks decide which passes run, so that the same items are packed the
 * same way on every machine. */
static int64_t cost_of(const struct pass *p, int64_t n)
{
    int64_t each = p->kind == SWEEP ? 80 : p->kind == SKYLINE ? 300 : n / 2;
    return each * n;
}

/* A few milliseconds for a tape of thousands. A packing that is poor gets three times as much. */
static int64_t allowance(const struct pack_job *job)
{
    int64_t n = job->n, enough = 4000000 + (n > 5000 ? (n - 5000) * 2500 : 0);
    bool poor = job->height - job->target > job->target / 64;
    return poor ? 3 * enough : enough;
}

static int64_t run_pass(struct greedy *g, const struct pass *p)
{
    if (p->kind == SWEEP) return pack_sweep_run(g->sweep, p->rule);
    sort_order(g, p->first, p->then);
    return p->kind == SKYLINE ? pack_skyline_run(g->skyline, g->order) : first_fit(g);
}

/* Prepares the passes after the first; most tapes do not need them. */
static bool prepare_orders(struct greedy *g)
{
    struct pack_job *job = g->job;
    size_t n = (size_t)job->n;
    g->skyline = pack_skyline_new(job);
    g->keys = bump_alloc(job->store, 2 * n * sizeof *g->keys);
    g->order = bump_alloc(job->store, n * sizeof *g->order);
    g->fit = pack_fit_new(job);
    return g->skyline && g->keys && g->order && g->fit && find_loads(g);
}

bool pack_greedy(struct pack_job *job)
{
    struct greedy g = {.job = job, .sweep = pack_sweep_new(job)};
    if (!g.sweep) return false;
    int64_t spent = 0;
    for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++) {
        int64_t cost = cost_of(&passes[i], job->n);
        if (spent + cost > allowance(job)) continue;
        spent += cost;
        if (passes[i].kind != SWEEP && !g.order && !prepare_orders(&g)) return false;
        if (pack_job_offer(job, run_pass(&g, &passes[i]), passes[i].name)) break;
    }
    return true;
}
