/* adapter_linear.c - products of rows with the matrix of their adapter.
 *
 * Neighbours with the same slot are one product of gemm.h, whose rows do not depend on each other. */
#include "device/cpu/call.h"
#include "device/cpu/gemm.h"
#include "device/cpu/kernels.h"

#include <string.h>

struct adapted {
    const struct kernel_call *call;
    const struct op_lines *parts;
    int64_t slot, first, rows; /* rows [first, first + rows) have this slot */
    int64_t m, k, x_width;     /* lines and columns of a matrix; numbers of a row of x */
};

/* Lines [line, line + lines) of the matrix, which read x from column `column` on. */
static void multiply(const struct adapted *a, int64_t line, int64_t lines, int64_t column)
{
    const struct kernel_call *call = a->call;
    enum dtype type = call_in(call, ADAPTER_LINEAR_W)->type;
    struct gemm g = gemm_by_lines(a->rows, lines, a->k, type, type);
    g.a_rs = a->x_width, g.c_rs = a->m;
    g.a = in_at(call, ADAPTER_LINEAR_X, a->first * a->x_width + column);
    g.b = in_at(call, ADAPTER_LINEAR_W, (a->slot * a->m + line) * a->k);
    g.c = out_at(call, ADAPTER_LINEAR_Y, a->first * a->m + line);
    g.add = in_at(call, ADAPTER_LINEAR_ADD, a->first * a->m + line);
    gemm_run(&g, call->work, call->team);
}

static void pass_on(const struct adapted *a)
{
    void *to = out_at(a->call, ADAPTER_LINEAR_Y, a->first * a->m);
    const void *from = in_at(a->call, ADAPTER_LINEAR_ADD, a->first * a->m);
    size_t bytes = (size_t)(a->rows * a->m) * dtype_size(call_out(a->call, ADAPTER_LINEAR_Y)->type);
    if (!from)
        memset(to, 0, bytes);
    else if (from != to)
        memcpy(to, from, bytes);
}

static void run_rows(const struct adapted *a)
{
    if (a->slot < 0) {
        pass_on(a);
    } else if (!a->parts[0].lines) {
        multiply(a, 0, a->m, 0);
    } else {
        for (int64_t p = 0, line = 0; p < OP_LINE_PARTS; line += a->parts[p++].lines)
            if (a->parts[p].lines) multiply(a, line, a->parts[p].lines, p * a->k);
    }
}

void cpu_adapter_linear(const struct kernel_call *call)
{
    const struct tensor *w = call_in(call, ADAPTER_LINEAR_W);
    const int32_t *slot = call->in[ADAPTER_LINEAR_SLOT];
    int64_t rows = tensor_count(call_in(call, ADAPTER_LINEAR_SLOT)), next;
    struct adapted a = {.call = call, .parts = call->op->attr.lines, .m = w->dim[1], .k = w->dim[2]};
    a.x_width = tensor_count(call_in(call, ADAPTER_LINEAR_X)) / rows;
    for (int64_t i = 0; i < rows; i = next) {
        for (next = i + 1; next < rows && slot[next] == slot[i];) next++;
        a.slot = slot[i], a.first = i, a.rows = next - i;
        run_rows(&a);
    }
}

/* How many neighbours share a slot is data: the scratch is for any number of them, and for any part. */
static size_t cpu_adapter_linear_workspace(const struct tensor *const *desc, const struct op *, int threads)
{
    const struct tensor *w = desc[ADAPTER_LINEAR_W];
    return gemm_workspace_most(tensor_count(desc[ADAPTER_LINEAR_SLOT]), w->dim[1], w->dim[2], w->type,
                               w->type, threads);
}

CPU_KERNEL(adapter_linear, cpu_adapter_linear_workspace);
