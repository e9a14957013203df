/* rows_avx512.c - the row functions (rows.h) compiled for AVX-512. */
#include "device/cpu/rows.h"

#if defined(__x86_64__)
#define VEC_AVX512
#define ROWS_TABLE rows_avx512
#include "device/cpu/rows_body.h"
#endif
