/* dtype.h - element types and their exact conversions. */
#ifndef PLIM_TENSOR_DTYPE_H
#define PLIM_TENSOR_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype { DT_F32, DT_BF16, DT_F16, DT_F64, DT_I32, DT_U16, DT_U8, DT_COUNT };

static inline size_t dtype_size(enum dtype type)
{
    static const unsigned char bytes[DT_COUNT] = {4, 2, 2, 8, 4, 2, 1}; /* in the order of the list */
    return bytes[type];
}
const char *dtype_name(enum dtype type);         /* "f32", "bf16", ... */
enum dtype dtype_from_safetensors(const char *); /* "F32", "BF16", ...; DT_COUNT when unknown */
const char *dtype_safetensors(enum dtype type);

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

/* n elements from one type to another (floating types only), rounding once. dst and src may not overlap
 * unless they are equal and the sizes match. */
void dtype_convert(void *dst, enum dtype dst_type, const void *src, enum dtype src_type, int64_t n);

/* The number that an element of `type` keeps of `value`. */
float dtype_round(enum dtype type, float value);

/* Element type that stores the fp32 master of a narrow weight: the low 16 bits for bf16, the whole number for f16. */
static inline enum dtype dtype_master(enum dtype weight) { return weight == DT_BF16 ? DT_U16 : DT_F32; }

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

/* The first of n elements that is NaN or infinite, -1: none. As fast as memory gives them; other than floating types have none. */
int64_t dtype_find_nonfinite(enum dtype type, const void *elements, int64_t n);

#endif
