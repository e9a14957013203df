/* hash.c - hash64 is the checksum of one piece. See hash.h. */
#include "base/hash.h"
#include "base/checksum.h"

uint64_t hash64(const void *bytes, size_t n, uint64_t seed)
{
    struct checksum sum;
    checksum_begin(&sum, seed);
    checksum_add(&sum, bytes, n);
    return checksum_end(&sum);
}
