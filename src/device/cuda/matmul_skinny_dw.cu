/* matmul_skinny_dw.cu - sums over rows of two operands, one of them narrow: gradients of an adapter's matrices.
 *
 * A warp has 64 columns of the wide operand and goes through rows, 16 at a time. A lane loads 16 bytes of four rows, and pairs of rows are made
 * into operands of mma.m16n8k16 by exchanging halves of words: nothing goes through shared memory. The warps of a block that share
 * columns add their sums in a fixed order. Each block writes a partial sum for its rows, and a second kernel adds them up in order. */
#include "device/cuda/matmul_skinny.cuh"

namespace
{

enum { WARPS = SKINNY_WARPS, THREADS = SKINNY_THREADS, COLUMNS = SKINNY_STEP, GROUP = 16, PAIR = 2 };
enum {
    ACROSS = 2,                  /* warps of a block beside each other */
    DOWN = WARPS / ACROSS,       /* and below each other */
    BLOCKS = 256,                /* wanted */
    GRAIN = DOWN * GROUP * PAIR, /* rows of a block are a multiple of it */
};

/* The sum over rows of x[R,wide]' s[R,narrow]. */
template <class T> struct operands {
    const T *x, *s;
    float *partial; /* [blocks of rows][narrow][wide], or [..][wide][narrow] */
    int64_t rows, wide, narrow;
    int64_t per; /* rows of a block */
    bool wide_first;
};

/* Halves of a and b: {low a, low b}, {high a, high b}. */
ON_GPU uint32_t lows(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
ON_GPU uint32_t highs(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }

/* 16 rows. Lane 4 g + q has rows 4 q to 4 q + 3: columns 8 g to 8 g + 7 of x, columns 2 g and 2 g + 1 of every 16 of s. */
template <class T, int TILES> struct group {
    uint4 x[4];
    uint32_t s[TILES][4];

    __device__ __forceinline__ void load(const operands<T> &p, int64_t top, int64_t end, int64_t base)
    {
        const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t row = top + 4 * q + i, column = base + 8 * g;
            x[i] = skinny_piece(p.x + row * p.wide + column, row < end && column < p.wide);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const int c = 16 * t + 2 * g;
                const bool have = row < end && c < p.narrow;
                s[t][i] = have ? *reinterpret_cast<const uint32_t *>(p.s + row * p.narrow + c) : 0;
            }
        }
    }

    /* sum[t][i]: columns 16 t + 2 g, + 1 of s with columns 16 q + i, + 8 of x. */
    __device__ __forceinline__ void multiply(float (&sum)[TILES][8][4]) const
    {
        using type = typename skinny_type<T>::type;
        const uint32_t words[4][4] = {{x[0].x, x[0].y, x[0].z, x[0].w},
                                      {x[1].x, x[1].y, x[1].z, x[1].w},
                                      {x[2].x, x[2].y, x[2].z, x[2].w},
                                      {x[3].x, x[3].y, x[3].z, x[3].w}};
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const uint32_t a[4] = {lows(s[t][0], s[t][1]), highs(s[t][0], s[t][1]), lows(s[t][2], s[t][3]),
                                   highs(s[t][2], s[t][3])};
#pragma unroll
            for (int w = 0; w < 4; w++) {
                type::multiply(sum[t][2 * w], a, lows(words[0][w], words[1][w]),
                               lows(words[2][w], words[3][w]));
                type::multiply(sum[t][2 * w + 1], a, highs(words[0][w], words[1][w]),
                               highs(words[2][w], words[3][w]));
            }
        }
    }
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
ON_GPU void put_partial(const operands<T> &p, const float (&sum)[TILES][8][4], float *to, int64_t base)
{
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int eight = 0; eight < 2; eight++) {
            const int64_t column = base + 16 * q + 8 * eight, c = 16 * t + 2 * g;
            if (column >= p.wide || c >= p.narrow) continue;
            if (p.wide_first) {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    *reinterpret_cast<float2 *>(to + (column + i) * p.narrow + c) =
                        make_float2(sum[t][i][eight], sum[t][i][2 + eight]);
            } else {
#pragma unroll
                for (int i = 0; i < 16; i += 4) {
                    const int at = i % 8, k = i / 8 * 2 + eight;
                    *reinterpret_cast<float4 *>(to + (c + i / 8) * p.wide + column + at) =
                        make_float4(sum[t][at][k], sum[t][at + 1][k], sum[t][at + 2][k], sum[t][at + 3][k]);
                }
            }
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

/* out[width] (+)= the sum of `parts` rows of partial[.., width], four elements to a thread. */
template <class G>
__global__ void __launch_bounds__(THREADS)
    fold(const float *partial, int64_t parts, int64_t width, G *out, const G *add)
{
    const int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4;
    if (at >= width) return;
    float sum[4] = {}, v[4];
#pragma unroll 4
    for (int64_t i = 0; i < parts; i++) {
        load(partial + i * width + at, v);
#pragma unroll
        for (int k = 0; k < 4; k++) sum[k] += v[k];
    }
    if (add) {
        load(add + at, v);
#pragma unroll
        for (int k = 0; k < 4; k++) sum[k] += v[k];
    }
    save(out + at, sum);
}

/* Which of the operands is the narrow one. */
bool is_wide_first(const struct skinny_product *p) { return p->m <= SKINNY_MOST; }

int64_t wide_of(const struct skinny_product *p) { return is_wide_first(p) ? p->n : p->m; }

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
                           rows_of_block(p),
                           wide_first};
    dim3 blocks((unsigned)parts_of(o.wide, ACROSS * COLUMNS), (unsigned)parts_of(o.rows, o.per));
    int failed = start(queue, o.narrow <= 16 ? multiply<T, 1> : multiply<T, 2>, blocks, THREADS, 0, o);
    if (failed) return failed;
    return with_types(p->type, p->out_type, [&](auto, auto grad) {
        using G = typename decltype(grad)::type;
        return start(queue, fold<G>, dim3((unsigned)parts_of(p->m * p->n, 4 * THREADS)), THREADS, 0,
                     o.partial, (int64_t)blocks.y, p->m * p->n, (G *)p->d, (const G *)p->c);
    });
}

} // namespace

bool skinny_dw_suits(const struct skinny_product *p)
{
    int64_t narrow = p->m < p->n ? p->m : p->n, wide = p->m < p->n ? p->n : p->m;
    if (p->ta || p->n % 8 || narrow > SKINNY_MOST || wide <= SKINNY_SUMS || p->k < SKINNY_LEAST) return false;
    if (p->out_type != p->type && p->out_type != DT_F32) return false;
    size_t bytes = (size_t)(parts_of(p->k, rows_of_block(p)) * p->m * p->n) * sizeof(float);
    return bytes <= CUDA_MATMUL_BYTES;
}

int skinny_dw(const struct cuda_queue *queue, const struct skinny_product *p)
{
    return p->type == DT_BF16 ? run<bf16>(queue, p) : run<f16>(queue, p);
}
