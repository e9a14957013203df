/* attention_rows_tables.h - the tables that attn_rows_for chooses from; each is in its own file. */
#pragma once

#include "device/cpu/attention_rows.h"

extern const struct attn_rows attn_rows_baseline;
extern const struct attn_single_rows attn_single_baseline;
#if defined(__aarch64__)
extern const struct attn_rows attn_rows_neon_bf16;
extern const struct attn_single_rows attn_single_neon_bf16;
#endif
#if defined(__x86_64__)
extern const struct attn_rows attn_rows_avx2, attn_rows_avx2_bf16, attn_rows_avx512;
extern const struct attn_single_rows attn_single_avx2; /* for all three */
#endif
