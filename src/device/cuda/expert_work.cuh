/* expert_work.cuh - the tiles of products of experts, and which block has which, from where each expert's rows end.
 *
 * A tile is 128 by 128 of C. Every block adds up the work once and then finds its n-th tile by itself.
 *
 * Rows (linear, dx): experts one after the other, each as many rows of tiles as its rows need. Tiles go in groups of 16 rows of
 * tiles, column after column, so that those under way share operands in the second-level cache.
 *
 * Weights (dw): every expert has as many tiles, and they take as long as its rows. More than CHUNK rows are cut into chunks
 * that different blocks take; their sums are added in the order of chunks, so bits depend on rows alone, not on how many
 * blocks there are. Parts are listed chunks first, then experts of one chunk, the longest first. Blocks take them in rounds,
 * in turn from the front and from the back: a tile of few rows has much to store and nothing to multiply, and is best beside
 * one that multiplies.
 *  1. A block takes the chunks of the list in its order, and waits only for a chunk before: the first unfinished chunk can
 *     always go on. From the back come only experts of one chunk, which wait for nobody. */
#ifndef PLIM_DEVICE_CUDA_EXPERT_WORK_CUH
#define PLIM_DEVICE_CUDA_EXPERT_WORK_CUH

#include "device/cuda/expert_linear.cuh"

enum {
    EXPERT_TILE = CUDA_EXPERT_TILE,
    EXPERT_STEP = 64,   /* of k, that are brought at once */
    EXPERT_MOST = 1024, /* experts that there are places for */
    EXPERT_GROUP = 16,  /* rows of tiles that go together */
};

/* What of the problem a kernel reads. */
struct expert_problem {
    const int32_t *ends;
    const void *add;
    void *c;
    int *turns; /* weights: of each tile, how many chunks are added */
    int experts, m, k, chunk;
};

struct expert_tile {
    int expert, first, end; /* rows: the expert's; of weights those of the chunk */
    int row, column;        /* of the tile, in rows of A (weights: of M) and columns of C */
    int chunk;              /* of the expert's rows */
    bool more;              /* chunks behind it */
};

/* Places in shared memory; first the last thread's sums, then whoever asks. */
struct expert_lists {
    int before[EXPERT_MOST +
               1]; /* rows of tiles, or chunks, of the experts before; of experts of one chunk none */
    int single[EXPERT_MOST]; /* weights: experts of one chunk, the longest first */
    int singles;
};

struct expert_work {
    const struct expert_lists *lists;
    int down, across; /* tiles of an expert's weights; across: of C, of every kind */
    int tiles;        /* all */
    int chunked;      /* weights: of those, tiles of experts of several chunks */
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
        lists->single[place] = e;
    }
}

template <int KIND> ON_GPU expert_work expert_work_of(const expert_problem &p, expert_lists *lists)
{
    for (int e = threadIdx.x; e < p.experts; e += blockDim.x) {
        const int rows = expert_rows(p, e), chunks = rows > p.chunk ? parts(rows, p.chunk) : 0;
        lists->before[e + 1] = KIND == GROUPED_DW ? chunks : parts(rows, EXPERT_TILE);
    }
    if (KIND == GROUPED_DW) list_singles(p, lists);
    __syncthreads();
    if (threadIdx.x == 0) {
        lists->before[0] = lists->singles = 0;
        for (int e = 0; e < p.experts; e++) {
            const int rows = expert_rows(p, e);
            lists->singles += rows > 0 && rows <= p.chunk;
            lists->before[e + 1] += lists->before[e];
        }
    }
    __syncthreads();
    expert_work w = {lists, parts(p.m, EXPERT_TILE), parts(expert_width<KIND>(p), EXPERT_TILE), 0, 0};
    w.chunked = lists->before[p.experts] * w.across * (KIND == GROUPED_DW ? w.down : 1);
    w.tiles = w.chunked + (KIND == GROUPED_DW ? lists->singles * w.across * w.down : 0);
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

/* Number `within` of `down` rows of tiles. */
ON_GPU void place_tile(expert_tile *t, int within, int down, int across)
{
    const int group = within / (EXPERT_GROUP * across), left = within - group * EXPERT_GROUP * across;
    const int height = min((int)EXPERT_GROUP, down - group * EXPERT_GROUP);
    t->row = (group * EXPERT_GROUP + left % height) * EXPERT_TILE;
    t->column = left / height * EXPERT_TILE;
}

/* Where in the list of weights' tiles the index-th is that is taken. */
ON_GPU int taken_from(const expert_work &w, int index)
{
    const int blocks = gridDim.x, round = index / blocks, block = index % blocks;
    const int back = min((w.tiles - w.chunked) / blocks, w.tiles / blocks / 2); /* rounds from the back */
    if (round % 2 && round / 2 < back) return w.tiles - 1 - (round / 2 * blocks + block);
    return (round - min((round + 1) / 2, back)) * blocks + block;
}

template <int KIND>
ON_GPU expert_tile expert_tile_at(const expert_problem &p, const expert_work &w, int index)
{
    const expert_lists &l = *w.lists;
    expert_tile t;
    if constexpr (KIND == GROUPED_DW) {
        const int each = w.down * w.across, at = taken_from(w, index), part = at / each;
        const int chunks = l.before[p.experts],
                  e = part < chunks ? find_expert(l.before, p.experts, part) : l.single[part - chunks];
        const int first = e ? p.ends[e - 1] : 0, end = p.ends[e];
        t.expert = e, t.chunk = part < chunks ? part - l.before[e] : 0;
        t.first = first + t.chunk * p.chunk, t.end = min(end, t.first + p.chunk), t.more = t.end < end;
        place_tile(&t, at % each, w.down, w.across);
    } else {
        const int e = find_expert(l.before, p.experts, index / w.across);
        t.expert = e, t.first = e ? p.ends[e - 1] : 0, t.end = p.ends[e], t.chunk = 0, t.more = false;
        place_tile(&t, index - l.before[e] * w.across, l.before[e + 1] - l.before[e], w.across);
        t.row += t.first;
    }
    return t;
}

template <int KIND> ON_GPU int expert_steps(const expert_problem &p, const expert_tile &t)
{
    return parts(KIND == GROUPED_DW ? t.end - t.first : KIND == GROUPED_LINEAR ? p.k : p.m, EXPERT_STEP);
}

#endif
