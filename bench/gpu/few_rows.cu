/* few_rows.cu - how fast a card reads weights in products of few rows (src/device/cuda/matmul_few.cu).
 *
 *     nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -I src -I include bench/gpu/few_rows.cu \
 *         src/device/cuda/matmul_few.cu -o few_rows && ./few_rows
 *
 * The products of a LLaMA-1B layer and of its head, in bf16: a graph of launches over weights that together are larger
 * than the second-level cache, each alone (every kernel after the one before it) and chained (overlap.cuh), as GB/s and
 * as a share of what the card's memory is rated at. The last line is a whole token: 16 layers and the head. */
extern "C" {
#include "device/cuda/matmul_few.h"
}
#include "check.cuh"

struct shape {
    const char *name;
    int64_t m, k;
};

static const struct shape shapes[] = {{"qkv", 3072, 2048}, {"o", 2048, 2048},    {"gate", 8192, 2048},
                                      {"up", 8192, 2048},  {"down", 2048, 8192}, {"head", 128256, 2048}};
enum { LAYER = 5, SHAPES = 6, LAYERS = 16, ROUNDS = 20 };
static const size_t POOL = (size_t)3 << 30;

static cudaStream_t stream;
static char *weights, *x, *y;

/* Launches one product with the next weights of the pool. */
static void put(const struct cuda_queue *queue, const struct shape *s, int rows, size_t *at)
{
    size_t bytes = (size_t)(s->m * s->k) * 2;
    if (*at + bytes > POOL) *at = 0;
    struct few_product p = {};
    p.x = x, p.w = weights + *at, p.y = y, p.rows = rows, p.m = s->m, p.k = s->k, p.type = DT_BF16;
    CHECK((cudaError_t)cuda_matmul_few(queue, &p));
    *at += bytes;
}

/* Seconds of one launch of the graph that `count` products make, starting at shape `first` and going round `period`. */
static double time_graph(int first, int period, int layers, bool head, int rows, bool chained, double *bytes)
{
    struct cuda_queue queue = {};
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float ms;
    size_t at = 0;
    queue.stream = stream;
    *bytes = 0;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < layers * period + head; i++) {
        const struct shape *s = i == layers * period ? &shapes[LAYER] : &shapes[first + i % period];
        put(&queue, s, rows, &at);
        queue.follows = chained;
        *bytes += (double)(s->m * s->k) * 2;
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaEventRecord(begin, stream));
    for (int i = 0; i < ROUNDS; i++) CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return ms * 1e-3 / ROUNDS;
}

static void print(const char *name, int rows, double alone, double chained, double bytes, int count,
                  double rated)
{
    printf("%-6s %d rows  alone %7.2f us %6.0f GB/s %3.0f%%   chained %7.2f us %6.0f GB/s %3.0f%%\n", name,
           rows, alone / count * 1e6, bytes / alone * 1e-9, 100 * bytes / alone / rated,
           chained / count * 1e6, bytes / chained * 1e-9, 100 * bytes / chained / rated);
}

int main(void)
{
    int clock = 0, width = 0;
    double bytes;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc((void **)&weights, POOL));
    CHECK(cudaMalloc((void **)&x, 8 * 8192 * 2));
    CHECK(cudaMalloc((void **)&y, 8 * 128256 * 2));
    CHECK(cudaMemset(weights, 0x11, POOL));
    CHECK(cudaMemset(x, 0x11, 8 * 8192 * 2));
    CHECK(cudaDeviceGetAttribute(&clock, cudaDevAttrMemoryClockRate, 0));
    CHECK(cudaDeviceGetAttribute(&width, cudaDevAttrGlobalMemoryBusWidth, 0));
    double rated = 2.0 * clock * 1e3 * width / 8;
    printf("memory rated at %.0f GB/s\n", rated * 1e-9);
    for (int rows = 1; rows <= 8; rows *= 2) {
        for (int i = 0; i < SHAPES; i++) {
            int count = i == LAYER ? 4 : 32;
            double alone = time_graph(i, 1, count, false, rows, false, &bytes);
            print(shapes[i].name, rows, alone, time_graph(i, 1, count, false, rows, true, &bytes), bytes,
                  count, rated);
        }
        double alone = time_graph(0, LAYER, LAYERS, true, rows, false, &bytes);
        print("token", rows, alone, time_graph(0, LAYER, LAYERS, true, rows, true, &bytes), bytes, 1, rated);
    }
    return 0;
}
