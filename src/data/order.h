/* order.h - a shuffled order without a list: position -> sample, for any epoch, in constant memory.
 *
 * A keyed Feistel network over the smallest even-bit domain that holds n, walked until it lands inside: a
 * bijection of [0, n) for every (seed, epoch). */
#pragma once

#include <stdint.h>

uint64_t order_sample(uint64_t seed, uint64_t epoch, uint64_t position, uint64_t n);
