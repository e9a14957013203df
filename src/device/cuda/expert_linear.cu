/* expert_linear.cu - products of experts for any sizes and types, on the cores that add: what expert_linear_hopper.cu does
 * not take. A block has 64 rows of one expert by 64 columns, a thread 4 by 4 of them; k is summed in order. */
#include "device/cuda/expert_linear.cuh"

namespace
{

enum { THREADS = 256, EDGE = 64, DEEP = 16, EACH = 4 };

/* A tile of C: rows [first, end) of A's rows, or of M for weights. */
struct tile {
    int expert;
    int64_t first, end;  /* rows of the expert (weights: its range of k) */
    int64_t row, column; /* where the tile begins */
};

/* The tile of rows that block y is: experts with more rows have more. False: there are fewer tiles than blocks. */
ON_GPU bool find_rows(const struct grouped &g, tile *t)
{
    int64_t left = blockIdx.y, first = 0;
    for (int e = 0; e < g.experts; first = g.ends[e++]) {
        int64_t tiles = (g.ends[e] - first + EDGE - 1) / EDGE;
        if (left < tiles) {
            *t = {e, first, g.ends[e], first + left * EDGE, (int64_t)blockIdx.x * EDGE};
            return true;
        }
        left -= tiles;
    }
    return false;
}

/* Element (i, k) of the tile's A and (j, k) of its B; zeros outside. */
template <class T> ON_GPU float a_at(const struct grouped &g, const tile &t, int i, int64_t k)
{
    int64_t row = t.row + i;
    if (g.kind == GROUPED_DW)
        return row < g.m && t.first + k < t.end ? number((const T *)g.a + (t.first + k) * g.m + row) : 0;
    int64_t width = g.kind == GROUPED_LINEAR ? g.k : g.m;
    return row < t.end && k < width ? number((const T *)g.a + row * width + k) : 0;
}

template <class T> ON_GPU float b_at(const struct grouped &g, const tile &t, int j, int64_t k)
{
    int64_t column = t.column + j;
    if (g.kind == GROUPED_DW)
        return column < g.k && t.first + k < t.end ? number((const T *)g.b + (t.first + k) * g.k + column)
                                                   : 0;
    int64_t weight = (int64_t)t.expert * g.m * g.k;
    if (g.kind == GROUPED_LINEAR)
        return column < g.m && k < g.k ? number((const T *)g.b + weight + column * g.k + k) : 0;
    return column < g.k && k < g.m ? number((const T *)g.b + weight + k * g.k + column) : 0;
}

template <class T, class G> __global__ void __launch_bounds__(THREADS) multiply(grouped g)
{
    __shared__ float a[DEEP][EDGE + 1], b[DEEP][EDGE + 1];
    tile t = {(int)blockIdx.z, 0, 0, (int64_t)blockIdx.y * EDGE, (int64_t)blockIdx.x * EDGE};
    if (g.kind == GROUPED_DW)
        t.first = blockIdx.z ? g.ends[blockIdx.z - 1] : 0, t.end = g.ends[blockIdx.z];
    else if (!find_rows(g, &t))
        return;
    const int64_t deep = g.kind == GROUPED_DW ? t.end - t.first : g.kind == GROUPED_LINEAR ? g.k : g.m;
    const int down = threadIdx.x / 16 * EACH, across = threadIdx.x % 16 * EACH;
    float sum[EACH][EACH] = {};
    for (int64_t k = 0; k < deep; k += DEEP) {
        for (int i = threadIdx.x; i < DEEP * EDGE; i += THREADS) {
            /* Neighbours of a row are neighbours in memory where k is the last dimension. */
            int line = g.kind == GROUPED_DW ? i % EDGE : i / DEEP,
                at = g.kind == GROUPED_DW ? i / EDGE : i % DEEP;
            a[at][line] = a_at<T>(g, t, line, k + at);
            line = g.kind == GROUPED_LINEAR ? i / DEEP : i % EDGE,
            at = g.kind == GROUPED_LINEAR ? i % DEEP : i / EDGE;
            b[at][line] = b_at<T>(g, t, line, k + at);
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < DEEP; d++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++) sum[i][j] = fmaf(a[d][down + i], b[d][across + j], sum[i][j]);
        __syncthreads();
    }
    const int64_t end = g.kind == GROUPED_DW ? g.m : t.end, width = g.kind == GROUPED_LINEAR ? g.m : g.k,
                  base = g.kind == GROUPED_DW ? (int64_t)t.expert * g.m * g.k : 0;
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int64_t row = t.row + down + i, column = t.column + across + j, at = base + row * width + column;
            if (row >= end || column >= width) continue;
            put_number((G *)g.c + at, g.add ? sum[i][j] + number((const G *)g.add + at) : sum[i][j]);
        }
}

} // namespace

int grouped_run(const struct cuda_queue *queue, const struct grouped *g)
{
    if (g->rows == 0) return 0;
    if (grouped_on_warpgroups(queue, g)) return grouped_run_warpgroups(queue, g);
    int64_t width = g->kind == GROUPED_LINEAR ? g->m : g->k, most = parts_of(g->rows, EDGE) + g->experts;
    dim3 grid((unsigned)parts_of(width, EDGE),
              (unsigned)(g->kind == GROUPED_DW ? parts_of(g->m, EDGE) : most),
              g->kind == GROUPED_DW ? (unsigned)g->experts : 1);
    return with_types(g->type, g->out_type, [&](auto t, auto out) {
        return start(queue, multiply<typename decltype(t)::type, typename decltype(out)::type>, grid, THREADS,
                     0, *g);
    });
}

/* The fields that all grouped products share; w: the weights or their gradient, a: rows of `width` elements each. */
static struct grouped grouped_of(enum grouped_kind kind, const struct tensor *w, const void *ends,
                                 const struct tensor *a, int64_t width)
{
    struct grouped g = {kind, a->type, w->type};
    g.ends = (const int32_t *)ends, g.rows = tensor_count(a) / width;
    g.experts = (int)w->dim[0], g.m = (int)w->dim[1], g.k = (int)w->dim[2];
    return g;
}

int cuda_expert_linear(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *w = call_in(call, EXPERT_LINEAR_W);
    struct grouped g = grouped_of(GROUPED_LINEAR, w, call->in[EXPERT_LINEAR_ENDS],
                                  call_in(call, EXPERT_LINEAR_X), w->dim[2]);
    g.a = call->in[EXPERT_LINEAR_X], g.b = call->in[EXPERT_LINEAR_W], g.c = call->out[EXPERT_LINEAR_Y];
    return grouped_run(queue, &g);
}

int cuda_expert_linear_dx(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *w = call_in(call, EXPERT_LINEAR_DX_W);
    struct grouped g = grouped_of(GROUPED_DX, w, call->in[EXPERT_LINEAR_DX_ENDS],
                                  call_in(call, EXPERT_LINEAR_DX_DY), w->dim[1]);
    g.a = call->in[EXPERT_LINEAR_DX_DY], g.b = call->in[EXPERT_LINEAR_DX_W];
    g.c = call->out[EXPERT_LINEAR_DX_DX], g.add = call->in[EXPERT_LINEAR_DX_ADD];
    return grouped_run(queue, &g);
}

int cuda_expert_linear_dw(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *w = call_out(call, EXPERT_LINEAR_DW_DW);
    struct grouped g = grouped_of(GROUPED_DW, w, call->in[EXPERT_LINEAR_DW_ENDS],
                                  call_in(call, EXPERT_LINEAR_DW_DY), w->dim[1]);
    g.a = call->in[EXPERT_LINEAR_DW_DY], g.b = call->in[EXPERT_LINEAR_DW_X];
    g.c = call->out[EXPERT_LINEAR_DW_DW], g.add = call->accumulate ? g.c : NULL;
    if (w->type == DT_F32 && cuda_expert_turns(g.experts, g.m, g.k, g.rows)) g.turns = (int32_t *)call->work;
    return grouped_run(queue, &g);
}
