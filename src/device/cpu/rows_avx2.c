/* rows_avx2.c - the row functions (rows.h) compiled for AVX2, FMA and F16C. */
#include "device/cpu/rows.h"

#if defined(__x86_64__)
#define VEC_AVX2
#define ROWS_TABLE rows_avx2
#include "device/cpu/rows_body.h"
#endif
