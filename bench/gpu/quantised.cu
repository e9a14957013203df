/* quantised.cu - how fast a card multiplies weights in quantised blocks (src/device/cuda/quantised_product.cu).
 *
 *     make
 *     nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -I src -I include bench/gpu/quantised.cu \
 *         src/device/cuda/quantised_product*.cu src/device/cuda/quantised.cu src/device/cuda/quantised_wide.cu \
 *         src/device/cuda/matmul_few.cu build/release/libplimsoll.a -o quantised && ./quantised [1b|8b]
 *
 * A token of a LLaMA, every layer's products and the head, as a graph of launches over weights that together are larger
 * than the second-level cache: microseconds, and bytes of weights per second. Kernels overlap as they do when tokens are
 * generated; norms and gated units are made by the products. The last lines are the time that dequantising takes, which
 * products with more rows, or of types with a table, pay before cuBLASLt begins. */
extern "C" {
#include "device/cuda/quantised.h"
#include "device/cuda/quantised_wide.h"
#include "tape/quantised.h"
}
#include "check.cuh"
#include <string.h>

/* lines2: of a second product of the same rows. */
struct shape {
    const char *name;
    int64_t lines, lines2, k;
    enum few_source source;
};

static const struct model {
    const char *name;
    int layers;
    struct shape shape[5]; /* of a layer; the last is the head */
} models[] = {{"1b",
               16,
               {{"qkv", 3072, 0, 2048, FEW_NORM},
                {"o", 2048, 0, 2048, FEW_PLAIN},
                {"gate+up", 8192, 8192, 2048, FEW_NORM},
                {"down", 2048, 0, 8192, FEW_GLU},
                {"head", 128256, 0, 2048, FEW_NORM}}},
              {"8b",
               32,
               {{"qkv", 6144, 0, 4096, FEW_NORM},
                {"o", 4096, 0, 4096, FEW_PLAIN},
                {"gate+up", 14336, 14336, 4096, FEW_NORM},
                {"down", 4096, 0, 14336, FEW_GLU},
                {"head", 128256, 0, 4096, FEW_NORM}}}};
enum { HEAD = 4, ROUNDS = 10, ROWS = CUDA_Q_ROWS };

static const struct {
    const char *name;
    int type;
} types[] = {{"Q8_0", BLOCK_Q8_0}, {"Q4_0", BLOCK_Q4_0}, {"Q4_K", BLOCK_Q4_K},
             {"Q5_K", BLOCK_Q5_K}, {"Q6_K", BLOCK_Q6_K}, {"bf16", 0}};
enum { TYPES = sizeof types / sizeof *types };
static const size_t POOL = (size_t)10 << 30;

static cudaStream_t stream;
static char *weights, *x, *a, *y, *work;

static size_t bytes_of(int type, int64_t lines, int64_t k)
{
    if (!lines) return 0;
    return type ? (size_t)panels_bytes(block_type_of((uint32_t)type), lines, k) : (size_t)(lines * k) * 2;
}

static char *take(size_t *at, size_t bytes)
{
    if (*at + bytes > POOL) *at = 0;
    char *from = weights + *at;
    *at += (bytes + 255) / 256 * 256;
    return from;
}

static void put_plain(const struct cuda_queue *queue, const struct shape *s, int rows, size_t *at)
{
    struct few_product p = {};
    p.x = x, p.y = y, p.rows = rows, p.m = s->lines, p.k = s->k, p.type = DT_BF16;
    p.w = take(at, bytes_of(0, s->lines, s->k));
    if (s->lines2) p.w2 = take(at, bytes_of(0, s->lines2, s->k)), p.m2 = s->lines2, p.y2 = y + (32 << 20);
    p.source = s->source, p.a = a, p.b = a + ((size_t)8 << 20), p.eps = 1e-5f;
    CHECK((cudaError_t)cuda_matmul_few(queue, &p));
}

static void put(const struct cuda_queue *queue, int type, const struct shape *s, int rows, size_t *at)
{
    struct cuda_q_product q = {};
    q.type = DT_BF16, q.rows = rows, q.k = s->k, q.x = x, q.work = work;
    q.source = s->source, q.a = a, q.b = a + ((size_t)8 << 20), q.eps = 1e-5f;
    for (int64_t lines : {s->lines, s->lines2}) {
        struct cuda_q_part part = {};
        part.type = type, part.y = y + (q.parts ? 32 << 20 : 0), part.m = part.lines = lines;
        part.w = (unsigned char *)take(at, bytes_of(type, lines, s->k));
        if (lines) q.part[q.parts++] = part;
    }
    CHECK((cudaError_t)cuda_quantised_multiply(queue, &q));
}

static double time_graph(cudaGraph_t graph)
{
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float ms;
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

/* Seconds of `layers` times shapes [first, last], and the head after them. */
static double time_products(struct cuda_queue queue, const struct model *m, int type, int first, int last,
                            int layers, bool head, int rows, double *bytes)
{
    cudaGraph_t graph;
    size_t at = 0;
    *bytes = 0;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < layers * (last - first + 1) + head; i++) {
        bool end = i == layers * (last - first + 1);
        const struct shape *s = end ? &m->shape[HEAD] : &m->shape[first + i % (last - first + 1)];
        (void)(type ? put(&queue, type, s, rows, &at) : put_plain(&queue, s, rows, &at));
        queue.follows = true;
        *bytes += (double)bytes_of(type, s->lines, s->k) + (double)bytes_of(type, s->lines2, s->k);
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    return time_graph(graph);
}

static void print_rows(struct cuda_queue queue, const struct model *m, int t, int rows)
{
    double bytes, s;
    printf("%s %s %3d rows", m->name, types[t].name, rows);
    for (int i = 0; i <= HEAD; i++) {
        int count = i == HEAD ? 4 : 24;
        s = time_products(queue, m, types[t].type, i, i, count, false, rows, &bytes);
        printf("  %s %6.1f us %4.0f GB/s", m->shape[i].name, s / count * 1e6, bytes / s * 1e-9);
    }
    s = time_products(queue, m, types[t].type, 0, HEAD - 1, m->layers, true, rows, &bytes);
    printf("  token %6.0f us %4.0f GB/s\n", s * 1e6, bytes / s * 1e-9);
    fflush(stdout);
}

/* All weights of the layers as numbers: widen(weights, lines, k) for each. */
template <class F> static void print_widening(const struct model *m, const char *name, int type, F widen)
{
    cudaGraph_t graph;
    size_t at = 0;
    double bytes = 0;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < m->layers * HEAD; i++) {
        const struct shape *s = &m->shape[i % HEAD];
        for (int64_t lines : {s->lines, s->lines2}) {
            if (!lines) continue;
            widen((unsigned char *)take(&at, bytes_of(type, lines, s->k)), lines, s->k);
            bytes += (double)bytes_of(type, lines, s->k) + (double)bytes_of(0, lines, s->k);
        }
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    double s = time_graph(graph);
    printf("%s %s dequantised: %6.0f us, %4.0f GB/s read and written\n", m->name, name, s * 1e6,
           bytes / s * 1e-9);
}

static void print_blocks(const struct cuda_queue *queue, const struct model *m, int t)
{
    print_widening(m, types[t].name, types[t].type, [&](unsigned char *w, int64_t lines, int64_t k) {
        struct cuda_q_part part = {};
        part.type = types[t].type, part.lines = part.m = lines, part.w = w;
        for (int64_t first = 0, some; first < lines; first += some) {
            some = cuda_wide_lines(lines - first, k, DT_BF16);
            CHECK((cudaError_t)cuda_quantised_widen(queue, &part, first, some, k, DT_BF16, work));
        }
    });
}

/* Products that quantised_wide.cu calls with a weight of numbers: here its own time is wanted. */
extern "C" int cuda_linear(const struct cuda_queue *, const struct kernel_call *) { return 0; }
extern "C" int cuda_linear_dx(const struct cuda_queue *, const struct kernel_call *) { return 0; }
extern "C" int cuda_dora_norm(const struct cuda_queue *, const struct kernel_call *) { return 0; }

/* Of a type with a table. */
static void print_table(const struct cuda_queue *queue, const struct model *m, const char *name, int type)
{
    print_widening(m, name, type, [&](unsigned char *weights, int64_t lines, int64_t k) {
        struct op op = tape_op(OP_LINEAR_Q, -1);
        op.attr.lines[0].type = type, op.attr.lines[0].lines = lines;
        struct tensor rows = {}, w = {};
        rows.type = DT_BF16, w.type = DT_U8, w.ndim = 1, w.dim[0] = quantised_bytes(&op.attr, k);
        struct kernel_call call = {};
        call.op = &op, call.desc[LINEAR_Q_X] = &rows, call.desc[LINEAR_Q_W] = &w;
        call.in[LINEAR_Q_W] = weights, call.work = work;
        CHECK((cudaError_t)cuda_linear_q_wide(queue, &call));
    });
}

int main(int argc, char **argv)
{
    static const int rows[] = {1, 2, 4, 8, 16, 32, 64, 128};
    cudaDeviceProp prop;
    struct cuda_queue queue = {};
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaGetDeviceProperties(&prop, 0));
    CHECK(cudaMalloc((void **)&weights, POOL));
    CHECK(cudaMalloc((void **)&x, (size_t)16 << 20));
    CHECK(cudaMalloc((void **)&a, (size_t)16 << 20));
    CHECK(cudaMalloc((void **)&y, (size_t)64 << 20));
    CHECK(cudaMalloc((void **)&work, (size_t)256 << 20)); /* quantised_wide.cu has a whole weight there */
    CHECK(cudaMemset(weights, 0x11, POOL));
    CHECK(cudaMemset(x, 0x11, (size_t)16 << 20));
    CHECK(cudaMemset(a, 0x11, (size_t)16 << 20));
    queue.stream = stream, queue.sms = prop.multiProcessorCount;
    queue.shared_most = prop.sharedMemPerBlockOptin, queue.warpgroups = prop.major == 9;
    for (const struct model &m : models) {
        if (argc > 1 && strcmp(argv[1], m.name)) continue;
        for (int t = 0; t < TYPES; t++)
            for (int r : rows)
                if (types[t].type || r <= CUDA_FEW_ROWS) print_rows(queue, &m, t, r);
        for (int t = 0; t + 1 < TYPES; t++) print_blocks(&queue, &m, t);
        print_table(&queue, &m, "NF4", BLOCK_NF4), print_table(&queue, &m, "NF4_DQ", BLOCK_NF4_DQ);
    }
    return 0;
}
