/* linear_f8.c - products with weights of e4m3 numbers that have a scale for each line.
 *
 * Every fp8 number is exactly a bf16 number, so a product is one of bf16 (gemm.h) whose operands are bytes: 256 bf16 numbers say what
 * each stands for. Sums of some lines of W at a time lie in scratch as fp32; then scales, bias and residual make them y. */
#include "device/cpu/call.h"
#include "device/cpu/gemm.h"
#include "device/cpu/kernels.h"
#include "tensor/f8_lines.h"

enum { SUM_BYTES = 4 << 20, LINES_LEAST = 64 };

struct product {
    const struct kernel_call *call;
    enum dtype type;
    int64_t rows, m, k, step; /* step: lines of W at a time */
    const uint8_t *w;
    uint8_t *codes;       /* [rows,k] */
    float *scales;        /* [rows] */
    float *sums;          /* [rows,step] */
    float *wide;          /* of each worker: [k] or [step], whichever is more */
    void *work;           /* of gemm */
    int64_t first, lines; /* of W, whose sums are there */
};

static int64_t padded(int64_t bytes) { return blocks_of(bytes, 64) * 64; }

static int64_t wide_count(const struct product *p) { return padded(p->k > p->step ? p->k : p->step); }

/* Shapes, and where scratch has what; returns its bytes. */
static int64_t lay_out(struct product *p, const struct tensor *const *desc, const struct op *op, char *work,
                       int threads)
{
    p->m = op->attr.lines[0].lines, p->k = f8_columns(tensor_bytes(desc[LINEAR_F8_W]), p->m);
    p->type = desc[LINEAR_F8_X]->type, p->rows = tensor_count(desc[LINEAR_F8_X]) / p->k;
    int64_t most = SUM_BYTES / ((p->rows + 1) * (int64_t)sizeof(float)) / LINES_LEAST * LINES_LEAST, end = 0;
    p->step = lesser(most > LINES_LEAST ? most : LINES_LEAST, p->m);
    p->codes = (uint8_t *)work, end += padded(p->rows * p->k);
    p->scales = (float *)(void *)(work + end), end += padded(p->rows * (int64_t)sizeof(float));
    p->sums = (float *)(void *)(work + end), end += padded(p->rows * p->step * (int64_t)sizeof(float));
    p->wide = (float *)(void *)(work + end), end += threads * wide_count(p) * (int64_t)sizeof(float);
    p->work = work + end;
    return end;
}

static void round_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct product *p = arg;
    float *wide = p->wide + worker * wide_count(p);
    for (int64_t r = begin; r < end; r++) {
        dtype_convert(wide, DT_F32, in_at(p->call, LINEAR_F8_X, r * p->k), p->type, p->k);
        p->scales[r] = f8_write_line(wide, p->k, p->codes + r * p->k);
    }
}

/* A row of y, of the lines whose sums are there. */
static void finish_row(const struct product *p, int64_t r, float *wide)
{
    const float *by = (const float *)(const void *)(p->w + p->m * p->k) + p->first;
    float *sum = p->sums + r * p->lines, scale = p->scales[r];
    for (int64_t i = 0; i < p->lines; i++) sum[i] = sum[i] * scale * by[i];
    const int slots[] = {LINEAR_F8_BIAS, LINEAR_F8_ADD};
    for (int s = 0; s < 2; s++) {
        if (!p->call->in[slots[s]]) continue;
        int64_t at = p->first + (slots[s] == LINEAR_F8_ADD ? r * p->m : 0);
        dtype_convert(wide, DT_F32, in_at(p->call, slots[s], at), p->type, p->lines);
        for (int64_t i = 0; i < p->lines; i++) sum[i] += wide[i];
    }
    dtype_convert(out_at(p->call, LINEAR_F8_Y, r * p->m + p->first), p->type, sum, DT_F32, p->lines);
}

static void finish_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct product *p = arg;
    for (int64_t r = begin; r < end; r++) finish_row(p, r, p->wide + worker * wide_count(p));
}

void cpu_linear_f8(const struct kernel_call *call)
{
    uint16_t numbers[256];
    struct product p = {.call = call, .w = call->in[LINEAR_F8_W]};
    lay_out(&p, call->desc, call->op, call->work, threads_count(call->team));
    for (int i = 0; i < 256; i++) numbers[i] = f32_to_bf16(e4m3_to_f32((uint8_t)i));
    threads_each(call->team, p.rows, row_grain(p.k), round_body, &p);
    for (; p.first < p.m; p.first += p.lines) {
        p.lines = lesser(p.step, p.m - p.first);
        struct gemm g = gemm_by_lines(p.rows, p.lines, p.k, DT_BF16, DT_F32);
        g.a = p.codes, g.b = p.w + p.first * p.k, g.c = p.sums;
        g.a_numbers = g.b_numbers = numbers;
        gemm_run(&g, p.work, call->team);
        threads_each(call->team, p.rows, row_grain(p.lines), finish_body, &p);
    }
}

static size_t cpu_linear_f8_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    struct product p = {0};
    int64_t bytes = lay_out(&p, desc, op, NULL, threads);
    size_t whole = gemm_workspace(p.rows, p.step, p.k, DT_BF16, DT_F32, threads),
           rest = p.m % p.step ? gemm_workspace(p.rows, p.m % p.step, p.k, DT_BF16, DT_F32, threads) : 0;
    return (size_t)bytes + (whole > rest ? whole : rest);
}

CPU_KERNEL(linear_f8, cpu_linear_f8_workspace);
