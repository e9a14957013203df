/* biased.cu - how long attention with a bias by distance takes on a card, beside the same without (src/device/cuda/attention_bias*).
 *
 *     make
 *     nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -I src -I include bench/gpu/biased.cu \
 *         build/release/libplimsoll.a -o biased && ./biased
 *
 * T5's shapes, bf16, random operands: microseconds of attn and attn_bwd by our own kernels, without the bias, with it, and backward with a bias that is
 * frozen. */
extern "C" {
#include "device/cuda/cuda_attention.h"
#include "device/cuda/kernels.h"
}
#include "check.cuh"
#include <algorithm>
#include <vector>

static const struct shape {
    const char *name;
    enum mask_kind mask;
    int batch, time, keys, heads, size;
} shapes[] = {
    {"encoder", MASK_FULL, 32, 256, 256, 32, 64},  {"decoder", MASK_CAUSAL, 32, 256, 256, 32, 64},
    {"cross", MASK_CROSS, 32, 256, 256, 32, 64},   {"encoder", MASK_FULL, 16, 512, 512, 32, 64},
    {"encoder", MASK_FULL, 4, 2048, 2048, 32, 64}, {"decoder", MASK_CAUSAL, 4, 2048, 2048, 32, 64},
    {"encoder", MASK_FULL, 16, 512, 512, 16, 128},
};
enum { ROUNDS = 21, BUCKETS = 32, REACH = 128 };

static cudaStream_t stream;
static struct cuda_queue queue;

template <class F> static double microseconds(F f)
{
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<float> all;
    for (int i = 0; i <= ROUNDS; i++) {
        float ms;
        CHECK(cudaEventRecord(begin, stream));
        for (int n = 0; n < 4; n++) f();
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i) all.push_back(ms * 250);
    }
    std::sort(all.begin(), all.end());
    return all[ROUNDS / 2];
}

static struct tensor tensor_of(enum dtype type, const std::vector<int64_t> &dims)
{
    struct tensor t = {};
    t.type = type, t.ndim = (int)dims.size();
    for (size_t i = 0; i < dims.size(); i++) t.dim[i] = dims[i];
    return t;
}

static void *room(int64_t bytes)
{
    void *at;
    CHECK(cudaMalloc(&at, (size_t)bytes));
    return at;
}

/* Numbers of both signs below 2. */
static void *random_bf16(int64_t count)
{
    std::vector<uint16_t> x((size_t)count);
    for (auto &e : x) e = (uint16_t)((rand() & 1) << 15 | (0x3f00 + rand() % 0x100));
    void *at = room(count * 2);
    CHECK(cudaMemcpy(at, x.data(), x.size() * 2, cudaMemcpyHostToDevice));
    return at;
}

static void measure(const struct shape &s)
{
    const int64_t queries = (int64_t)s.batch * s.time * s.heads * s.size,
                  keys = (int64_t)s.batch * s.keys * s.heads * s.size,
                  rows = (int64_t)s.batch * s.time * s.heads;
    const struct tensor q = tensor_of(DT_BF16, {s.batch, s.time, s.heads, s.size}),
                        k = tensor_of(DT_BF16, {s.batch, s.keys, s.heads, s.size}),
                        lse = tensor_of(DT_F32, {s.batch, s.heads, s.time}),
                        bias = tensor_of(DT_BF16, {BUCKETS, s.heads}),
                        grad = tensor_of(DT_F32, {BUCKETS, s.heads});
    std::vector<int32_t> places;
    for (int i = 0; i < s.batch * s.time; i++) places.push_back(i % s.time);
    void *pos = room((int64_t)places.size() * 4);
    CHECK(cudaMemcpy(pos, places.data(), places.size() * 4, cudaMemcpyHostToDevice));
    struct op forward = tape_op(OP_ATTN, 0), backward = tape_op(OP_ATTN_BWD, 0);
    forward.attr.mask = s.mask, forward.attr.scale = 0.1f;
    forward.attr.two_sided = s.mask == MASK_FULL, forward.attr.bias_reach = REACH;
    forward.attr.heads = forward.attr.kv_heads = s.heads, forward.attr.head_dim = s.size;
    backward.attr = forward.attr;
    struct kernel_call f = {}, b = {};
    f.op = &forward, b.op = &backward, f.work = b.work = room((int64_t)1 << 30);
    f.desc[ATTN_Q] = b.desc[ATTN_BWD_Q] = &q, f.desc[ATTN_K] = f.desc[ATTN_V] = &k;
    b.desc[ATTN_BWD_K] = b.desc[ATTN_BWD_V] = &k, b.desc[ATTN_BWD_DO] = b.desc[ATTN_BWD_O] = &q;
    b.desc[ATTN_BWD_LSE] = &lse, b.desc[OP_MAX_IN + ATTN_BWD_DBIAS] = &grad;
    f.in[ATTN_Q] = b.in[ATTN_BWD_Q] = random_bf16(queries), b.in[ATTN_BWD_DO] = random_bf16(queries);
    f.in[ATTN_K] = b.in[ATTN_BWD_K] = random_bf16(keys), f.in[ATTN_V] = b.in[ATTN_BWD_V] = random_bf16(keys);
    if (s.mask == MASK_CAUSAL) f.in[ATTN_POS] = b.in[ATTN_BWD_POS] = pos;
    f.out[ATTN_O] = b.in[ATTN_BWD_O] = room(queries * 2),
    f.out[ATTN_LSE] = b.in[ATTN_BWD_LSE] = room(rows * 4);
    b.out[ATTN_BWD_DQ] = room(queries * 2), b.out[ATTN_BWD_DK] = room(keys * 2),
    b.out[ATTN_BWD_DV] = room(keys * 2);
    void *weight = random_bf16(BUCKETS * s.heads), *to = room(BUCKETS * s.heads * 4);
    printf("%-8s B %3d T %5d S %5d H %3d D %4d", s.name, s.batch, s.time, s.keys, s.heads, s.size);
    for (int biased = 0; biased < (s.mask == MASK_CROSS ? 1 : 2); biased++) {
        f.desc[ATTN_BIAS] = b.desc[ATTN_BWD_BIAS] = biased ? &bias : NULL;
        f.in[ATTN_BIAS] = b.in[ATTN_BWD_BIAS] = biased ? weight : NULL;
        const double ahead = microseconds([&] { CHECK(cuda_attn(&queue, &f)); });
        const double back = microseconds([&] { CHECK(cuda_attn_bwd(&queue, &b)); });
        if (!biased) {
            printf("   plain: attn %7.1f us, attn_bwd %7.1f us", ahead, back);
            continue;
        }
        b.out[ATTN_BWD_DBIAS] = to;
        const double all = microseconds([&] { CHECK(cuda_attn_bwd(&queue, &b)); });
        printf("   biased: attn %7.1f us, attn_bwd %7.1f us (frozen %7.1f us)", ahead, all, back);
    }
    printf("\n");
    fflush(stdout);
    for (void *x : {(void *)f.in[ATTN_Q], (void *)f.in[ATTN_K], (void *)f.in[ATTN_V],
                    (void *)b.in[ATTN_BWD_DO], f.out[ATTN_O], f.out[ATTN_LSE], b.out[ATTN_BWD_DQ],
                    b.out[ATTN_BWD_DK], b.out[ATTN_BWD_DV], f.work, weight, to, pos})
        CHECK(cudaFree(x));
}

int main(void)
{
    cudaDeviceProp prop;
    struct plim_error err;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaGetDeviceProperties(&prop, 0));
    queue.stream = stream, queue.sms = prop.multiProcessorCount, queue.follows = prop.major >= 9;
    queue.shared_most = prop.sharedMemPerBlockOptin, queue.warpgroups = prop.major == 9;
    CHECK(cuda_attention_open(&queue, &queue.attention, &err));
    for (const struct shape &s : shapes) measure(s);
    cuda_attention_close(queue.attention);
    return 0;
}
