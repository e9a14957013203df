/* attention_rows_avx2.c - the panel arithmetic of attention for AVX2, fp32, and that of single queries. */
#include "device/cpu/attention_rows_tables.h"

#if defined(__x86_64__)
#define VEXP_AVX2
#define ROWS_KG     1
#define ROWS_TABLE  attn_rows_avx2
#define ROWS_SINGLE attn_single_avx2
#include "device/cpu/vexp.h"
#include "device/cpu/attention_rows.inc"
#include "device/cpu/attention_single_rows.inc"
#endif
