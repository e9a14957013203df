/* cudnn_probe.c - is cuDNN's attention here, is it right, how fast is it, how many bytes does it want?
 *
 *     cudnn_probe            every shape of SHAPES in bf16 and f16 on device 0
 *     cudnn_probe --quick    the first shape only
 *
 * Built and run by `bench/gpu/compare.py --cudnn-probe`. Needs neither CUDA nor cuDNN to build; the driver and cuDNN are
 * opened at run time.
 *
 * One (sample, kv head) of every shape is computed on the host in f32 and compared: o, lse, dq, dk, dv, as the norm of
 * the difference over the norm of the reference. "bits" says whether two backward runs gave the same bytes. Times are
 * medians of 20 by events; the last one replays a captured CUDA graph of forward and backward.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "device/cuda/cudnn_attention.h"

#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>
#include "device/cuda/cudnn_api.h"
#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
SAME(DNN_DESC_ENGINECFG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
SAME(DNN_DESC_HEURISTIC, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
SAME(DNN_DESC_PLAN, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
SAME(DNN_DESC_OP_POINTWISE, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
SAME(DNN_DESC_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
SAME(DNN_DESC_VARIANT_PACK, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
SAME(DNN_DESC_TENSOR, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
SAME(DNN_DESC_OP_MATMUL, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
SAME(DNN_DESC_OP_REDUCTION, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
SAME(DNN_DESC_OP_RESHAPE, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
SAME(DNN_VALUE_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR);
SAME(DNN_VALUE_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE);
SAME(DNN_VALUE_REDUCTION_MODE, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
SAME(DNN_POINTWISE_AXIS, CUDNN_ATTR_POINTWISE_AXIS);
SAME(DNN_HEURISTIC_RESULTS, CUDNN_ATTR_ENGINEHEUR_RESULTS);
SAME(DNN_PLAN_WORKSPACE, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
SAME(DNN_OP_POINTWISE_T, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
SAME(DNN_GRAPH_OPS, CUDNN_ATTR_OPERATIONGRAPH_OPS);
SAME(DNN_TENSOR_BY_VALUE, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
SAME(DNN_PACK_WORKSPACE, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
SAME(DNN_ENGINE_NUMERICAL_NOTE, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE);
SAME(DNN_OP_MATMUL_DESC, CUDNN_ATTR_OPERATION_MATMUL_DESC);
SAME(DNN_OP_REDUCTION_DESC, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
SAME(DNN_OP_RESHAPE_Y, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
SAME(DNN_GEN_INDEX, CUDNN_POINTWISE_GEN_INDEX);
SAME(DNN_SELECT, CUDNN_POINTWISE_BINARY_SELECT);
SAME(DNN_CMP_GE, CUDNN_POINTWISE_CMP_GE);
SAME(DNN_BF16, CUDNN_DATA_BFLOAT16);
SAME(DNN_HEUR_A, CUDNN_HEUR_MODE_A);
#endif

enum { WARM_UP = 5, RUNS = 20 };

/* {batch, time, heads, kv heads, head size, window} */
static const int64_t SHAPES[][6] = {
    {4, 2048, 32, 32, 64, 0},  {4, 2048, 32, 8, 64, 0},  {2, 2048, 32, 8, 128, 0}, {32, 1024, 12, 12, 64, 0},
    {2, 2048, 16, 4, 64, 256}, {2, 1000, 12, 12, 64, 0}, {3, 72, 8, 2, 64, 0},     {1, 256, 4, 4, 80, 0},
};

/* The driver, as far as we need it. */
typedef unsigned long long device_pointer;
static struct {
    int (*init)(unsigned), (*device_get)(int *, int), (*retain)(void **, int), (*set_current)(void *),
        (*settle)(void);
    int (*alloc)(device_pointer *, size_t), (*release)(device_pointer);
    int (*to_device)(device_pointer, const void *, size_t), (*to_host)(void *, device_pointer, size_t);
    int (*fill)(device_pointer, unsigned char, size_t), (*memory)(size_t *, size_t *);
    int (*stream_create)(void **, unsigned), (*stream_wait)(void *);
    int (*event_create)(void **, unsigned), (*event_record)(void *, void *), (*event_wait)(void *);
    int (*event_elapsed)(float *, void *, void *);
    int (*capture_begin)(void *, int), (*capture_end)(void *, void **);
    int (*instantiate)(void **, void *, unsigned long long), (*launch)(void *, void *);
} cu;

static const struct {
    const char *name;
    void *slot;
} DRIVER[] = {
    {"cuInit", &cu.init},
    {"cuDeviceGet", &cu.device_get},
    {"cuDevicePrimaryCtxRetain", &cu.retain},
    {"cuCtxSetCurrent", &cu.set_current},
    {"cuCtxSynchronize", &cu.settle},
    {"cuMemAlloc_v2", &cu.alloc},
    {"cuMemFree_v2", &cu.release},
    {"cuMemcpyHtoD_v2", &cu.to_device},
    {"cuMemcpyDtoH_v2", &cu.to_host},
    {"cuMemsetD8_v2", &cu.fill},
    {"cuMemGetInfo_v2", &cu.memory},
    {"cuStreamCreate", &cu.stream_create},
    {"cuStreamSynchronize", &cu.stream_wait},
    {"cuEventCreate", &cu.event_create},
    {"cuEventRecord", &cu.event_record},
    {"cuEventSynchronize", &cu.event_wait},
    {"cuEventElapsedTime", &cu.event_elapsed},
    {"cuStreamBeginCapture_v2", &cu.capture_begin},
    {"cuStreamEndCapture", &cu.capture_end},
    {"cuGraphInstantiateWithFlags", &cu.instantiate},
    {"cuGraphLaunch", &cu.launch},
};

static void *stream;

static void must(int rc, const char *what)
{
    if (!rc) return;
    printf("driver: %s failed with %d\n", what, rc);
    exit(1);
}

static void driver_open(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    int device;
    if (!library) {
        printf("no driver: %s\n", dlerror());
        exit(77);
    }
    for (size_t i = 0; i < sizeof DRIVER / sizeof *DRIVER; i++) {
        void *address = dlsym(library, DRIVER[i].name);
        must(!address, DRIVER[i].name);
        memcpy(DRIVER[i].slot, &address, sizeof address);
    }
    must(cu.init(0), "cuInit");
    must(cu.device_get(&device, 0), "cuDeviceGet");
    must(cu.retain(&context, device), "cuDevicePrimaryCtxRetain");
    must(cu.set_current(context), "cuCtxSetCurrent");
    must(cu.stream_create(&stream, 1), "cuStreamCreate");
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One tensor on both sides. */
struct both {
    size_t count, size;
    void *host;
    device_pointer device;
};

static void *at(const struct both *b)
{
    void *pointer;
    memcpy(&pointer, &b->device, sizeof pointer);
    return pointer;
}

static struct both both_new(int64_t count, size_t size)
{
    struct both b = {.count = (size_t)count, .size = size, .host = malloc((size_t)count * size)};
    must(cu.alloc(&b.device, b.count * size), "cuMemAlloc");
    must(cu.fill(b.device, 0xff, b.count * size), "cuMemset"); /* NaN where nothing gets written */
    return b;
}

static void both_free(struct both *b)
{
    cu.release(b->device);
    free(b->host);
}

static void pull(struct both *b) { must(cu.to_host(b->host, b->device, b->count * b->size), "cuMemcpyDtoH"); }

static float get(const struct both *b, enum dtype type, size_t i)
{
    uint16_t h;
    if (type == DT_F32) return ((const float *)b->host)[i];
    h = ((const uint16_t *)b->host)[i];
    return type == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

/* About normal, the same on every run. */
static void randomise(struct both *b, enum dtype type, uint64_t seed)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    uint16_t *out = b->host;
    for (size_t i = 0; i < b->count; i++) {
        float sum = -2.0f;
        x = x * 6364136223846793005u + 1442695040888963407u;
        for (int k = 0; k < 4; k++) sum += (float)((x >> (16 * k)) & 0xffff) / 65536.0f;
        sum *= 1.7320508f;
        out[i] = type == DT_BF16 ? f32_to_bf16(sum) : f32_to_f16(sum);
    }
    must(cu.to_device(b->device, b->host, b->count * b->size), "cuMemcpyHtoD");
}

enum name { Q, K, V, D_O, O, LSE, DQ, DK, DV, TENSORS };

struct job {
    struct attention_shape s;
    struct both t[TENSORS], work;
};

static struct job job_new(const struct attention_shape *s, size_t workspace)
{
    struct job j = {.s = *s};
    int64_t full = s->batch * s->time * s->heads * s->head_size;
    for (int i = 0; i < TENSORS; i++) {
        bool kv = i == K || i == V || i == DK || i == DV;
        j.t[i] = i == LSE ? both_new(s->batch * s->heads * s->time, 4)
                          : both_new(kv ? full / s->heads * s->kv_heads : full, 2);
        if (i <= D_O) randomise(&j.t[i], s->type, (uint64_t)i + 1);
    }
    j.work = both_new(workspace ? (int64_t)workspace : 1, 1);
    must(cu.settle(), "cuCtxSynchronize"); /* our stream does not wait for the copies' */
    return j;
}

static void job_free(struct job *j)
{
    for (int i = 0; i < TENSORS; i++) both_free(&j->t[i]);
    both_free(&j->work);
}

static struct cudnn_attention *attention;

static int forward(struct job *j, struct plim_error *err)
{
    struct attention_forward io = {at(&j->t[Q]), at(&j->t[K]), at(&j->t[V]), at(&j->t[O]), at(&j->t[LSE])};
    return (int)cudnn_attention_forward(attention, &j->s, &io, at(&j->work), err);
}

static int backward(struct job *j, struct plim_error *err)
{
    struct attention_backward io = {at(&j->t[D_O]), at(&j->t[Q]),  at(&j->t[K]),  at(&j->t[V]), at(&j->t[O]),
                                    at(&j->t[LSE]), at(&j->t[DQ]), at(&j->t[DK]), at(&j->t[DV])};
    return (int)cudnn_attention_backward(attention, &j->s, &io, at(&j->work), err);
}

/* Sums of squares of a difference and of its reference. */
struct distance {
    double diff, ref;
};

static void measure(struct distance *d, float got, float want)
{
    d->diff += (double)(got - want) * (double)(got - want);
    d->ref += (double)want * (double)want;
}

/* One head of q, k, v or do as [T,D] floats. */
static float *head(const struct job *j, enum name name, int64_t b, int64_t h, int64_t heads)
{
    int64_t T = j->s.time, D = j->s.head_size;
    float *out = malloc((size_t)(T * D) * sizeof *out);
    for (int64_t t = 0; t < T; t++)
        for (int64_t d = 0; d < D; d++)
            out[t * D + d] = get(&j->t[name], j->s.type, (size_t)(((b * T + t) * heads + h) * D + d));
    return out;
}

static float dot(const float *a, const float *b, int64_t n)
{
    float lane[8] = {0}, sum = 0;
    for (int64_t i = 0; i < n; i += 8) /* head sizes are multiples of 8 */
        for (int k = 0; k < 8; k++) lane[k] += a[i + k] * b[i + k];
    for (int k = 0; k < 8; k++) sum += lane[k];
    return sum;
}

static void add_scaled(float *y, float a, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

static int64_t first_key(const struct attention_shape *s, int64_t t)
{
    return s->window > 0 && t - s->window + 1 > 0 ? t - s->window + 1 : 0;
}

/* Head h of sample b on the host; adds to dk and dv, compares the rest. p, dp: rows of T floats. */
static void host_head(struct job *j, int64_t b, int64_t h, const float *k, const float *v, float *dk,
                      float *dv, struct distance d[TENSORS])
{
    const struct attention_shape *s = &j->s;
    int64_t T = s->time, D = s->head_size;
    float *q = head(j, Q, b, h, s->heads), *d_o = head(j, D_O, b, h, s->heads);
    float *p = malloc((size_t)T * 4), *dp = malloc((size_t)T * 4), *o = malloc((size_t)D * 4),
          *dq = malloc((size_t)D * 4);
    for (int64_t t = 0; t < T; t++) {
        float most = -INFINITY, sum = 0, c = 0;
        int64_t first = first_key(s, t);
        memset(o, 0, (size_t)D * 4), memset(dq, 0, (size_t)D * 4);
        for (int64_t i = first; i <= t; i++)
            most = fmaxf(most, p[i] = s->scale * dot(q + t * D, k + i * D, D));
        for (int64_t i = first; i <= t; i++) sum += p[i] = expf(p[i] - most);
        for (int64_t i = first; i <= t; i++) {
            p[i] /= sum;
            dp[i] = dot(d_o + t * D, v + i * D, D);
            c += p[i] * dp[i];
            add_scaled(o, p[i], v + i * D, D);
            add_scaled(dv + i * D, p[i], d_o + t * D, D);
        }
        for (int64_t i = first; i <= t; i++) {
            float ds = p[i] * (dp[i] - c) * s->scale;
            add_scaled(dq, ds, k + i * D, D);
            add_scaled(dk + i * D, ds, q + t * D, D);
        }
        measure(&d[LSE], get(&j->t[LSE], DT_F32, (size_t)((b * s->heads + h) * T + t)), most + logf(sum));
        for (int64_t i = 0; i < D; i++) {
            size_t where = (size_t)(((b * T + t) * s->heads + h) * D + i);
            measure(&d[O], get(&j->t[O], s->type, where), o[i]);
            measure(&d[DQ], get(&j->t[DQ], s->type, where), dq[i]);
        }
    }
    free(q), free(d_o), free(p), free(dp), free(o), free(dq);
}

/* Compares one kv head of the last sample, and returns whether all is close. */
static bool check(struct job *j)
{
    const struct attention_shape *s = &j->s;
    struct distance d[TENSORS] = {{0, 0}};
    int64_t T = s->time, D = s->head_size, b = s->batch - 1, kv = s->kv_heads - 1,
            group = s->heads / s->kv_heads;
    float *k = head(j, K, b, kv, s->kv_heads), *v = head(j, V, b, kv, s->kv_heads);
    float *dk = calloc((size_t)(T * D), 4), *dv = calloc((size_t)(T * D), 4);
    double limit = s->type == DT_BF16 ? 0.012 : 0.002;
    bool fine = true;
    for (int i = O; i < TENSORS; i++) pull(&j->t[i]);
    for (int64_t g = 0; g < group; g++) host_head(j, b, kv * group + g, k, v, dk, dv, d);
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < D; i++) {
            size_t where = (size_t)(((b * T + t) * s->kv_heads + kv) * D + i);
            measure(&d[DK], get(&j->t[DK], s->type, where), dk[t * D + i]);
            measure(&d[DV], get(&j->t[DV], s->type, where), dv[t * D + i]);
        }
    static const char *const names[] = {[O] = "o", [LSE] = "lse", [DQ] = "dq", [DK] = "dk", [DV] = "dv"};
    for (int i = O; i < TENSORS; i++) {
        double relative = sqrt(d[i].diff / d[i].ref);
        printf(" %s %.1e", names[i], relative);
        fine = fine && relative < limit; /* NaN fails too */
    }
    free(k), free(v), free(dk), free(dv);
    return fine;
}

/* Do two backward runs give the same bytes? (The first one's are in the host copies.) */
static bool repeats(struct job *j, struct plim_error *err)
{
    bool same = true;
    for (int run = 0; run < 3 && same; run++) {
        if (backward(j, err)) return false;
        must(cu.stream_wait(stream), "stream");
        for (int i = DQ; i < TENSORS && same; i++) {
            size_t bytes = j->t[i].count * j->t[i].size;
            void *before = malloc(bytes);
            memcpy(before, j->t[i].host, bytes);
            pull(&j->t[i]);
            same = memcmp(before, j->t[i].host, bytes) == 0;
            free(before);
        }
    }
    return same;
}

typedef int step(struct job *, struct plim_error *);

static int both_ways(struct job *j, struct plim_error *err) { return forward(j, err) || backward(j, err); }

static void *replay;
static int replayed(struct job *j, struct plim_error *err)
{
    (void)j, (void)err;
    return cu.launch(replay, stream);
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float median_ms(step *run, struct job *j)
{
    struct plim_error err = {0};
    float ms[RUNS];
    void *from, *to;
    must(cu.event_create(&from, 0), "event"), must(cu.event_create(&to, 0), "event");
    for (int i = -WARM_UP; i < RUNS; i++) {
        must(cu.event_record(from, stream), "record");
        if (run(j, &err)) {
            printf(" [%s]", err.text);
            return NAN;
        }
        must(cu.event_record(to, stream), "record"), must(cu.event_wait(to), "wait");
        if (i >= 0) must(cu.event_elapsed(&ms[i], from, to), "elapsed");
    }
    qsort(ms, RUNS, sizeof *ms, ascending);
    return ms[RUNS / 2];
}

static bool capture(struct job *j)
{
    struct plim_error err = {0};
    void *graph = NULL;
    if (cu.capture_begin(stream, 1)) return false; /* 1: thread-local */
    int rc = both_ways(j, &err);
    if (cu.capture_end(stream, &graph) || rc || !graph) return false;
    return cu.instantiate(&replay, graph, 0) == 0;
}

static void describe(const struct attention_shape *s)
{
    printf("B%-2d T%-4d H%-2d K%-2d D%-3d w%-3d %-4s", (int)s->batch, (int)s->time, (int)s->heads,
           (int)s->kv_heads, (int)s->head_size, (int)s->window, dtype_name(s->type));
}

/* Both plans; prints what they are. Returns the larger workspace, or 0. */
static size_t prepare(const struct attention_shape *s)
{
    struct plim_error err = {0};
    size_t bytes[2] = {0, 0};
    for (int pass = 0; pass < 2; pass++) {
        bool loose;
        double start = now();
        if (cudnn_attention_prepare(attention, s, (enum attention_pass)pass, &bytes[pass], &err) != PLIM_OK) {
            printf(" | %s: %s\n", pass ? "backward" : "forward", err.text);
            return 0;
        }
        double ms = (now() - start) * 1e3;
        int64_t engine = cudnn_attention_engine(attention, s, (enum attention_pass)pass, &loose);
        printf(" | %s engine %d%s %zu B, built in %.0f ms", pass ? "bwd" : "fwd", (int)engine,
               loose ? "?" : "", bytes[pass], ms);
    }
    printf("\n");
    return bytes[0] > bytes[1] ? bytes[0] : bytes[1];
}

static bool probe(const struct attention_shape *s)
{
    struct plim_error err = {0};
    size_t workspace = prepare(s);
    if (!workspace) return false;
    struct job j = job_new(s, workspace);
    bool fine = false,
         cold = capture(&j); /* before anything ran: does a first launch need more than capture allows? */
    if (both_ways(&j, &err)) {
        printf("    run: %s\n", err.text);
        goto out;
    }
    must(cu.stream_wait(stream), "stream");
    printf("    error");
    fine = check(&j);
    bool bits = repeats(&j, &err);
    float fwd = median_ms(forward, &j), all = median_ms(both_ways, &j);
    float graph = cold || capture(&j) ? median_ms(replayed, &j) : NAN;
    double flops =
        2.0 * (double)(s->batch * s->heads * s->head_size * s->time * s->time); /* causal: half of 4 */
    printf(" %s | bits %s | captured %s\n    forward %.3f ms (%.0f TFLOP/s), both %.3f ms (%.0f TFLOP/s), as "
           "a graph %.3f "
           "ms\n",
           fine ? "OK" : "WRONG", bits ? "repeat" : "vary",
           cold           ? "cold"
           : isnan(graph) ? "never"
                          : "warm",
           fwd, flops / fwd * 1e-9, all, 3.5 * flops / all * 1e-9, graph);
out:
    job_free(&j);
    fflush(stdout);
    return fine;
}

int main(int argc, char **argv)
{
    struct plim_error err = {0};
    bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    int wrong = 0, shapes = quick ? 1 : (int)(sizeof SHAPES / sizeof *SHAPES);
    size_t before = 0, after = 0, total;
    driver_open();
    must(cu.memory(&before, &total), "memory");
    if (cudnn_attention_open(stream, &attention, &err) != PLIM_OK) {
        printf("%s\n", err.text);
        return 77;
    }
    must(cu.memory(&after, &total), "memory");
    printf("cuDNN %zu; its handle took %zu bytes of device memory\n", cudnn_attention_version(attention),
           before - after);
    for (int i = 0; i < shapes; i++)
        for (int half = 0; half < 2; half++) {
            const int64_t *p = SHAPES[i];
            struct attention_shape s = {
                p[0], p[1], p[2], p[3], p[4], p[5], half ? DT_F16 : DT_BF16, 1.0f / sqrtf((float)p[4])};
            describe(&s);
            wrong += !probe(&s);
            fflush(stdout);
        }
    cudnn_attention_close(attention);
    printf("%d wrong or refused\n", wrong);
    return wrong > 0;
}
