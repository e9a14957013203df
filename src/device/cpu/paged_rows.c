/* paged_rows.c - attention over blocks for the architecture's baseline, and the choice of the table. */
#include "device/cpu/cpu_features.h"
#include "device/cpu/paged.h"
#include "device/cpu/vexp.h"

#define PAGED_TABLE paged_rows_baseline
#include "device/cpu/paged_rows.inc"

const struct paged_rows *paged_rows(void)
{
#if defined(__x86_64__)
    if (cpu_has(CPU_AVX512)) return &paged_rows_avx512;
    if (cpu_has(CPU_AVX2)) return &paged_rows_avx2;
#endif
    return &paged_rows_baseline;
}
