/* cpu_features.h - which vector instructions this process may use.
 *
 * A level names a set of instructions that kernels are written for. Levels of one architecture are ordered:
 * a machine at a level has everything of the lower ones. The environment variable PLIMSOLL_CPU (plain, neon,
 * neon-bf16, avx2, avx512, avx512-bf16, amx) lowers the level, never raises it; a level the
 * machine lacks leaves the detected one, and the program refuses unknown names when it starts. It is read once, at the first question.
 */
#ifndef PLIM_DEVICE_CPU_CPU_FEATURES_H
#define PLIM_DEVICE_CPU_CPU_FEATURES_H

#include <stdbool.h>

enum cpu_level {
    CPU_PLAIN,       /* what the compiler's baseline gives */
    CPU_NEON,        /* AArch64 Advanced SIMD */
    CPU_NEON_BF16,   /* and FEAT_BF16: bfmmla, bfdot, bfcvt; and FEAT_FHM: fmlal */
    CPU_AVX2,        /* x86-64-v3: AVX2, FMA, F16C */
    CPU_AVX512,      /* x86-64-v4: AVX-512 F, BW, DQ, VL */
    CPU_AVX512_BF16, /* and vdpbf16ps */
    CPU_AMX,         /* and tiles of bf16, which the operating system must allow */
    CPU_LEVELS
};

/* The level kernels should be chosen for. */
enum cpu_level cpu_level(void);
/* From now on this level, where the CPU has it; NULL and other names change nothing. Before kernels run. */
void cpu_level_limit(const char *name);

/* Whether code written for `level` may run here (environment included). */
bool cpu_has(enum cpu_level level);

/* "plain", "neon-bf16", ... */
const char *cpu_level_name(enum cpu_level level);

#endif
