/* gemm_few.c - see gemm_few.h: which kernel, packing A, and the way of a tile from its sums to C.
 *
 * Workers share the columns of C and nothing else. Each takes as many as its kernel reads side by side, all of k, block by
 * block, and writes them to C before it takes the next. */
#include "device/cpu/gemm_few.h"
#include "base/minmax.h"
#include "device/cpu/gemm_kernel.h"

enum {
    TASKS_PER_WORKER = 4, /* so that a worker that was held up does not hold up the rest */
    NARROWEST = 64,       /* columns of a task that reads across */
    FEWEST = 16,          /* columns of a task that reads along k */
    MOST_BYTES = 1 << 20, /* of packed A */
    SOON = 64 << 10,      /* bytes of B ahead that are asked for */
};

/* By level and type of A and B. */
static const struct gemm_few *const kernels[CPU_LEVELS][DT_COUNT] = {
#if defined(__aarch64__)
    [CPU_NEON] = {&gemm_few_neon_f32, &gemm_few_neon_bf16, &gemm_few_neon_f16},
    [CPU_NEON_BF16] = {&gemm_few_neon_f32, &gemm_few_bfmmla, &gemm_few_fmlal},
#endif
#if defined(__x86_64__)
    [CPU_AVX2] = {&gemm_few_avx2_f32, &gemm_few_avx2_bf16, &gemm_few_avx2_f16},
    [CPU_AVX512] = {&gemm_few_avx512_f32, &gemm_few_avx512_bf16, &gemm_few_avx512_f16},
    [CPU_AVX512_BF16] = {&gemm_few_avx512_f32, &gemm_few_vdpbf16ps, &gemm_few_avx512_f16},
    [CPU_AMX] = {&gemm_few_avx512_f32, &gemm_few_amx_bf16, &gemm_few_avx512_f16},
#endif
};
_Static_assert(DT_F32 == 0 && DT_BF16 == 1 && DT_F16 == 2, "the order of the table");

static inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* ---- choosing ---- */

static size_t block_bytes(const struct gemm_few *few)
{
    return (size_t)few->rows * GEMM_KC * (size_t)few->unit;
}

static size_t packed_bytes(const struct gemm_few *few, int64_t k)
{
    return (size_t)divide_up(k, GEMM_KC) * block_bytes(few);
}

/* NULL: none for so many rows. */
static const struct gemm_few *kernel_for(int64_t m, int64_t k, enum dtype type)
{
    const struct gemm_few *few = kernels[cpu_level()][type];
    return few && m <= few->rows && packed_bytes(few, k) <= MOST_BYTES ? few : NULL;
}

/* Its packed kernel multiplies fp32 in parts, and no kernel here does. */
static bool in_parts(const struct gemm *g)
{
    return g->split && g->ab_type == DT_F32 && gemm_kernel_split(cpu_level())->parts;
}

const struct gemm_few *gemm_few_for(const struct gemm *g)
{
    const struct gemm_few *few = in_parts(g) ? NULL : kernel_for(g->m, g->k, g->ab_type);
    if (!few || g->k == 0 || g->a_cs != 1 || g->a_numbers || g->b_numbers) return NULL;
    return g->b_rs == 1 || (g->b_cs == 1 && few->across) ? few : NULL;
}

size_t gemm_few_workspace(int64_t m, int64_t k, enum dtype ab_type)
{
    const struct gemm_few *few = kernel_for(m, k, ab_type);
    return few ? packed_bytes(few, k) : 0;
}

/* ---- packing A ---- */

void gemm_few_widen(void *dst, const void *src, enum dtype type, int64_t rs, int rows, int64_t k)
{
    const char *from = src;
    float *to = dst;
    for (int r = 0; r < rows; r++, to += GEMM_KC, from += rs * (int64_t)dtype_size(type))
        dtype_convert(to, DT_F32, from, type, k);
}

void gemm_few_keep(void *dst, const void *src, enum dtype, int64_t rs, int rows, int64_t k)
{
    const uint16_t *from = src;
    uint16_t *to = dst;
    for (int r = 0; r < rows; r++, to += GEMM_KC, from += rs) {
        memcpy(to, from, (size_t)k * sizeof *to);
        memset(to + k, 0, (size_t)((k + 31) / 32 * 32 - k) * sizeof *to);
    }
}

/* ---- a tile of C ---- */

struct job {
    const struct gemm_few *few;
    const struct gemm *g;
    const char *a;  /* packed, a block of k after the other */
    int64_t a_step; /* bytes of a block */
    int cols;       /* columns of a task */
    int width;      /* of its sums */
    bool across;
};

struct tile {
    int64_t n;
    int cols, width;
    _Alignas(64) float value[GEMM_FEW_ROWS * GEMM_FEW_WIDTH];
};

static const char *element(const void *base, enum dtype type, int64_t i)
{
    return (const char *)base + i * (int64_t)dtype_size(type);
}

/* extra[cols] = add + bias of one row; at least one of the two is there. */
static void find_extra(const struct gemm *g, const struct tile *t, int row, float *extra)
{
    float bias[GEMM_FEW_WIDTH] = {0};
    if (g->bias) dtype_convert(bias, DT_F32, element(g->bias, g->ab_type, t->n), g->ab_type, t->cols);
    if (!g->add) {
        memcpy(extra, bias, (size_t)t->cols * sizeof *extra);
        return;
    }
    dtype_convert(extra, DT_F32, element(g->add, g->c_type, row * g->c_rs + t->n), g->c_type, t->cols);
    for (int j = 0; j < t->cols; j++) extra[j] += bias[j];
}

static void add_extra(const struct gemm *g, struct tile *t)
{
    float extra[GEMM_FEW_WIDTH];
    for (int r = 0; r < (int)g->m; r++) {
        float *value = t->value + r * t->width;
        find_extra(g, t, r, extra);
        for (int j = 0; j < t->cols; j++) value[j] = extra[j] + value[j];
    }
}

static void add_sums(const struct gemm *g, struct tile *t, const float *sums)
{
    for (int i = 0; i < (int)g->m * t->width; i++) t->value[i] = t->value[i] + sums[i];
}

static void store(const struct gemm *g, const struct tile *t)
{
    for (int r = 0; r < (int)g->m; r++) {
        char *c = (char *)g->c + (r * g->c_rs + t->n) * (int64_t)dtype_size(g->c_type);
        dtype_convert(c, g->c_type, t->value + r * t->width, DT_F32, t->cols);
    }
}

/* A part of the next tile's lines for each block of k of this one: they follow each other in memory, and so they are asked for. */
static const char *find_ahead(const struct job *job, int64_t n, int64_t k)
{
    const struct gemm *g = job->g;
    if (job->across || g->b_cs != g->k || n + 2 * job->cols > g->n) return NULL;
    return element(g->b, g->ab_type, (n + job->cols) * g->b_cs + k * job->cols);
}

/* The lines of this tile further along k, or those of the next tile. */
static const char *find_next(const struct job *job, int64_t n, int64_t k)
{
    const struct gemm *g = job->g;
    bool same = k + GEMM_KC < g->k;
    if (job->across || (!same && n + 2 * job->cols > g->n)) return NULL;
    return element(g->b, g->ab_type, (same ? n : n + job->cols) * g->b_cs + (same ? k + GEMM_KC : 0));
}

/* From zero, or for an F32 C from what is added to it: it is the running value from the start. */
static void make_whole(const struct job *job, struct tile *t)
{
    const struct gemm *g = job->g;
    struct gemm_few_tile tile = {.a = job->a,
                                 .b = element(g->b, g->ab_type, t->n * g->b_cs),
                                 .a_step = job->a_step,
                                 .step = g->b_cs,
                                 .k = g->k,
                                 .rows = (int)g->m,
                                 .cols = t->cols,
                                 .width = t->width,
                                 .value = t->value};
    tile.ahead = (const char *)tile.b + (g->b_cs == g->k ? SOON : 0);
    memset(t->value, 0, (size_t)(g->m * t->width) * sizeof *t->value);
    if ((g->add || g->bias) && g->c_type == DT_F32) add_extra(g, t);
    job->few->whole(&tile);
}

static void make_blocks(const struct job *job, struct tile *t)
{
    const struct gemm *g = job->g;
    int strands = job->few->strands ? job->few->strands : 1;
    _Alignas(64) float sums[GEMM_FEW_ROWS * GEMM_FEW_WIDTH];
    struct gemm_few_block block = {.step = job->across ? g->b_rs : g->b_cs, .rows = (int)g->m};
    block.cols = t->cols, block.width = t->width;
    for (int64_t k = 0; k < g->k; k += GEMM_KC) {
        block.a = job->a + k / GEMM_KC * job->a_step;
        block.b = element(g->b, g->ab_type, t->n * g->b_cs + k * g->b_rs);
        block.k = min64(GEMM_KC, g->k - k);
        block.ahead = find_ahead(job, t->n, k);
        block.next = find_next(job, t->n, k);
        for (block.strand = 0; block.strand < strands; block.strand++) {
            bool first = k == 0 && block.strand == 0;
            block.sums = first ? t->value : sums;
            (job->across ? job->few->across : job->few->along)(&block);
            if (first && (g->add || g->bias) && g->c_type == DT_F32) add_extra(g, t);
            if (!first) add_sums(g, t, sums);
        }
    }
}

/* Columns [n, n + cols). The steps are those of gemm_block.c: an F32 C is the running value from the start, a narrow one
 * is rounded at the end. */
static void make_tile(const struct job *job, int64_t n, int cols)
{
    const struct gemm *g = job->g;
    struct tile t;
    t.n = n, t.cols = cols, t.width = job->width;
    if (job->few->whole && !job->across)
        make_whole(job, &t);
    else
        make_blocks(job, &t);
    if ((g->add || g->bias) && g->c_type != DT_F32) add_extra(g, &t);
    store(g, &t);
}

static void run_tasks(void *arg, int64_t begin, int64_t end, int)
{
    const struct job *job = arg;
    for (int64_t i = begin; i < end; i++) {
        int64_t n = i * job->cols;
        make_tile(job, n, (int)min64(job->cols, job->g->n - n));
    }
}

/* Columns of a task. Along k they are those that a kernel takes at once; so few that workers would wait are halved. */
static int columns_of(const struct gemm_few *few, bool across, int64_t n, int threads)
{
    int64_t even = divide_up(n, (int64_t)threads * TASKS_PER_WORKER), cols = few->lines;
    if (across) return (int)min64(divide_up(even, NARROWEST) * NARROWEST, GEMM_FEW_WIDTH);
    while (cols > FEWEST && cols > 2 * even) cols /= 2;
    return (int)cols;
}

void gemm_few_run(const struct gemm_few *few, const struct gemm *g, void *workspace, struct threads *team)
{
    struct job job = {.few = few, .g = g, .a = workspace, .across = g->b_rs != 1};
    job.a_step = few->whole ? (g->m + 1) / 2 * 2 * GEMM_KC * few->unit : (int64_t)block_bytes(few);
    for (int64_t k = 0; k < g->k; k += GEMM_KC)
        few->pack((char *)workspace + k / GEMM_KC * job.a_step, element(g->a, g->ab_type, k), g->ab_type,
                  g->a_rs, (int)g->m, min64(GEMM_KC, g->k - k));
    int threads = threads_count(team);
    job.cols = columns_of(few, job.across, g->n, threads);
    job.width = job.across ? job.cols : few->lines;
    int64_t tasks = divide_up(g->n, job.cols), grain = tasks / ((int64_t)threads * TASKS_PER_WORKER);
    threads_each(team, tasks, grain > 1 ? grain : 1, run_tasks, &job);
}
