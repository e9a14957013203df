/* column_scale.c - columns multiplied with a factor each, and their gradients.
 *
 * Work holds the factors m / norm, [C], and backward a partial sum for each block of KERNEL_ROW_BLOCK rows, which are added to dm in
 * order. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"

#include <string.h>

enum { STRIP = 256 };

static void factors(const struct kernel_call *call, int m_slot, int norm_slot, float *out)
{
    int64_t columns = tensor_count(call_in(call, m_slot));
    const float *norm = call->in[norm_slot];
    dtype_convert(out, DT_F32, call->in[m_slot], call_in(call, m_slot)->type, columns);
    for (int64_t c = 0; c < columns; c++) out[c] /= norm[c];
}

/* A strip of an operand as fp32; zeros where it is absent. */
static void take(const struct kernel_call *call, int slot, int64_t at, float *out, int64_t n)
{
    const void *from = in_at(call, slot, at);
    if (from)
        dtype_convert(out, DT_F32, from, call_in(call, slot)->type, n);
    else
        memset(out, 0, (size_t)n * sizeof *out);
}

static void scale_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    int64_t columns = tensor_count(call_in(call, COLUMN_SCALE_M));
    const float *by = call->work;
    for (int64_t r = begin; r < end; r++)
        for (int64_t c = 0; c < columns; c += STRIP) {
            float x[STRIP], bias[STRIP], add[STRIP];
            int64_t n = lesser(STRIP, columns - c), at = r * columns + c;
            take(call, COLUMN_SCALE_X, at, x, n);
            take(call, COLUMN_SCALE_BIAS, c, bias, n);
            take(call, COLUMN_SCALE_ADD, at, add, n);
            for (int64_t i = 0; i < n; i++) x[i] = (x[i] - bias[i]) * by[c + i] + bias[i] + add[i];
            dtype_convert(out_at(call, COLUMN_SCALE_Y, at), call_out(call, COLUMN_SCALE_Y)->type, x, DT_F32,
                          n);
        }
}

void cpu_column_scale(const struct kernel_call *call)
{
    int64_t columns = tensor_count(call_in(call, COLUMN_SCALE_M));
    factors(call, COLUMN_SCALE_M, COLUMN_SCALE_NORM, call->work);
    call_each(call, tensor_count(call_in(call, COLUMN_SCALE_X)) / columns, row_grain(columns), scale_body);
}

static int64_t bwd_rows(const struct kernel_call *call)
{
    return tensor_count(call_in(call, COLUMN_SCALE_BWD_X)) / tensor_count(call_in(call, COLUMN_SCALE_BWD_M));
}

/* begin and end count blocks of rows */
static void bwd_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    int64_t columns = tensor_count(call_in(call, COLUMN_SCALE_BWD_M)), count = bwd_rows(call);
    const float *by = call->work;
    for (int64_t block = begin; block < end; block++) {
        float *sum = (float *)call->work + (1 + block) * columns;
        int64_t last = lesser(count, (block + 1) * KERNEL_ROW_BLOCK);
        memset(sum, 0, (size_t)columns * sizeof *sum);
        for (int64_t r = block * KERNEL_ROW_BLOCK; r < last; r++)
            for (int64_t c = 0; c < columns; c += STRIP) {
                float x[STRIP], bias[STRIP], dy[STRIP];
                int64_t n = lesser(STRIP, columns - c), at = r * columns + c;
                take(call, COLUMN_SCALE_BWD_X, at, x, n);
                take(call, COLUMN_SCALE_BWD_BIAS, c, bias, n);
                take(call, COLUMN_SCALE_BWD_DY, at, dy, n);
                for (int64_t i = 0; i < n; i++) {
                    sum[c + i] += dy[i] * (x[i] - bias[i]);
                    dy[i] *= by[c + i];
                }
                dtype_convert(out_at(call, COLUMN_SCALE_BWD_DX, at),
                              call_out(call, COLUMN_SCALE_BWD_DX)->type, dy, DT_F32, n);
            }
    }
}

void cpu_column_scale_bwd(const struct kernel_call *call)
{
    int64_t columns = tensor_count(call_in(call, COLUMN_SCALE_BWD_M)),
            blocks = blocks_of(bwd_rows(call), KERNEL_ROW_BLOCK);
    const float *norm = call->in[COLUMN_SCALE_BWD_NORM];
    enum dtype type = call_out(call, COLUMN_SCALE_BWD_DM)->type;
    factors(call, COLUMN_SCALE_BWD_M, COLUMN_SCALE_BWD_NORM, call->work);
    call_each(call, blocks, 1, bwd_body);
    for (int64_t c = 0; c < columns; c++) {
        float dm = 0;
        void *out = out_at(call, COLUMN_SCALE_BWD_DM, c);
        if (call->accumulate) dtype_convert(&dm, DT_F32, out, type, 1);
        for (int64_t b = 0; b < blocks; b++) dm += ((float *)call->work)[(1 + b) * columns + c] / norm[c];
        dtype_convert(out, type, &dm, DT_F32, 1);
    }
}

static size_t cpu_column_scale_workspace(const struct tensor *const *desc, const struct op *, int)
{
    return (size_t)tensor_count(desc[COLUMN_SCALE_M]) * sizeof(float);
}

static size_t cpu_column_scale_bwd_workspace(const struct tensor *const *desc, const struct op *, int)
{
    int64_t columns = tensor_count(desc[COLUMN_SCALE_BWD_M]),
            rows = tensor_count(desc[COLUMN_SCALE_BWD_X]) / columns;
    return (size_t)((1 + blocks_of(rows, KERNEL_ROW_BLOCK)) * columns) * sizeof(float);
}

CPU_KERNEL(column_scale, cpu_column_scale_workspace);
CPU_KERNEL(column_scale_bwd, cpu_column_scale_bwd_workspace);
