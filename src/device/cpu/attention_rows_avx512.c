/* attention_rows_avx512.c - the panel arithmetic of attention for AVX-512, fp32: the bits of AVX2, twice the lanes. */
#include "device/cpu/attention_rows_tables.h"

#if defined(__x86_64__)
#define VEXP_AVX512
#define ROWS_KG     1
#define ROWS_TABLE  attn_rows_avx512
#define ROWS_SINGLE attn_single_avx2
#include "device/cpu/vexp.h"
#include "device/cpu/attention_rows.inc"
#endif
