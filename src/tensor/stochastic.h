/* stochastic.h - rounding fp32 to bf16 at random, so that the mean is exact: what a parameter without a master and a
 * moment of 16 bits need, whose changes are mostly smaller than half a unit of their last place.
 *
 * The random bits are a function of (seed and step, parameter, element) and of nothing else: threads, slices and
 * devices agree. tape/op.h says the same in words.
 *
 *     uint32_t key = stochastic_key(step_bits, stream);       // once per op
 *     uint32_t r = stochastic_bits(key, first + i);
 *     p[i] = stochastic_bf16(value, STOCHASTIC_P(r));
 */
#pragma once

#include <stdint.h>
#include <string.h>

#define STOCHASTIC_ODD 0x9e3779b1u

/* Murmur3's finalizer: each input bit moves about half of the output bits. */
static inline uint32_t stochastic_mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return x ^ (x >> 16);
}

static inline uint32_t stochastic_key(uint32_t step_bits, uint32_t stream)
{
    return stochastic_mix(stochastic_mix(stream) ^ step_bits);
}

static inline uint32_t stochastic_bits(uint32_t key, uint64_t index)
{
    return stochastic_mix(((uint32_t)index * STOCHASTIC_ODD) ^ key);
}

/* 16 bits for each of the three numbers an element has. */
#define STOCHASTIC_P(r) ((r)&0xffffu)
#define STOCHASTIC_M(r) ((r) >> 16)
#define STOCHASTIC_V(r) (((r)*STOCHASTIC_ODD) >> 16)

/* The neighbour above in magnitude with the probability that the value is on the way to it. */
static inline uint16_t stochastic_bf16(float value, uint32_t bits16)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40);
    return (uint16_t)((bits + bits16) >> 16);
}
