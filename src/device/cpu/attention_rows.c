/* attention_rows.c - the panel arithmetic of attention for the architecture's baseline, and the choice of the
 * table that goes with a matrix kernel. */
#include "device/cpu/attention_rows_tables.h"
#include "device/cpu/vexp.h"

#define ROWS_KG     1
#define ROWS_TABLE  attn_rows_baseline
#define ROWS_SINGLE attn_single_baseline
#include "device/cpu/attention_rows.inc"
#include "device/cpu/attention_single_rows.inc"

static const struct {
    enum cpu_level level;
    int kg, lanes;
    const struct attn_rows *rows;
} tables[] = {
#if defined(__aarch64__)
    {CPU_NEON_BF16, 4, 4, &attn_rows_neon_bf16},
#endif
#if defined(__x86_64__)
    {CPU_AVX2, 2, 8, &attn_rows_avx2_bf16},      {CPU_AVX512, 1, 16, &attn_rows_avx512},
    {CPU_AVX2, 1, 8, &attn_rows_avx2},
#endif
    {CPU_PLAIN, 1, 4, &attn_rows_baseline},
};

const struct attn_rows *attn_rows_for(const struct gemm_kernel *kernel)
{
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        bool fits = kernel->kg == tables[i].kg && kernel->nr % tables[i].lanes == 0 && !kernel->strands;
        if (fits && cpu_has(tables[i].level)) return tables[i].rows;
    }
    return NULL;
}
