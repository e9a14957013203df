/* paged_rows_avx512.c - attention over blocks for AVX-512. */
#include "device/cpu/paged.h"

#if defined(__x86_64__)
#define VEXP_AVX512
#define PAGED_TABLE paged_rows_avx512
#include "device/cpu/vexp.h"
#include "device/cpu/paged_rows.inc"
#endif
