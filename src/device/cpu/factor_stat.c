/* factor_stat.c - Adafactor's second moment: sums over rows and over columns, and the size of the step they give.
 *
 * A factored parameter is cut into at most BLOCKS blocks of rows, by its shape alone; each is summed in order by one
 * thread, and the blocks' results are added in order. Column sums of a block are made in two levels, so that fp32
 * holds them: rows are added to a strip of sums, which every ROWS rows is added to the block's. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"
#include <math.h>
#include <string.h>

enum { BLOCKS = 32, ROWS = 64, SPAN = 4096 };

struct stat {
    const struct row_ops *ops;
    enum dtype type;
    const void *g; /* [rows,columns] */
    const float *row_in, *col_in;
    float *row, *col;
    int64_t rows, columns, block_rows, blocks;
    double multiplier, beta2, eps, mean;
    double *partial; /* [blocks]: squares of the step */
    float *sums;     /* [blocks][2][columns]: of the block, of the last few rows */
};

static int64_t rows_per_block(int64_t rows) { return blocks_of(rows, BLOCKS); }

static const void *row_at(const struct stat *s, int64_t r) { return element(s->g, s->type, r * s->columns); }

static float mixed(const struct stat *s, float before, double mean_square)
{
    return (float)(s->beta2 * (double)before + (1 - s->beta2) * (mean_square + s->eps));
}

/* begin and end count blocks */
static void sums_body(void *arg, int64_t begin, int64_t end, int)
{
    struct stat *s = arg;
    double share = s->multiplier * s->multiplier / (double)s->columns;
    for (int64_t b = begin; b < end; b++) {
        float *all = s->sums + b * 2 * s->columns, *few = all + s->columns;
        int64_t first = b * s->block_rows, last = lesser(s->rows, first + s->block_rows);
        memset(all, 0, 2 * (size_t)s->columns * sizeof *all);
        for (int64_t r = first; r < last; r++) {
            s->row[r] = mixed(s, s->row_in[r], share * s->ops->sumsq(s->type, row_at(s, r), s->columns));
            s->ops->add_squares(s->type, few, row_at(s, r), s->columns);
            if ((r - first) % ROWS != ROWS - 1 && r != last - 1) continue;
            s->ops->add_to(DT_F32, all, few, s->columns);
            memset(few, 0, (size_t)s->columns * sizeof *few);
        }
    }
}

/* begin and end count columns */
static void columns_body(void *arg, int64_t begin, int64_t end, int)
{
    struct stat *s = arg;
    double share = s->multiplier * s->multiplier / (double)s->rows;
    for (int64_t j = begin; j < end; j++) {
        double sum = 0;
        for (int64_t b = 0; b < s->blocks; b++) sum += (double)s->sums[b * 2 * s->columns + j];
        s->col[j] = mixed(s, s->col_in[j], share * sum);
    }
}

/* begin and end count blocks */
static void step_body(void *arg, int64_t begin, int64_t end, int)
{
    struct stat *s = arg;
    for (int64_t b = begin; b < end; b++) {
        int64_t last = lesser(s->rows, (b + 1) * s->block_rows);
        s->partial[b] = 0;
        for (int64_t r = b * s->block_rows; r < last; r++)
            s->partial[b] +=
                s->ops->sumsq_over(s->type, row_at(s, r), s->col, s->columns) * s->mean / (double)s->row[r];
    }
}

static double sum_of(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum;
}

/* Sum of the squares of the step. */
static double factored(struct stat *s, const struct kernel_call *call)
{
    s->block_rows = rows_per_block(s->rows), s->blocks = blocks_of(s->rows, s->block_rows);
    s->partial = call->work;
    s->sums = (float *)(s->partial + BLOCKS);
    threads_each(call->team, s->blocks, 1, sums_body, s);
    threads_each(call->team, s->columns, 1024, columns_body, s);
    s->mean = 0;
    for (int64_t r = 0; r < s->rows; r++) s->mean += (double)s->row[r];
    s->mean /= (double)s->rows;
    threads_each(call->team, s->blocks, 1, step_body, s);
    return sum_of(s->partial, s->blocks) * s->multiplier * s->multiplier;
}

/* begin and end count spans of elements */
static void each_body(void *arg, int64_t begin, int64_t end, int)
{
    struct stat *s = arg;
    for (int64_t b = begin; b < end; b++) {
        int64_t at = b * SPAN;
        struct row_second second = {.out = s->row + at,
                                    .in = s->row_in + at,
                                    .g = element(s->g, s->type, at),
                                    .multiplier = (float)s->multiplier,
                                    .beta2 = (float)s->beta2,
                                    .eps = (float)s->eps};
        s->partial[b] = s->ops->second(s->type, &second, lesser(SPAN, s->rows - at));
    }
}

static double not_factored(struct stat *s, const struct kernel_call *call)
{
    s->blocks = blocks_of(s->rows, SPAN), s->partial = call->work;
    threads_each(call->team, s->blocks, SPAN_GRAIN / SPAN, each_body, s);
    return sum_of(s->partial, s->blocks);
}

static void keep(const struct kernel_call *call, int in, int out)
{
    if (!call->out[out] || call->out[out] == call->in[in]) return;
    memcpy(call->out[out], call->in[in], (size_t)tensor_bytes(call_in(call, in)));
}

/* A step that is left out changes no statistic. */
static bool skipped(const struct kernel_call *call, float *factor)
{
    const float *coef = call->in[FACTOR_STAT_COEF];
    factor[FACTOR_SCALE] = factor[FACTOR_MEAN] = 1;
    if (!coef || coef[CLIP_FINITE] != 0) return false;
    keep(call, FACTOR_STAT_ROW, FACTOR_STAT_NEW_ROW);
    keep(call, FACTOR_STAT_COL, FACTOR_STAT_NEW_COL);
    return true;
}

void cpu_factor_stat(const struct kernel_call *call)
{
    const float *scalars = call->in[FACTOR_STAT_SCALARS], *coef = call->in[FACTOR_STAT_COEF];
    float *factor = call->out[FACTOR_STAT_FACTOR];
    if (skipped(call, factor)) return;
    int64_t n = tensor_count(call_in(call, FACTOR_STAT_G));
    struct stat s = {.ops = row_ops(),
                     .type = call_in(call, FACTOR_STAT_G)->type,
                     .g = call->in[FACTOR_STAT_G],
                     .row_in = call->in[FACTOR_STAT_ROW],
                     .col_in = call->in[FACTOR_STAT_COL],
                     .row = call->out[FACTOR_STAT_NEW_ROW],
                     .col = call->out[FACTOR_STAT_NEW_COL],
                     .rows = tensor_count(call_in(call, FACTOR_STAT_ROW)),
                     .multiplier = coef ? (double)coef[CLIP_MULTIPLIER] : 1,
                     .beta2 = (double)scalars[SCALAR_BETA2],
                     .eps = (double)call->op->attr.eps};
    s.columns = n / s.rows;
    double squares = s.col ? factored(&s, call) : not_factored(&s, call);
    double rms = sqrt(squares / (double)n) / (double)call->op->attr.limit;
    factor[FACTOR_SCALE] = rms > 1 ? (float)(1 / rms) : 1;
    if (s.col) factor[FACTOR_MEAN] = (float)s.mean;
}

static size_t cpu_factor_stat_workspace(const struct tensor *const *desc, const struct op *, int)
{
    int64_t n = tensor_count(desc[FACTOR_STAT_G]), rows = tensor_count(desc[FACTOR_STAT_ROW]);
    if (!desc[FACTOR_STAT_COL]) return (size_t)blocks_of(n, SPAN) * sizeof(double);
    int64_t blocks = blocks_of(rows, rows_per_block(rows));
    return BLOCKS * sizeof(double) + (size_t)(2 * blocks * (n / rows)) * sizeof(float);
}

CPU_KERNEL(factor_stat, cpu_factor_stat_workspace);
