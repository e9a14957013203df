/* linear_q_wide.c - see linear_q_wide.h.
 *
 * A product with W' takes some lines of W at a time, which are columns of y. A gradient takes some columns of W at a time,
 * of all its lines, which are columns of dx. No sum is cut, so the order of summation is gemm's. */
#include "device/cpu/linear_q_wide.h"
#include "device/cpu/call.h"
#include "device/cpu/gemm.h"
#include "device/cpu/kernels.h"
#include "tape/quantised.h"

enum {
    WIDE_BYTES = 4 << 20
}; /* scratch for numbers; more if one panel, or one block of every line, needs it */

bool linear_q_is_wide(const struct op_attr *attr)
{
    bool table = false;
    for (int i = 0; i < OP_LINE_PARTS && attr->lines[i].lines; i++)
        table = table || block_type_of((uint32_t)attr->lines[i].type)->table;
    return attr->keep_x || table;
}

struct wide {
    const struct kernel_call *call;
    const struct op_attr *attr;
    enum dtype type;
    const unsigned char *w; /* of the matrix at hand */
    int64_t k, m, bytes;    /* a matrix is [m,k] */
    int64_t step;           /* lines, or columns of a gradient, at a time */
    struct quantised_part part;
    int64_t first, n; /* the lines of the part, or the columns, that are being widened */
    char *numbers, *work;
};

/* Where operands are. Slots of gradients are those of products, but for x and y. */
struct places {
    int x, w, ends, bias, add;
    bool dx;
};

static struct places places_of(int kind)
{
    if (kind == OP_LINEAR_Q)
        return (struct places){LINEAR_Q_X, LINEAR_Q_W, -1, LINEAR_Q_BIAS, LINEAR_Q_ADD, false};
    if (kind == OP_LINEAR_Q_DX)
        return (struct places){LINEAR_Q_DX_DY, LINEAR_Q_DX_W, -1, -1, LINEAR_Q_DX_ADD, true};
    if (kind == OP_EXPERT_LINEAR_Q)
        return (struct places){EXPERT_LINEAR_Q_X, EXPERT_LINEAR_Q_W, EXPERT_LINEAR_Q_ENDS, -1, -1, false};
    return (struct places){EXPERT_LINEAR_Q_DX_DY,   EXPERT_LINEAR_Q_DX_W,
                           EXPERT_LINEAR_Q_DX_ENDS, -1,
                           EXPERT_LINEAR_Q_DX_ADD,  true};
}

static int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }

/* Columns that are whole blocks in every part. */
static int64_t block_columns(const struct op_attr *attr)
{
    int64_t most = 1;
    for (int i = 0; i < OP_LINE_PARTS && attr->lines[i].lines; i++)
        most = at_least(most, block_type_of((uint32_t)attr->lines[i].type)->elements);
    return most;
}

static struct wide wide_of(const struct tensor *const *desc, const struct op *op)
{
    struct places at = places_of(op->kind);
    struct wide w = {.attr = &op->attr, .type = desc[at.x]->type, .m = quantised_lines(&op->attr)};
    w.bytes = tensor_bytes(desc[at.w]) / (at.ends < 0 ? 1 : desc[at.ends]->dim[0]);
    w.k = quantised_columns(&op->attr, w.bytes);
    int64_t unit = at.dx ? block_columns(&op->attr) : PANEL_LINES, across = at.dx ? w.m : w.k;
    int64_t units = WIDE_BYTES / (unit * across * (int64_t)dtype_size(w.type));
    w.step = lesser(at_least(units, 1) * unit, at.dx ? w.k : w.m);
    return w;
}

static int64_t numbers_bytes(const struct wide *w, bool dx)
{
    return (w->step * (dx ? w->m : w->k) * (int64_t)dtype_size(w->type) + 63) / 64 * 64;
}

/* --- numbers -------------------------------------------------------------------------------------------------- */

/* begin and end count panels from line `first` of the part. */
static void lines_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct wide *w = arg;
    int64_t row = w->k * (int64_t)dtype_size(w->type);
    for (int64_t p = begin; p < end; p++) {
        int64_t panel = w->first / PANEL_LINES + p;
        panel_widen(&(struct panel_span){
            w->part.type, w->w + w->part.offset + panel * panel_bytes(w->part.type, w->k), 0,
            w->k / w->part.type->elements, (int)lesser(PANEL_LINES, w->n - p * PANEL_LINES), w->type,
            w->numbers + p * PANEL_LINES * row, row});
    }
}

/* begin and end count panels of the part; columns [first, first + n) of all its lines. */
static void columns_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct wide *w = arg;
    int64_t row = w->n * (int64_t)dtype_size(w->type), each = w->part.type->elements;
    for (int64_t p = begin; p < end; p++)
        panel_widen(&(struct panel_span){
            w->part.type, w->w + w->part.offset + p * panel_bytes(w->part.type, w->k), w->first / each,
            w->n / each, (int)lesser(PANEL_LINES, w->part.lines - p * PANEL_LINES), w->type,
            w->numbers + (w->part.first + p * PANEL_LINES) * row, row});
}

/* --- products ------------------------------------------------------------------------------------------------- */

/* Rows of x, y and add for one matrix. */
struct rows {
    int64_t first, n;
};

static void multiply_lines(struct wide *w, const struct places *at, struct rows rows)
{
    const struct kernel_call *call = w->call;
    for (int i = 0; quantised_part(w->attr, w->k, i, &w->part); i++)
        for (w->first = 0; w->first < w->part.lines; w->first += w->step) {
            w->n = lesser(w->step, w->part.lines - w->first);
            int64_t column = w->part.first + w->first, c = rows.first * w->m + column;
            struct gemm g = gemm_by_lines(rows.n, w->n, w->k, w->type, w->type);
            threads_each(call->team, panels_count(w->n), 1, lines_body, w);
            g.a = element(call->in[at->x], w->type, rows.first * w->k), g.b = w->numbers;
            g.c = element(call->out[0], w->type, c), g.c_rs = w->m, g.split = at->ends < 0 && w->attr->split;
            if (at->bias >= 0) g.bias = element(call->in[at->bias], w->type, column);
            if (at->add >= 0) g.add = element(call->in[at->add], w->type, c);
            gemm_run(&g, w->work, call->team);
        }
}

static void multiply_columns(struct wide *w, const struct places *at, struct rows rows)
{
    const struct kernel_call *call = w->call;
    for (w->first = 0; w->first < w->k; w->first += w->step) {
        w->n = lesser(w->step, w->k - w->first);
        struct gemm g = gemm_by_rows(rows.n, w->n, w->m, w->type, w->type);
        for (int i = 0; quantised_part(w->attr, w->k, i, &w->part); i++)
            threads_each(call->team, panels_count(w->part.lines), 1, columns_body, w);
        g.a = element(call->in[at->x], w->type, rows.first * w->m), g.b = w->numbers;
        g.c = element(call->out[0], w->type, rows.first * w->k + w->first), g.c_rs = w->k;
        g.add = element(call->in[at->add], w->type, rows.first * w->k + w->first);
        g.split = at->ends < 0 && w->attr->split;
        gemm_run(&g, w->work, call->team);
    }
}

_Static_assert(LINEAR_Q_Y == 0 && LINEAR_Q_DX_DX == 0 && EXPERT_LINEAR_Q_Y == 0 && EXPERT_LINEAR_Q_DX_DX == 0,
               "a product is the first output");

void linear_q_wide(const struct kernel_call *call)
{
    struct places at = places_of(call->op->kind);
    struct wide w = wide_of(call->desc, call->op);
    int64_t experts = at.ends < 0 ? 1 : call_in(call, at.ends)->dim[0], first = 0;
    int64_t rows = tensor_count(call_in(call, at.x)) / (at.dx ? w.m : w.k);
    const int32_t *ends = at.ends < 0 ? NULL : call->in[at.ends];
    w.call = call, w.numbers = call->work, w.work = w.numbers + numbers_bytes(&w, at.dx);
    for (int64_t e = 0; e < experts; e++) {
        int64_t end = ends ? ends[e] : rows;
        w.w = (const unsigned char *)call->in[at.w] + e * w.bytes;
        if (end > first)
            (at.dx ? multiply_columns : multiply_lines)(&w, &at, (struct rows){first, end - first});
        first = end;
    }
}

/* --- scratch -------------------------------------------------------------------------------------------------- */

typedef size_t workspace(int64_t m, int64_t n, int64_t k, enum dtype ab_type, enum dtype c_type, int threads);

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Covers a full step, and the last one of each part or of the columns. How many rows an expert has is data. */
size_t linear_q_wide_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    struct places at = places_of(op->kind);
    struct wide w = wide_of(desc, op);
    int64_t sum = at.dx ? w.m : w.k, rows = tensor_count(desc[at.x]) / sum;
    workspace *need = at.ends >= 0     ? gemm_workspace_most
                      : op->attr.split ? gemm_split_workspace
                                       : gemm_workspace;
    int64_t last = at.dx ? w.k % w.step : 0;
    size_t most = need(rows, w.step, sum, w.type, w.type, threads);
    if (last) most = larger(most, need(rows, last, sum, w.type, w.type, threads));
    for (int i = 0; !at.dx && i < OP_LINE_PARTS && op->attr.lines[i].lines; i++) {
        last = op->attr.lines[i].lines % w.step;
        if (last) most = larger(most, need(rows, last, sum, w.type, w.type, threads));
    }
    return (size_t)numbers_bytes(&w, at.dx) + most;
}

void cpu_linear_q_dx(const struct kernel_call *call) { linear_q_wide(call); }
void cpu_expert_linear_q_dx(const struct kernel_call *call) { linear_q_wide(call); }

CPU_KERNEL(linear_q_dx, linear_q_wide_workspace);
CPU_KERNEL(expert_linear_q_dx, linear_q_wide_workspace);
