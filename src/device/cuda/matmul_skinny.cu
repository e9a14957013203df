/* matmul_skinny.cu - products with one small dimension: as fast as memory gives the large operand, which is read once.
 *
 *  narrow    few columns of D, long sums (x A' and dy B of an adapter): a block has 16, 32 or 64 rows, its warps take 64 columns of B in turn, and
 *            their sums are added in the order of warps. The small matrix is read once for each block.
 *  wide      short sums, many columns of D (u B' and du A): a warp keeps 64 or 32 columns of the small matrix in registers and goes through
 *            rows; D is read, where it is added to, and written by 16 bytes.
 *  turned    sums over rows (gradients of weights): matmul_skinny_dw.cu.
 *
 * The products are mma.m16n8k16 (attention_ptx.cuh) on operands as they come from memory. Sums are f32, rounded once. */
#include "device/cuda/matmul_skinny.cuh"

namespace
{

enum { WARPS = SKINNY_WARPS, THREADS = SKINNY_THREADS, STEP = SKINNY_STEP, HALF = SKINNY_HALF };

/* y[R,N] = x[R,K] S (+ add), or wide: y[R,M] = x[R,K] S (+ add). */
template <class T> struct operands {
    const T *x, *s, *add;
    T *y;
    int64_t rows, k, m;
    int64_t x_step, y_step; /* numbers from one row to the next */
};

/* --- narrow ------------------------------------------------------------------------------------------------ */

/* TILES of 8 columns, GROUPS of 16 rows. */
template <int TILES, int GROUPS> union narrow_room {
    float sums[WARPS][GROUPS * 16][TILES * 8];
    uint4 lines[WARPS][STEP / HALF][TILES][HALF];
};

/* The small matrix at columns [at, at + STEP) of x. LINES: it is [M,K], else [K,M]. */
template <class T, int TILES, bool LINES>
ON_GPU void load_small(const operands<T> &p, int64_t at, uint4 (*room)[TILES][HALF],
                       uint4 (&w)[STEP / HALF][TILES])
{
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4 * 8;
    if constexpr (LINES) {
#pragma unroll
        for (int h = 0; h < STEP / HALF; h++)
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                int64_t c = at + h * HALF + q, line = 8 * t + g;
                w[h][t] = skinny_piece(p.s + line * p.k + c, line < p.m && c < p.k);
            }
    } else {
        skinny_turn<T, TILES>(p.s, at, p.k, p.m, room, w);
    }
}

template <class T, int TILES, int GROUPS, bool LINES>
__global__ void __launch_bounds__(THREADS) narrow_product(operands<T> p, skinny_results<T> to)
{
    using type = typename skinny_type<T>::type;
    __shared__ __align__(16) narrow_room<TILES, GROUPS> room;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4 * 8;
    const int64_t first = (int64_t)blockIdx.x * GROUPS * 16;
    float sum[GROUPS][TILES][4] = {};
    for (int64_t at = warp * STEP; at < p.k; at += WARPS * STEP) {
        uint4 x[GROUPS][2][STEP / HALF], w[STEP / HALF][TILES];
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int h = 0; h < STEP / HALF; h++) {
                    int64_t row = first + i * 16 + j * 8 + g, c = at + h * HALF + q;
                    x[i][j][h] = skinny_piece(p.x + row * p.x_step + c, row < p.rows && c < p.k);
                }
        load_small<T, TILES, LINES>(p, at, room.lines[warp], w);
#pragma unroll
        for (int h = 0; h < STEP / HALF; h++)
#pragma unroll
            for (int i = 0; i < GROUPS; i++)
#pragma unroll
                for (int t = 0; t < TILES; t++)
                    skinny_multiply<type>(sum[i][t], x[i][0][h], x[i][1][h], w[h][t]);
    }
    __syncthreads(); /* sums take the place of lines */
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                room.sums[warp][i * 16 + k / 2 * 8 + g][t * 8 + lane % 4 * 2 + k % 2] = sum[i][t][k];
    __syncthreads();
    for (int i = threadIdx.x; i < GROUPS * 16 * TILES * 8; i += THREADS) {
        int row = i / (TILES * 8), column = i % (TILES * 8);
        if (first + row >= p.rows || column >= p.m) continue;
        int64_t at = (first + row) * p.y_step + column;
        float all[1] = {room.sums[0][row][column]};
#pragma unroll
        for (int k = 1; k < WARPS; k++) all[0] += room.sums[k][row][column];
        if (p.add) all[0] += number(p.add + at);
        skinny_put(to, at, all);
    }
}

template <class T, int TILES, int GROUPS>
int run_narrow(const struct cuda_queue *queue, const operands<T> &p, const skinny_results<T> &to, bool lines)
{
    return start(queue,
                 lines ? narrow_product<T, TILES, GROUPS, true> : narrow_product<T, TILES, GROUPS, false>,
                 dim3((unsigned)parts_of(p.rows, GROUPS * 16)), THREADS, 0, p, to);
}

/* As many rows to a block as leave a block for nearly every multiprocessor: a row has the same bits in all of them. */
template <class T, int TILES>
int choose_rows(const struct cuda_queue *queue, const operands<T> &p, const skinny_results<T> &to, bool lines)
{
    auto fills = [&](int64_t rows) { return parts_of(p.rows, rows) * 8 >= queue->sms * 7; };
    if constexpr (TILES <= 2)
        if (fills(64)) return run_narrow<T, TILES, 4>(queue, p, to, lines);
    return fills(32) ? run_narrow<T, TILES, 2>(queue, p, to, lines)
                     : run_narrow<T, TILES, 1>(queue, p, to, lines);
}

template <class T>
int narrow(const struct cuda_queue *queue, const operands<T> &p, const skinny_results<T> &to, bool lines)
{
    if (p.m <= 8) return choose_rows<T, 1>(queue, p, to, lines);
    if (p.m <= 16) return choose_rows<T, 2>(queue, p, to, lines);
    return p.m <= 32 ? choose_rows<T, 4>(queue, p, to, lines) : choose_rows<T, 6>(queue, p, to, lines);
}

/* --- wide -------------------------------------------------------------------------------------------------- */

enum { WIDE_ROWS = 128 }; /* of a block */

/* b0 and b1 of 16 terms from `from` on, for one column: lane q of four has terms 4 q to 4 q + 3. LINES: S is [M,K], else [K,M]. */
template <class T, bool LINES> ON_GPU uint2 column_piece(const operands<T> &p, int64_t column, int64_t from)
{
    int64_t k = from + threadIdx.x % 4 * 4;
    if (column >= p.m || k >= p.k) return make_uint2(0, 0);
    if constexpr (LINES) return *reinterpret_cast<const uint2 *>(p.s + column * p.k + k);
    const unsigned short *at = reinterpret_cast<const unsigned short *>(p.s) + k * p.m + column;
    return make_uint2(at[0] | (unsigned)at[p.m] << 16, at[2 * p.m] | (unsigned)at[3 * p.m] << 16);
}

/* Numbers that rows `row` and `row + 8` are added to: for each row, 8 columns of every 32. */
template <class T, int HALVES>
ON_GPU void load_added(const operands<T> &p, int64_t row, int64_t column, int64_t end,
                       uint4 (&more)[2][HALVES])
{
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int h = 0; h < HALVES; h++)
            more[j][h] = skinny_piece(p.add + (row + 8 * j) * p.y_step + column + h * HALF,
                                      p.add && row + 8 * j < end && column + h * HALF < p.m);
}

/* Lane 4 g + q has columns 8 q to 8 q + 7 of rows g and g + 8: tile t of four has columns 2 t, 2 t + 1 of every 8. STEPS of 16 terms. */
template <class T, int STEPS, int HALVES, bool LINES>
__global__ void __launch_bounds__(THREADS, 2) wide_product(operands<T> p)
{
    using type = typename skinny_type<T>::type;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int64_t base = ((int64_t)blockIdx.x * WARPS + warp) * HALVES * HALF, column = base + 8 * q;
    const int64_t first = (int64_t)blockIdx.y * WIDE_ROWS, end = min(p.rows, first + WIDE_ROWS);
    if (base >= p.m) return;
    uint2 s[HALVES][4][STEPS];
    uint4 more[2][HALVES], next[2][HALVES];
#pragma unroll
    for (int h = 0; h < HALVES; h++)
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int k = 0; k < STEPS; k++)
                s[h][t][k] = column_piece<T, LINES>(p, base + h * HALF + g / 2 * 8 + g % 2 + 2 * t, 16 * k);
    load_added<T, HALVES>(p, first + g, column, end, more);
    for (int64_t top = first; top < end; top += 16) {
        load_added<T, HALVES>(p, top + 16 + g, column, end, next); /* before this group is written */
        float sum[HALVES][4][4] = {};
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            uint2 x[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                int64_t row = top + g + 8 * j, c = 16 * k + 4 * q;
                bool have = row < end && c < p.k;
                x[j] = have ? *reinterpret_cast<const uint2 *>(p.x + row * p.x_step + c) : make_uint2(0, 0);
            }
            const uint32_t a[4] = {x[0].x, x[1].x, x[0].y, x[1].y};
#pragma unroll
            for (int h = 0; h < HALVES; h++)
#pragma unroll
                for (int t = 0; t < 4; t++) type::multiply(sum[h][t], a, s[h][t][k].x, s[h][t][k].y);
        }
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                const int64_t row = top + g + 8 * j, c = column + h * HALF;
                const uint4 &m = more[j][h];
                const packet<T, 8> before = {{m.x, m.y, m.z, m.w}};
                float v[8];
                unpack(before, v);
#pragma unroll
                for (int k = 0; k < 8; k++) v[k] += sum[h][k / 2][2 * j + k % 2];
                if (row < end && c < p.m) save(p.y + row * p.y_step + c, v);
                more[j][h] = next[j][h];
            }
    }
}

template <class T, int STEPS, int HALVES>
int run_wide(const struct cuda_queue *queue, const operands<T> &p, bool lines)
{
    dim3 blocks((unsigned)parts_of(p.m, WARPS * HALVES * HALF), (unsigned)parts_of(p.rows, WIDE_ROWS));
    return start(queue, lines ? wide_product<T, STEPS, HALVES, true> : wide_product<T, STEPS, HALVES, false>,
                 blocks, THREADS, 0, p);
}

template <class T> int wide(const struct cuda_queue *queue, const operands<T> &p, bool lines)
{
    if (p.k <= 16) return run_wide<T, 1, 2>(queue, p, lines);
    if (p.k <= 32) return run_wide<T, 2, 2>(queue, p, lines);
    return p.k <= 48 ? run_wide<T, 3, 1>(queue, p, lines) : run_wide<T, 4, 1>(queue, p, lines);
}

/* --- choosing ---------------------------------------------------------------------------------------------- */

bool is_narrow(const struct skinny_product *p) { return p->m <= SKINNY_MOST && p->k > SKINNY_SUMS; }
bool is_wide(const struct skinny_product *p) { return p->k <= SKINNY_SUMS && p->m > SKINNY_SUMS; }

template <class T> int run(const struct cuda_queue *queue, const struct skinny_product *p)
{
    const operands<T> o = {(const T *)p->b,
                           (const T *)p->a,
                           (const T *)p->c,
                           (T *)p->d,
                           p->n,
                           p->k,
                           p->m,
                           p->b_step ? p->b_step : p->k,
                           p->d_step ? p->d_step : p->m};
    return is_narrow(p) ? narrow(queue, o, skinny_results_of<T>(p), p->ta) : wide(queue, o, p->ta);
}

} // namespace

bool cuda_matmul_skinny_suits(const struct skinny_product *p)
{
    if (!dtype_is_narrow(p->type) || !aligned(p->a, p->b, p->c, p->d) || p->m % 8) return false;
    if (p->a_step % 8 || p->b_step % 8 || p->d_step % 8) return false;
    if (p->tb) return skinny_dw_suits(p);
    return p->out_type == p->type && p->k % 8 == 0 && p->n >= SKINNY_LEAST && (is_narrow(p) || is_wide(p)) &&
           parts_of(p->n, WIDE_ROWS) <= 65535;
}

bool cuda_matmul_skinny_scales(const struct skinny_product *p)
{
    return !p->tb && is_narrow(p) && aligned(p->scaled, p->from, p->again);
}

int cuda_matmul_skinny(const struct cuda_queue *queue, const struct skinny_product *p)
{
    if (p->tb) return skinny_dw(queue, p);
    return p->type == DT_BF16 ? run<bf16>(queue, p) : run<f16>(queue, p);
}
