/* gemm_neon.h - what the two halves of the AArch64 kernels share: gemm_neon.c multiplies, gemm_neon_pack.c
 * packs. Not for others. */
#ifndef PLIM_DEVICE_CPU_GEMM_NEON_H
#define PLIM_DEVICE_CPU_GEMM_NEON_H

#include "device/cpu/gemm_kernel.h"

#if defined(__aarch64__)
#include <arm_neon.h>

/* Functions that use FEAT_BF16 instructions. */
#if defined(__clang__)
#define GEMM_BF16_CODE __attribute__((target("bf16")))
#else
#define GEMM_BF16_CODE __attribute__((target("+bf16")))
#endif

enum { GEMM_NEON_MR = 8, GEMM_NEON_NR = 12 };

gemm_pack gemm_neon_f32_pack_a, gemm_neon_f32_pack_b, gemm_neon_bf16_pack_a, gemm_neon_bf16_pack_b;
#endif

#endif
