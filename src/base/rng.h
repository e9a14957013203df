/* rng.h - random numbers by index.
 *
 * There is no state: (seed, stream, index) names a number, so that element i of tensor s is the same
 * whichever thread computes it, in whatever order, alone or in a block. The generator is Philox-4x32 with ten
 * rounds: the seed is its key, stream and index its counter. Different streams and different seeds are
 * independent. Use a stream for one kind of number only: rng_u64, rng_uniform and rng_below draw from the
 * same bits at the same index, and rng_normal shares a draw among indices 4k to 4k+3.
 *
 *     rng_fill_normal(seed, tensor_id, begin, w + begin, end - begin, 0.0f, 0.02f);   // any split, same
 * values
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The bare generator: four 32-bit words from a counter of four and a key of two. */
void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t index);

/* In [0,1): 53 random bits. */
double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index);

/* In [0,n), n >= 1; the bias is below n/2^64. */
uint64_t rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n);

/* Mean 0, variance 1 (Box-Muller on 2 x 32 bits). */
double rng_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* out[i] = mean + deviation * rng_normal(seed, stream, first + i), for i in [0,n). */
void rng_fill_normal(uint64_t seed, uint64_t stream, uint64_t first, float *out, size_t n, float mean,
                     float deviation);
