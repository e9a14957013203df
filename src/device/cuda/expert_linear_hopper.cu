/* expert_linear_hopper.cu - products of experts on warpgroups (sm_90a), operands brought by the tensor memory accelerator.
 *
 * As many blocks as there are multiprocessors take tiles of C, 128 by 256, in rounds (expert_work.cuh). A block has three
 * warpgroups: one thread of the first brings tiles of 64 of k into a ring of stages, the other two multiply 64 rows each, with
 * their sums in registers, and store them (expert_store.cuh):
 *
 *     producer    wait empty[s]; ask for A and B of the next 64 of k; full[s] counts their bytes
 *     consumers   for every stage: wait full[s]; four products of 16 of k; when those of the stage before are done, arrive at
 *                 its empty; store
 *
 * Of weights two blocks, a pair, have tiles below each other: B of both is the same, and either block brings half of it to both.
 * full[s] counts what comes from either, and consumers arrive at empty[s] of both. Tiles in shared memory are blocks of 64
 * columns, 128 bytes to a row, swizzled (attention_wgmma.cuh); an operand whose rows are not k lies turned, and the tensor cores
 * read it so.
 *
 * Rows of the next expert, or columns of its matrix, that a tile brings along are not stored; where k ends inside a tile the
 * other operand has zeros (outside a tensor the accelerator reads zeros; rows behind an expert's last, which are k of the
 * weights' gradient, are zeroed in shared memory).
 *
 * The order of a sum depends on k alone, of weights on the expert's rows and the shapes: bits repeat, and do not depend on the
 * card. */
#include "device/cuda/expert_pipe.cuh"
#include "device/cuda/expert_store.cuh"

namespace
{

enum {
    STAGES = 4,
    A_BYTES = EXPERT_ROWS / 64 * TILE_BLOCK,
    B_BYTES = EXPERT_COLUMNS / 64 * TILE_BLOCK,
    STAGE = A_BYTES + B_BYTES,
    CONSUMERS = EXPERT_ROWS / 64,
    THREADS = (1 + CONSUMERS) * WG_THREADS,
    WARPS = WG_THREADS / 32, /* of a warpgroup */
    /* Shared memory: stages, zeros, barriers, lists. */
    ZEROS_AT = STAGES * STAGE,
    BARRIERS_AT = ZEROS_AT + IDLE_BYTES,
    LISTS_AT = BARRIERS_AT + 2 * STAGES * 8,
    SHARED = WG_ALIGN + LISTS_AT + (int)sizeof(expert_lists),
};

struct maps {
    CUtensorMap a, b;
};

#if WG_BODY /* what only the kernel's body calls */

struct ring {
    uint32_t tiles, full, empty;
    char *at; /* tiles, for those who write them */
};

/* Which stage comes next, and how often the ring went round. */
struct place {
    int stage, turn;
};

ON_GPU void next(place *at)
{
    if (++at->stage == STAGES) at->stage = 0, at->turn++;
}

ON_GPU place after(place at, int steps)
{
    at.stage += steps, at.turn += at.stage / STAGES, at.stage %= STAGES;
    return at;
}

/* --- operands ----------------------------------------------------------------------------------------------- */

/* Blocks of an operand that begins at (x, y): those behind are the next 64 along y, turned along x. A shared operand's blocks are
 * brought by both blocks of the pair, each its part of them. */
template <bool TURNED, int COUNT, int SHARERS>
ON_GPU void bring_operand(const CUtensorMap *map, int x, int y, uint32_t to, uint32_t full, int rank)
{
#pragma unroll
    for (int i = 0; i < COUNT / SHARERS; i++) {
        const int n = (SHARERS > 1 ? rank * (COUNT / SHARERS) : 0) + i;
        const int at_x = TURNED ? x + n * 64 : x, at_y = TURNED ? y : y + n * 64;
        if constexpr (SHARERS > 1)
            bring_both(to + n * TILE_BLOCK, map, at_x, at_y, full);
        else
            bring(to + n * TILE_BLOCK, map, at_x, at_y, full);
    }
}

/* This block's part of both operands of one step. */
template <int KIND>
ON_GPU void bring_step(const expert_problem &p, const expert_tile &t, const maps &m, int k, uint32_t to,
                       uint32_t full, int rank)
{
    constexpr int A = A_BYTES / TILE_BLOCK, B = B_BYTES / TILE_BLOCK;
    const uint32_t b = to + A_BYTES;
    barrier_expect(full, STAGE);
    if constexpr (KIND == GROUPED_DW) {
        bring_operand<true, A, 1>(&m.a, t.row, t.first + k, to, full, rank);
        bring_operand<true, B, expert_pair<KIND>>(&m.b, t.column, t.first + k, b, full, rank);
    } else {
        bring_operand<false, A, 1>(&m.a, k, t.row, to, full, rank);
        if constexpr (KIND == GROUPED_LINEAR)
            bring_operand<false, B, 1>(&m.b, k, t.expert * p.m + t.column, b, full, rank);
        else
            bring_operand<true, B, 1>(&m.b, t.column, t.expert * p.m + k, b, full, rank);
    }
}

/* Rows from `rows` on of a block of A of the weights' gradient, which are another expert's, become zeros. */
ON_GPU void clear_rows(char *block, int rows, int group)
{
    for (int i = rows * 8 + threadIdx.x % WG_THREADS; i < EXPERT_STEP * 8; i += WG_THREADS)
        *(uint4 *)(block + i * 16) = make_uint4(0, 0, 0, 0);
    wgmma_publish();
    group_wait(group);
}

/* --- the two kinds of warpgroups ---------------------------------------------------------------------------- */

/* One thread. */
template <class G, int KIND>
ON_GPU void produce(const expert_problem &p, const maps &m, const ring &r, const expert_work &w)
{
    constexpr bool DW = KIND == GROUPED_DW;
    place at = {0, 0};
    idle_experts idle;
    if constexpr (DW) idle = idle_experts_of<G>(p, w, r.tiles + ZEROS_AT);
    for (int round = 0; round < w.rounds; round++) {
        const expert_tile t = expert_tile_in<KIND>(p, w, round);
        const int steps = expert_steps<KIND>(p, t);
        for (int s = 0; s < steps; s++) {
            barrier_wait(r.empty + at.stage * 8, (at.turn & 1) ^ 1);
            bring_step<KIND>(p, t, m, s * EXPERT_STEP, r.tiles + at.stage * STAGE, r.full + at.stage * 8,
                             w.rank);
            next(&at);
            if constexpr (DW) clear_some<G>(p, &idle);
        }
    }
    if constexpr (DW) clear_rest<G>(p, &idle);
}

/* A warp has read the stage. */
template <int KIND> ON_GPU void give_back(const ring &r, int stage)
{
    constexpr int PAIR = expert_pair<KIND>;
    const int lane = threadIdx.x % 32;
    if (PAIR == 1 && lane == 0) barrier_arrive(r.empty + stage * 8);
    if (PAIR == 2 && lane < PAIR) barrier_arrive_at(r.empty + stage * 8, lane);
}

/* Sums of 64 rows of a tile. */
template <class T, int KIND>
ON_GPU void multiply_tile(const ring &r, const expert_tile &t, int steps, int group, place at,
                          float (&c)[SUM_BLOCKS][4])
{
    constexpr bool TURN_A = KIND == GROUPED_DW, TURN_B = KIND != GROUPED_LINEAR;
    constexpr int A_STEP = TURN_A ? 2048 : 32, B_STEP = TURN_B ? 2048 : 32; /* bytes to the next 16 of k */
    int before = -1;
    for (int s = 0; s < steps; s++) {
        const int stage = at.stage * STAGE, mine = stage + group * TILE_BLOCK;
        const uint32_t a = r.tiles + mine, b = r.tiles + stage + A_BYTES;
        barrier_wait(r.full + at.stage * 8, at.turn & 1);
        if (KIND == GROUPED_DW && t.first + (s + 1) * EXPERT_STEP > t.end)
            clear_rows(r.at + mine, t.end - t.first - s * EXPERT_STEP, group);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < EXPERT_STEP / 16; k++)
            product<T, TURN_A, TURN_B>(c, operand(a + k * A_STEP, TURN_A), operand(b + k * B_STEP, TURN_B),
                                       s > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>(); /* the stage before is read */
        if (before >= 0) give_back<KIND>(r, before);
        before = at.stage;
        next(&at);
    }
    wgmma_wait<0>();
    settle(c);
    give_back<KIND>(r, before);
}

/* A chunk's sums are added when those of the chunk before are. */
template <class G, int KIND>
ON_GPU void store_tile(const expert_problem &p, const expert_tile &t, int group,
                       const float (&c)[SUM_BLOCKS][4])
{
    const int row = t.row + group * 64;
    const bool first = threadIdx.x % WG_THREADS == 0;
    if (KIND == GROUPED_DW && row >= p.m) return;
    if (t.chunk) {
        if (first) await_turn(turn_of(p, t, row), t.chunk);
        group_wait(group);
    }
    store_sums<G, KIND>(p, t, group * 64, c);
    if (t.more) {
        __threadfence();
        group_wait(group);
        if (first) pass_turn(turn_of(p, t, row), t.chunk);
    }
}

template <class T, class G, int KIND>
ON_GPU void consume(const expert_problem &p, const ring &r, const expert_work &w, int group)
{
    place at = {0, 0};
    for (int round = 0; round < w.rounds; round++) {
        const expert_tile t = expert_tile_in<KIND>(p, w, round);
        const int steps = expert_steps<KIND>(p, t);
        float c[SUM_BLOCKS][4];
        multiply_tile<T, KIND>(r, t, steps, group, at, c);
        store_tile<G, KIND>(p, t, group, c);
        at = after(at, steps);
    }
}

template <int KIND> ON_GPU ring ring_at(char *pool)
{
    const uint32_t at = shared_address(pool), full = at + BARRIERS_AT, empty = full + STAGES * 8;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, CONSUMERS * WARPS * expert_pair<KIND>);
        }
        barrier_publish();
    }
    return {at, full, empty, pool};
}

#endif

template <class T, class G, int KIND>
__global__ void __launch_bounds__(THREADS, 1) multiply(expert_problem p, const __grid_constant__ maps m)
{
#if WG_BODY
    char *pool = wg_pool();
    uint4 *zeros = (uint4 *)(pool + ZEROS_AT);
    const ring r = ring_at<KIND>(pool);
    for (int i = threadIdx.x; i < IDLE_BYTES / 16; i += THREADS) zeros[i] = make_uint4(0, 0, 0, 0);
    wgmma_publish();
    const int rank = expert_pair<KIND> == 2 ? pair_rank() : 0;
    const expert_work w = expert_work_of<KIND>(p, (expert_lists *)(pool + LISTS_AT), rank);
    if (expert_pair<KIND> == 2) pair_wait();
    if (threadIdx.x < WG_THREADS) {
        leave_registers<56>();
        if (threadIdx.x == 0) produce<G, KIND>(p, m, r, w);
    } else {
        take_registers<224>();
        consume<T, G, KIND>(p, r, w, threadIdx.x / WG_THREADS - 1);
    }
    __syncwarp();
    if (expert_pair<KIND> == 2) pair_wait(); /* a block's memory is the other's until both are done */
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

/* One block for each multiprocessor, in pairs as far as the card can hold those at the same time: pairs wait for each other's
 * chunks. */
template <int KIND>
static int launch(void (*kernel)(expert_problem, maps), const struct cuda_queue *queue,
                  const expert_problem &p, const maps &m)
{
    constexpr int PAIR = expert_pair<KIND>;
    cudaLaunchAttribute pair = {};
    cudaLaunchConfig_t config = {};
    int pairs = queue->sms / PAIR, most = pairs, code = 0;
    pair.id = cudaLaunchAttributeClusterDimension;
    pair.val.clusterDim.x = PAIR, pair.val.clusterDim.y = pair.val.clusterDim.z = 1;
    config.gridDim = dim3((unsigned)(pairs * PAIR)), config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = SHARED, config.stream = stream_of(queue);
    config.attrs = &pair, config.numAttrs = 1;
    if (PAIR > 1) code = (int)cudaOccupancyMaxActiveClusters(&most, (const void *)kernel, &config);
    if (code) return code;
    config.gridDim.x = (unsigned)((pairs < most ? pairs : most) * PAIR);
    code = (int)cudaLaunchKernelEx(&config, kernel, p, m);
    return code ? code : launched();
}

template <class T, class G, int KIND> static int run(const struct cuda_queue *queue, const struct grouped *g)
{
    maps m;
    const bool chunks = KIND == GROUPED_DW && g->turns;
    expert_problem p = {
        g->ends,    g->add, g->c, g->turns,
        g->experts, g->m,   g->k, chunks ? (int)cuda_expert_chunk(g->m, g->k, g->rows) : 1 << 30};
    auto kernel = multiply<T, G, KIND>;
    if (!describe_both(&m, g)) return (int)cudaErrorNotSupported;
    int code =
        (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
    if (!code && chunks)
        code = (int)cudaMemsetAsync(g->turns, 0, cuda_expert_turns(g->experts, g->m, g->k, g->rows),
                                    stream_of(queue));
    if (code) return code;
    return launch<KIND>(kernel, queue, p, m);
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
    bool type = dtype_is_narrow(g->type);
    bool small = g->rows < (1 << 30) && (int64_t)g->experts * g->m < (1 << 30); /* coordinates are ints */
    return queue->warpgroups && type && small && g->m % 8 == 0 && g->k % 8 == 0 &&
           g->experts <= EXPERT_MOST && queue->shared_most >= SHARED && aligned(g->a, g->b, g->c, g->add) &&
           find_encoder();
}

int grouped_run_warpgroups(const struct cuda_queue *queue, const struct grouped *g)
{
    return g->type == DT_BF16 ? run_kind<bf16>(queue, g) : run_kind<f16>(queue, g);
}
