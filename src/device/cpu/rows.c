/* rows.c - which table of row functions a level uses, and the one in portable C. */
#include "device/cpu/rows.h"

#define ROWS_TABLE rows_plain
#include "device/cpu/rows_body.h"

#if defined(__aarch64__)
static const struct row_ops *const tables[CPU_LEVELS] = {
    [CPU_PLAIN] = &rows_plain,
    [CPU_NEON] = &rows_neon,
    [CPU_NEON_BF16] = &rows_neon_bf16,
};
#elif defined(__x86_64__)
static const struct row_ops *const tables[CPU_LEVELS] = {
    [CPU_PLAIN] = &rows_plain,        [CPU_AVX2] = &rows_avx2,  [CPU_AVX512] = &rows_avx512,
    [CPU_AVX512_BF16] = &rows_avx512, [CPU_AMX] = &rows_avx512,
};
#else
static const struct row_ops *const tables[CPU_LEVELS] = {[CPU_PLAIN] = &rows_plain};
#endif

const struct row_ops *row_ops_at(enum cpu_level level) { return tables[level] ? tables[level] : &rows_plain; }

const struct row_ops *row_ops(void) { return row_ops_at(cpu_level()); }
