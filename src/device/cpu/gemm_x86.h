/* gemm_x86.h - packing shared by the x86-64 kernels only.
 *
 * All of it is SSE2, which every x86-64 has: packing is limited by memory, not by the width of registers. Both panel layouts
 * consist of 32-bit cells: an fp32, or two bf16 that are adjacent in k.
 */
#pragma once

#include "device/cpu/gemm_kernel.h"

#if defined(__x86_64__)
gemm_pack gemm_x86_f32_pack_6, gemm_x86_f32_pack_16;
gemm_pack gemm_avx512_f32_pack_14, gemm_avx512_f32_pack_32, gemm_avx512_bf16_pack_14,
    gemm_avx512_bf16_pack_32, gemm_avx512_f16_pack_14, gemm_avx512_f16_pack_32; /* by type of the source */
gemm_pack gemm_x86_bf16_pack_14, gemm_x86_bf16_pack_32;                         /* kg 2 */

/* Marks functions that use tiles. Before its first product a thread configures its tile registers as 16 rows
 * of 64 bytes; code that configures them differently restores this. */
#define GEMM_AMX_CODE __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl")))
void gemm_amx_set_up_thread(void);
void gemm_amx_set_up_again(void);
#endif
