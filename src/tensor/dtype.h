/* dtype.h - element types, their properties and their exact conversions.
 *
 * Code asks for a property (dtype_is_narrow(t->type)) rather than listing types, so that a new type is a row of the tables
 * here and in dtype.c, and the kernels that compute with it. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype { DT_F32, DT_BF16, DT_F16, DT_F64, DT_I32, DT_U16, DT_U8, DT_E4M3, DT_E5M2, DT_COUNT };

struct dtype_info {
    unsigned char bytes;
    unsigned char exponent, fraction; /* bits of a floating type; 0: an integer */
    bool compute;                     /* ops compute in it: every kernel with a compute operand takes it */
};

static inline const struct dtype_info *dtype_info(enum dtype type)
{
    static const struct dtype_info infos[] = {
        /* in the order of the list */
        {4, 8, 23, true},   /* f32 */
        {2, 8, 7, true},    /* bf16 */
        {2, 5, 10, true},   /* f16 */
        {8, 11, 52, false}, /* f64 */
        {4, 0, 0, false},   /* i32 */
        {2, 0, 0, false},   /* u16 */
        {1, 0, 0, false},   /* u8 */
        {1, 4, 3, false},   /* e4m3: the OCP's fp8 without infinities */
        {1, 5, 2, false},   /* e5m2: the OCP's fp8 with them */
    };
    static_assert(sizeof infos / sizeof *infos == DT_COUNT, "a row for each type");
    return &infos[type];
}

static inline size_t dtype_size(enum dtype type) { return dtype_info(type)->bytes; }
static inline bool dtype_is_float(enum dtype type) { return dtype_info(type)->exponent > 0; }
static inline bool dtype_is_compute(enum dtype type) { return dtype_info(type)->compute; }
/* A compute type shorter than fp32: sums are wider than it, and its weights may have an fp32 master. */
static inline bool dtype_is_narrow(enum dtype type)
{
    return dtype_is_compute(type) && dtype_size(type) < dtype_size(DT_F32);
}
const char *dtype_name(enum dtype type); /* "f32", "bf16", ... */
/* "F32", "BF16", ...; DT_COUNT when unknown. Files hold fp8 numbers with scales, which model/quantised_folder.h reads. */
enum dtype dtype_from_safetensors(const char *);
const char *dtype_safetensors(enum dtype type); /* NULL: fp8 */
const char *dtype_torch(enum dtype type);       /* "float32", "bfloat16", ... */
uint64_t dtype_infinity(enum dtype type);       /* bits of +infinity, of e4m3 of NaN; floating types only */
double dtype_smallest_normal(enum dtype type);  /* below it bits are lost; floating types only */

static inline float bf16_to_f32(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* Round to nearest, ties to even; NaN stays NaN. */
static inline uint16_t f32_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40);
    bits += 0x7fffu + ((bits >> 16) & 1u);
    return (uint16_t)(bits >> 16);
}

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f); /* ties to even, overflow to infinity */

/* fp8 numbers: ties to even. Without branches, so that loops become vectors. Above the largest number (448 and 57344, with half a step) e4m3 becomes NaN and e5m2 infinite; no
 * conversion saturates. */
static inline uint8_t f32_to_e4m3(float f)
{
    uint32_t bits, rest, small_bits;
    memcpy(&bits, &f, 4);
    rest = bits & 0x7fffffffu;
    float magnitude, small;
    memcpy(&magnitude, &rest, 4);
    small = magnitude + 0x1p14f; /* whose last place is a subnormal's */
    memcpy(&small_bits, &small, 4);
    uint32_t normal = (rest - (120u << 23) + 0x7ffffu + (rest >> 20 & 1u)) >> 20;
    uint32_t is_small = 0u - (rest < 121u << 23), is_large = 0u - (rest > 0x43e80000u); /* above 464 */
    uint32_t code = ((small_bits - 0x46800000u) & is_small) | (normal & ~is_small);
    return (uint8_t)((bits >> 24 & 0x80u) | (code & ~is_large) | (0x7fu & is_large));
}

static inline uint8_t f32_to_e5m2(float f)
{
    uint32_t bits, rest, small_bits;
    memcpy(&bits, &f, 4);
    rest = bits & 0x7fffffffu;
    float magnitude, small;
    memcpy(&magnitude, &rest, 4);
    small = magnitude + 0x1p7f;
    memcpy(&small_bits, &small, 4);
    uint32_t normal = (rest - (112u << 23) + 0xfffffu + (rest >> 21 & 1u)) >> 21;
    uint32_t is_small = 0u - (rest < 113u << 23), is_large = 0u - (rest >= 0x47700000u); /* from 61440 on */
    uint32_t is_nan = 3u & (0u - (rest > 0x7f800000u));
    uint32_t code = ((small_bits - 0x43000000u) & is_small) | (normal & ~is_small);
    return (uint8_t)((bits >> 24 & 0x80u) | (code & ~is_large) | (0x7cu & is_large) | is_nan);
}

float e4m3_to_f32(uint8_t code);
float e5m2_to_f32(uint8_t code);

/* n elements from one type to another (floating types only), rounding once. dst and src may not overlap
 * unless they are equal and the sizes match. */
void dtype_convert(void *dst, enum dtype dst_type, const void *src, enum dtype src_type, int64_t n);

/* The number that an element of `type` keeps of `value`. */
float dtype_round(enum dtype type, float value);

/* The fp32 master of a narrow weight is stored in this type. A weight with fp32's exponent is its upper half, so DT_U16 is enough
 * (master_split); beside any other the master is a whole DT_F32. */
static inline enum dtype dtype_master(enum dtype weight)
{
    bool upper_half = dtype_size(weight) == 2 && dtype_info(weight)->exponent == dtype_info(DT_F32)->exponent;
    return upper_half ? DT_U16 : DT_F32;
}

/* An fp32 master kept as a bf16 weight plus 16 bits, exactly: the weight is the master rounded to nearest with
 * ties away from zero, `low` holds what rounding took. */
static inline void master_split(float master, uint16_t *weight, uint16_t *low)
{
    uint32_t bits;
    memcpy(&bits, &master, 4);
    bits += 0x8000u;
    *weight = (uint16_t)(bits >> 16);
    *low = (uint16_t)bits;
}

static inline float master_join(uint16_t weight, uint16_t low)
{
    uint32_t bits = (((uint32_t)weight << 16) | low) - 0x8000u;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* The first of n elements that is NaN or infinite, -1: none (always so of integers). As fast as memory gives them. */
int64_t dtype_find_nonfinite(enum dtype type, const void *elements, int64_t n);
