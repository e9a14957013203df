/* paged_rows_avx2.c - attention over blocks for AVX2. */
#include "device/cpu/paged.h"

#if defined(__x86_64__)
#define VEXP_AVX2
#define PAGED_TABLE paged_rows_avx2
#include "device/cpu/vexp.h"
#include "device/cpu/paged_rows.inc"
#endif
