/* gemm_plain.c - the micro-kernel in portable C, written so that compilers vectorise it, and the packing rule
 * that every other kernel is checked against. */
#include "device/cpu/gemm_kernel.h"
#include "base/minmax.h"

enum { MR = 4, NR = 8 };

void gemm_pack_f32_plain(float *dst, int64_t stride, int width, const float *src, int64_t ls, int64_t ks,
                         int64_t lines, int64_t k)
{
    for (int64_t first = 0; first < lines; first += width, dst += stride) {
        int64_t here = min64(width, lines - first);
        for (int64_t i = 0; i < k; i++) {
            const float *from = src + first * ls + i * ks;
            float *to = dst + i * width;
            for (int64_t l = 0; l < here; l++) to[l] = from[l * ls];
            for (int64_t l = here; l < width; l++) to[l] = 0.0f;
        }
    }
}

void gemm_pack_bf16_plain(uint16_t *dst, int64_t stride, int width, int kg, const uint16_t *src, int64_t ls,
                          int64_t ks, int64_t lines, int64_t k)
{
    int64_t padded = (k + kg - 1) / kg * kg;
    for (int64_t first = 0; first < lines; first += width, dst += stride) {
        for (int64_t i = 0; i < padded; i++) {
            uint16_t *to = dst + (i / kg) * width * kg + i % kg;
            for (int64_t l = 0; l < width; l++) {
                bool inside = i < k && first + l < lines;
                to[l * kg] = inside ? src[(first + l) * ls + i * ks] : 0;
            }
        }
    }
}

void gemm_round_plain(uint16_t *c, int64_t ldc, const float *tile, int nr, int rows, int cols)
{
    for (int m = 0; m < rows; m++, c += ldc, tile += nr) {
        for (int n = 0; n < cols; n++) c[n] = f32_to_bf16(tile[n]);
    }
}

static GEMM_PACK(pack_a, MR, gemm_pack_f32_plain)

    static GEMM_PACK(pack_b, NR, gemm_pack_f32_plain)

        static void run(const void *a, const void *b, int64_t k, float *c, int64_t ldc, int rows,
                        bool accumulate)
{
    const float *ap = a, *bp = b;
    float sum[MR][NR] = {{0}};
    for (int64_t i = 0; i < k; i++, ap += MR, bp += NR) {
        for (int m = 0; m < MR; m++) {
            for (int n = 0; n < NR; n++) sum[m][n] += ap[m] * bp[n];
        }
    }
    for (int m = 0; m < rows; m++, c += ldc) {
        for (int n = 0; n < NR; n++) c[n] = accumulate ? c[n] + sum[m][n] : sum[m][n];
    }
}

static void round_tile(uint16_t *c, int64_t ldc, const float *tile, int rows, int cols)
{
    gemm_round_plain(c, ldc, tile, NR, rows, cols);
}

const struct gemm_kernel gemm_plain_f32 = {
    .name = "plain 4x8",
    .mr = MR,
    .nr = NR,
    .kg = 1,
    .type = DT_F32,
    .pack_a = {[DT_F32] = pack_a},
    .pack_b = {[DT_F32] = pack_b},
    .run = run,
    .round = round_tile,
};
