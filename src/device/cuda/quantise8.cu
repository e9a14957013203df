/* quantise8.cu - a tensor as fp8 numbers with one scale, as it lies and transposed.
 *
 * The first kernel leaves the largest magnitude of each of its blocks. The second one's blocks each take the largest of those, which
 * gives every block the same scale without another launch, and convert a tile of 64 x 64: read once, written in both layouts,
 * transposed in shared memory. Largest numbers are compared as bits, and which block finds them does not matter: the same bits on
 * every run. */
#include "device/cuda/fp8_scale.cuh"
#include <cuda_fp8.h>

namespace
{

enum { THREADS = 256, TILE = 64, PIECE = 16, STRIDE = TILE + 4 }; /* a thread has a piece of a tile's row */

template <class T, int N>
__global__ void __launch_bounds__(THREADS) find_largest(const T *x, int64_t packets, unsigned *largest)
{
    __shared__ unsigned slots[THREADS / 32];
    unsigned most = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < packets;
         i += (int64_t)gridDim.x * THREADS) {
        float v[N];
        load(x + i * N, v);
#pragma unroll
        for (int k = 0; k < N; k++) most = larger(most, magnitude(v[k]));
    }
    most = block_largest<THREADS / 32>(most, slots);
    if (threadIdx.x == 0) largest[blockIdx.x] = most;
}

/* Scaled numbers are never too large; only an infinity could be rounded to the largest number, which it must not. */
template <bool WIDE_RANGE> ON_GPU unsigned char code_of(float x)
{
    if (!WIDE_RANGE && isinf(x)) return 0x7f;
    if (WIDE_RANGE && isinf(x)) return x > 0 ? 0x7c : 0xfc;
    return (unsigned char)__nv_cvt_float_to_fp8(x, __NV_SATFINITE, WIDE_RANGE ? __NV_E5M2 : __NV_E4M3);
}

struct conversion {
    const unsigned *largest;
    int parts; /* of them */
    int64_t rows, columns;
    unsigned char *y, *t;
    float *scale;
};

/* A piece of a row: codes of `count` elements, the others 0. */
template <class T, bool WIDE_RANGE, bool WHOLE>
ON_GPU void convert_piece(const T *x, int64_t count, float factor, unsigned char (&code)[PIECE])
{
    if constexpr (WHOLE) {
        constexpr int N = lanes<T> < PIECE ? lanes<T> : PIECE;
#pragma unroll
        for (int i = 0; i < PIECE; i += N) {
            float v[N];
            load(x + i, v);
#pragma unroll
            for (int k = 0; k < N; k++) code[i + k] = code_of<WIDE_RANGE>(v[k] * factor);
        }
    } else {
#pragma unroll
        for (int i = 0; i < PIECE; i++) code[i] = i < count ? code_of<WIDE_RANGE>(number(x + i) * factor) : 0;
    }
}

template <bool WHOLE>
ON_GPU void put_piece(unsigned char *to, int64_t count, const unsigned char (&code)[PIECE])
{
    if constexpr (WHOLE) {
        unsigned w[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] =
                code[4 * i] | code[4 * i + 1] << 8 | code[4 * i + 2] << 16 | (unsigned)code[4 * i + 3] << 24;
        *reinterpret_cast<uint4 *>(to) = make_uint4(w[0], w[1], w[2], w[3]);
    } else {
        for (int i = 0; i < count; i++) to[i] = code[i];
    }
}

/* WHOLE: rows and columns are multiples of PIECE and everything is aligned, so that a piece is there or is not. */
template <class T, bool WIDE_RANGE, bool WHOLE>
__global__ void __launch_bounds__(THREADS) convert(const T *x, struct conversion c)
{
    __shared__ unsigned slots[THREADS / 32];
    __shared__ unsigned char turned[TILE * STRIDE];
    unsigned most = 0;
    for (int i = threadIdx.x; i < c.parts; i += THREADS) most = larger(most, c.largest[i]);
    int e = exponent_for(block_largest<THREADS / 32>(most, slots), WIDE_RANGE ? TOP_E5M2 : TOP_E4M3);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *c.scale = power_of_two(-e);
    int line = threadIdx.x / (TILE / PIECE), first = threadIdx.x % (TILE / PIECE) * PIECE;
    int64_t row = (int64_t)blockIdx.y * TILE, column = (int64_t)blockIdx.x * TILE;
    int64_t count = row + line < c.rows ? c.columns - column - first : 0;
    unsigned char code[PIECE] = {};
    if (count > 0) {
        int64_t at = (row + line) * c.columns + column + first;
        convert_piece<T, WIDE_RANGE, WHOLE>(x + at, count, power_of_two(e), code);
        if (c.y) put_piece<WHOLE>(c.y + at, count < PIECE ? count : PIECE, code);
    }
    if (!c.t) return;
#pragma unroll
    for (int i = 0; i < PIECE; i++) turned[(first + i) * STRIDE + line] = code[i];
    __syncthreads();
    count = column + line < c.columns ? c.rows - row - first : 0;
    if (count <= 0) return;
#pragma unroll
    for (int i = 0; i < PIECE; i++) code[i] = turned[line * STRIDE + first + i];
    put_piece<WHOLE>(c.t + (column + line) * c.rows + row + first, count < PIECE ? count : PIECE, code);
}

template <class T, bool WIDE_RANGE>
static int run_conversion(const struct cuda_queue *queue, const T *x, const struct conversion *c)
{
    dim3 blocks((unsigned)parts_of(c->columns, TILE), (unsigned)parts_of(c->rows, TILE));
    bool whole = c->columns % PIECE == 0 && c->rows % PIECE == 0 && aligned(x, c->y, c->t);
    auto kernel = whole ? convert<T, WIDE_RANGE, true> : convert<T, WIDE_RANGE, false>;
    return start(queue, kernel, blocks, THREADS, 0, x, *c);
}

template <class T> static int run(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const T *x = (const T *)call->in[QUANTISE8_X];
    const struct tensor *y = call_out(call, call->out[QUANTISE8_Y] ? QUANTISE8_Y : QUANTISE8_T);
    if (call->accumulate || !y) return 0;
    int64_t count = tensor_count(call_in(call, QUANTISE8_X));
    bool whole = count % lanes<T> == 0 && aligned(x);
    int64_t packets = whole ? count / lanes<T> : count;
    unsigned *largest = (unsigned *)call->work;
    struct conversion c = {.largest = largest,
                           .parts = (int)fewest(parts_of(packets, THREADS), CUDA_QUANTISE8_BLOCKS)};
    c.columns = y->dim[call->out[QUANTISE8_Y] ? 1 : 0], c.rows = count / c.columns;
    c.y = (unsigned char *)call->out[QUANTISE8_Y], c.t = (unsigned char *)call->out[QUANTISE8_T];
    c.scale = (float *)call->out[QUANTISE8_SCALE];
    int code = start(queue, whole ? find_largest<T, lanes<T>> : find_largest<T, 1>, (unsigned)c.parts,
                     THREADS, 0, x, packets, largest);
    if (code) return code;
    return y->type == DT_E5M2 ? run_conversion<T, true>(queue, x, &c)
                              : run_conversion<T, false>(queue, x, &c);
}

} // namespace

CUDA_BY_TYPE(quantise8, call_in(call, QUANTISE8_X), run)
