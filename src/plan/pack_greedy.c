/* pack_greedy.c - which greedy passes run, in which order, and first fit in an order fixed beforehand.
 *
 * An order is a list of rectangles, the most difficult first. Two kinds of difficulty count: how full the fullest
 * column is that a rectangle must go through (the load), and how much of the plane it takes (lifetime, size,
 * area). The skyline passes draw from such an order what fits into a valley; first fit goes through it one by one.
 */
#include "plan/pack_internal.h"
#include <string.h>

enum { FIRST_FIT_MOST = 1000 }; /* first fit is quadratic */

struct greedy {
    struct pack_job *job;
    struct pack_sweep *sweep;
    struct pack_skyline *skyline;
    struct pack_key *keys; /* [2n] */
    int *order, *placed;   /* [n] */
    int64_t *tallest;      /* binary tree of the largest loads */
    int leaves;
};

/* --- orders ---------------------------------------------------------------------------------------------- */

typedef uint64_t (*order_fn)(const struct greedy *g, int r); /* smaller comes first */

static uint64_t by_life(const struct greedy *g, int r) {
    return (uint64_t)(g->job->columns - (g->job->rect[r].b - g->job->rect[r].a));
}

static uint64_t by_size(const struct greedy *g, int r) {
    return (uint64_t)(INT64_MAX - g->job->rect[r].size);
}

static uint64_t by_area(const struct greedy *g, int r) {
    const struct pack_rect *x = &g->job->rect[r];
    return ~pack_key_of((double)x->size * (double)(x->b - x->a));
}

/* The load of the fullest column of the rectangle. */
static uint64_t by_load(const struct greedy *g, int r) {
    int64_t most = 0;
    int a = g->leaves + g->job->rect[r].a, b = g->leaves + g->job->rect[r].b;
    for (; a < b; a /= 2, b /= 2) {
        if (a & 1 && g->tallest[a++] > most) most = g->tallest[a - 1];
        if (b & 1 && g->tallest[--b] > most) most = g->tallest[b];
    }
    return (uint64_t)(INT64_MAX - most);
}

static void sort_order(struct greedy *g, order_fn first, order_fn then) {
    int n = g->job->n;
    for (int i = 0; i < n; i++) g->keys[i] = (struct pack_key){then(g, i), i};
    pack_sort(g->keys, g->keys + n, n);
    if (first) {
        for (int i = 0; i < n; i++) g->keys[i].key = first(g, g->keys[i].index);
        pack_sort(g->keys, g->keys + n, n);
    }
    for (int i = 0; i < n; i++) g->order[i] = g->keys[i].index;
}

/* --- first fit --------------------------------------------------------------------------------------------- */

static int64_t lowest_fit(const struct greedy *g, int count, int r) {
    const struct pack_job *job = g->job;
    const struct pack_rect *x = &job->rect[r];
    int64_t floor = 0;
    for (int i = 0; i < count; i++) {
        int other = g->placed[i];
        const struct pack_rect *y = &job->rect[other];
        if (y->a >= x->b || y->b <= x->a) continue;
        if (job->offset[other] - floor >= x->size) break;
        if (job->offset[other] + y->size > floor) floor = job->offset[other] + y->size;
    }
    return floor;
}

/* `placed` is in the order of offsets. */
static int64_t first_fit(struct greedy *g) {
    struct pack_job *job = g->job;
    int64_t top = 0;
    for (int i = 0; i < job->n; i++) {
        int r = g->order[i], at = i;
        int64_t floor = lowest_fit(g, i, r);
        if (floor >= job->height - job->rect[r].size) return PACK_NONE;
        job->offset[r] = floor;
        if (floor + job->rect[r].size > top) top = floor + job->rect[r].size;
        for (; at > 0 && job->offset[g->placed[at - 1]] > floor; at--) g->placed[at] = g->placed[at - 1];
        g->placed[at] = r;
    }
    return top;
}

/* --- all of it ---------------------------------------------------------------------------------------------- */

enum kind { SKYLINE, FIRST_FIT };

static const struct pass {
    const char *name;
    enum kind kind;
    order_fn first, then;
} passes[] = {
    {"skyline: load, lifetime", SKYLINE, by_load, by_life},  {"skyline: load, area", SKYLINE, by_load, by_area},
    {"skyline: area", SKYLINE, NULL, by_area},               {"skyline: load, size", SKYLINE, by_load, by_size},
    {"skyline: lifetime", SKYLINE, NULL, by_life},           {"skyline: size", SKYLINE, NULL, by_size},
    {"first fit: load, size", FIRST_FIT, by_load, by_size},  {"first fit: size", FIRST_FIT, NULL, by_size},
    {"first fit: load, lifetime", FIRST_FIT, by_load, by_life}, {"first fit: area", FIRST_FIT, NULL, by_area},
};

static bool greedy_init(struct greedy *g, struct pack_job *job) {
    size_t n = (size_t)job->n;
    g->job = job;
    g->sweep = pack_sweep_new(job);
    g->skyline = pack_skyline_new(job);
    g->keys = bump_alloc(job->store, 2 * n * sizeof *g->keys);
    g->order = bump_alloc(job->store, n * sizeof *g->order);
    g->placed = bump_alloc(job->store, n * sizeof *g->placed);
    for (g->leaves = 1; g->leaves < job->columns;) g->leaves *= 2;
    g->tallest = bump_alloc(job->store, 2 * (size_t)g->leaves * sizeof *g->tallest);
    if (!g->sweep || !g->skyline || !g->keys || !g->order || !g->placed || !g->tallest) return false;
    memcpy(g->tallest + g->leaves, job->load, (size_t)job->columns * sizeof *job->load);
    for (int at = g->leaves - 1; at > 0; at--) {
        int64_t l = g->tallest[2 * at], r = g->tallest[2 * at + 1];
        g->tallest[at] = l > r ? l : r;
    }
    return true;
}

bool pack_greedy(struct pack_job *job) {
    struct greedy g = {0};
    if (!greedy_init(&g, job)) return false;
    for (int i = 0; i < pack_sweep_rules(); i++) {
        const char *method;
        int64_t height = pack_sweep_run(g.sweep, i, &method);
        if (pack_job_offer(job, height, method)) return true;
    }
    for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++) {
        const struct pass *p = &passes[i];
        if (p->kind == FIRST_FIT && job->n > FIRST_FIT_MOST) continue;
        sort_order(&g, p->first, p->then);
        int64_t height = p->kind == SKYLINE ? pack_skyline_run(g.skyline, g.order) : first_fit(&g);
        if (pack_job_offer(job, height, p->name)) return true;
    }
    return true;
}
