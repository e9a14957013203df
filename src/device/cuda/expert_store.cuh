/* expert_store.cuh - sums of a warpgroup to C: 16 bytes at a time, added to what is there, chunks in their order.
 *
 * Sums lie as the tensor cores leave them: c[n] has columns 8 n + 2 (lane % 4) and the next of row lane / 4, then of row
 * lane / 4 + 8. Four lanes have a row of 8 columns between them; they exchange words, so that a lane has 16 bytes that lie
 * together, and four lanes write 64.
 *
 * fp32 is added by the second-level cache (red): each element once an op, or once a chunk in the chunks' order, so the bits
 * repeat; nobody waits for what is there. */
#pragma once

#include "device/cuda/expert_work.cuh"

enum { SUM_BLOCKS = EXPERT_COLUMNS / 8 }; /* blocks of 8 columns */

/* Four lanes have four words each; lane i gets every lane's word i. */
ON_GPU void turn_quad(uint32_t (&w)[4])
{
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    uint32_t a = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1), b = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
    uint32_t x0 = odd ? a : w[0], x1 = odd ? w[1] : a, y0 = odd ? b : w[2], y1 = odd ? w[3] : b;
    a = __shfl_xor_sync(~0u, high ? x0 : y0, 2), b = __shfl_xor_sync(~0u, high ? x1 : y1, 2);
    w[0] = high ? a : x0, w[1] = high ? b : x1, w[2] = high ? y0 : a, w[3] = high ? y1 : b;
}

template <class G> ON_GPU uint32_t two(float x, float y)
{
    const float v[2] = {x, y};
    return pack<G>(v).w[0];
}

template <class G> ON_GPU void add_two(uint32_t w, float *x, float *y)
{
    packet<G, 2> q;
    float v[2];
    q.w[0] = w;
    unpack(q, v);
    *x += v[0], *y += v[1];
}

/* fp32: two lanes have a block of 8 columns and the next; one of them gets both halves of either. */
template <int HALF>
ON_GPU void store_row(bool add, float *line, int columns, bool in, const float (&c)[SUM_BLOCKS][4])
{
    const int quad = threadIdx.x % 4;
    const bool odd = quad % 2;
#pragma unroll
    for (int n = 0; n < SUM_BLOCKS; n += 2) {
        const float *a = &c[n][HALF * 2], *b = &c[n + 1][HALF * 2];
        const float x = __shfl_xor_sync(~0u, odd ? a[0] : b[0], 1),
                    y = __shfl_xor_sync(~0u, odd ? a[1] : b[1], 1);
        const float4 v = odd ? make_float4(x, y, b[0], b[1]) : make_float4(a[0], a[1], x, y);
        const int at = (n + odd) * 8 + quad / 2 * 4;
        if (!in || at >= columns) continue;
        if (add)
            asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(line + at),
                         "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                         : "memory");
        else
            *(float4 *)(line + at) = v;
    }
}

/* 16 bits: four lanes have four blocks of 8 columns; each gets one. What is there is read ahead. */
template <int HALF, class G>
ON_GPU void store_row(const G *add, G *line, int columns, bool in, const float (&c)[SUM_BLOCKS][4])
{
    constexpr int PACKETS = SUM_BLOCKS / 4;
    uint32_t old[PACKETS][4];
#pragma unroll
    for (int i = 0; i < PACKETS && add; i++) {
        const int at = (i * 4 + threadIdx.x % 4) * 8;
        const uint4 q = in && at < columns ? __ldcg((const uint4 *)(add + at)) : make_uint4(0, 0, 0, 0);
        old[i][0] = q.x, old[i][1] = q.y, old[i][2] = q.z, old[i][3] = q.w;
    }
#pragma unroll
    for (int i = 0; i < PACKETS; i++) {
        const int at = (i * 4 + threadIdx.x % 4) * 8;
        uint32_t w[4];
        if (add) turn_quad(old[i]);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float x = c[i * 4 + j][HALF * 2], y = c[i * 4 + j][HALF * 2 + 1];
            if (add) add_two<G>(old[i][j], &x, &y);
            w[j] = two<G>(x, y);
        }
        turn_quad(w);
        if (in && at < columns) *(uint4 *)(line + at) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

/* Sums of 64 rows, from row `top` of the tile on. All threads of the warpgroup come here. */
template <class G, int KIND>
ON_GPU void store_sums(const expert_problem &p, const expert_tile &t, int top,
                       const float (&c)[SUM_BLOCKS][4])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, row = t.row + top + warp * 16 + lane / 4;
    const int end = KIND == GROUPED_DW ? p.m : t.end, width = expert_width<KIND>(p),
              columns = width - t.column;
    const int64_t base = KIND == GROUPED_DW ? (int64_t)t.expert * p.m * p.k : 0;
    const int64_t at = base + (int64_t)row * width + t.column, next = at + (int64_t)8 * width;
    G *c_at = (G *)p.c;
    if constexpr (sizeof(G) == 4) {
        const bool add = p.add || t.chunk;
        store_row<0>(add, c_at + at, columns, row < end, c);
        store_row<1>(add, c_at + next, columns, row + 8 < end, c);
    } else {
        const G *add = (const G *)p.add;
        store_row<0>(add ? add + at : add, c_at + at, columns, row < end, c);
        store_row<1>(add ? add + next : add, c_at + next, columns, row + 8 < end, c);
    }
}

/* --- chunks in their order ---------------------------------------------------------------------------------- */

/* Where the count of added chunks of 64 rows of a tile is kept. */
ON_GPU int *turn_of(const expert_problem &p, const expert_tile &t, int row)
{
    const int across = parts(p.k, CUDA_EXPERT_COLUMNS), down = parts(p.m, CUDA_EXPERT_ROWS);
    const int64_t line = (int64_t)t.expert * down + row / CUDA_EXPERT_ROWS;
    return p.turns + line * across + t.column / CUDA_EXPERT_COLUMNS;
}

/* One thread waits; the caller lets the others wait for it. */
ON_GPU void await_turn(const int *at, int chunk)
{
    int now;
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(at) : "memory");
    while (now != chunk);
}

/* One thread says so, once all threads' sums are on their way in order (__threadfence). */
ON_GPU void pass_turn(int *at, int chunk)
{
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(at), "r"(chunk + 1) : "memory");
}

/* --- experts without rows ----------------------------------------------------------------------------------- */

enum { IDLE_BYTES = 8192 };

/* Gradients of experts without rows are zeros. The thread that asks for operands copies them from a piece of shared memory,
 * so many with every step that both are done at the same time: stores in a row would hold up the operands. */
struct idle_experts {
    uint32_t zeros; /* IDLE_BYTES of them */
    int expert, at; /* the piece that comes next of the expert's */
    int pieces;     /* of an expert */
    int all;        /* pieces of all experts; 0: nothing to do */
    int steps;      /* of all tiles */
    int owed;       /* pieces times steps */
};

template <class G>
ON_GPU idle_experts idle_experts_of(const expert_problem &p, const expert_work &w, uint32_t zeros)
{
    idle_experts idle = {zeros, 0, (int)blockIdx.x};
    idle.pieces = (int)(((int64_t)p.m * p.k * (int)sizeof(G) + IDLE_BYTES - 1) / IDLE_BYTES);
    for (int e = 0; e < p.experts && !p.add; e++) idle.all += expert_rows(p, e) ? 0 : idle.pieces;
    idle.steps = w.lists->steps * w.down * w.across * expert_pair<GROUPED_DW>;
    return idle;
}

/* The block's next piece; false: none is left. */
template <class G> ON_GPU bool clear_piece(const expert_problem &p, idle_experts *i)
{
    const int64_t bytes = (int64_t)p.m * p.k * (int)sizeof(G);
    while (i->expert < p.experts && (expert_rows(p, i->expert) || i->at >= i->pieces)) {
        if (expert_rows(p, i->expert) == 0) i->at -= i->pieces;
        i->expert++;
    }
    if (i->expert == p.experts) return false;
    const int64_t from = (int64_t)i->at * IDLE_BYTES;
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     (char *)p.c + i->expert * bytes + from),
                 "r"(i->zeros), "r"((int)min((int64_t)IDLE_BYTES, bytes - from))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    i->at += gridDim.x;
    return true;
}

/* As many pieces as a step is worth. */
template <class G> ON_GPU void clear_some(const expert_problem &p, idle_experts *i)
{
    for (i->owed += i->all; i->owed >= i->steps; i->owed -= i->steps) clear_piece<G>(p, i);
}

template <class G> ON_GPU void clear_rest(const expert_problem &p, idle_experts *i)
{
    while (i->all && clear_piece<G>(p, i)) {
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
