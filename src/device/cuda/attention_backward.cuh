/* attention_backward.cuh - what the tensor core kernels of the backward passes share: the work of a block, masks,
 * P and dS, statistics, results. attention_backward.cu says what the passes are.
 */
#pragma once

#include "device/cuda/attention_mma.cuh"
#include "device/cuda/attention_score.cuh"

enum { STREAM = 64 }; /* rows of a streaming block */

/* Work of one thread block. */
struct work {
    int b, h, n;     /* query head (of the group's current one, in the keys pass) and kv head */
    int row;         /* first owned */
    int from, end;   /* streaming rows that meet owned ones; others are read as zeros */
    int first, last; /* streaming blocks */
};

/* Statistics of the queries: of the streaming ones from shared memory, of the owned ones from registers. */
template <bool keys, int high> struct stats {
    const float *stream; /* this lane's first column; delta follows STREAM elements later */
    float lse2[high][2], delta[high][2];
};

/* Owned row `row` against streaming row `column`, of the tile's first elements for this lane. */
template <bool keys, int high, int tiles>
ON_GPU void mask(float (&s)[high][tiles][4], const int2 *ranges, int row, int column)
{
#pragma unroll
    for (int m = 0; m < high; m++) {
#pragma unroll
        for (int n = 0; n < tiles; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int own = row + m * 16 + i / 2 * 8, other = column + n * 8 + i % 2;
                int2 see = ranges[keys ? other : own];
                int key = keys ? own : other;
                if (key < see.x || key > see.y) s[m][n][i] = -INFINITY;
            }
        }
    }
}

/* Products become scores and their slopes; head h of row b, places as of mask. */
template <bool keys, int high, int tiles>
ON_GPU void score_tile(const struct attn &a, float (&s)[high][tiles][4], float (&slope)[high][tiles][4],
                       int h, int row, int column)
{
#pragma unroll
    for (int m = 0; m < high; m++)
#pragma unroll
        for (int n = 0; n < tiles; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int own = row + m * 16 + i / 2 * 8, other = column + n * 8 + i % 2;
                s[m][n][i] =
                    attn_score(a, h, keys ? other : own, keys ? own : other, s[m][n][i], &slope[m][n][i]);
            }
}

/* Computes dropout factors of probabilities. lines: those of the head's queries. */
template <bool keys, int high, int tiles>
ON_GPU void keep_tile(const struct attn &a, float (&keep)[high][tiles][4], const uint32_t *lines, int row,
                      int column)
{
#pragma unroll
    for (int m = 0; m < high; m++)
#pragma unroll
        for (int n = 0; n < tiles; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int own = row + m * 16 + i / 2 * 8, other = column + n * 8 + i % 2;
                keep[m][n][i] = attn_keep(a, lines[keys ? other : own], keys ? own : other);
            }
}

template <int high, int tiles>
ON_GPU void times(float (&x)[high][tiles][4], const float (&by)[high][tiles][4])
{
#pragma unroll
    for (int m = 0; m < high; m++)
#pragma unroll
        for (int n = 0; n < tiles; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) x[m][n][i] *= by[m][n][i];
}

/* Scores become P. */
template <bool keys, int high, int tiles>
ON_GPU void probabilities(float (&s)[high][tiles][4], const struct stats<keys, high> &stat, int column,
                          float scale2)
{
#pragma unroll
    for (int n = 0; n < tiles; n++) {
        float2 of = make_float2(0, 0);
        if (keys) of = *(const float2 *)(stat.stream + column + n * 8);
#pragma unroll
        for (int m = 0; m < high; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float lse2 = !keys ? stat.lse2[m][i / 2] : i % 2 ? of.y : of.x;
                s[m][n][i] = exp2_fast(fminf(fmaf(s[m][n][i], scale2, -lse2), 0.0f));
            }
        }
    }
}

/* dP becomes dS. */
template <bool keys, int high, int tiles>
ON_GPU void differentials(float (&dp)[high][tiles][4], const float (&p)[high][tiles][4],
                          const struct stats<keys, high> &stat, int column)
{
#pragma unroll
    for (int n = 0; n < tiles; n++) {
        float2 of = make_float2(0, 0);
        if (keys) of = *(const float2 *)(stat.stream + STREAM + column + n * 8);
#pragma unroll
        for (int m = 0; m < high; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float delta = !keys ? stat.delta[m][i / 2] : i % 2 ? of.y : of.x;
                dp[m][n][i] = p[m][n][i] * (dp[m][n][i] - delta);
            }
        }
    }
}

template <int rows, bool keys> ON_GPU struct work work_of(const struct attn &a)
{
    const int heads = keys ? a.kv_heads : a.heads;
    struct attn_place at =
        attn_place_of(a.batch * heads, ((keys ? a.keys : a.time) + rows - 1) / rows, a.section, !keys);
    struct work w;
    w.b = at.head / heads, w.row = at.tile * rows;
    w.n = keys ? at.head % heads : at.head % heads / a.group;
    w.h = keys ? w.n * a.group : at.head % heads;
    if (keys) {
        int2 grains = attn_grains(a, w.b, w.row, rows);
        w.from = 0, w.end = a.time;
        w.first = grains.x / (STREAM / ATTN_GRAIN);
        w.last = grains.y < 0 ? -1 : grains.y / (STREAM / ATTN_GRAIN);
        return w;
    }
    struct attn_span all = attn_no_span();
    for (int i = 0; i < rows / ATTN_GRAIN; i++)
        all = attn_join(all, attn_span_at(a, w.b, w.row / ATTN_GRAIN + i));
    w.from = all.low, w.end = all.high + 1;
    w.first = all.low / STREAM, w.last = all.high < 0 ? -1 : all.high / STREAM;
    return w;
}

/* The statistics of streaming queries from `row` on to shared memory: lse2, then delta. */
ON_GPU void load_stream_stats(const struct attn &a, uint32_t to, int b, int h, int row)
{
    int thread = thread_again(), piece = thread % 16;
    if (thread >= 32) return;
    const float *stat = (thread < 16 ? a.lse2 : a.delta) + ((int64_t)b * a.heads + h) * a.padded + row;
    copy16(to + thread / 16 * (STREAM * 4) + piece * 16, stat + piece * 4, true);
}

template <class type, int width, bool keys, int high>
ON_GPU void store(const struct attn &a, const struct work &w, char *room1, char *room2, int row,
                  const float (&d1)[high][width / 8][4], const float (&d2)[high][width / 8][4])
{
    float by[high][2], one[high][2];
#pragma unroll
    for (int m = 0; m < high; m++) by[m][0] = by[m][1] = a.scale, one[m][0] = one[m][1] = 1;
    if (keys) {
        store_rows<type, width, high>(room1, d1, by, key_rows(a, a.dk, w.b, w.n), row, a.keys);
        store_rows<type, width, high>(room2, d2, one, key_rows(a, a.dv, w.b, w.n), row, a.keys);
    } else {
        store_rows<type, width, high>(room1, d1, by, query_rows(a, a.dq, w.b, w.h), row, a.time);
    }
}

template <int high, int tiles> ON_GPU void clear(float (&d)[high][tiles][4])
{
#pragma unroll
    for (int m = 0; m < high; m++)
#pragma unroll
        for (int n = 0; n < tiles; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) d[m][n][i] = 0;
}

/* The statistics of the warp's queries, when it owns queries. */
template <bool keys, int high>
ON_GPU void load_stats(const struct attn &a, const struct work &w, int row, struct stats<keys, high> &stat)
{
    if (keys) return;
    const int64_t at = ((int64_t)w.b * a.heads + w.h) * a.padded + row + threadIdx.x % 32 / 4;
#pragma unroll
    for (int m = 0; m < high; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            stat.lse2[m][half] = a.lse2[at + m * 16 + half * 8];
            stat.delta[m][half] = a.delta[at + m * 16 + half * 8];
        }
    }
}
