/* expert_linear_hopper.cu - products of experts on warpgroups (sm_90a), operands brought by the tensor memory accelerator.
 *
 * As many blocks as there are multiprocessors take tiles of C, 128 by 256, in turn. A block has three warpgroups: one
 * thread of the first brings tiles of 64 of k into a ring of stages, the other two multiply, 64 rows each, with their
 * sums in registers:
 *
 *     producer    wait empty[s]; ask for A and B of the next 64 of k; full[s] counts their bytes
 *     consumers   wait full[s]; four products of 16 of k; when those of the stage before are done, arrive at its empty
 *
 * The producer runs ahead into the next tile while the consumers store the last one. Tiles in shared memory are blocks of
 * 64 columns, 128 bytes to a row, swizzled (attention_wgmma.cuh); an operand whose rows are not k lies turned, and the
 * tensor cores read it so.
 *
 * Tiles. Which expert a tile is of follows from `ends`: each block adds up the experts' tiles once, and finds a tile by
 * bisection. Rows of the next expert, or columns of its matrix, that a tile brings along are not stored; where k ends
 * inside a tile the other operand has zeros (outside a tensor the accelerator reads zeros; rows behind an expert's last,
 * which are k of the weights' gradient, are zeroed in shared memory). Tiles of an expert go in groups of 16 rows of
 * tiles, column after column, so that those under way share operands in the second-level cache.
 *
 * The order of a sum depends on k alone: bits repeat, and do not depend on how many rows an expert has. */
#include "device/cuda/expert_linear.cuh"
#include "device/cuda/attention_hopper.cuh"

#include <cuda.h>

namespace
{

enum {
    TILE_M = 128,
    TILE_N = 256,
    TILE_K = 64,
    STAGES = 4,
    BLOCK = TILE_K * 128, /* bytes of 64 rows of 64 columns */
    A_BYTES = TILE_M * TILE_K * 2,
    B_BYTES = TILE_N * TILE_K * 2,
    STAGE = A_BYTES + B_BYTES,
    CONSUMERS = 2,
    THREADS = (1 + CONSUMERS) * WG_THREADS,
    GROUP = 16, /* rows of tiles that go together */
    MOST_EXPERTS = 1024,
    SHARED = STAGES * STAGE + WG_ALIGN + 2 * STAGES * 8 + (MOST_EXPERTS + 1) * 4,
};

struct maps {
    CUtensorMap a, b;
};

/* What of the problem a kernel reads. */
struct problem {
    const int32_t *ends;
    const void *add;
    void *c;
    int experts, m, k;
};

#if WG_BODY /* what only the kernel's body calls */

/* --- barriers and copies ------------------------------------------------------------------------------------ */

ON_GPU void barrier_init(uint32_t at, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}

ON_GPU void barrier_expect(uint32_t at, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

ON_GPU void barrier_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

ON_GPU void barrier_wait(uint32_t at, uint32_t parity)
{
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

/* A box of the tensor that `map` describes, from column x and row y on. */
ON_GPU void bring(uint32_t to, const CUtensorMap *map, int x, int y, uint32_t barrier)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y)
        : "memory");
}

template <int registers> ON_GPU void take_registers(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers> ON_GPU void leave_registers(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/* --- products ----------------------------------------------------------------------------------------------- */

/* A tile whose rows are rows or columns of the product; or, turned, whose rows are k, with columns in blocks of 64. */
ON_GPU uint64_t operand(uint32_t at, bool turned)
{
    uint64_t blocks = turned ? BLOCK >> 4 : 1;
    return (uint64_t)((at & 0x3ffff) >> 4) | blocks << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

#define SUM4(i)  "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define SUM16(i) SUM4(i), SUM4(i + 1), SUM4(i + 2), SUM4(i + 3)
#define SUMS     SUM16(0), SUM16(4), SUM16(8), SUM16(12), SUM16(16), SUM16(20), SUM16(24), SUM16(28)
#define NAMES                                                                                                \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                       \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                       \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                       \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                       \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                       \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "           \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}"
#define PRODUCT(kind)                                                                                        \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"                                           \
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32." kind "." kind " " NAMES                      \
                 ", %128, %129, add, 1, 1, %131, %132;\n}"                                                   \
                 : SUMS                                                                                      \
                 : "l"(a), "l"(b), "r"((int)add), "n"(TURN_A), "n"(TURN_B))

template <class T, int TURN_A, int TURN_B>
ON_GPU void product(float (&c)[32][4], uint64_t a, uint64_t b, bool add)
{
    if constexpr (sizeof(T) == 2 && __is_same(T, bf16))
        PRODUCT("bf16");
    else
        PRODUCT("f16");
}

/* --- tiles -------------------------------------------------------------------------------------------------- */

struct tile {
    int expert, first, end; /* the expert's rows */
    int row, column;        /* of the tile, in rows of A (weights: of M) and columns of C */
};

template <int KIND> ON_GPU int width_of(const problem &p) { return KIND == GROUPED_LINEAR ? p.m : p.k; }

/* Rows of tiles of each expert become the number of those before it; sums[experts] is all. */
template <int KIND> ON_GPU void add_up_tiles(const problem &p, int *sums)
{
    for (int e = threadIdx.x; e < p.experts; e += THREADS) {
        int rows = KIND == GROUPED_DW ? p.m : p.ends[e] - (e ? p.ends[e - 1] : 0);
        sums[e + 1] = (rows + TILE_M - 1) / TILE_M;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        sums[0] = 0;
        for (int e = 0; e < p.experts; e++) sums[e + 1] += sums[e];
    }
    __syncthreads();
}

template <int KIND> ON_GPU tile find_tile(const problem &p, const int *sums, int index, int across)
{
    int low = 0, high = p.experts - 1; /* the last expert that begins at or before the tile */
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (sums[middle] * across <= index)
            low = middle;
        else
            high = middle - 1;
    }
    const int e = low, down = sums[e + 1] - sums[e], within = index - sums[e] * across;
    const int group = within / (GROUP * across), left = within - group * GROUP * across;
    const int height = min(GROUP, down - group * GROUP);
    tile t;
    t.expert = e, t.first = e ? p.ends[e - 1] : 0, t.end = p.ends[e];
    t.row = (group * GROUP + left % height) * TILE_M + (KIND == GROUPED_DW ? 0 : t.first);
    t.column = left / height * TILE_N;
    return t;
}

template <int KIND> ON_GPU int steps_of(const problem &p, const tile &t)
{
    const int deep = KIND == GROUPED_DW ? t.end - t.first : KIND == GROUPED_LINEAR ? p.k : p.m;
    return (deep + TILE_K - 1) / TILE_K;
}

/* Both operands' tiles of one step. */
template <int KIND>
ON_GPU void bring_step(const problem &p, const tile &t, const maps &m, int k, uint32_t to, uint32_t full)
{
    barrier_expect(full, STAGE);
    if constexpr (KIND == GROUPED_DW) {
        for (int i = 0; i < TILE_M / 64; i++) bring(to + i * BLOCK, &m.a, t.row + i * 64, t.first + k, full);
    } else {
        bring(to, &m.a, k, t.row, full);
    }
    to += A_BYTES;
    if constexpr (KIND == GROUPED_LINEAR) {
        bring(to, &m.b, k, t.expert * p.m + t.column, full);
    } else {
        const int row = KIND == GROUPED_DW ? t.first + k : t.expert * p.m + k;
        for (int i = 0; i < TILE_N / 64; i++) bring(to + i * BLOCK, &m.b, t.column + i * 64, row, full);
    }
}

/* Rows from `rows` on of this warpgroup's block of A, which are another expert's, become zeros. */
ON_GPU void clear_rows(char *block, int rows, int group)
{
    for (int i = rows * 8 + threadIdx.x % WG_THREADS; i < TILE_K * 8; i += WG_THREADS)
        *(uint4 *)(block + i * 16) = make_uint4(0, 0, 0, 0);
    wgmma_publish();
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"((int)WG_THREADS) : "memory");
}

/* Sums of a warpgroup's 64 rows to C. */
template <class G, int KIND>
ON_GPU void store_tile(const problem &p, const tile &t, int group, float (&c)[32][4])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x % WG_THREADS / 32;
    const int end = KIND == GROUPED_DW ? p.m : t.end, width = width_of<KIND>(p);
    const int64_t base = KIND == GROUPED_DW ? (int64_t)t.expert * p.m * p.k : 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = t.row + group * 64 + warp * 16 + half * 8 + lane / 4;
        if (row >= end) continue;
        const int64_t line = base + (int64_t)row * width;
#pragma unroll
        for (int n = 0; n < 32; n++) {
            const int column = t.column + n * 8 + lane % 4 * 2;
            if (column >= width) continue; /* widths are even: a pair is inside or outside */
            float v[2] = {c[n][half * 2], c[n][half * 2 + 1]}, add[2];
            if (p.add) {
                load((const G *)p.add + line + column, add);
                v[0] += add[0], v[1] += add[1];
            }
            save((G *)p.c + line + column, v);
        }
    }
}

/* --- the two kinds of warpgroups ---------------------------------------------------------------------------- */

struct ring {
    uint32_t tiles, full, empty;
    char *at; /* tiles, for those who write them */
};

template <int KIND>
ON_GPU void produce(const problem &p, const maps &m, const ring &r, const int *sums, int across)
{
    int stage = 0, turn = 0;
    for (int i = blockIdx.x; i < sums[p.experts] * across; i += gridDim.x) {
        const tile t = find_tile<KIND>(p, sums, i, across);
        const int steps = steps_of<KIND>(p, t);
        for (int s = 0; s < steps; s++) {
            barrier_wait(r.empty + stage * 8, (turn & 1) ^ 1);
            bring_step<KIND>(p, t, m, s * TILE_K, r.tiles + stage * STAGE, r.full + stage * 8);
            if (++stage == STAGES) stage = 0, turn++;
        }
    }
}

template <class T, class G, int KIND>
ON_GPU void consume(const problem &p, const ring &r, const int *sums, int across, int group)
{
    constexpr bool TURN_A = KIND == GROUPED_DW, TURN_B = KIND != GROUPED_LINEAR;
    constexpr int A_STEP = TURN_A ? 2048 : 32, B_STEP = TURN_B ? 2048 : 32; /* bytes to the next 16 of k */
    int stage = 0, turn = 0;
    for (int i = blockIdx.x; i < sums[p.experts] * across; i += gridDim.x) {
        const tile t = find_tile<KIND>(p, sums, i, across);
        const int steps = steps_of<KIND>(p, t);
        float c[32][4];
        int before = -1;
        if (steps == 0)
            for (int n = 0; n < 32; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
        for (int s = 0; s < steps; s++) {
            barrier_wait(r.full + stage * 8, turn & 1);
            const uint32_t a = r.tiles + stage * STAGE + group * BLOCK, b = r.tiles + stage * STAGE + A_BYTES;
            if (KIND == GROUPED_DW && t.first + (s + 1) * TILE_K > t.end)
                clear_rows(r.at + stage * STAGE + group * BLOCK, t.end - t.first - s * TILE_K, group);
            wgmma_begin();
#pragma unroll
            for (int k = 0; k < TILE_K / 16; k++)
                product<T, TURN_A, TURN_B>(c, operand(a + k * A_STEP, TURN_A),
                                           operand(b + k * B_STEP, TURN_B), s > 0 || k > 0);
            wgmma_commit();
            wgmma_wait<1>(); /* the stage before is read */
            if (before >= 0 && threadIdx.x % 32 == 0) barrier_arrive(r.empty + before * 8);
            before = stage;
            if (++stage == STAGES) stage = 0, turn++;
        }
        wgmma_wait<0>();
#pragma unroll
        for (int n = 0; n < 32; n++) asm volatile("" : SUM4(n)::"memory");
        if (before >= 0 && threadIdx.x % 32 == 0) barrier_arrive(r.empty + before * 8);
        store_tile<G, KIND>(p, t, group, c);
    }
}

#endif

template <class T, class G, int KIND>
__global__ void __launch_bounds__(THREADS, 1) multiply(problem p, const __grid_constant__ maps m)
{
#if WG_BODY
    char *pool = wg_pool();
    ring r = {shared_address(pool), 0, 0, pool};
    r.full = r.tiles + STAGES * STAGE, r.empty = r.full + STAGES * 8;
    int *sums = (int *)(pool + STAGES * STAGE + 2 * STAGES * 8);
    const int across = (width_of<KIND>(p) + TILE_N - 1) / TILE_N;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(r.full + s * 8, 1);
            barrier_init(r.empty + s * 8, CONSUMERS * WG_THREADS / 32);
        }
        wgmma_publish();
    }
    add_up_tiles<KIND>(p, sums);
    if (threadIdx.x < WG_THREADS) {
        leave_registers<40>();
        if (threadIdx.x == 0) produce<KIND>(p, m, r, sums, across);
    } else {
        take_registers<232>();
        consume<T, G, KIND>(p, r, sums, across, threadIdx.x / WG_THREADS - 1);
    }
#endif
}

/* --- launching ---------------------------------------------------------------------------------------------- */

typedef CUresult encode_map(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                            const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                            CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encode_map *find_encoder(void)
{
    void *symbol = NULL;
    cudaDriverEntryPointQueryResult how;
    cudaError_t code =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol, 12000, cudaEnableDefault, &how);
    return code == cudaSuccess && how == cudaDriverEntryPointSuccess ? (encode_map *)symbol : NULL;
}

/* A tensor [rows, columns] of 16 bits, read in boxes of `tall` rows of 64 columns. */
static bool describe(CUtensorMap *map, enum dtype type, const void *at, int64_t rows, int64_t columns,
                     int tall)
{
    encode_map *encode = find_encoder();
    cuuint64_t size[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, stride[1] = {(cuuint64_t)columns * 2};
    cuuint32_t box[2] = {64, (cuuint32_t)tall}, step[2] = {1, 1};
    return encode &&
           encode(map, type == DT_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                  2, const_cast<void *>(at), size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int KIND> static bool describe_both(maps *m, const struct grouped *g)
{
    const int64_t weights = (int64_t)g->experts * g->m;
    if (KIND == GROUPED_LINEAR)
        return describe(&m->a, g->type, g->a, g->rows, g->k, TILE_M) &&
               describe(&m->b, g->type, g->b, weights, g->k, TILE_N);
    if (KIND == GROUPED_DX)
        return describe(&m->a, g->type, g->a, g->rows, g->m, TILE_M) &&
               describe(&m->b, g->type, g->b, weights, g->k, TILE_K);
    return describe(&m->a, g->type, g->a, g->rows, g->m, TILE_K) &&
           describe(&m->b, g->type, g->b, g->rows, g->k, TILE_K);
}

template <class T, class G, int KIND> static int run(const struct cuda_queue *queue, const struct grouped *g)
{
    maps m;
    problem p = {g->ends, g->add, g->c, g->experts, g->m, g->k};
    auto kernel = multiply<T, G, KIND>;
    if (!describe_both<KIND>(&m, g)) return (int)cudaErrorNotSupported;
    int code =
        (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
    if (code) return code;
    kernel<<<(unsigned)queue->sms, THREADS, SHARED, stream_of(queue)>>>(p, m);
    return launched();
}

template <class T> static int run_kind(const struct cuda_queue *queue, const struct grouped *g)
{
    if (g->kind == GROUPED_LINEAR) return run<T, T, GROUPED_LINEAR>(queue, g);
    if (g->kind == GROUPED_DX) return run<T, T, GROUPED_DX>(queue, g);
    return g->out_type == DT_F32 ? run<T, float, GROUPED_DW>(queue, g) : run<T, T, GROUPED_DW>(queue, g);
}

} // namespace

bool grouped_on_warpgroups(const struct cuda_queue *queue, const struct grouped *g)
{
    bool type = g->type == DT_BF16 || g->type == DT_F16;
    bool small = g->rows < (1 << 30) && (int64_t)g->experts * g->m < (1 << 30); /* coordinates are ints */
    return queue->warpgroups && type && small && g->m % 8 == 0 && g->k % 8 == 0 &&
           g->experts <= MOST_EXPERTS && queue->shared_most >= SHARED && aligned(g->a, g->b, g->c, g->add) &&
           find_encoder();
}

int grouped_run_warpgroups(const struct cuda_queue *queue, const struct grouped *g)
{
    return g->type == DT_BF16 ? run_kind<bf16>(queue, g) : run_kind<f16>(queue, g);
}
