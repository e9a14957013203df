/* dora_norm.c - lengths of the rows of W + s B A, of a weight as numbers and of one in blocks.
 *
 * ROWS rows of the sum are made at a time, a strip of columns after the other, and never all of it. One thread has all of a row,
 * so the order of its sum does not depend on their number. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "tape/quantised.h"

#include <math.h>

enum { ROWS = PANEL_LINES, STRIP = BLOCK_MOST };

struct norms {
    const struct kernel_call *call;
    int64_t k, r, count;        /* columns, rank, rows of y */
    struct quantised_part part; /* of a weight in blocks */
};

static struct norms norms_of(const struct kernel_call *call)
{
    const struct tensor *a = call_in(call, DORA_NORM_A);
    return (struct norms){call, a->dim[1], a->dim[0], call_out(call, DORA_NORM_Y)->dim[0], {0}};
}

/* Adds s B A to `n` columns from c on of rows [row, row + rows). */
static void add_product(const struct norms *f, int64_t row, int rows, int64_t c, int64_t n, float (*w)[STRIP])
{
    float a[STRIP], b, scale = f->call->op->attr.scale;
    enum dtype type = call_in(f->call, DORA_NORM_A)->type;
    for (int64_t k = 0; k < f->r; k++) {
        dtype_convert(a, DT_F32, in_at(f->call, DORA_NORM_A, k * f->k + c), type, n);
        for (int i = 0; i < rows; i++) {
            dtype_convert(&b, DT_F32, in_at(f->call, DORA_NORM_B, (row + i) * f->r + k), type, 1);
            float by = scale * b;
            for (int64_t j = 0; j < n; j++) w[i][j] += by * a[j];
        }
    }
}

/* `n` columns from c on of rows of the weight, counted from attr.first. */
static void load_numbers(const struct norms *f, int64_t row, int rows, int64_t c, int64_t n,
                         float (*w)[STRIP])
{
    const struct kernel_call *call = f->call;
    enum dtype type = call_in(call, DORA_NORM_W)->type;
    int64_t at = call->op->attr.first + row, lines = tensor_count(call_in(call, DORA_NORM_W)) / f->k;
    for (int i = 0; i < rows && !call->op->attr.weight_kn; i++)
        dtype_convert(w[i], DT_F32, in_at(call, DORA_NORM_W, (at + i) * f->k + c), type, n);
    for (int64_t j = 0; j < n && call->op->attr.weight_kn; j++) {
        float column[ROWS];
        dtype_convert(column, DT_F32, in_at(call, DORA_NORM_W, (c + j) * lines + at), type, rows);
        for (int i = 0; i < rows; i++) w[i][j] = column[i];
    }
}

/* Rows of a weight in blocks begin a panel. */
static void load_blocks(const struct norms *f, int64_t row, int rows, int64_t c, int64_t n, float (*w)[STRIP])
{
    const struct block_type *type = f->part.type;
    int64_t panel = (f->call->op->attr.first + row - f->part.first) / PANEL_LINES;
    const unsigned char *bytes = f->call->in[DORA_NORM_Q_W];
    panel_widen(&(struct panel_span){type, bytes + f->part.offset + panel * panel_bytes(type, f->k),
                                     c / type->elements, n / type->elements, rows, DT_F32, w, sizeof *w});
}

static void measure(const struct norms *f, int64_t row, int rows)
{
    float w[ROWS][STRIP], *y = f->call->out[DORA_NORM_Y];
    double sum[ROWS] = {0};
    for (int64_t c = 0; c < f->k; c += STRIP) {
        int64_t n = lesser(STRIP, f->k - c);
        if (f->part.type)
            load_blocks(f, row, rows, c, n, w);
        else
            load_numbers(f, row, rows, c, n, w);
        add_product(f, row, rows, c, n, w);
        for (int i = 0; i < rows; i++)
            for (int64_t j = 0; j < n; j++) sum[i] += (double)w[i][j] * (double)w[i][j];
    }
    for (int i = 0; i < rows; i++) y[row + i] = (float)sqrt(sum[i]);
}

/* begin and end count groups of ROWS rows */
static void numbers_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct norms *f = arg;
    for (int64_t g = begin; g < end; g++) measure(f, g * ROWS, (int)lesser(ROWS, f->count - g * ROWS));
}

void cpu_dora_norm(const struct kernel_call *call)
{
    struct norms f = norms_of(call);
    threads_each(call->team, blocks_of(f.count, ROWS), 1, numbers_body, &f);
}

/* begin and end count panels of the part from its first row of y on */
static void blocks_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct norms *f = arg;
    int64_t skipped = f->call->op->attr.first - f->part.first, from = skipped > 0 ? 0 : -skipped,
            to = lesser(f->count, f->part.lines - skipped);
    for (int64_t g = begin; g < end; g++)
        measure(f, from + g * ROWS, (int)lesser(ROWS, to - from - g * ROWS));
}

/* Rows of y are whole parts of the weight, or begin and end between its panels. */
void cpu_dora_norm_q(const struct kernel_call *call)
{
    struct norms f = norms_of(call);
    int64_t first = call->op->attr.first, end = first + f.count;
    for (int i = 0; quantised_part(&call->op->attr, f.k, i, &f.part); i++) {
        int64_t from = f.part.first > first ? f.part.first : first,
                to = lesser(f.part.first + f.part.lines, end);
        if (from < to) threads_each(call->team, blocks_of(to - from, ROWS), 1, blocks_body, &f);
    }
}

_Static_assert((int)DORA_NORM_A == (int)DORA_NORM_Q_A && (int)DORA_NORM_B == (int)DORA_NORM_Q_B &&
                   (int)DORA_NORM_Y == (int)DORA_NORM_Q_Y,
               "operands keep their places");

CPU_KERNEL(dora_norm, NULL);
CPU_KERNEL(dora_norm_q, NULL);
