/* expert_work.cuh - the tiles of products of experts, and which block has which, from where each expert's rows end.
 *
 * A tile is 128 rows by 256 columns of C. An item is a tile (linear, dx) or two below each other (dw), which a pair of blocks
 * has at the same time to share an operand. Every block adds up the work once and then finds its items by itself; where an item
 * is one tile, a block is a pair of its own.
 *
 * Rows (linear, dx): experts one after the other, each as many rows of tiles as its rows need. Items go in groups of 16 rows
 * of tiles, column after column, so that those under way share operands in the second-level cache.
 *
 * Weights (dw): every expert has as many items, and they take as long as its rows. More than a chunk of rows is cut into
 * chunks that different pairs take; their sums are added in the order of chunks, so bits depend on rows alone, not on how many
 * blocks there are. Parts are listed chunks first, then experts of one chunk, the longest first. A short part, of few rows, has
 * much to store and little to multiply: rounds that take from the back of the list, where those are, lie evenly between the
 * others, and at different times for different pairs. A pair that gets a long item less takes short ones instead.
 *  1. A pair takes the chunks of the list in its order, and waits only for a chunk before: the first unfinished chunk can
 *     always go on. From the back come only experts of one chunk, which wait for nobody. */
#pragma once

#include "device/cuda/expert_linear.cuh"

enum {
    EXPERT_ROWS = 128, /* of a tile */
    EXPERT_COLUMNS = CUDA_EXPERT_COLUMNS,
    EXPERT_STEP = 64,     /* of k, that are brought at once */
    EXPERT_MOST = 1024,   /* experts that there are places for */
    EXPERT_GROUP = 16,    /* rows of tiles that go together */
    EXPERT_STORE = 4,     /* steps that storing a tile takes as long as */
    EXPERT_NARROW = 4096, /* columns or rows of C, operands of which stay in the second-level cache */
    EXPERT_SHORT = 512,   /* rows of a part that takes longer to store than to multiply */
};
/* Blocks that have an item between them. */
template <int KIND> constexpr int expert_pair = KIND == GROUPED_DW ? 2 : 1;

/* Fields of the problem that a kernel reads. */
struct expert_problem {
    const int32_t *ends;
    const void *add;
    void *c;
    int *turns; /* weights: of each tile's halves, how many chunks are added */
    int experts, m, k, chunk;
};

struct expert_tile {
    int expert, first, end; /* rows: the expert's; of weights those of the chunk */
    int row, column;        /* of the tile, in rows of A (weights: of M) and columns of C */
    int chunk;              /* of the expert's rows */
    bool more;              /* chunks behind it */
};

/* Places in shared memory. */
struct expert_lists {
    int before[EXPERT_MOST + 1]; /* rows of tiles, or chunks, of experts before; of those of one chunk none */
    uint16_t single[EXPERT_MOST]; /* weights: experts of one chunk, the longest first */
    int singles, shorts;          /* of those, that are short */
    int parts;                    /* weights: chunks and singles */
    int steps, short_steps;       /* weights: of one tile of each part, of each short one */
};

struct expert_work {
    const struct expert_lists *lists;
    int down, across; /* items of an expert's weights; across: of C, of every kind */
    int items;        /* all */
    int group;        /* rows of items that go together */
    int pairs, pair;  /* of blocks; this block's */
    int rounds, back; /* in which the pair takes an item; of those, from the back of the list */
    int even;         /* of those, that every pair has */
    int fewer, extra; /* from pair `fewer` on, one less from the front and `extra` more from the back */
    int rank;         /* of this block in its pair */
};

template <int KIND> ON_GPU int expert_width(const expert_problem &p)
{
    return KIND == GROUPED_LINEAR ? p.m : p.k;
}

ON_GPU int expert_rows(const expert_problem &p, int e) { return p.ends[e] - (e ? p.ends[e - 1] : 0); }

ON_GPU int parts(int n, int part) { return (n + part - 1) / part; }

ON_GPU void list_singles(const expert_problem &p, expert_lists *lists)
{
    for (int e = threadIdx.x; e < p.experts; e += blockDim.x) {
        const int rows = expert_rows(p, e);
        if (rows == 0 || rows > p.chunk) continue;
        int place = 0;
        for (int o = 0; o < p.experts; o++) {
            const int other = expert_rows(p, o);
            place += other <= p.chunk && (other > rows || (other == rows && o < e));
        }
        lists->single[place] = (uint16_t)e;
    }
}

/* One thread adds up what the others left in `before`. */
ON_GPU void add_up(const expert_problem &p, expert_lists *lists)
{
    lists->before[0] = lists->singles = lists->shorts = lists->steps = lists->short_steps = 0;
    for (int e = 0; e < p.experts; e++) {
        const int rows = expert_rows(p, e);
        const bool single = rows > 0 && rows <= p.chunk, is_short = single && rows < EXPERT_SHORT;
        lists->singles += single, lists->shorts += is_short;
        lists->steps += parts(rows, EXPERT_STEP);
        lists->short_steps += is_short ? parts(rows, EXPERT_STEP) : 0;
        lists->before[e + 1] += lists->before[e];
    }
    lists->parts = lists->before[p.experts] + lists->singles;
}

/* Rows of items of weights that go together: where C is narrow, all across and as many rows as pairs can take; where it is
 * low, all. Operands of the short side are then read once. */
ON_GPU int weights_group(const expert_work &w)
{
    constexpr int PAIR = expert_pair<GROUPED_DW>;
    if (w.across * EXPERT_COLUMNS <= EXPERT_NARROW) return max(1, w.pairs / w.across);
    return w.down * EXPERT_ROWS * PAIR <= EXPERT_NARROW ? w.down : EXPERT_GROUP / PAIR;
}

/* How many items the pair takes from the front and from the back, where the short ones are: those with a long one less take as
 * many short ones more as are worth it. */
ON_GPU void share_items(expert_work *w, int shorts)
{
    const expert_lists &l = *w->lists;
    const int front = w->items - shorts, rest = w->pairs - front % w->pairs, longs = l.parts - l.shorts;
    w->fewer = front % w->pairs, w->extra = 0;
    if (w->fewer && shorts && longs > 0) {
        const int one = (l.steps - l.short_steps) / longs + EXPERT_STORE,
                  other = l.short_steps / l.shorts + EXPERT_STORE;
        w->extra = min(one / other, shorts / rest);
    }
    const int left = shorts - w->extra * rest;
    w->even = left / w->pairs;
    w->back = w->even + (w->pair >= w->fewer ? w->extra : 0) + (w->pair >= w->pairs - left % w->pairs);
    w->rounds = w->back + front / w->pairs + (w->pair < w->fewer);
}

template <int KIND> ON_GPU expert_work expert_work_of(const expert_problem &p, expert_lists *lists, int rank)
{
    constexpr bool DW = KIND == GROUPED_DW;
    constexpr int PAIR = expert_pair<KIND>;
    for (int e = threadIdx.x; e < p.experts; e += blockDim.x) {
        const int rows = expert_rows(p, e), chunks = rows > p.chunk ? parts(rows, p.chunk) : 0;
        lists->before[e + 1] = DW ? chunks : parts(rows, EXPERT_ROWS);
    }
    if (DW) list_singles(p, lists);
    __syncthreads();
    if (threadIdx.x == 0) add_up(p, lists);
    __syncthreads();
    expert_work w = {lists};
    w.down = parts(p.m, EXPERT_ROWS * PAIR);
    w.across = parts(expert_width<KIND>(p), EXPERT_COLUMNS);
    w.items = DW ? lists->parts * w.across * w.down : lists->before[p.experts] * w.across;
    w.pairs = gridDim.x / PAIR, w.pair = blockIdx.x / PAIR, w.rank = rank;
    w.group = DW ? weights_group(w) : EXPERT_GROUP;
    share_items(&w, DW ? lists->shorts * w.across * w.down : 0);
    return w;
}

/* The last expert with at most `index` before it. */
ON_GPU int find_expert(const int *before, int experts, int index)
{
    int low = 0, high = experts - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (before[middle] <= index)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Number `within` of `down` rows of items, of which `group` go together: its row and column among items. */
ON_GPU void place_item(expert_tile *t, int within, int down, int across, int group)
{
    const int above = within / (group * across), left = within - above * group * across;
    const int height = min(group, down - above * group);
    t->row = above * group + left % height;
    t->column = left / height;
}

/* Where in the list the item is that this block's pair takes in a round. Pairs begin at different places of the pattern of
 * rounds from the back. */
ON_GPU int taken_in(const expert_work &w, int round)
{
    const int phase = (int)((int64_t)w.pair * w.rounds / w.pairs),
              backs = (int)(((int64_t)round * w.back + phase) / w.rounds);
    if (((int64_t)(round + 1) * w.back + phase) / w.rounds == backs)
        return (round - backs) * w.pairs + w.pair;
    const int extra = w.pair >= w.fewer ? w.extra : 0, evens = w.items - 1 - w.even * w.pairs;
    if (backs < w.even) return w.items - 1 - (backs * w.pairs + w.pair);
    if (backs < w.even + extra) return evens - ((backs - w.even) * (w.pairs - w.fewer) + w.pair - w.fewer);
    return evens - w.extra * (w.pairs - w.fewer) - (w.pairs - 1 - w.pair);
}

/* This block's tile in a round. */
template <int KIND>
ON_GPU expert_tile expert_tile_in(const expert_problem &p, const expert_work &w, int round)
{
    const expert_lists &l = *w.lists;
    const int at = taken_in(w, round);
    expert_tile tile, *t = &tile;
    if constexpr (KIND == GROUPED_DW) {
        const int each = w.down * w.across, part = at / each, chunks = l.before[p.experts];
        const int e = part < chunks ? find_expert(l.before, p.experts, part) : l.single[part - chunks];
        const int end = p.ends[e];
        t->expert = e, t->chunk = part < chunks ? part - l.before[e] : 0;
        t->first = (e ? p.ends[e - 1] : 0) + t->chunk * p.chunk;
        t->end = min(end, t->first + p.chunk), t->more = t->end < end;
        place_item(t, at % each, w.down, w.across, w.group);
        t->row = (t->row * expert_pair<KIND> + w.rank) * EXPERT_ROWS, t->column *= EXPERT_COLUMNS;
    } else {
        const int e = find_expert(l.before, p.experts, at / w.across);
        t->expert = e, t->first = e ? p.ends[e - 1] : 0, t->end = p.ends[e], t->chunk = 0, t->more = false;
        place_item(t, at - l.before[e] * w.across, l.before[e + 1] - l.before[e], w.across, w.group);
        t->row = t->first + t->row * EXPERT_ROWS, t->column *= EXPERT_COLUMNS;
    }
    return tile;
}

template <int KIND> ON_GPU int expert_steps(const expert_problem &p, const expert_tile &t)
{
    return parts(KIND == GROUPED_DW ? t.end - t.first : KIND == GROUPED_LINEAR ? p.k : p.m, EXPERT_STEP);
}
