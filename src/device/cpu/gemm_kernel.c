/* gemm_kernel.c - choosing a kernel by level, and packing from types the kernel does not read itself.
 *
 * A source type that a kernel has no packer for is converted block by block into a buffer on the stack and packed from there, so that
 * every kernel needs packers for one type only. The buffer keeps the direction of the source: the dimension
 * that is contiguous there is contiguous here, and the converter runs along it.
 */
#include "device/cpu/gemm_kernel.h"
#include "base/minmax.h"

/* By element type; NULL: a compute type is converted to fp32 while it is packed. */
static const struct gemm_kernel *const kernels[CPU_LEVELS][DT_COUNT] = {
    [CPU_PLAIN] = {[DT_F32] = &gemm_plain_f32},
#if defined(__aarch64__)
    [CPU_NEON] = {[DT_F32] = &gemm_neon_f32, [DT_F16] = &gemm_neon_f16},
    [CPU_NEON_BF16] = {[DT_F32] = &gemm_neon_f32, [DT_BF16] = &gemm_neon_bf16, [DT_F16] = &gemm_neon_f16},
#endif
#if defined(__x86_64__)
    [CPU_AVX2] = {[DT_F32] = &gemm_avx2_f32},
    [CPU_AVX512] = {[DT_F32] = &gemm_avx512_f32},
    [CPU_AVX512_BF16] = {[DT_F32] = &gemm_avx512_f32, [DT_BF16] = &gemm_avx512_bf16},
    [CPU_AMX] = {[DT_F32] = &gemm_avx512_f32, [DT_BF16] = &gemm_amx_bf16},
#endif
};

const struct gemm_kernel *gemm_kernel_at(enum cpu_level level, enum dtype type)
{
    if (!dtype_is_compute(type)) return NULL;
    return kernels[level][type] ? kernels[level][type] : kernels[level][DT_F32];
}

const struct gemm_kernel *gemm_kernel_split(enum cpu_level level)
{
#if defined(__aarch64__)
    if (level == CPU_NEON_BF16) return &gemm_neon_split;
#elif defined(__x86_64__)
    if (level == CPU_AMX) return &gemm_amx_split;
#endif
    return gemm_kernel_at(level, DT_F32);
}

int64_t gemm_panel(const struct gemm_kernel *kernel, int width, int64_t k)
{
    return gemm_packed(kernel, (k + kernel->kg - 1) / kernel->kg * kernel->kg * width);
}

/* Elements to pack: (line,k) is at[line*ls + k*ks], a number of `type` or, with numbers, a byte that stands for a bf16 number. */
struct source {
    const char *at;
    enum dtype type;
    const uint16_t *numbers;
    int64_t ls, ks;
};

static int64_t source_size(const struct source *from)
{
    return from->numbers ? 1 : (int64_t)dtype_size(from->type);
}

/* `len` elements, `unit` apart, as bf16 or fp32 numbers. */
static void look_up(void *dst, enum dtype type, const uint16_t *numbers, const uint8_t *bytes, int64_t unit,
                    int64_t len)
{
    if (type == DT_BF16)
        for (int64_t i = 0; i < len; i++) ((uint16_t *)dst)[i] = numbers[bytes[i * unit]];
    else
        for (int64_t i = 0; i < len; i++) ((float *)dst)[i] = bf16_to_f32(numbers[bytes[i * unit]]);
}

/* Convert `count` runs of `len` elements, `step` apart and with element stride `unit`, to rows of `ld`. */
static void convert_runs(void *dst, enum dtype dst_type, int64_t ld, const struct source *from,
                         const char *src, int64_t step, int64_t unit, int64_t count, int64_t len)
{
    size_t to = dtype_size(dst_type);
    int64_t size = source_size(from);
    for (int64_t i = 0; i < count; i++) {
        char *out = (char *)dst + (size_t)(i * ld) * to;
        const char *in = src + i * step * size;
        if (from->numbers) {
            look_up(out, dst_type, from->numbers, (const uint8_t *)in, unit, len);
        } else if (unit == 1) {
            dtype_convert(out, dst_type, in, from->type, len);
        } else {
            for (int64_t j = 0; j < len; j++) {
                dtype_convert(out + (size_t)j * to, dst_type, in + j * unit * size, from->type, 1);
            }
        }
    }
}

enum { BLOCK_LINES = 96, BLOCK_K = 64 }; /* 24 KiB of stack; 96 is a multiple of most panel widths */

static void pack_converted(const struct gemm_kernel *kernel, gemm_pack *pack, int width, char *dst,
                           int64_t stride, const struct source *from, int64_t lines, int64_t k)
{
    _Alignas(64) float block[BLOCK_LINES * BLOCK_K];
    int64_t size = source_size(from), to = (int64_t)dtype_size(kernel->type);
    int64_t most = BLOCK_LINES / width * width; /* whole panels: none is packed by two calls */
    for (int64_t l = 0; l < lines; l += most) {
        int64_t nl = min64(most, lines - l);
        for (int64_t i = 0; i < k; i += BLOCK_K) {
            int64_t nk = min64(BLOCK_K, k - i);
            const char *in = from->at + (l * from->ls + i * from->ks) * size;
            char *out = dst + (l / width * stride + i * width) * to;
            if (from->ls == 1) {
                convert_runs(block, kernel->type, BLOCK_LINES, from, in, from->ks, from->ls, nk, nl);
                pack(out, stride, block, 1, BLOCK_LINES, nl, nk);
            } else {
                convert_runs(block, kernel->type, BLOCK_K, from, in, from->ls, from->ks, nl, nk);
                pack(out, stride, block, BLOCK_K, 1, nl, nk);
            }
        }
    }
}

static void pack_source(const struct gemm_kernel *kernel, bool side_a, void *dst, const struct source *from,
                        int64_t lines, int64_t k)
{
    int width = side_a ? kernel->mr : kernel->nr;
    gemm_pack *const *pack = side_a ? kernel->pack_a : kernel->pack_b;
    int64_t stride = gemm_panel(kernel, width, k);
    if (pack[from->type] && !from->numbers)
        pack[from->type](dst, stride, from->at, from->ls, from->ks, lines, k);
    else
        pack_converted(kernel, pack[kernel->type], width, dst, stride, from, lines, k);
}

void gemm_pack_side(const struct gemm_kernel *kernel, bool side_a, void *dst, const void *src,
                    enum dtype src_type, int64_t ls, int64_t ks, int64_t lines, int64_t k)
{
    const struct source from = {src, src_type, NULL, ls, ks};
    pack_source(kernel, side_a, dst, &from, lines, k);
}

void gemm_pack_bytes(const struct gemm_kernel *kernel, bool side_a, void *dst, const uint8_t *src,
                     const uint16_t *numbers, int64_t ls, int64_t ks, int64_t lines, int64_t k)
{
    const struct source from = {(const char *)src, DT_BF16, numbers, ls, ks};
    pack_source(kernel, side_a, dst, &from, lines, k);
}
