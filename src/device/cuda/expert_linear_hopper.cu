/* expert_linear_hopper.cu - products of experts on warpgroups (sm_90a), operands brought by the tensor memory accelerator.
 *
 * As many blocks as there are multiprocessors take tiles of C, 128 by 128, in turn (expert_work.cuh). A block has three
 * warpgroups: one thread of the first brings tiles of 64 of k into a ring of stages, the other two multiply a tile each, with
 * their sums in registers, and store it (expert_store.cuh):
 *
 *     producer    wait empty[s]; ask for A and B of the next 64 of k; full[s] counts their bytes
 *     consumers   wait for the turn to multiply; for every stage: wait full[s]; eight products of 16 of k and 64 rows;
 *                 when those of the stage before are done, arrive at its empty; give the turn to the other; store
 *
 * So one warpgroup stores while the other multiplies, and the producer runs ahead of both. Tiles in shared memory are blocks
 * of 64 columns, 128 bytes to a row, swizzled (attention_wgmma.cuh); an operand whose rows are not k lies turned, and the
 * tensor cores read it so.
 *
 * Rows of the next expert, or columns of its matrix, that a tile brings along are not stored; where k ends inside a tile the
 * other operand has zeros (outside a tensor the accelerator reads zeros; rows behind an expert's last, which are k of the
 * weights' gradient, are zeroed in shared memory).
 *
 * The order of a sum depends on k alone, of weights on the expert's rows: bits repeat, and do not depend on the card. */
#include "device/cuda/attention_hopper.cuh"
#include "device/cuda/expert_store.cuh"

#include <cuda.h>

namespace
{

enum {
    STAGES = 6,
    BLOCK = EXPERT_STEP * 128, /* bytes of 64 rows of 64 columns */
    OPERAND = 2 * BLOCK,       /* of a tile's edge */
    STAGE = 2 * OPERAND,
    CONSUMERS = 2,
    THREADS = (1 + CONSUMERS) * WG_THREADS,
    READERS = WG_THREADS / 32, /* warps that read a stage */
    SHARED = STAGES * STAGE + WG_ALIGN + 2 * STAGES * 8 + (int)sizeof(expert_lists),
};

struct maps {
    CUtensorMap a, b;
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

/* Named barriers of the block: 1 + group is of a warpgroup alone, TURN + group lets it multiply. */
enum { TURN = 1 + CONSUMERS };

ON_GPU void group_wait(int group)
{
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"((int)WG_THREADS) : "memory");
}

ON_GPU void turn_wait(int group)
{
    asm volatile("bar.sync %0, %1;" ::"r"(TURN + group), "n"(2 * (int)WG_THREADS) : "memory");
}

ON_GPU void turn_give(int group)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(TURN + group), "n"(2 * (int)WG_THREADS) : "memory");
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
#define SUMS     SUM16(0), SUM16(4), SUM16(8), SUM16(12)
#define NAMES                                                                                                \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                       \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                       \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define PRODUCT(kind)                                                                                        \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"                                            \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." kind "." kind " " NAMES                      \
                 ", %64, %65, add, 1, 1, %67, %68;\n}"                                                       \
                 : SUMS                                                                                      \
                 : "l"(a), "l"(b), "r"((int)add), "n"(TURN_A), "n"(TURN_B))

template <class T, int TURN_A, int TURN_B>
ON_GPU void product(float (&c)[SUM_BLOCKS][4], uint64_t a, uint64_t b, bool add)
{
    if constexpr (sizeof(T) == 2 && __is_same(T, bf16))
        PRODUCT("bf16");
    else
        PRODUCT("f16");
}

/* --- operands ----------------------------------------------------------------------------------------------- */

/* Both blocks of an operand, from (x, y) on: the second is the next 64 along y, turned along x. */
template <bool TURNED>
ON_GPU void bring_operand(const CUtensorMap *map, int x, int y, uint32_t to, uint32_t full)
{
    bring(to, map, x, y, full);
    bring(to + BLOCK, map, TURNED ? x + 64 : x, TURNED ? y : y + 64, full);
}

/* Both operands of one step. */
template <int KIND>
ON_GPU void bring_step(const expert_problem &p, const expert_tile &t, const maps &m, int k, uint32_t to,
                       uint32_t full)
{
    barrier_expect(full, STAGE);
    if constexpr (KIND == GROUPED_DW) {
        bring_operand<true>(&m.a, t.row, t.first + k, to, full);
        bring_operand<true>(&m.b, t.column, t.first + k, to + OPERAND, full);
    } else {
        bring_operand<false>(&m.a, k, t.row, to, full);
        if constexpr (KIND == GROUPED_LINEAR)
            bring_operand<false>(&m.b, k, t.expert * p.m + t.column, to + OPERAND, full);
        else
            bring_operand<true>(&m.b, t.column, t.expert * p.m + k, to + OPERAND, full);
    }
}

/* Rows from `rows` on of both blocks of A, which are another expert's, become zeros. */
ON_GPU void clear_rows(char *blocks, int rows, int group)
{
    for (int i = rows * 8 + threadIdx.x % WG_THREADS; i < EXPERT_STEP * 8; i += WG_THREADS)
        *(uint4 *)(blocks + i * 16) = *(uint4 *)(blocks + BLOCK + i * 16) = make_uint4(0, 0, 0, 0);
    wgmma_publish();
    group_wait(group);
}

/* --- the two kinds of warpgroups ---------------------------------------------------------------------------- */

struct ring {
    uint32_t tiles, full, empty;
    char *at; /* tiles, for those who write them */
};

/* Which stage comes next, and how often the ring went round. */
struct place {
    int stage, turn;
};

ON_GPU void advance(place *at, int steps)
{
    at->stage += steps, at->turn += at->stage / STAGES, at->stage %= STAGES;
}

template <int KIND>
ON_GPU void produce(const expert_problem &p, const maps &m, const ring &r, const expert_work &w)
{
    place at = {0, 0};
    for (int i = blockIdx.x; i < w.tiles; i += gridDim.x) {
        const expert_tile t = expert_tile_at<KIND>(p, w, i);
        const int steps = expert_steps<KIND>(p, t);
        for (int s = 0; s < steps; s++) {
            barrier_wait(r.empty + at.stage * 8, (at.turn & 1) ^ 1);
            bring_step<KIND>(p, t, m, s * EXPERT_STEP, r.tiles + at.stage * STAGE, r.full + at.stage * 8);
            if (++at.stage == STAGES) at.stage = 0, at.turn++;
        }
    }
}

/* Sums of a tile; the last products may still be under way. Returns the last stage, which is not given back yet. */
template <class T, int KIND>
ON_GPU int multiply_tile(const ring &r, const expert_tile &t, int steps, int group, place at,
                         float (&c)[2][SUM_BLOCKS][4])
{
    constexpr bool TURN_A = KIND == GROUPED_DW, TURN_B = KIND != GROUPED_LINEAR;
    constexpr int A_STEP = TURN_A ? 2048 : 32, B_STEP = TURN_B ? 2048 : 32; /* bytes to the next 16 of k */
    int before = -1;
    for (int s = 0; s < steps; s++) {
        const uint32_t a = r.tiles + at.stage * STAGE, b = a + OPERAND;
        barrier_wait(r.full + at.stage * 8, at.turn & 1);
        if (KIND == GROUPED_DW && t.first + (s + 1) * EXPERT_STEP > t.end)
            clear_rows(r.at + at.stage * STAGE, t.end - t.first - s * EXPERT_STEP, group);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < EXPERT_STEP / 16; k++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                product<T, TURN_A, TURN_B>(c[h], operand(a + h * BLOCK + k * A_STEP, TURN_A),
                                           operand(b + k * B_STEP, TURN_B), s > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>(); /* the stage before is read */
        if (before >= 0 && threadIdx.x % 32 == 0) barrier_arrive(r.empty + before * 8);
        before = at.stage;
        if (++at.stage == STAGES) at.stage = 0, at.turn++;
    }
    return before;
}

/* Tiles are taken in turn, and so are the ring's stages: a warpgroup that waited for a stage too early would take the one
 * that was there a round before for it. */
template <class T, class G, int KIND>
ON_GPU void consume(const expert_problem &p, const ring &r, const expert_work &w, int group)
{
    place at = {0, 0};
    bool mine = group == 0;
    if (group == 1 && (int)blockIdx.x < w.tiles) turn_give(0);
    for (int i = blockIdx.x; i < w.tiles; i += gridDim.x, mine = !mine) {
        const expert_tile t = expert_tile_at<KIND>(p, w, i);
        const int steps = expert_steps<KIND>(p, t);
        if (mine) {
            float c[2][SUM_BLOCKS][4];
            turn_wait(group);
            const int last = multiply_tile<T, KIND>(r, t, steps, group, at, c);
            if (i + (int)gridDim.x < w.tiles) turn_give(1 - group);
            wgmma_wait<0>();
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int n = 0; n < SUM_BLOCKS; n++)
                    asm volatile(""
                                 : "+f"(c[h][n][0]), "+f"(c[h][n][1]), "+f"(c[h][n][2]),
                                   "+f"(c[h][n][3])::"memory");
            if (threadIdx.x % 32 == 0) barrier_arrive(r.empty + last * 8);
            if (t.chunk) {
                if (threadIdx.x % WG_THREADS == 0) await_turn(p, t);
                group_wait(group);
            }
#pragma unroll
            for (int h = 0; h < 2; h++) store_sums<G, KIND>(p, t, h * 64, c[h]);
            if (t.more) {
                __threadfence();
                group_wait(group);
                if (threadIdx.x % WG_THREADS == 0) pass_turn(p, t);
            }
        }
        advance(&at, steps);
    }
}

#endif

template <class T, class G, int KIND>
__global__ void __launch_bounds__(THREADS, 1) multiply(expert_problem p, const __grid_constant__ maps m)
{
#if WG_BODY
    char *pool = wg_pool();
    ring r = {shared_address(pool), 0, 0, pool};
    r.full = r.tiles + STAGES * STAGE, r.empty = r.full + STAGES * 8;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(r.full + s * 8, 1);
            barrier_init(r.empty + s * 8, READERS);
        }
        wgmma_publish();
    }
    const expert_work w = expert_work_of<KIND>(p, (expert_lists *)(pool + STAGES * STAGE + 2 * STAGES * 8));
    if (threadIdx.x < WG_THREADS) {
        leave_registers<56>();
        if (threadIdx.x == 0)
            produce<KIND>(p, m, r, w);
        else if (KIND == GROUPED_DW && !p.add && threadIdx.x >= 32)
            clear_idle_experts<G>(p, w, threadIdx.x - 32, WG_THREADS - 32);
    } else {
        take_registers<224>();
        consume<T, G, KIND>(p, r, w, threadIdx.x / WG_THREADS - 1);
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

/* A tensor [rows, columns] of 16 bits, read in boxes of 64 by 64. */
static bool describe(CUtensorMap *map, enum dtype type, const void *at, int64_t rows, int64_t columns)
{
    encode_map *encode = find_encoder();
    cuuint64_t size[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, stride[1] = {(cuuint64_t)columns * 2};
    cuuint32_t box[2] = {64, 64}, step[2] = {1, 1};
    return encode &&
           encode(map, type == DT_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                  2, const_cast<void *>(at), size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static bool describe_both(maps *m, const struct grouped *g)
{
    const int64_t weights = (int64_t)g->experts * g->m;
    return describe(&m->a, g->type, g->a, g->rows, g->kind == GROUPED_LINEAR ? g->k : g->m) &&
           describe(&m->b, g->type, g->b, g->kind == GROUPED_DW ? g->rows : weights, g->k);
}

template <class T, class G, int KIND> static int run(const struct cuda_queue *queue, const struct grouped *g)
{
    maps m;
    const bool chunks = KIND == GROUPED_DW && g->turns;
    expert_problem p = {g->ends,    g->add, g->c, g->turns,
                        g->experts, g->m,   g->k, chunks ? CUDA_EXPERT_CHUNK : 1 << 30};
    auto kernel = multiply<T, G, KIND>;
    if (!describe_both(&m, g)) return (int)cudaErrorNotSupported;
    int code =
        (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
    if (!code && chunks)
        code = (int)cudaMemsetAsync(g->turns, 0, cuda_expert_turns(g->experts, g->m, g->k, g->rows),
                                    stream_of(queue));
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
           g->experts <= EXPERT_MOST && queue->shared_most >= SHARED && aligned(g->a, g->b, g->c, g->add) &&
           find_encoder();
}

int grouped_run_warpgroups(const struct cuda_queue *queue, const struct grouped *g)
{
    return g->type == DT_BF16 ? run_kind<bf16>(queue, g) : run_kind<f16>(queue, g);
}
