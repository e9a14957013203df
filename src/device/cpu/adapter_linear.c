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
    void *work;
    struct threads *team; /* NULL: this thread alone */
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
    gemm_run(&g, a->work, a->team);
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

/* The run of neighbours that begins at a row: its end. */
static int64_t take_run(struct adapted *a, int64_t row, int64_t rows)
{
    const int32_t *slot = a->call->in[ADAPTER_LINEAR_SLOT];
    int64_t next = row + 1;
    while (next < rows && slot[next] == slot[row]) next++;
    a->slot = slot[row], a->first = row, a->rows = next - row;
    return next;
}

static int64_t rows_of(const struct kernel_call *call)
{
    return tensor_count(call_in(call, ADAPTER_LINEAR_SLOT));
}

static struct adapted adapted_of(const struct kernel_call *call)
{
    const struct tensor *w = call_in(call, ADAPTER_LINEAR_W);
    return (struct adapted){.call = call,
                            .parts = call->op->attr.lines,
                            .m = w->dim[1],
                            .k = w->dim[2],
                            .x_width = tensor_count(call_in(call, ADAPTER_LINEAR_X)) / rows_of(call),
                            .work = call->work,
                            .team = call->team};
}

/* Scratch for runs of any length: how many neighbours share a slot is data. */
static size_t room_of(const struct tensor *const *desc, int threads)
{
    const struct tensor *w = desc[ADAPTER_LINEAR_W];
    size_t bytes = gemm_workspace_most(tensor_count(desc[ADAPTER_LINEAR_SLOT]), w->dim[1], w->dim[2], w->type,
                                       w->type, threads);
    return (bytes + 63) / 64 * 64;
}

/* Runs that begin in [begin, end), each by this thread alone. */
static void runs_body(void *arg, int64_t begin, int64_t end, int thread)
{
    const struct kernel_call *call = arg;
    const int32_t *slot = call->in[ADAPTER_LINEAR_SLOT];
    struct adapted a = adapted_of(call);
    a.team = NULL, a.work = (char *)call->work + (size_t)thread * room_of(call->desc, 1);
    for (int64_t row = begin; row < end; row++) {
        if (row && slot[row] == slot[row - 1]) continue;
        take_run(&a, row, rows_of(call));
        run_rows(&a);
    }
}

/* Many short runs are shared out to threads; all threads share a long one. The bits are the same. */
void cpu_adapter_linear(const struct kernel_call *call)
{
    struct adapted a = adapted_of(call);
    int64_t rows = rows_of(call), runs = 0;
    for (int64_t row = 0; row < rows; runs++) row = take_run(&a, row, rows);
    if (runs >= 2 * (int64_t)threads_count(call->team)) {
        call_each(call, rows, 1, runs_body);
        return;
    }
    for (int64_t row = 0; row < rows;) {
        row = take_run(&a, row, rows);
        run_rows(&a);
    }
}

static size_t cpu_adapter_linear_workspace(const struct tensor *const *desc, const struct op *, int threads)
{
    size_t together = room_of(desc, threads), apart = (size_t)threads * room_of(desc, 1);
    return together > apart ? together : apart;
}

CPU_KERNEL(adapter_linear, cpu_adapter_linear_workspace);
