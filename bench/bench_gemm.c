/* bench_gemm.c - how fast matrix multiply is, against what the arithmetic units can do.
 *
 *     bench_gemm [threads] [rows]        0 threads: one per CPU; rows: only shapes of that many rows
 *
 * Per shape and type: GFLOP/s and the share of the peak. The peak is measured, not looked up: a loop of
 * multiply-accumulate instructions on registers, on all threads at once. Three forms per weight W[N,K] and M
 * rows: Y = X W^T, dX = dY W, and dW += dY^T X (fp32 accumulation into C).
 *
 *     bench_gemm [threads] few           products of few rows, as when tokens are generated
 *     bench_gemm [threads] split         fp32 as the sum of parts (gemm.h) beside fp32, Y = X W^T of encoders
 *     bench_gemm [threads] peaks         only the machine: GB/s of reading, and GFLOP/s of each type
 *
 * Per shape, type and layout of W: GB/s at which W is read, and the share of what a loop reaches that only reads. Both go
 * round a pool of weights, so that W comes from memory as it does while a model's layers follow each other.
 */
#include "device/cpu/cpu_features.h"
#include "device/cpu/gemm.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { PEAK_TURNS = 2000000, TRIALS = 5 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the peak: independent chains of one instruction ---- */

#define TIMES_12(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11)
#define TIMES_24(op)                                                                                         \
    TIMES_12(op)                                                                                             \
    op(12) op(13) op(14) op(15) op(16) op(17) op(18) op(19) op(20) op(21) op(22) op(23)

#if defined(__aarch64__)
#if defined(__clang__)
#define BF16_CODE __attribute__((target("bf16")))
#else
#define BF16_CODE __attribute__((target("+bf16")))
#endif
#define CLOBBERS                                                                                             \
    "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15",    \
        "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v30", "v31", "cc"
#define PEAK_LOOP(op)                                                                                        \
    __asm__ volatile("movi v30.4s, #0\nmovi v31.4s, #0\n1:\n" TIMES_24(op) "subs %0, %0, #1\nb.ne 1b\n"      \
                     : "+r"(turns)                                                                           \
                     :                                                                                       \
                     : CLOBBERS)
#define FMLA(i)   "fmla v" #i ".4s, v30.4s, v31.s[1]\n"
#define BFMMLA(i) "bfmmla v" #i ".4s, v30.8h, v31.8h\n"

static double peak_f32(int64_t turns)
{
    double flops = 24.0 * 8 * (double)turns;
    PEAK_LOOP(FMLA);
    return flops;
}

BF16_CODE static double peak_bf16(int64_t turns)
{
    double flops = 24.0 * 32 * (double)turns;
    if (!cpu_has(CPU_NEON_BF16)) return peak_f32(turns);
    PEAK_LOOP(BFMMLA);
    return flops;
}
#elif defined(__x86_64__)
#define CLOBBERS                                                                                             \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",        \
        "xmm14", "xmm15", "cc"
#define PEAK_LOOP(op, reg)                                                                                   \
    __asm__ volatile("1:\n" TIMES_12(op) "sub $1, %0\njne 1b\n" : "+r"(turns) : : CLOBBERS)
#define FMA256(i) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #i "\n"
#define FMA512(i) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" #i "\n"
#define DP512(i)  "vdpbf16ps %%zmm14, %%zmm15, %%zmm" #i "\n"

static double peak_f32(int64_t turns)
{
    double flops = 12.0 * 2 * (double)turns;
    if (cpu_has(CPU_AVX512)) {
        flops *= 16;
        PEAK_LOOP(FMA512, zmm);
    } else if (cpu_has(CPU_AVX2)) {
        flops *= 8;
        PEAK_LOOP(FMA256, ymm);
    }
    return flops;
}

#define AMX_CODE __attribute__((target("amx-tile,amx-bf16")))

AMX_CODE static double peak_tiles(int64_t turns)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shapes = {1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    double flops = 4.0 * 16 * 16 * 32 * 2 * (double)turns;
    _tile_loadconfig(&shapes);
    for (; turns > 0; turns--) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    return flops; /* the shapes stay: the kernel's are the same */
}

static double peak_bf16(int64_t turns)
{
    double flops = 12.0 * 64 * (double)turns;
    if (cpu_has(CPU_AMX)) return peak_tiles(turns / 4);
    if (!cpu_has(CPU_AVX512_BF16)) return peak_f32(turns);
    PEAK_LOOP(DP512, zmm);
    return flops;
}
#else
static double peak_f32(int64_t turns) { return (double)turns * 0; }

static double peak_bf16(int64_t turns) { return peak_f32(turns); }
#endif

struct peak {
    enum dtype type;
    double *flops; /* per item */
};

static void peak_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct peak *peak = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        peak->flops[i] = peak->type == DT_BF16 ? peak_bf16(PEAK_TURNS) : peak_f32(PEAK_TURNS);
    }
}

static double measure_peak(enum dtype type, struct threads *team)
{
    int count = threads_count(team);
    double best = 0, flops[1024] = {0};
    struct peak peak = {type, flops};
    for (int trial = 0; trial < TRIALS; trial++) {
        double begin = now();
        threads_each(team, count, 1, peak_body, &peak);
        double seconds = now() - begin, sum = 0;
        for (int i = 0; i < count; i++) sum += flops[i];
        if (sum / seconds > best) best = sum / seconds;
    }
    return best;
}

/* ---- shapes ---- */

static const struct {
    int64_t m, k, n;
} shapes[] = {
    {1, 768, 768},     {1, 768, 32000},    {4, 768, 2048},    {8, 768, 768},     {32, 768, 768},
    {128, 768, 768},   {512, 384, 1024},   {512, 512, 512},   {512, 768, 768},   {512, 768, 2048},
    {512, 2048, 768},  {2048, 384, 1024},  {2048, 512, 512},  {2048, 512, 1408}, {2048, 768, 768},
    {2048, 768, 2048}, {2048, 2048, 768},  {8192, 384, 1024}, {8192, 768, 768},  {8192, 768, 2048},
    {8192, 2048, 768}, {2048, 768, 32000},
};

enum form { FORWARD, GRAD_X, GRAD_W, FORMS };
static const char *const form_names[] = {"Y=XW'", "dX=dYW", "dW+=dY'X"};

static void *filled(int64_t n, enum dtype type)
{
    float *values = malloc((size_t)n * sizeof *values);
    void *out = aligned_alloc(64, ((size_t)n * dtype_size(type) + 63) & ~(size_t)63);
    uint32_t state = 12345;
    if (!values || !out) abort();
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (float)(state >> 8) * 0x1p-23f - 1.0f;
    }
    dtype_convert(out, type, values, DT_F32, n);
    free(values);
    return out;
}

/* The problem of a form; x [M,K], w [N,K], y [M,N] and an fp32 dw [N,K] serve all three. */
static struct gemm problem(enum form form, int64_t m, int64_t k, int64_t n, void *x, void *w, void *y,
                           float *dw, enum dtype type)
{
    struct gemm g = {.m = m, .n = n, .k = k, .a = x, .a_rs = k, .a_cs = 1, .b = w, .b_rs = 1, .b_cs = k};
    g.c = y, g.c_rs = n, g.ab_type = type, g.c_type = type;
    if (form == GRAD_X) {
        g.n = k, g.k = n;
        g.a = y, g.a_rs = n, g.b_rs = k, g.b_cs = 1, g.c = x, g.c_rs = k;
    } else if (form == GRAD_W) {
        g.m = n, g.n = k, g.k = m;
        g.a = y, g.a_rs = 1, g.a_cs = n, g.b = x, g.b_rs = k, g.b_cs = 1;
        g.c = dw, g.c_rs = k, g.c_type = DT_F32, g.add = dw;
    }
    return g;
}

static double time_gemm(const struct gemm *g, struct threads *team)
{
    size_t bytes = gemm_workspace(g->m, g->n, g->k, g->ab_type, g->c_type, threads_count(team));
    void *workspace = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k, best = 1e30;
    int turns = (int)(2e9 / flops) + 1;
    if (!workspace) abort();
    gemm_run(g, workspace, team);
    for (int trial = 0; trial < TRIALS; trial++) {
        double begin = now();
        for (int i = 0; i < turns; i++) gemm_run(g, workspace, team);
        double seconds = (now() - begin) / turns;
        if (seconds < best) best = seconds;
    }
    free(workspace);
    return best;
}

static void bench_shape(int64_t m, int64_t k, int64_t n, enum dtype type, double peak, struct threads *team)
{
    void *x = filled(m * k, type), *w = filled(n * k, type), *y = filled(m * n, type);
    float *dw = filled(n * k, DT_F32);
    printf("%6lld %6lld %6lld  %-5s", (long long)m, (long long)k, (long long)n, dtype_name(type));
    for (int form = 0; form < FORMS; form++) {
        struct gemm g = problem((enum form)form, m, k, n, x, w, y, dw, type);
        double seconds = time_gemm(&g, team), flops = 2.0 * (double)m * (double)n * (double)k;
        printf("  %8.1f %5.1f%%", flops / seconds * 1e-9, peak > 0 ? 100 * flops / seconds / peak : 0);
    }
    printf("\n");
    fflush(stdout);
    free(x), free(w), free(y), free(dw);
}

/* ---- few rows ---- */

static const size_t POOL = (size_t)512 << 20;
enum { READ_PIECE = 1 << 20 };

struct reading {
    const uint64_t *pool;
    uint64_t *sums;  /* per piece, so that the loop is not left out */
    int64_t streams; /* read side by side within a piece */
};

static void read_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct reading *r = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const uint64_t *from = r->pool + (size_t)i * READ_PIECE / 8;
        int64_t words = READ_PIECE / 8 / r->streams;
        uint64_t sum[8] = {0};
        for (int64_t j = 0; j < words; j += 8)
            for (int64_t s = 0; s < r->streams; s++)
                for (int k = 0; k < 8; k++) sum[k] += from[s * words + j + k];
        for (int k = 0; k < 8; k++) r->sums[i] += sum[k];
    }
}

/* Bytes per second of reading, all threads at once: from end to end, or many lines side by side, whichever is faster. */
static double measure_reading(const void *pool, struct threads *team)
{
    double best = 0;
    struct reading r = {.pool = pool, .sums = calloc(POOL / READ_PIECE, sizeof *r.sums)};
    if (!r.sums) abort();
    for (int trial = 0; trial < 2 * TRIALS; trial++) {
        r.streams = trial % 2 ? 16 : 1;
        double begin = now();
        threads_each(team, (int64_t)(POOL / READ_PIECE), 1, read_body, &r);
        double rate = (double)POOL / (now() - begin);
        if (rate > best) best = rate;
    }
    free(r.sums);
    return best;
}

/* Bytes of W per second, W from place to place in the pool. */
static double time_few(struct gemm g, const char *pool, struct threads *team)
{
    size_t bytes = gemm_workspace(g.m, g.n, g.k, g.ab_type, g.c_type, threads_count(team));
    size_t size = (size_t)(g.n * g.k) * dtype_size(g.ab_type), turns = POOL / size;
    void *workspace = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    double best = 0;
    if (!workspace) abort();
    for (int trial = 0; trial < TRIALS; trial++) {
        double begin = now();
        for (size_t i = 0; i < turns; i++) {
            g.b = pool + i * size;
            gemm_run(&g, workspace, team);
        }
        double rate = (double)(turns * size) / (now() - begin);
        if (rate > best) best = rate;
    }
    free(workspace);
    return best;
}

static void bench_few(int64_t m, int64_t k, int64_t n, enum dtype type, const char *pool, double most,
                      struct threads *team)
{
    void *x = filled(m * k, type), *y = filled(m * n, type);
    struct gemm g = {.m = m, .n = n, .k = k, .a = x, .a_rs = k, .a_cs = 1, .b_rs = 1, .b_cs = k};
    g.c = y, g.c_rs = n, g.ab_type = type, g.c_type = type;
    double lines = time_few(g, pool, team);
    g.b_rs = n, g.b_cs = 1;
    double columns = time_few(g, pool, team);
    printf("%6lld %6lld %6lld  %-5s  %7.1f GB/s %4.0f%%  %7.1f GB/s %4.0f%%\n", (long long)m, (long long)k,
           (long long)n, dtype_name(type), lines * 1e-9, 100 * lines / most, columns * 1e-9,
           100 * columns / most);
    fflush(stdout);
    free(x), free(y);
}

static void bench_few_rows(struct threads *team)
{
    static const int64_t rows[] = {1, 2, 4, 8, 16}, sizes[][2] = {{2048, 2048}, {2048, 8192}, {8192, 2048}};
    static const enum dtype types[] = {DT_BF16, DT_F16, DT_F32};
    char *pool = filled((int64_t)(POOL / 4), DT_F32); /* as 16 bits they are numbers, too */
    double most = measure_reading(pool, team);
    for (size_t i = 0; i < POOL / 2; i++) ((uint16_t *)(void *)pool)[i] &= 0xbfff; /* none infinite */
    printf("reading alone: %.1f GB/s\n%6s %6s %6s  %-5s  %18s  %18s\n", most * 1e-9, "M", "K", "N", "type",
           "W [N,K]", "W [K,N]");
    for (size_t t = 0; t < 3; t++)
        for (size_t s = 0; s < 3; s++)
            for (size_t r = 0; r < 5; r++)
                bench_few(rows[r], sizes[s][0], sizes[s][1], types[t], pool, most, team);
    free(pool);
}

/* ---- fp32 in parts ---- */

static double time_split(struct gemm g, bool split, struct threads *team)
{
    size_t bytes = gemm_split_workspace(g.m, g.n, g.k, DT_F32, DT_F32, threads_count(team));
    void *workspace = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    double best = 0, flops = 2.0 * (double)(g.m * g.n * g.k);
    if (!workspace) abort();
    g.split = split;
    for (int trial = 0; trial < 4 * TRIALS; trial++) {
        double begin = now();
        gemm_run(&g, workspace, team);
        double rate = flops / (now() - begin);
        if (rate > best) best = rate;
    }
    free(workspace);
    return best;
}

static void bench_split(struct threads *team)
{
    static const int64_t sizes[][2] = {{384, 384}, {384, 1536}, {1536, 384}, {768, 3072}, {3072, 768}};
    enum { ROWS = 2048 };
    printf("%6s %6s %6s  %12s  %12s   GFLOP/s\n", "M", "K", "N", "fp32", "in parts");
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t k = sizes[s][0], n = sizes[s][1];
        void *x = filled(ROWS * k, DT_F32), *w = filled(n * k, DT_F32), *y = filled(ROWS * n, DT_F32);
        struct gemm g = {.m = ROWS, .n = n, .k = k, .a = x, .a_rs = k, .a_cs = 1, .b = w, .b_rs = 1};
        g.b_cs = k, g.c = y, g.c_rs = n, g.ab_type = DT_F32, g.c_type = DT_F32;
        double whole = time_split(g, false, team), parts = time_split(g, true, team);
        printf("%6d %6lld %6lld  %12.1f  %12.1f\n", ROWS, (long long)k, (long long)n, whole * 1e-9,
               parts * 1e-9);
        free(x), free(w), free(y);
    }
}

static const enum dtype all_types[] = {DT_F32, DT_BF16, DT_F16};
enum { ALL_TYPES = sizeof all_types / sizeof *all_types };

static void print_peaks(struct threads *team)
{
    char *pool = filled((int64_t)(POOL / 4), DT_F32);
    printf("read %.1f\n", measure_reading(pool, team) * 1e-9);
    for (int t = 0; t < ALL_TYPES; t++)
        printf("%s %.1f\n", dtype_name(all_types[t]), measure_peak(all_types[t], team) * 1e-9);
    free(pool);
}

/* rows: 0 for all shapes. */
static void bench_shapes(int64_t rows, struct threads *team)
{
    for (int t = 0; t < ALL_TYPES; t++) {
        enum dtype type = all_types[t];
        double peak = measure_peak(type, team);
        printf("\n%s: kernel %s, measured peak %.1f GFLOP/s\n", dtype_name(type), gemm_kernel_name(type),
               peak * 1e-9);
        printf("%6s %6s %6s  %-5s", "M", "K", "N", "type");
        for (int form = 0; form < FORMS; form++) printf("  %15s", form_names[form]);
        printf("\n");
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            if (rows && shapes[i].m != rows) continue;
            if (type == DT_F16 && shapes[i].m > 512) continue;
            bench_shape(shapes[i].m, shapes[i].k, shapes[i].n, type, peak, team);
        }
    }
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    const char *what = argc > 2 ? argv[2] : "0";
    struct plim_error err = {0};
    struct threads *team;
    if (threads_start(threads, &team, &err) != PLIM_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("level %s, %d threads\n", cpu_level_name(cpu_level()), threads_count(team));
    if (!strcmp(what, "few"))
        bench_few_rows(team);
    else if (!strcmp(what, "split"))
        bench_split(team);
    else if (!strcmp(what, "peaks"))
        print_peaks(team);
    else
        bench_shapes(atoll(what), team);
    threads_free(team);
    return 0;
}
