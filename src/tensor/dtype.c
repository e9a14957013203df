/* dtype.c - the table of element types and the conversions between the floating ones.
 *
 * Every conversion goes through fp32 in blocks: a reader per source type, a writer per target type. That is
 * one rounding whenever the source fits in fp32, and fp64 is the only one that does not: when the target is
 * narrower than fp32 its reader rounds to odd (the last bit remembers that something was cut off), after
 * which rounding to a type at least two bits shorter gives what rounding once would have given. fp64 to fp64
 * is a copy.
 *
 * The loops are plain so that compilers vectorise them; half precision uses the machine's own conversion
 * where there is one (always on AArch64, F16C on x86-64).
 */
#include "tensor/dtype.h"
#include <math.h>
#if defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

typedef void to_f32(float *dst, const void *src, int64_t n);
typedef void from_f32(void *dst, const float *src, int64_t n);

static uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* A half's exponent and fraction moved into place are the value times 2^-112: one exact multiplication puts
 * it right, subnormals included; infinity and NaN get their exponent back. */
static inline float half_widen(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t rest = (uint32_t)(h & 0x7fffu) << 13;
    float f = float_of(rest) * 0x1p112f;
    uint32_t special = rest >= 0x0f800000u ? rest | 0x7f800000u : bits_of(f);
    if (rest > 0x0f800000u) special |= 0x00400000u; /* a NaN becomes quiet, as hardware does */
    return float_of(sign | special);
}

/* Normal results: rebias and round in integers. Subnormal results: adding 0.5 lets fp32 addition do the
 * rounding at the half's last place. */
static inline uint16_t half_narrow(float f)
{
    uint32_t bits = bits_of(f), rest = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
    uint32_t normal = (rest + 0xc8000fffu + (rest >> 13 & 1u)) >> 13;
    uint32_t small = bits_of(float_of(rest) + 0.5f) - 0x3f000000u;
    uint32_t half = rest < 0x38800000u ? small : normal;
    if (rest >= 0x477ff000u) half = 0x7c00u;
    if (rest > 0x7f800000u) half = 0x7e00u | (rest >> 13 & 0x3ffu);
    return (uint16_t)(sign | half);
}

float f16_to_f32(uint16_t h) { return half_widen(h); }

uint16_t f32_to_f16(float f) { return half_narrow(f); }

/* An e5m2 is the upper half of an f16. */
float e5m2_to_f32(uint8_t code) { return half_widen((uint16_t)(code << 8)); }

/* Exponent and fraction moved into place are the value times 2^-120. */
float e4m3_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, rest = code & 0x7fu;
    uint32_t bits = rest == 0x7f ? 0x7fc00000u : bits_of(float_of(rest << 20) * 0x1p120f);
    return float_of(sign | bits);
}

/* ---- readers ---- */

static void read_f32(float *dst, const void *src, int64_t n) { memcpy(dst, src, (size_t)n * 4); }

static void read_bf16(float *dst, const void *src, int64_t n)
{
    const uint16_t *from = src;
    for (int64_t i = 0; i < n; i++) dst[i] = bf16_to_f32(from[i]);
}

static void read_f64(float *dst, const void *src, int64_t n)
{
    const double *from = src;
    for (int64_t i = 0; i < n; i++) dst[i] = (float)from[i];
}

static void read_f64_odd(float *dst, const void *src, int64_t n)
{
    const double *from = src;
    for (int64_t i = 0; i < n; i++) {
        double d = from[i], size = d < 0 ? -d : d;
        float f = (float)d;
        uint32_t bits = bits_of(f);
        double got = (double)float_of(bits & 0x7fffffffu);
        if (got > size) bits--; /* back to the magnitude below; infinity becomes the largest number */
        if (got != size && d == d) bits |= 1u;
        dst[i] = float_of(bits);
    }
}

#if defined(__aarch64__)
static void read_f16(float *dst, const void *src, int64_t n)
{
    const __fp16 *from = src;
    for (int64_t i = 0; i < n; i++) dst[i] = (float)from[i];
}

static void write_f16(void *dst, const float *src, int64_t n)
{
    __fp16 *to = dst;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) vst1_f16(to + i, vcvt_f16_f32(vld1q_f32(src + i)));
    for (; i < n; i++) to[i] = (__fp16)src[i];
}
#else
#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) static int64_t read_f16c(float *dst, const uint16_t *src, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(src + i))));
    }
    return i;
}

__attribute__((target("avx,f16c"))) static int64_t write_f16c(uint16_t *dst, const float *src, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(dst + i), half);
    }
    return i;
}

/* Every processor with AVX2 has F16C; compilers cannot all be asked for F16C by name. */
static bool has_f16c(void) { return __builtin_cpu_supports("avx2"); }
#else
static int64_t read_f16c(float *, const uint16_t *, int64_t) { return 0; }

static int64_t write_f16c(uint16_t *, const float *, int64_t) { return 0; }

static bool has_f16c(void) { return false; }
#endif

static void read_f16(float *dst, const void *src, int64_t n)
{
    const uint16_t *from = src;
    for (int64_t i = has_f16c() ? read_f16c(dst, from, n) : 0; i < n; i++) dst[i] = half_widen(from[i]);
}

static void write_f16(void *dst, const float *src, int64_t n)
{
    uint16_t *to = dst;
    for (int64_t i = has_f16c() ? write_f16c(to, src, n) : 0; i < n; i++) to[i] = half_narrow(src[i]);
}
#endif

static void read_e4m3(float *dst, const void *src, int64_t n)
{
    const uint8_t *from = src;
    for (int64_t i = 0; i < n; i++) dst[i] = e4m3_to_f32(from[i]);
}

static void read_e5m2(float *dst, const void *src, int64_t n)
{
    const uint8_t *from = src;
    for (int64_t i = 0; i < n; i++) dst[i] = e5m2_to_f32(from[i]);
}

/* ---- writers ---- */

static void write_f32(void *dst, const float *src, int64_t n) { memcpy(dst, src, (size_t)n * 4); }

#if defined(__aarch64__)
#if defined(__clang__)
#define BF16_CODE __attribute__((target("bf16")))
#else
#define BF16_CODE __attribute__((target("+bf16")))
#endif

/* bfcvtn rounds as f32_to_bf16 does. */
BF16_CODE static int64_t write_bfcvt(uint16_t *dst, const float *src, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint16x8_t x;
        __asm__("bfcvtn %0.4h, %1.4s\nbfcvtn2 %0.8h, %2.4s"
                : "=&w"(x)
                : "w"(vld1q_f32(src + i)), "w"(vld1q_f32(src + i + 4)));
        vst1q_u16(dst + i, x);
    }
    return i;
}

static bool has_bfcvt(void)
{
    const unsigned long hwcap2_bf16 = 1ul << 14;
    return (getauxval(AT_HWCAP2) & hwcap2_bf16) != 0;
}
#else
static int64_t write_bfcvt(uint16_t *, const float *, int64_t) { return 0; }

static bool has_bfcvt(void) { return false; }
#endif

static void write_bf16(void *dst, const float *src, int64_t n)
{
    uint16_t *to = dst;
    for (int64_t i = has_bfcvt() ? write_bfcvt(to, src, n) : 0; i < n; i++) to[i] = f32_to_bf16(src[i]);
}

static void write_f64(void *dst, const float *src, int64_t n)
{
    double *to = dst;
    for (int64_t i = 0; i < n; i++) to[i] = (double)src[i];
}

static void write_e4m3(void *dst, const float *src, int64_t n)
{
    uint8_t *to = dst;
    for (int64_t i = 0; i < n; i++) to[i] = f32_to_e4m3(src[i]);
}

static void write_e5m2(void *dst, const float *src, int64_t n)
{
    uint8_t *to = dst;
    for (int64_t i = 0; i < n; i++) to[i] = f32_to_e5m2(src[i]);
}

/* ---- the table ---- */

static const struct {
    const char *name, *safetensors, *torch;
    to_f32 *read; /* readers and writers: floating types only */
    from_f32 *write;
} types[DT_COUNT] = {
    [DT_F32] = {"f32", "F32", "float32", read_f32, write_f32},
    [DT_BF16] = {"bf16", "BF16", "bfloat16", read_bf16, write_bf16},
    [DT_F16] = {"f16", "F16", "float16", read_f16, write_f16},
    [DT_F64] = {"f64", "F64", "float64", read_f64, write_f64},
    [DT_I32] = {"i32", "I32", "int32", NULL, NULL},
    [DT_U16] = {"u16", "U16", "uint16", NULL, NULL},
    [DT_U8] = {"u8", "U8", "uint8", NULL, NULL},
    [DT_E4M3] = {"e4m3", NULL, "float8_e4m3fn", read_e4m3, write_e4m3},
    [DT_E5M2] = {"e5m2", NULL, "float8_e5m2", read_e5m2, write_e5m2},
};

const char *dtype_name(enum dtype type) { return types[type].name; }

const char *dtype_safetensors(enum dtype type) { return types[type].safetensors; }

const char *dtype_torch(enum dtype type) { return types[type].torch; }

uint64_t dtype_infinity(enum dtype type)
{
    const struct dtype_info *info = dtype_info(type);
    if (type == DT_E4M3) return 0x7f;
    return ((UINT64_C(1) << info->exponent) - 1) << info->fraction;
}

double dtype_smallest_normal(enum dtype type)
{
    return ldexp(1, 2 - (1 << (dtype_info(type)->exponent - 1)));
}

enum dtype dtype_from_safetensors(const char *name)
{
    int i = 0;
    while (i < DT_COUNT && !(types[i].safetensors && !strcmp(name, types[i].safetensors))) i++;
    return (enum dtype)i;
}

void dtype_convert(void *dst, enum dtype dst_type, const void *src, enum dtype src_type, int64_t n)
{
    if (dst_type == src_type) {
        memmove(dst, src, (size_t)n * dtype_size(src_type));
        return;
    }
    to_f32 *read = src_type == DT_F64 && dtype_size(dst_type) < 4 ? read_f64_odd : types[src_type].read;
    from_f32 *write = types[dst_type].write;
    if (dst_type == DT_F32) {
        read(dst, src, n);
        return;
    }
    if (src_type == DT_F32) {
        write(dst, src, n);
        return;
    }
    enum { BLOCK = 512 };
    float block[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t here = n - i < BLOCK ? n - i : BLOCK;
        read(block, (const char *)src + (size_t)i * dtype_size(src_type), here);
        write((char *)dst + (size_t)i * dtype_size(dst_type), block, here);
    }
}

float dtype_round(enum dtype type, float value)
{
    char narrow[sizeof(double)];
    dtype_convert(narrow, type, &value, DT_F32, 1);
    dtype_convert(&value, DT_F32, narrow, type, 1);
    return value;
}

/* Without an early end in a span the loop is one that compilers make vectors of. */
#define FIND_NONFINITE(name, word)                                                                           \
    static int64_t name(const word *x, int64_t n, word infinity)                                             \
    {                                                                                                        \
        enum { SPAN = 4096 };                                                                                \
        const word magnitude = (word)-1 >> 1;                                                                \
        for (int64_t from = 0; from < n; from += SPAN) {                                                     \
            int64_t end = n - from < SPAN ? n : from + SPAN;                                                 \
            word any = 0;                                                                                    \
            for (int64_t i = from; i < end; i++) any |= (word)((x[i] & magnitude) >= infinity);              \
            for (int64_t i = from; any && i < end; i++)                                                      \
                if ((x[i] & magnitude) >= infinity) return i;                                                \
        }                                                                                                    \
        return -1;                                                                                           \
    }

FIND_NONFINITE(find_nonfinite_8, uint8_t)
FIND_NONFINITE(find_nonfinite_16, uint16_t)
FIND_NONFINITE(find_nonfinite_32, uint32_t)
FIND_NONFINITE(find_nonfinite_64, uint64_t)

int64_t dtype_find_nonfinite(enum dtype type, const void *elements, int64_t n)
{
    uint64_t infinity = dtype_infinity(type);
    if (!dtype_is_float(type)) return -1;
    if (dtype_size(type) == 1) return find_nonfinite_8(elements, n, (uint8_t)infinity);
    if (dtype_size(type) == 2) return find_nonfinite_16(elements, n, (uint16_t)infinity);
    if (dtype_size(type) == 4) return find_nonfinite_32(elements, n, (uint32_t)infinity);
    return find_nonfinite_64(elements, n, infinity);
}
