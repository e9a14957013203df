/* adapter_linear.cu - products of rows with the matrix of their adapter.
 *
 * Two shapes occur: few lines over many columns (x A'), and many lines over few columns (u B' + y). 16-bit numbers go to the tensor cores
 * (adapter_tiles.cuh). For others a warp sums one line over the columns in the first shape, and a thread has one line and sums its columns in order in
 * the second; both take up to ROWS neighbouring rows at once, so that a matrix that neighbours share is read once for all of them. The order
 * of a sum depends on K alone. */
#include "device/cuda/adapter_tiles.cuh"

namespace
{

enum { THREADS = 128, ROWS = 8, SHORT = 64 };

template <class T> ON_GPU void put_sum(const adapted<T> &a, int64_t row, int64_t line, float sum)
{
    int64_t at = row * a.m + line;
    put_number(a.y + at, a.add ? sum + number(a.add + at) : sum);
}

/* LANES threads have a line: a warp, or one. */
template <class T, int N, int LANES> __global__ void __launch_bounds__(THREADS) multiply(adapted<T> a)
{
    int64_t line = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / LANES;
    int64_t end = min(a.rows, ((int64_t)blockIdx.y + 1) * ROWS);
    int lane = (int)threadIdx.x % LANES;
    if (line >= a.m) return;
    for (int64_t row = (int64_t)blockIdx.y * ROWS, next; row < end; row = next) {
        next = run_end(a, row, end);
        float sum[ROWS] = {};
        if (a.slot[row] >= 0) {
            const T *w = a.w + (a.slot[row] * a.m + line) * a.k;
            const T *x = a.x + row * a.x_width + column_of(a, line);
            for (int64_t c = lane * N; c < a.k; c += LANES * N) {
                float v[N];
                load(w + c, v);
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    float u[N];
                    if (row + i >= next) break;
                    load(x + i * a.x_width + c, u);
#pragma unroll
                    for (int j = 0; j < N; j++) sum[i] = fmaf(u[j], v[j], sum[i]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (row + i >= next) break;
            float total = LANES > 1 ? warp_sum(sum[i]) : sum[i];
            if (lane == 0) put_sum(a, row + i, line, total);
        }
    }
}

template <class T, int N, int LANES>
static int launch_rows(const struct cuda_queue *queue, const adapted<T> &a)
{
    dim3 blocks((unsigned)parts_of(a.m * LANES, THREADS), (unsigned)parts_of(a.rows, ROWS));
    return start(queue, multiply<T, N, LANES>, blocks, THREADS, 0, a);
}

template <class T, int N> static int launch_by_width(const struct cuda_queue *queue, const adapted<T> &a)
{
    return a.k <= SHORT ? launch_rows<T, N, 1>(queue, a) : launch_rows<T, N, 32>(queue, a);
}

template <class T> static adapted<T> adapted_of(const struct kernel_call *call)
{
    const struct tensor *w = call_in(call, ADAPTER_LINEAR_W);
    const struct op_lines *parts = call->op->attr.lines;
    adapted<T> a = {};
    a.x = (const T *)call->in[ADAPTER_LINEAR_X], a.w = (const T *)call->in[ADAPTER_LINEAR_W];
    a.add = (const T *)call->in[ADAPTER_LINEAR_ADD], a.slot = (const int *)call->in[ADAPTER_LINEAR_SLOT];
    a.y = (T *)call->out[ADAPTER_LINEAR_Y];
    a.rows = tensor_count(call_in(call, ADAPTER_LINEAR_SLOT));
    a.slots = w->dim[0], a.m = w->dim[1], a.k = w->dim[2];
    a.x_width = tensor_count(call_in(call, ADAPTER_LINEAR_X)) / a.rows;
    int64_t line = 0;
    for (int p = 0; p < OP_LINE_PARTS; p++) line += parts[p].lines, a.ends[p] = parts[0].lines ? line : a.m;
    return a;
}

template <class T> static int run(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const adapted<T> a = adapted_of<T>(call);
    if constexpr (sizeof(T) == 2)
        if (adapter_tiles_suit(a)) return adapter_tiles_run(queue, a);
    bool whole = a.k % lanes<T> == 0 && a.x_width % lanes<T> == 0 && aligned(a.x, a.w);
    return whole ? launch_by_width<T, lanes<T>>(queue, a) : launch_by_width<T, 1>(queue, a);
}

/* The product as the gated unit's operand. */
template <class T>
static adapted<T> gated_of(const struct kernel_call *product, const struct kernel_call *glu)
{
    adapted<T> a = adapted_of<T>(product);
    a.gate = (const T *)glu->in[GLU_GATE], a.y = (T *)glu->out[GLU_H];
    return a;
}

} // namespace

CUDA_BY_TYPE(adapter_linear, call_in(call, ADAPTER_LINEAR_X), run)

bool cuda_adapter_gates(const struct kernel_call *product, const struct kernel_call *glu)
{
    const struct op_attr *attr = &glu->op->attr;
    const enum dtype type = call_in(product, ADAPTER_LINEAR_X)->type;
    if ((type != DT_BF16 && type != DT_F16) || attr->joint || attr->activation != ACTIVATION_SILU)
        return false;
    const adapted<bf16> a = gated_of<bf16>(product, glu); /* sizes and addresses alone count */
    return adapter_tiles_suit(a) && has_own_lines(a) && aligned(a.gate);
}

int cuda_adapter_gated(const struct cuda_queue *queue, const struct kernel_call *product,
                       const struct kernel_call *glu)
{
    if (call_in(product, ADAPTER_LINEAR_X)->type == DT_BF16)
        return adapter_tiles_run(queue, gated_of<bf16>(product, glu));
    return adapter_tiles_run(queue, gated_of<f16>(product, glu));
}
