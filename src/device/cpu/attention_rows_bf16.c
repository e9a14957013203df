/* attention_rows_bf16.c - the panel arithmetic of attention for bf16 matrix kernels. */
#include "device/cpu/attention_rows_tables.h"

#if defined(__aarch64__)
#define VEXP_BF16
#define ROWS_KG     4
#define ROWS_TABLE  attn_rows_neon_bf16
#define ROWS_SINGLE attn_single_neon_bf16
#elif defined(__x86_64__)
#define VEXP_AVX2
#define ROWS_KG     2
#define ROWS_TABLE  attn_rows_avx2_bf16
#define ROWS_SINGLE attn_single_avx2
#endif

#if defined(ROWS_TABLE)
#include "device/cpu/vexp.h"
#include "device/cpu/attention_rows.inc"
#endif
#if defined(__aarch64__)
#include "device/cpu/attention_single_rows.inc"
#endif
