/* tile.c - small packed blocks on top of the micro-kernels; see tile.h. */
#include "device/cpu/tile.h"
#include "device/cpu/gemm_kernel.h"

static const struct gemm_kernel *kernel_for(enum dtype type) { return gemm_kernel_at(cpu_level(), type); }

static size_t packed_bytes(const struct gemm_kernel *kernel, int width, int64_t lines, int64_t k)
{
    int64_t panels = (lines + width - 1) / width;
    size_t bytes = (size_t)(panels * gemm_panel(kernel, width, k)) * dtype_size(kernel->type);
    return (bytes + GEMM_SLACK + 63) & ~(size_t)63;
}

int tile_rows(enum dtype type) { return kernel_for(type)->mr; }

int tile_cols(enum dtype type) { return kernel_for(type)->nr; }

size_t tile_a_bytes(enum dtype type, int64_t rows, int64_t k)
{
    const struct gemm_kernel *kernel = kernel_for(type);
    return packed_bytes(kernel, kernel->mr, rows, k);
}

size_t tile_b_bytes(enum dtype type, int64_t k, int64_t cols)
{
    const struct gemm_kernel *kernel = kernel_for(type);
    return packed_bytes(kernel, kernel->nr, cols, k);
}

void tile_pack_a(enum dtype type, void *dst, const void *src, enum dtype src_type, int64_t rs, int64_t cs,
                 int64_t rows, int64_t k)
{
    gemm_pack_side(kernel_for(type), true, dst, src, src_type, rs, cs, rows, k);
}

void tile_pack_b(enum dtype type, void *dst, const void *src, enum dtype src_type, int64_t rs, int64_t cs,
                 int64_t k, int64_t cols)
{
    gemm_pack_side(kernel_for(type), false, dst, src, src_type, cs, rs, cols, k);
}

/* The last columns of C: a whole tile beside C, of which the columns that exist are copied. */
static void edge(const struct gemm_kernel *kernel, float *c, int64_t ldc, const void *a, const void *b,
                 int rows, int cols, int64_t k, bool accumulate)
{
    _Alignas(64) float tile[GEMM_MAX_MR * GEMM_MAX_NR];
    kernel->run(a, b, k, tile, kernel->nr, rows, false);
    for (int m = 0; m < rows; m++, c += ldc) {
        const float *from = tile + m * kernel->nr;
        for (int n = 0; n < cols; n++) c[n] = accumulate ? c[n] + from[n] : from[n];
    }
}

void tile_multiply(enum dtype type, float *c, int64_t ldc, const void *a, const void *b, int64_t rows,
                   int64_t cols, int64_t k, bool accumulate)
{
    const struct gemm_kernel *kernel = kernel_for(type);
    int mr = kernel->mr, nr = kernel->nr;
    int64_t size = (int64_t)dtype_size(kernel->type);
    int64_t a_step = gemm_panel(kernel, mr, k) * size, b_step = gemm_panel(kernel, nr, k) * size;
    const char *bp = b;
    for (int64_t n = 0; n < cols; n += nr, bp += b_step) {
        const char *ap = a;
        int nc = (int)(cols - n < nr ? cols - n : nr);
        for (int64_t m = 0; m < rows; m += mr, ap += a_step) {
            int mc = (int)(rows - m < mr ? rows - m : mr);
            float *to = c + m * ldc + n;
            if (nc == nr) {
                kernel->run(ap, bp, k, to, ldc, mc, accumulate);
            } else {
                edge(kernel, to, ldc, ap, bp, mc, nc, k, accumulate);
            }
        }
    }
}
