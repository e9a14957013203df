/* order.c - see order.h. */
#include "data/order.h"
#include "base/rng.h"

#define ROUNDS 4

uint64_t order_sample(uint64_t seed, uint64_t epoch, uint64_t position, uint64_t n)
{
    if (n < 2) return 0;
    int half = 1;
    while (half < 32 && (1ull << (2 * half)) < n) half++;
    uint64_t mask = (1ull << half) - 1, x = position;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t mixed = rng_u64(seed, epoch * ROUNDS + round, right) & mask;
            uint64_t next = left ^ mixed;
            left = right, right = next;
        }
        x = left << half | right;
    } while (x >= n);
    return x;
}
