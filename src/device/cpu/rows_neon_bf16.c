/* rows_neon_bf16.c - the row functions (rows.h) compiled for Advanced SIMD with bf16 conversions. */
#include "device/cpu/rows.h"

#if defined(__aarch64__)
#define VEC_NEON_BF16
#define ROWS_TABLE rows_neon_bf16
#include "device/cpu/rows_body.h"
#endif
