/* matmul_skinny_pair.cu - a product of rows and a sum over rows of the same operand, which is read once: dy B and dy' u of an adapter.
 *
 * A block has 512 columns, 64 for each warp, and passes over its rows. Every tile of 16 rows is loaded twice, in the order that each product needs,
 * the second time from the nearest cache. The warps' sums of a row are added in order and written as a partial sum of these columns;
 * the sums over rows stay in registers until the end. A second kernel adds all partial sums. */
#include "device/cuda/matmul_skinny_dw.cuh"

namespace
{

enum {
    BLOCKS = 256,   /* wanted */
    GRAIN = 64,     /* rows of a block are a multiple of it */
    PAIR_MOST = 32, /* columns of the narrow operand */
    HALVES = SKINNY_STEP / SKINNY_HALF,
};

/* The least bytes of B: fewer are still in the card's cache when they are read again. */
#define LEAST_BYTES ((int64_t)48 << 20)

/* TILES of 16 columns of the narrow operand; ROUND groups of rows between barriers. */
template <int TILES> struct shape {
    static constexpr int EIGHTS = 2 * TILES, ROUND = 4 / TILES, WIDTH = 8 * EIGHTS;
};

template <int TILES> union pair_room {
    float sums[WARPS][shape<TILES>::ROUND * GROUP][shape<TILES>::WIDTH];
    uint4 lines[WARPS][HALVES][shape<TILES>::EIGHTS][SKINNY_HALF];
};

/* One group's product of rows, over this warp's columns. */
template <class T, int TILES>
ON_GPU void multiply_rows(const operands<T> &p, int64_t top, int64_t end, int64_t base,
                          const uint4 (&w)[HALVES][shape<TILES>::EIGHTS], float (*sums)[shape<TILES>::WIDTH])
{
    using type = typename skinny_type<T>::type;
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    uint4 x[2][HALVES];
    float sum[shape<TILES>::EIGHTS][4] = {};
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            const int64_t row = top + 8 * j + g, column = base + h * SKINNY_HALF + 8 * q;
            x[j][h] = skinny_piece(p.x + row * p.x_step + column, row < end && column < p.wide);
        }
#pragma unroll
    for (int h = 0; h < HALVES; h++)
#pragma unroll
        for (int t = 0; t < shape<TILES>::EIGHTS; t++)
            skinny_multiply<type>(sum[t], x[0][h], x[1][h], w[h][t]);
#pragma unroll
    for (int t = 0; t < shape<TILES>::EIGHTS; t++)
#pragma unroll
        for (int k = 0; k < 4; k++) sums[k / 2 * 8 + g][t * 8 + 2 * q + k % 2] = sum[t][k];
}

/* s[wide,narrow]; partial[blocks across][rows][narrow]. */
template <class T> struct rows_side {
    const T *s;
    float *partial;
};

template <class T, int TILES>
__global__ void __launch_bounds__(THREADS, TILES == 1 ? 2 : 1) multiply(operands<T> p, rows_side<T> r)
{
    using S = shape<TILES>;
    __shared__ __align__(16) pair_room<TILES> room;
    const int warp = threadIdx.x / 32;
    const int64_t base = ((int64_t)blockIdx.x * WARPS + warp) * COLUMNS;
    const int64_t first = blockIdx.y * p.per, end = min(p.rows, first + p.per);
    uint4 w[HALVES][S::EIGHTS];
    float sum[TILES][8][4] = {};
    skinny_turn<T, S::EIGHTS>(r.s, base, p.wide, p.narrow, room.lines[warp], w);
    for (int64_t top = first; top < end; top += S::ROUND * GROUP) {
        __syncthreads(); /* lines, or sums of the round before, have been read */
#pragma unroll 2
        for (int i = 0; i < S::ROUND; i++) {
            group<T, TILES> rows;
            rows.load(p, top + i * GROUP, end, base);
            if (p.scale != 0) rows.scale_by(p.scale);
            rows.multiply(sum);
            multiply_rows<T, TILES>(p, top + i * GROUP, end, base, w, room.sums[warp] + i * GROUP);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < S::ROUND * GROUP * S::WIDTH; i += THREADS) {
            const int row = i / S::WIDTH, c = i % S::WIDTH;
            if (top + row >= end || c >= p.narrow) continue;
            float all = room.sums[0][row][c];
#pragma unroll
            for (int k = 1; k < WARPS; k++) all += room.sums[k][row][c];
            r.partial[(blockIdx.x * p.rows + top + row) * p.narrow + c] = all;
        }
    }
    put_partial<T, TILES>(p, sum, p.partial + blockIdx.y * p.wide * p.narrow, base);
}

template <class T, class G>
__global__ void __launch_bounds__(THREADS) fold(fold_job<T> rows, int64_t blocks, fold_job<G> turned)
{
    if (blockIdx.x < blocks)
        fold_at(rows, blockIdx.x);
    else
        fold_at(turned, blockIdx.x - blocks);
}

struct pair_sizes {
    int64_t across, down, per;
    int64_t rows_numbers, bytes; /* of scratch: sums of rows come first */
};

pair_sizes sizes_of(const struct skinny_product *turned)
{
    pair_sizes s = {parts_of(turned->n, WARPS * COLUMNS)};
    s.per = parts_of(parts_of(turned->k, s.across < BLOCKS ? BLOCKS / s.across : 1), GRAIN) * GRAIN;
    s.down = parts_of(turned->k, s.per);
    s.rows_numbers = s.across * turned->k * turned->m;
    s.bytes = (s.rows_numbers + s.down * turned->n * turned->m) * (int64_t)sizeof(float);
    return s;
}

template <class T>
int run(const struct cuda_queue *queue, const struct skinny_product *rows,
        const struct skinny_product *turned)
{
    const pair_sizes sizes = sizes_of(turned);
    const bool again = turned->a == rows->again;
    float *work = (float *)turned->work;
    const operands<T> o = {(const T *)turned->b,
                           (const T *)(again ? rows->from : turned->a),
                           work + sizes.rows_numbers,
                           turned->k,
                           turned->n,
                           turned->m,
                           b_step(turned),
                           a_step(turned),
                           sizes.per,
                           true,
                           again ? rows->scale : 0.0f};
    const rows_side<T> r = {(const T *)rows->a, work};
    int failed = start(queue, o.narrow <= 16 ? multiply<T, 1> : multiply<T, 2>,
                       dim3((unsigned)sizes.across, (unsigned)sizes.down), THREADS, 0, o, r);
    if (failed) return failed;
    return with_types(turned->type, turned->out_type, [&](auto, auto grad) {
        using G = typename decltype(grad)::type;
        const fold_job<T> first = fold_of<T>(rows, work, sizes.across);
        const fold_job<G> second = fold_of<G>(turned, o.partial, sizes.down);
        const int64_t blocks = fold_blocks(first);
        return start(queue, fold<T, G>, dim3((unsigned)(blocks + fold_blocks(second))), THREADS, 0, first,
                     blocks, second);
    });
}

} // namespace

bool cuda_matmul_skinny_pairs(const struct skinny_product *rows, const struct skinny_product *turned)
{
    bool apart = rows->b_step || rows->d_step || turned->a_step || turned->b_step;
    bool same = !apart && rows->b == turned->b && rows->type == turned->type && rows->n == turned->k &&
                rows->k == turned->n && rows->m == turned->m;
    return same && cuda_matmul_skinny_scales(rows) && !rows->ta && !rows->c && turned->tb &&
           turned->m <= PAIR_MOST && 2 * turned->n * turned->k >= LEAST_BYTES &&
           sizes_of(turned).bytes <= (int64_t)CUDA_MATMUL_BYTES;
}

int cuda_matmul_skinny_pair(const struct cuda_queue *queue, const struct skinny_product *rows,
                            const struct skinny_product *turned)
{
    return rows->type == DT_BF16 ? run<bf16>(queue, rows, turned) : run<f16>(queue, rows, turned);
}
