/* matmul_skinny_dw.cu - sums over rows of two operands, one of them narrow: gradients of an adapter's matrices.
 *
 * A warp has 64 columns of the wide operand and goes through rows, 16 at a time. A lane loads 16 bytes of four rows, and pairs of rows are made
 * into operands of mma.m16n8k16 by exchanging halves of words: nothing goes through shared memory. The warps of a block that share
 * columns add their sums in a fixed order. Each block writes a partial sum for its rows, and a second kernel adds them up in order. */
#include "device/cuda/matmul_skinny_dw.cuh"

namespace
{

enum {
    ACROSS = 2,                  /* warps of a block beside each other */
    DOWN = WARPS / ACROSS,       /* and below each other */
    PAIR = 2,                    /* groups of rows that are loaded at once */
    GRAIN = DOWN * GROUP * PAIR, /* rows of a block are a multiple of it */
    BLOCKS = 256,                /* wanted */
};

/* The warps with the same columns, the later half added to the earlier one until one is left. */
template <int TILES>
ON_GPU void add_warps(float (&sum)[TILES][8][4], float (*room)[ACROSS][TILES * 32][32], int across, int down)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = DOWN / 2; half > 0; half /= 2) {
        if (down >= half && down < 2 * half) {
#pragma unroll
            for (int i = 0; i < TILES * 32; i++)
                room[down - half][across][i][lane] = sum[i / 32][i / 4 % 8][i % 4];
        }
        __syncthreads();
        if (down < half) {
#pragma unroll
            for (int i = 0; i < TILES * 32; i++) sum[i / 32][i / 4 % 8][i % 4] += room[down][across][i][lane];
        }
        __syncthreads();
    }
}

template <class T, int TILES>
__global__ void __launch_bounds__(THREADS, TILES == 1 ? 2 : 1) multiply(operands<T> p)
{
    __shared__ float room[DOWN / 2][ACROSS][TILES * 32][32];
    const int warp = threadIdx.x / 32, across = warp % ACROSS, down = warp / ACROSS;
    const int64_t base = ((int64_t)blockIdx.x * ACROSS + across) * COLUMNS;
    const int64_t first = blockIdx.y * p.per, end = min(p.rows, first + p.per);
    float sum[TILES][8][4] = {};
    for (int64_t top = first + down * GROUP; top < end; top += DOWN * GROUP * PAIR) {
        group<T, TILES> groups[PAIR];
#pragma unroll
        for (int i = 0; i < PAIR; i++) groups[i].load(p, top + i * DOWN * GROUP, end, base);
#pragma unroll
        for (int i = 0; i < PAIR; i++) groups[i].multiply(sum);
    }
    add_warps<TILES>(sum, room, across, down);
    if (down == 0) put_partial<T, TILES>(p, sum, p.partial + blockIdx.y * p.wide * p.narrow, base);
}

template <class G> __global__ void __launch_bounds__(THREADS) fold(fold_job<G> job)
{
    fold_at(job, blockIdx.x);
}

/* Rows of a block: shapes alone decide, and with them the order of sums. */
int64_t rows_of_block(const struct skinny_product *p)
{
    int64_t across = parts_of(wide_of(p), ACROSS * COLUMNS), parts = across < BLOCKS ? BLOCKS / across : 1;
    return parts_of(parts_of(p->k, parts), GRAIN) * GRAIN;
}

template <class T> int run(const struct cuda_queue *queue, const struct skinny_product *p)
{
    bool wide_first = is_wide_first(p);
    const operands<T> o = {(const T *)(wide_first ? p->b : p->a),
                           (const T *)(wide_first ? p->a : p->b),
                           (float *)p->work,
                           p->k,
                           wide_of(p),
                           wide_first ? p->m : p->n,
                           wide_first ? b_step(p) : a_step(p),
                           wide_first ? a_step(p) : b_step(p),
                           rows_of_block(p),
                           wide_first};
    dim3 blocks((unsigned)parts_of(o.wide, ACROSS * COLUMNS), (unsigned)parts_of(o.rows, o.per));
    int failed = start(queue,
                       o.narrow <= 16   ? multiply<T, 1>
                       : o.narrow <= 32 ? multiply<T, 2>
                                        : multiply<T, 3>,
                       blocks, THREADS, 0, o);
    if (failed) return failed;
    return with_types(p->type, p->out_type, [&](auto, auto grad) {
        using G = typename decltype(grad)::type;
        fold_job<G> job = fold_of<G>(p, o.partial, (int64_t)blocks.y);
        return start(queue, fold<G>, dim3((unsigned)fold_blocks(job)), THREADS, 0, job);
    });
}

} // namespace

bool skinny_dw_suits(const struct skinny_product *p)
{
    int64_t narrow = p->m < p->n ? p->m : p->n, wide = p->m < p->n ? p->n : p->m;
    if (p->ta || p->n % 8 || narrow > SKINNY_MOST || wide <= SKINNY_SUMS || p->k < SKINNY_LEAST || p->d_step)
        return false;
    if (p->out_type != p->type && p->out_type != DT_F32) return false;
    size_t bytes = (size_t)(parts_of(p->k, rows_of_block(p)) * p->m * p->n) * sizeof(float);
    return bytes <= CUDA_MATMUL_BYTES;
}

int skinny_dw(const struct cuda_queue *queue, const struct skinny_product *p)
{
    return p->type == DT_BF16 ? run<bf16>(queue, p) : run<f16>(queue, p);
}
