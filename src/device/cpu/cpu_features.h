/* cpu_features.h - the vector instructions that this process may use.
 *
 * A level names a set of instructions that kernels are written for. Levels of one architecture are ordered: a machine at a
 * level supports all lower ones. The environment variable PLIMSOLL_CPU (plain, neon, neon-bf16, avx2, avx512, avx512-bf16,
 * amx) lowers the level, never raises it. A level that the machine lacks has no effect, and the program refuses unknown
 * names when it starts. The level is determined once, at the first call.
 */
#pragma once

#include <stdbool.h>

enum cpu_level {
    CPU_PLAIN,       /* the compiler's baseline */
    CPU_NEON,        /* AArch64 Advanced SIMD */
    CPU_NEON_BF16,   /* plus FEAT_BF16: bfmmla, bfdot, bfcvt; and FEAT_FHM: fmlal */
    CPU_AVX2,        /* x86-64-v3: AVX2, FMA, F16C */
    CPU_AVX512,      /* x86-64-v4: AVX-512 F, BW, DQ, VL */
    CPU_AVX512_BF16, /* plus vdpbf16ps */
    CPU_AMX,         /* plus tiles of bf16, which the operating system must allow */
    CPU_LEVELS
};

/* The level to choose kernels for. */
enum cpu_level cpu_level(void);
/* Limits the level to this one, if the CPU has it; NULL and other names have no effect. Call it before
 * kernels run. */
void cpu_level_limit(const char *name);

/* True if code written for `level` may run here (the environment counts). */
bool cpu_has(enum cpu_level level);

/* "plain", "neon-bf16", ... */
const char *cpu_level_name(enum cpu_level level);
