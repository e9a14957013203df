/* cpu_features.c - runtime detection of vector instructions.
 *
 * Every level has a row: its name, the level just below it on the same architecture, and a probe. The level
 * of the machine is the last row whose probe says yes; "has" walks down the `below` links.
 */
#define _GNU_SOURCE /* syscall */
#include "device/cpu/cpu_features.h"
#include <stdatomic.h>
#include <string.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

static bool never(void) { return false; }

static bool always(void) { return true; }

#if defined(__aarch64__)
static bool arm_bf16(void)
{
    const unsigned long hwcap_fhm = 1ul << 23, hwcap2_bf16 = 1ul << 14;
    return (getauxval(AT_HWCAP) & hwcap_fhm) && (getauxval(AT_HWCAP2) & hwcap2_bf16);
}
#define NEON_PROBE      always
#define NEON_BF16_PROBE arm_bf16
#else
#define NEON_PROBE      never
#define NEON_BF16_PROBE never
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The builtins look at cpuid and at what the operating system saves (XCR0). F16C is in every AVX2 machine. */
static bool x86_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool x86_avx512(void)
{
    return x86_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool x86_has_tiles(void)
{
    const unsigned bf16 = 1u << 22, tiles = 1u << 24;
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bf16) && (d & tiles);
}

/* Processors with AMX run vdpbf16ps slower than they run fp32 fma on widened operands (measured on Sapphire Rapids:
 * 700-1000 against 1300-1600 GFLOP/s on 16 cores), so where the system keeps tiles from us, the fp32 kernels serve bf16. */
static bool x86_avx512_bf16(void)
{
    return x86_avx512() && __builtin_cpu_supports("avx512bf16") && !x86_has_tiles();
}

/* Tile registers are large, and Linux saves them only for processes that have asked. */
static bool x86_amx(void)
{
    const long ask_permission = 0x1023, tile_data = 18;
    return x86_avx512() && __builtin_cpu_supports("avx512bf16") && x86_has_tiles() &&
           syscall(SYS_arch_prctl, ask_permission, tile_data) == 0;
}
#define AVX2_PROBE        x86_avx2
#define AVX512_PROBE      x86_avx512
#define AVX512_BF16_PROBE x86_avx512_bf16
#define AMX_PROBE         x86_amx
#else
#define AVX2_PROBE        never
#define AVX512_PROBE      never
#define AVX512_BF16_PROBE never
#define AMX_PROBE         never
#endif

static const struct {
    const char *name;
    enum cpu_level below;
    bool (*probe)(void);
} levels[CPU_LEVELS] = {
    [CPU_PLAIN] = {"plain", CPU_PLAIN, always},
    [CPU_NEON] = {"neon", CPU_PLAIN, NEON_PROBE},
    [CPU_NEON_BF16] = {"neon-bf16", CPU_NEON, NEON_BF16_PROBE},
    [CPU_AVX2] = {"avx2", CPU_PLAIN, AVX2_PROBE},
    [CPU_AVX512] = {"avx512", CPU_AVX2, AVX512_PROBE},
    [CPU_AVX512_BF16] = {"avx512-bf16", CPU_AVX512, AVX512_BF16_PROBE},
    [CPU_AMX] = {"amx", CPU_AVX512_BF16, AMX_PROBE},
};

static bool reaches(enum cpu_level from, enum cpu_level level)
{
    while (from != level && from != CPU_PLAIN) from = levels[from].below;
    return from == level;
}

static enum cpu_level detect(void)
{
    enum cpu_level best = CPU_PLAIN;
    for (int i = 0; i < CPU_LEVELS; i++) {
        if (levels[i].probe()) best = (enum cpu_level)i;
    }
    return best;
}

static atomic_int known = -1; /* threads that race here find the same answer */

void cpu_level_limit(const char *name)
{
    enum cpu_level best = detect();
    for (int i = 0; name && i < CPU_LEVELS; i++)
        if (!strcmp(name, levels[i].name) && reaches(best, (enum cpu_level)i)) atomic_store(&known, i);
}

enum cpu_level cpu_level(void)
{
    int level = atomic_load_explicit(&known, memory_order_relaxed);
    if (level < 0) {
        level = (int)detect();
        atomic_store_explicit(&known, level, memory_order_relaxed);
    }
    return (enum cpu_level)level;
}

bool cpu_has(enum cpu_level level) { return reaches(cpu_level(), level); }

const char *cpu_level_name(enum cpu_level level) { return levels[level].name; }
