/* paged.cu - how fast a card reads keys and values of single tokens over blocks (src/device/cuda/attention_paged*_decode.cu), and multiplies
 * those of prompts (attention_paged_hopper.cu).
 *
 *     make
 *     nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -I src -I include bench/gpu/paged.cu \
 *         build/release/libplimsoll.a -o paged && ./paged
 *
 * Steps that write a token for each of `streams` requests at about `positions` positions (between a half and three halves of it), blocks in
 * any order over the pool, one layer after the other. Printed for each shape: microseconds of a layer and bytes of keys and values per second;
 * then the same bytes by a kernel that only copies them to shared memory, from the pool as it is and from one in which a layer's blocks lie
 * together.
 *
 * Steps that read `tokens` of a prompt whose first `positions` were read before: microseconds of a layer, and floating-point operations per
 * second, four for each element of a head and pair of a token and a key that it sees. */
extern "C" {
#include "device/cuda/kernels.h"
}
#include "check.cuh"
#include "device/cuda/attention_ptx.cuh"
#include <algorithm>
#include <vector>

struct shape {
    const char *name;
    int layers, heads, kv_heads, size, streams, positions, tokens; /* tokens: of each stream */
};
static const struct shape shapes[] = {
    {"1b", 16, 32, 8, 64, 64, 576, 1},     {"1b", 16, 32, 8, 64, 256, 576, 1},
    {"8b", 32, 32, 8, 128, 64, 600, 1},    {"8b", 32, 32, 8, 128, 500, 1500, 1},
    {"8b", 32, 32, 8, 128, 1000, 1500, 1}, {"8b", 32, 32, 8, 128, 2048, 192, 1},
    {"8b", 32, 32, 8, 128, 1, 32768, 1},   {"1b", 4, 32, 8, 64, 1, 0, 4096},
    {"1b", 4, 32, 8, 64, 1, 28672, 4096},  {"8b", 4, 32, 8, 128, 2, 0, 2048},
    {"8b", 4, 32, 8, 128, 1, 4096, 704},   {"8b", 4, 32, 8, 128, 1, 0, 4096},
    {"8b", 4, 32, 8, 128, 1, 16384, 4096},
};
enum { ROUNDS = 3 };

static cudaStream_t stream;
static struct cuda_queue queue;

struct pool {
    const int32_t *rows, *blocks;
    const char *at;
    int64_t block, layer, plane, chunk; /* bytes between blocks, layers, keys and values, heads */
    int streams, kv_heads, reach;
};

/* A warp has 64 of each 256 keys, as in attention. */
__global__ void __launch_bounds__(128) read_pool(const struct pool p, int l)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, kv = blockIdx.x % p.kv_heads,
              row = blockIdx.x / p.kv_heads;
    const int keys = p.rows[3 * row + 2] + 1;
    const uint32_t room = shared_address(shared_pool()) + warp * (uint32_t)(8 * p.chunk);
    for (int key = warp * 64; key < keys; key += 256) {
        const int count = min((keys - key + KV_BLOCK - 1) / KV_BLOCK, 4);
        const int block = lane < count ? p.blocks[(int64_t)row * p.reach + key / KV_BLOCK + lane] : 0;
        copy_wait<0>();
        for (int b = 0; b < count; b++) {
            const char *from = p.at + __shfl_sync(~0u, block, b) * p.block + l * p.layer + kv * p.chunk;
            for (int64_t i = 16 * lane; i < p.chunk; i += 512)
                copy16(room + (uint32_t)(2 * b * p.chunk + i), from + i, true),
                    copy16(room + (uint32_t)((2 * b + 1) * p.chunk + i), from + p.plane + i, true);
        }
        copy_commit();
    }
    copy_wait<0>();
}

template <class F> static double time_layers(int layers, F f)
{
    cudaEvent_t begin, end;
    float ms;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<double> all;
    for (int i = 0; i <= ROUNDS; i++) {
        CHECK(cudaEventRecord(begin, stream));
        for (int l = 0; l < layers; l++) f(l);
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i) all.push_back(ms * 1e-3 / layers);
    }
    std::sort(all.begin(), all.end());
    return all[ROUNDS / 2];
}

static struct tensor tensor_of(enum dtype type, int64_t a, int64_t b, int64_t c, int64_t d)
{
    struct tensor t = {};
    t.type = type, t.ndim = d ? 4 : 2;
    t.dim[0] = a, t.dim[1] = b, t.dim[2] = c, t.dim[3] = d;
    return t;
}

template <class T> static T *on_card(const std::vector<T> &x)
{
    void *to;
    CHECK(cudaMalloc(&to, x.size() * sizeof(T)));
    CHECK(cudaMemcpy(to, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
    return (T *)to;
}

/* The line of a shape whose streams write a token each. */
static void beside_copies(const struct shape &s, bool coded, int64_t count, int64_t keys, double t,
                          const int32_t *rows, const int32_t *blocks, const void *data, int reach,
                          int64_t chunk)
{
    const double read = (double)keys * s.kv_heads * 2 * (double)chunk / KV_BLOCK;
    const int64_t bytes = count * 2 * s.layers * s.kv_heads * chunk;
    printf("%s %-4s %4d streams at %5d  %5.1f GiB  %7.1f us %5.2f TB/s", s.name, coded ? "fp8" : "bf16",
           s.streams, s.positions, (double)bytes / (1 << 30), t * 1e6, read / t * 1e-12);
    struct pool p = {rows, blocks, (const char *)data};
    p.chunk = chunk, p.streams = s.streams, p.kv_heads = s.kv_heads, p.reach = reach,
    p.plane = p.chunk * s.kv_heads;
    const int shared = (int)(32 * p.chunk);
    CHECK(cudaFuncSetAttribute(read_pool, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    for (int together = 0; together < 2; together++) {
        p.block = together ? 2 * p.plane : 2 * p.plane * s.layers,
        p.layer = together ? 2 * p.plane * count : 2 * p.plane;
        const double c = time_layers(s.layers, [&](int l) {
            read_pool<<<(unsigned)(s.streams * s.kv_heads), 128, (size_t)shared, stream>>>(p, l);
            CHECK(cudaGetLastError());
        });
        printf("   %s %7.1f us %5.2f", together ? "by layer" : "copied", c * 1e6, read / c * 1e-12);
    }
    printf("\n");
}

static void measure(const struct shape &s, bool coded)
{
    srand(1);
    std::vector<int32_t> rows, blocks;
    int64_t most = s.positions * 3 / 2 + s.tokens + 16, reach = most / KV_BLOCK + 1, count = 0, keys = 0;
    const int all = s.streams * s.tokens;
    for (int i = 0; i < s.streams; i++) {
        bool exact = s.streams == 1 || s.tokens > 1;
        int context = exact ? s.positions : s.positions / 2 + rand() % s.positions;
        rows.insert(rows.end(), {i * s.tokens, s.tokens, context});
        for (int k = 0; k < s.tokens; k++) keys += context + k + 1;
        count += (context + s.tokens - 1) / KV_BLOCK + 1;
    }
    std::vector<int32_t> order((size_t)count);
    for (int i = 0; i < count; i++) order[(size_t)i] = i;
    for (int64_t i = count - 1; i > 0; i--) std::swap(order[(size_t)i], order[(size_t)(rand() % (i + 1))]);
    blocks.assign((size_t)(s.streams * reach), 0);
    for (int i = 0, at = 0; i < s.streams; i++)
        for (int b = 0; b <= (rows[(size_t)(3 * i + 2)] + s.tokens - 1) / KV_BLOCK; b++)
            blocks[(size_t)(i * reach + b)] = order[(size_t)at++];
    const int64_t chunk = coded ? KV_BLOCK * (s.size + 4) : KV_BLOCK * s.size, wide = coded ? 1 : 2;
    const struct tensor q = tensor_of(DT_BF16, 1, all, s.heads, s.size),
                        pool = tensor_of(coded ? DT_U8 : DT_BF16, count, 2 * s.layers, s.kv_heads, chunk),
                        r = tensor_of(DT_I32, s.streams, 3, 0, 0),
                        b = tensor_of(DT_I32, s.streams, reach, 0, 0);
    const size_t bytes = (size_t)(count * 2 * s.layers * s.kv_heads * chunk * wide);
    void *from, *to, *data, *work;
    if (bytes > (size_t)120 << 30) return;
    CHECK(cudaMalloc(&from, (size_t)all * s.heads * s.size * 2));
    CHECK(cudaMalloc(&to, (size_t)all * s.heads * s.size * 2));
    CHECK(cudaMalloc(&data, bytes));
    CHECK(cudaMalloc(&work, (size_t)1 << 30));
    CHECK(cudaMemset(from, 0x3c, (size_t)all * s.heads * s.size * 2));
    CHECK(cudaMemset(data, 0x3c, bytes));
    int32_t *on_rows = on_card(rows), *on_blocks = on_card(blocks);
    struct op op = tape_op(coded ? OP_ATTN_PAGED8 : OP_ATTN_PAGED, 0);
    op.attr.scale = 0.1f, op.attr.e4m3 = coded;
    struct kernel_call call = {};
    call.op = &op, call.work = work;
    call.desc[ATTN_PAGED_Q] = &q, call.desc[ATTN_PAGED_POOL] = &pool, call.desc[ATTN_PAGED_ROWS] = &r,
    call.desc[ATTN_PAGED_BLOCKS] = &b;
    call.in[ATTN_PAGED_Q] = from, call.in[ATTN_PAGED_POOL] = data, call.in[ATTN_PAGED_ROWS] = on_rows,
    call.in[ATTN_PAGED_BLOCKS] = on_blocks;
    call.out[0] = to, call.desc[OP_MAX_IN] = &q;
    const double t = time_layers(s.layers, [&](int l) {
        op.layer = l;
        CHECK(coded ? cuda_attn_paged8(&queue, &call) : cuda_attn_paged(&queue, &call));
    });
    if (s.tokens > 1)
        printf("%s %-4s %d x %d tokens from %5d on %8.1f us %6.1f TFLOP/s\n", s.name, coded ? "fp8" : "bf16",
               s.streams, s.tokens, s.positions, t * 1e6, 4e-12 * (double)keys * s.heads * s.size / t);
    else
        beside_copies(s, coded, count, keys, t, on_rows, on_blocks, data, (int)reach, chunk * wide);
    fflush(stdout);
    for (void *x : {from, to, data, work, (void *)on_rows, (void *)on_blocks}) CHECK(cudaFree(x));
}

int main(void)
{
    cudaDeviceProp prop;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaGetDeviceProperties(&prop, 0));
    queue.stream = stream, queue.sms = prop.multiProcessorCount, queue.follows = prop.major >= 9;
    queue.shared_most = prop.sharedMemPerBlockOptin, queue.warpgroups = prop.major == 9;
    for (int coded = 1; coded >= 0; coded--)
        for (const struct shape &s : shapes) measure(s, coded);
    return 0;
}
