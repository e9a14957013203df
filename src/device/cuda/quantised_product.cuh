/* quantised_product.cuh - products of weights in quantised blocks, on the tensor cores' 8-bit products: linear_q of up to
 * CUDA_Q_ROWS rows and expert_linear_q. Each block type is compiled by itself, quantised_product_TYPE.cu; quantised_product.cu chooses.
 *
 * x is rounded to 8 bits (quantised_rows.cuh): one row by every block of threads for itself, more, and a long gated one, by a kernel before. For 32
 * of k a tensor core adds products of codes exactly; then, in fp32,
 *
 *     chain += scale of x * (scale of W * sum of products - least * sum of x's codes)
 *
 * A panel of W (16 lines) has eight chains: chunk c of 256 of k belongs to chain c % 8, and chains are added in pairs, pairs
 * of pairs, and so on. So the order depends on k alone: a row has the same bits whatever rows are beside it and however the
 * work is shared out: 8, 4 or 2 warps have the chains of an item (a panel, or two of them), or one warp has them all. Up to
 * 8 rows take as few warps for an item as keep the card busy, since every item has work beside its products.
 *
 * A warp's chunks come to shared memory as they lie in memory, several under way, those of its next item too, and the first of
 * them before the activations exist where kernels overlap (overlap.cuh). Up to 8 rows of x are in shared memory. */
#pragma once

#include "device/cuda/overlap.cuh"
#include "device/cuda/quantised_gated.cuh"
#include "device/cuda/quantised_one.cuh"

namespace
{

/* --- results ------------------------------------------------------------------------------------------------ */

ON_GPU float number_at(enum dtype type, const void *from, int64_t i)
{
    return type == DT_F32    ? ((const float *)from)[i]
           : type == DT_BF16 ? number((const bf16 *)from + i)
                             : number((const f16 *)from + i);
}

ON_GPU void put_at(enum dtype type, void *to, int64_t i, float x)
{
    if (type == DT_F32)
        ((float *)to)[i] = x;
    else if (type == DT_BF16)
        put_number((bf16 *)to + i, x);
    else
        put_number((f16 *)to + i, x);
}

/* An element of y: line `line` of an item, row `row` of the tiles. */
struct element {
    int64_t column, at;
    bool there;
};

template <class W> ON_GPU element element_of(const item<W::panels> &it, int row, int line)
{
    const int64_t m = (int64_t)it.panel * LINES + line, column = it.part->first + m;
    return {column, (it.first + row) * it.part->m + column, it.first + row < it.end && m < it.part->lines};
}

/* Bias and residual of an element. */
ON_GPU float addend(const problem &p, const cuda_q_part *part, const element &e)
{
    float x = 0;
    if (part->bias && e.there) x = number_at(p.q.type, part->bias, e.column);
    if (part->add && e.there) x += number_at(p.q.type, part->add, e.at);
    return x;
}

/* Lane's element i of four of a tile: line g or g + 8, row 2 t or 2 t + 1. */
ON_GPU int line_of(int i) { return (int)threadIdx.x % 32 / 4 + i / 2 * 8; }
ON_GPU int row_of(int i) { return (int)threadIdx.x % 4 * 2 + i % 2; }

/* Chains of a warp that has several: in pairs, pairs of pairs, and so on. */
struct pairing {
    float single[4], pair[4], four[4];
};

/* `sum` is that of chain `chain` of the warp's, from 0; after the last one it is that of all. */
ON_GPU void add_chain(pairing &all, float (&sum)[4], int chain)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float v = sum[i];
        if (chain % 2)
            v += all.single[i];
        else
            all.single[i] = v;
        if (chain % 4 == 1) all.pair[i] = v;
        if (chain % 4 == 3) v += all.pair[i];
        if (chain == 3) all.four[i] = v;
        if (chain == 7) v += all.four[i];
        sum[i] = v;
    }
}

/* Threads of the warps that share an item. */
template <class W> ON_GPU void item_barrier(void)
{
    asm volatile("bar.sync %0, %1;" ::"r"(1 + (int)threadIdx.x / 32 / W::warps), "n"(W::warps * 32)
                 : "memory");
}

/* The sums of an item's warps become elements of y. early: what is added to the thread's first one. */
template <class B, class W>
ON_GPU void add_warps(const problem &p, const item<W::panels> &it, float *pool,
                      const float (&sum)[W::panels][W::tiles][4], float early)
{
    constexpr int ROWS = W::tiles * TILE, WIDTH = LINES * W::panels, EACH = W::warps * 32;
    const int warp = threadIdx.x / 32, first = warp / W::warps * W::warps;
#pragma unroll
    for (int i = 0; i < W::panels * W::tiles * 4; i++) {
        const int panel = i / (W::tiles * 4), tile = i / 4 % W::tiles;
        pool[(warp * ROWS + tile * TILE + row_of(i % 4)) * W::stride + panel * LINES + line_of(i % 4)] =
            sum[panel][tile][i % 4] * B::factor;
    }
    item_barrier<W>();
    for (int n = threadIdx.x % EACH, i = n; i < ROWS * WIDTH; i += EACH) {
        const element e = element_of<W>(it, i / WIDTH, i % WIDTH);
        float v[W::warps];
        if (!e.there) continue;
#pragma unroll
        for (int w = 0; w < W::warps; w++)
            v[w] = pool[((first + w) * ROWS + i / WIDTH) * W::stride + i % WIDTH];
#pragma unroll
        for (int half = W::warps / 2; half > 0; half /= 2)
#pragma unroll
            for (int w = 0; w < half; w++) v[w] = v[2 * w] + v[2 * w + 1];
        put_at(p.q.type, it.part->y, e.at, v[0] + (i == n ? early : addend(p, it.part, e)));
    }
}

/* --- the kernels -------------------------------------------------------------------------------------------- */

/* x to shared memory: rounded here, or as a kernel left it. */
ON_GPU void take_x(const problem &p, float *partial)
{
    char *to = shared_pool() + p.ring;
    const row_range row = {0, 0, (int)(p.q.k / 8)};
    const int count = p.chunks * p.x.rows * (RECORD / 16);
    if (p.rounds && p.q.type == DT_BF16) make_row<bf16>(p.q, row, {to, 1, 1}, 0, partial, blockIdx.x == 0);
    if (p.rounds && p.q.type == DT_F16) make_row<f16>(p.q, row, {to, 1, 1}, 0, partial, blockIdx.x == 0);
    for (int first = threadIdx.x; !p.rounds && first < count; first += 8 * THREADS) {
        uint4 some[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            some[i] = reinterpret_cast<const uint4 *>(p.x.at)[min(first + i * THREADS, count - 1)];
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (first + i * THREADS < count) reinterpret_cast<uint4 *>(to)[first + i * THREADS] = some[i];
    }
    __syncthreads();
}

/* Where a lane reads the rows of an item. Lanes behind the last row read what is there. */
template <class W> ON_GPU lane_rows rows_of(const problem &p, const item<W::panels> &it)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const char *at = (W::shared ? shared_pool() + p.ring : p.x.at) + (int64_t)it.row * RECORD;
    return {at + g * 32 + t * 8, at + TILE * RECORD_SCALES + t * 8, (int64_t)p.x.rows * RECORD};
}

/* Addends of the elements that a thread finishes first. */
template <class W>
ON_GPU void load_addends(const problem &p, const item<W::panels> &it, float (&early)[W::warps == 1 ? 4 : 1])
{
    constexpr int WIDTH = LINES * W::panels;
    const int n = threadIdx.x % (W::warps * 32);
    if (!it.part->bias && !it.part->add) return;
    if constexpr (W::warps == 1)
#pragma unroll
        for (int i = 0; i < 4; i++) early[i] = addend(p, it.part, element_of<W>(it, row_of(i), line_of(i)));
    else
        early[0] = addend(p, it.part, element_of<W>(it, n / WIDTH, n % WIDTH));
}

template <class B, class W>
ON_GPU void put_results(const problem &p, const item<W::panels> &it, float *pool,
                        const float (&sum)[W::panels][W::tiles][4],
                        const float (&early)[W::warps == 1 ? 4 : 1])
{
    if constexpr (W::warps > 1) {
        add_warps<B, W>(p, it, pool, sum, early[0]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const element e = element_of<W>(it, row_of(i), line_of(i));
            if (e.there) put_at(p.q.type, it.part->y, e.at, sum[0][0][i] * B::factor + early[i]);
        }
    }
}

template <int TYPE, class W> __global__ void __launch_bounds__(THREADS, W::wanted) multiply(const problem p)
{
    using B = blocks<TYPE>;
    __shared__ float partial[ROW_WARPS];
    char *behind = shared_pool() + WARPS * W::panels * p.stages * B::chunk_bytes,
         *prepared = behind + threadIdx.x / 32 * W::panels * W::template prepared<B>,
         *sums = behind + WARPS * W::panels * W::template prepared<B>;
    const bool alike = !p.q.ends && p.across == 1; /* all items have the same rows */
    copies<W> copy;
    x_blocks<W::tiles, W::step> ahead;
    bool ready = false;
    int stage = 0, turn = 0;
    copy.stage = 0;
    next_may_begin();
    copies_init();
    if (!p.q.ends) copy_first<B>(p, copy, first_item<W>());
    await_previous();
    if (W::shared) take_x(p, partial);
    for (int number = first_item<W>(), round = 0; number < p.items; number += items_apart<W>()) {
        item<W::panels> it = item_of<W>(p, number);
        for (; it.first < it.end; it.first += W::tiles * TILE, it.row += W::tiles * TILE, round++) {
            const lane_rows x = rows_of<W>(p, it);
            float sum[W::panels][W::tiles][4] = {}, early[W::warps == 1 ? 4 : 1] = {};
            pairing all;
            if (p.q.ends) copy_first<B>(p, copy, number);
            if (!alike) ready = false;
            if (!W::gated) load_addends<W>(p, it, early);
            for (int chain = first_chain<W>(), c = first_chunk<W>(p), last = chain + W::chains;
                 chain < last;) {
                if (chain < p.chunks) {
                    const int next = chunk_after<W>(p, c);
                    await_chunk(p, stage, turn);
                    if constexpr (W::one)
                        multiply_chunk_one<B>(sum[0][0][0], ring_of<B, W>(p, stage),
                                              shared_pool() + p.ring + c * RECORD, blocks_in(p, c));
                    else
                        multiply_chunk<B, W>(sum, ring_of<B, W>(p, stage), prepared, x, c, blocks_in(p, c),
                                             next < 0 && alike ? first_chunk<W>(p) : next, ahead, ready);
                    __syncwarp();
                    copy_next<B>(p, copy);
                    if (++stage == p.stages) stage = 0, turn++;
                    const bool ends = c + CHAINS >= p.chunks;
                    c = next;
                    if (!ends) continue;
                }
                if (W::chains > 1) {
                    add_chain(all, sum[0][0], chain - first_chain<W>());
                    if (chain + 1 < last)
#pragma unroll
                        for (int i = 0; i < 4; i++) sum[0][0][i] = 0;
                }
                chain++;
            }
            if (W::one) gather_one(sum[0][0]);
            if (W::warps > 1 && W::sum_places == 1) item_barrier<W>();
            float *pool = (float *)(sums + round % W::sum_places * W::sums);
            if constexpr (W::gated)
                put_gated<B, W>(p, it, pool, sum[0][0]);
            else
                put_results<B, W>(p, it, pool, sum, early);
        }
    }
}

/* --- choosing ----------------------------------------------------------------------------------------------- */

template <class B, class W> static size_t ring_bytes(int stages)
{
    constexpr size_t prepared = W::template prepared<B>;
    return (size_t)WARPS * W::panels * ((size_t)stages * B::chunk_bytes + prepared) +
           (size_t)W::sum_places * W::sums;
}

/* Beside what a launch asks for there are the kernel's own variables (barriers, a norm's sums), and 1 KiB of the system's for each block. */
enum { OWN_BYTES = 256, SYSTEM_BYTES = 1024 };
static_assert(WARPS * DEPTH * 8 + ROW_WARPS * 4 <= OWN_BYTES, "barriers and a norm's sums");

static size_t room_of(const struct cuda_queue *queue) { return queue->shared_most - OWN_BYTES; }

static int64_t blocks_at_once(const struct cuda_queue *queue, size_t shared)
{
    return (int64_t)((queue->shared_most + SYSTEM_BYTES) / (shared + OWN_BYTES + SYSTEM_BYTES));
}

/* As many chunks under way as memory's latency wants, and room for as many blocks of threads as there are and registers allow;
 * what is left then is for the next kernel. x: bytes of it. */
template <class B, class W> static int stages_for(const struct cuda_queue *queue, int64_t blocks, size_t x)
{
    const size_t each = (size_t)WARPS * W::panels * B::chunk_bytes;
    for (int64_t want = fewest(W::wanted, parts_of(blocks, queue->sms)); want > 0; want--)
        for (int stages = DEPTH; stages > 0; stages--)
            if ((stages == 1 || stages * each <= (size_t)74 << 10) &&
                blocks_at_once(queue, ring_bytes<B, W>(stages) + x) >= want)
                return stages;
    return 1;
}

static size_t shared_x_bytes(const problem &p) { return (size_t)p.chunks * (size_t)p.x.rows * RECORD; }

template <class W> static void share_out(problem &p)
{
    p.groups = 0;
    for (int i = 0; i < p.q.parts; i++)
        p.begin[i] = p.groups, p.groups += (int)parts_of(p.q.part[i].lines, LINES * W::panels);
    p.across = p.q.ends ? 1 : (int)parts_of(p.q.rows, W::tiles * TILE);
    p.items = (int)(p.groups * (p.q.ends ? p.q.experts : p.across));
}

template <int TYPE, class W> static int run(const struct cuda_queue *queue, problem p)
{
    using B = blocks<TYPE>;
    auto kernel = multiply<TYPE, W>;
    const size_t x = W::shared ? shared_x_bytes(p) : 0;
    p.panel_bytes = p.q.k / B::elements * B::block_bytes;
    share_out<W>(p);
    int64_t blocks = parts_of(p.items, WARPS / W::warps);
    p.stages = stages_for<B, W>(queue, blocks, x);
    p.ring = (int)ring_bytes<B, W>(p.stages);
    const size_t shared = (size_t)p.ring + x;
    /* The most there can be, not what this launch needs: a recording may hold launches that need more. */
    int failed =
        shared <= (size_t)40 << 10
            ? 0
            : (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        (int)room_of(queue));
    /* They take items in turn; experts' may be empty. */
    if (!p.q.ends) blocks = fewest(blocks, fewest(W::wanted, blocks_at_once(queue, shared)) * queue->sms);
    return failed ? failed : launch(queue, kernel, blocks, THREADS, shared, p);
}

static int64_t panels_of(const problem &p)
{
    int64_t panels = 0;
    for (int i = 0; i < p.q.parts; i++) panels += panels_count(p.q.part[i].lines);
    return panels * (p.q.ends ? p.q.experts : 1);
}

/* x in shared memory: as few warps for a panel as keep the card busy. */
template <int TYPE, bool ONE> static int run_shared(const struct cuda_queue *queue, const problem &p)
{
    const int64_t panels = panels_of(p), warps = 2 * WARPS * queue->sms;
    if (panels * 8 <= warps) return run<TYPE, way<1, 1, 8, true, ONE>>(queue, p);
    if (panels * 4 <= warps) return run<TYPE, way<1, 1, 4, true, ONE>>(queue, p);
    return panels * 2 <= warps ? run<TYPE, way<1, 1, 2, true, ONE>>(queue, p)
                               : run<TYPE, way<1, 1, 1, true, ONE>>(queue, p);
}

/* Likewise, but never all warps for a panel: its gate is in the same block of threads. */
template <int TYPE> static int run_gated(const struct cuda_queue *queue, const problem &p)
{
    const int64_t panels = panels_of(p), warps = 2 * WARPS * queue->sms;
    if (panels * 4 <= warps) return run<TYPE, way<1, 1, 4, true, true, true>>(queue, p);
    return panels * 2 <= warps ? run<TYPE, way<1, 1, 2, true, true, true>>(queue, p)
                               : run<TYPE, way<1, 1, 1, true, true, true>>(queue, p);
}

/* Up to a tile of rows. */
template <int TYPE> static int run_few(const struct cuda_queue *queue, const problem &p)
{
    if (p.q.ends || shared_x_bytes(p) + ring_bytes<blocks<TYPE>, way<1, 1, 8, true>>(1) > room_of(queue))
        return run<TYPE, way<1, 1, 8, false>>(queue, p);
    return p.x.tile == 1 ? run_shared<TYPE, true>(queue, p) : run_shared<TYPE, false>(queue, p);
}

/* Two panels share what is read of x; one keeps all multiprocessors busy where there are few, and fits cards with 99 KB. */
template <int TYPE, int TILES> static int run_tiles(const struct cuda_queue *queue, const problem &p)
{
    using two = way<TILES, 2, 8, false>;
    const bool fits = ring_bytes<blocks<TYPE>, two>(1) <= room_of(queue);
    return fits && panels_of(p) >= 4 * queue->sms ? run<TYPE, two>(queue, p)
                                                  : run<TYPE, way<TILES, 1, 8, false>>(queue, p);
}

template <int TYPE> static int multiply_type(const struct cuda_queue *queue, const struct cuda_q_product *q)
{
    const problem p = problem_of(queue, q);
    if (q->gated) return run_gated<TYPE>(queue, p);
    const int64_t rows = p.q.ends ? parts_of(p.q.rows, p.q.experts) : p.q.rows;
    if (rows <= TILE) return run_few<TYPE>(queue, p);
    if (rows <= 2 * TILE) return run_tiles<TYPE, 2>(queue, p);
    return rows <= 4 * TILE ? run_tiles<TYPE, 4>(queue, p) : run_tiles<TYPE, 8>(queue, p);
}

} // namespace
