/* gemm_few_neon.h - internal to the AArch64 kernels for few rows: sixteen lines of B side by side. */
#pragma once

#include "device/cpu/gemm_few.h"
#include "device/cpu/gemm_neon.h"

#if defined(__aarch64__)

enum { STEP = 8, LINES = 16, GROUP = 4, GROUPS = LINES / GROUP, ROWS = 8, ROWS_AT_ONCE = 4 };

/* A copy of all lines, used if lines are missing or would evict each other from the cache while they are read
 * again. */
struct copied {
    _Alignas(16) char lines[LINES * GEMM_KC * 4];
};

/* A block with all its lines; `step` in bytes. */
struct lines {
    const char *b;
    int64_t step;
    const char *ahead; /* the next 16 lines' worth of data */
};

FEW_INLINE struct lines find_lines(const struct gemm_few_block *p, int size, bool again, struct copied *copy)
{
    const char *ahead = p->ahead ? p->ahead : p->b;
    if (p->cols == LINES && !again) return (struct lines){p->b, p->step * size, ahead};
    few_copy_lines(copy->lines, p->k * size, LINES, p->b, p->step * size, p->cols, p->k * size);
    return (struct lines){copy->lines, p->k * size, ahead};
}

/* w[i] = i of k of four lines, and i + 4 of k in the upper half. */
FEW_INLINE void few_turn_16(uint16x8_t w[4], const uint16x8_t r[4])
{
    for (int odd = 0; odd < 2; odd++) {
        uint16x8_t x = odd ? vtrn2q_u16(r[0], r[1]) : vtrn1q_u16(r[0], r[1]);
        uint16x8_t y = odd ? vtrn2q_u16(r[2], r[3]) : vtrn1q_u16(r[2], r[3]);
        uint32x4_t x2 = vreinterpretq_u32_u16(x), y2 = vreinterpretq_u32_u16(y);
        w[odd] = vreinterpretq_u16_u32(vtrn1q_u32(x2, y2));
        w[odd + 2] = vreinterpretq_u16_u32(vtrn2q_u32(x2, y2));
    }
}

/* Eight k of four lines. */
FEW_INLINE void few_load_16(uint16x8_t r[4], const char *b, int64_t step)
{
    for (int l = 0; l < 4; l++) r[l] = vld1q_u16((const uint16_t *)(const void *)(b + l * step));
}

#endif
