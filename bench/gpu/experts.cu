/* experts.cu - products of experts (src/device/cuda/expert_linear*.cu) against one dense product with as many rows.
 *
 *     make
 *     nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -I src -I include bench/gpu/experts.cu \
 *         src/device/cuda/expert_linear.cu src/device/cuda/expert_linear_hopper.cu build/release/libplimsoll.a \
 *         -lcublas -o experts && ./experts
 *
 * In bf16, gradients of weights in fp32 (+=: added to those there), with rows spread over the experts evenly, each expert half
 * as many as the one before, most on one of eight, and all on one expert. A card that is warm is slower than one that was idle,
 * so it is warmed first, dense and grouped products are timed in turn, and the middle one of each one's turns counts. Printed: TFLOP/s of both, and the
 * speed of the experts' as a share of the dense one's.
 * Each product is first compared with the same by the plain kernel on a smaller problem. */
extern "C" {
#include "device/cuda/kernels.h"
}
#include "check.cuh"
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <math.h>
#include <algorithm>
#include <vector>

#include "device/cuda/expert_linear.cuh"

struct shape {
    const char *name;
    int experts, hidden, inner;
    int64_t rows;
};
static const struct shape shapes[] = {{"mixtral", 8, 4096, 14336, 8192 * 2},
                                      {"olmoe", 64, 2048, 1024, 8192 * 8}};
static const char *const loads[] = {"even", "halving", "few", "one"};
enum { LOADS = sizeof loads / sizeof *loads };
static const char *const kinds[] = {"linear", "dx", "dw", "dw +="};
enum { ROUNDS = 5, TURNS = 5, ADDED = GROUPED_DW + 1 };
#define WARM_SECONDS 0.3

static cudaStream_t stream;
static cublasHandle_t blas;
static struct cuda_queue queue;

__global__ void fill(__nv_bfloat16 *x, int64_t n, unsigned seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        unsigned h = (unsigned)i * 2654435761u ^ seed;
        h ^= h >> 15, h *= 0x85ebca6b, h ^= h >> 13;
        x[i] = __float2bfloat16((int)(h & 0xffff) / 32768.0f - 1);
    }
}

/* Ends of `rows` over the experts. */
static std::vector<int32_t> spread(int experts, int64_t rows, int load)
{
    std::vector<int32_t> ends(experts);
    int64_t at = 0;
    for (int e = 0; e < experts; e++) {
        int64_t mine = load == 0   ? rows * (e + 1) / experts - rows * e / experts
                       : load == 1 ? (rows - at + 1) / 2
                       : load == 2
                           ? e % 8 ? rows / 16 / (experts - experts / 8) : rows * 15 / 16 / (experts / 8)
                           : 0;
        if (load == 3 && e == experts / 2) mine = rows;
        at += e == experts - 1 ? rows - at : mine;
        ends[e] = (int32_t)at;
    }
    return ends;
}

/* Seconds of one call. */
template <class F> static double time_of(F f)
{
    cudaEvent_t begin, end;
    float ms;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    f();
    CHECK(cudaEventRecord(begin, stream));
    for (int i = 0; i < ROUNDS; i++) f();
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    return ms * 1e-3 / ROUNDS;
}

static char *a, *b, *c, *want, *turns;
static int32_t *ends_at;

static struct grouped problem(int kind, int experts, int m, int k, int64_t rows)
{
    const bool weights = kind >= GROUPED_DW;
    struct grouped g = {weights ? GROUPED_DW : (enum grouped_kind)kind,
                        DT_BF16,
                        weights ? DT_F32 : DT_BF16,
                        a,
                        b,
                        kind == ADDED ? c : NULL,
                        c,
                        ends_at,
                        rows,
                        experts,
                        m,
                        k,
                        (int32_t *)turns};
    return g;
}

/* The plain kernel and the other on a problem with ragged loads and edges; `times` as many rows; results of `size` bytes. */
static void compare(int kind, int times, size_t size)
{
    const int experts = 5, m = 520, k = 392;
    const int64_t rows = 1000 * times, count = kind == GROUPED_DW ? (int64_t)experts * m * k
                                                                  : rows * (kind == GROUPED_LINEAR ? m : k);
    const int32_t ends[experts] = {0, 301 * times, 301 * times, 777 * times, 1000 * times};
    CHECK(cudaMemcpy(ends_at, ends, sizeof ends, cudaMemcpyHostToDevice));
    for (int add = 0; add < 2; add++) {
        double worst = 0, norm = 0;
        std::vector<char> got((size_t)count * size), ref((size_t)count * size), again((size_t)count * size);
        for (int run = 0; run < 3; run++) {
            const bool plain = run == 1;
            struct cuda_queue q = queue;
            struct grouped g = problem(kind, experts, m, k, rows);
            q.warpgroups = !plain;
            if (size == 2) g.out_type = DT_BF16, g.turns = NULL;
            g.c = plain ? want : c;
            CHECK(cudaMemset(g.c, add ? 0x3d : 0xff, (size_t)count * size));
            if (add) g.add = g.c;
            if (!plain && !grouped_on_warpgroups(&q, &g)) printf("no warpgroups here\n");
            CHECK(grouped_run(&q, &g));
            CHECK(cudaStreamSynchronize(stream));
            CHECK(cudaMemcpy((plain ? ref
                              : run ? again
                                    : got)
                                 .data(),
                             g.c, (size_t)count * size, cudaMemcpyDeviceToHost));
        }
        for (int64_t i = 0; i < count; i++) {
            float x =
                size == 4 ? ((float *)got.data())[i] : __bfloat162float(((__nv_bfloat16 *)got.data())[i]);
            float y =
                size == 4 ? ((float *)ref.data())[i] : __bfloat162float(((__nv_bfloat16 *)ref.data())[i]);
            worst += (double)(x - y) * (x - y), norm += (double)y * y;
            if (x != x) worst = INFINITY;
        }
        printf("%-6s %s %5d rows %d bytes differs from the plain kernel by %.2e%s\n", kinds[kind],
               add ? "added " : "       ", (int)rows, (int)size, sqrt(worst / norm),
               got == again ? "" : " and from itself");
    }
}

static void dense(int kind, int m, int k, int64_t rows)
{
    const float one = 1, zero = 0;
    /* cuBLAS counts columns first: a row-major [R,K] is its K x R. */
    const void *x = kind == GROUPED_LINEAR ? a : b;
    if (kind == GROUPED_LINEAR)
        CHECK(cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, m, (int)rows, k, &one, b, CUDA_R_16BF, k, x,
                           CUDA_R_16BF, k, &zero, c, CUDA_R_16BF, m, CUBLAS_COMPUTE_32F,
                           CUBLAS_GEMM_DEFAULT));
    else if (kind == GROUPED_DX)
        CHECK(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, k, (int)rows, m, &one, b, CUDA_R_16BF, k, a,
                           CUDA_R_16BF, m, &zero, c, CUDA_R_16BF, k, CUBLAS_COMPUTE_32F,
                           CUBLAS_GEMM_DEFAULT));
    else
        CHECK(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_T, k, m, (int)rows, &one, b, CUDA_R_16BF, k, a,
                           CUDA_R_16BF, m, kind == ADDED ? &one : &zero, c, CUDA_R_32F, k, CUBLAS_COMPUTE_32F,
                           CUBLAS_GEMM_DEFAULT));
}

static double middle(std::vector<double> x)
{
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
}

static void measure(const struct shape *s, bool down, int kind)
{
    const int m = down ? s->hidden : s->inner, k = down ? s->inner : s->hidden;
    const double flops = 2.0 * (double)s->rows * m * k;
    const struct grouped g = problem(kind, s->experts, m, k, s->rows);
    std::vector<double> one, many[LOADS];
    for (double spent = 0; spent < WARM_SECONDS;)
        spent += ROUNDS * time_of([&] { dense(kind, m, k, s->rows); });
    for (int turn = 0; turn < TURNS; turn++) {
        one.push_back(time_of([&] { dense(kind, m, k, s->rows); }));
        for (int load = 0; load < LOADS; load++) {
            std::vector<int32_t> ends = spread(s->experts, s->rows, load);
            CHECK(cudaMemcpy(ends_at, ends.data(), ends.size() * 4, cudaMemcpyHostToDevice));
            many[load].push_back(time_of([&] { CHECK(grouped_run_warpgroups(&queue, &g)); }));
        }
    }
    printf("%-8s %-4s %-6s dense %6.1f TFLOP/s", s->name, down ? "down" : "up", kinds[kind],
           flops / middle(one) * 1e-12);
    for (int load = 0; load < LOADS; load++)
        printf("  %s %6.1f %.2f", loads[load], flops / middle(many[load]) * 1e-12,
               middle(one) / middle(many[load]));
    printf("\n");
}

int main(void)
{
    int shared = 0;
    const size_t pool = (size_t)4 << 30;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cublasCreate(&blas));
    CHECK(cublasSetStream(blas, stream));
    CHECK(cudaDeviceGetAttribute(&queue.sms, cudaDevAttrMultiProcessorCount, 0));
    CHECK(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    queue.stream = stream, queue.capability = 90, queue.warpgroups = true, queue.shared_most = (size_t)shared;
    for (char **at : {&a, &b, &c, &want, &turns}) CHECK(cudaMalloc((void **)at, pool));
    CHECK(cudaMalloc((void **)&ends_at, 4096 * 4));
    fill<<<1024, 256, 0, stream>>>((__nv_bfloat16 *)a, pool / 2, 1);
    fill<<<1024, 256, 0, stream>>>((__nv_bfloat16 *)b, pool / 2, 2);
    CHECK(cudaStreamSynchronize(stream));
    for (int kind = 0; kind < 3; kind++) compare(kind, 1, 2), compare(kind, 20, 2);
    compare(GROUPED_DW, 1, 4), compare(GROUPED_DW, 20, 4);
    for (const struct shape &s : shapes)
        for (int down = 0; down < 2; down++)
            for (int kind = 0; kind <= ADDED; kind++) measure(&s, down, kind);
    return 0;
}
