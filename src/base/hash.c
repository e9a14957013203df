/* hash.c - four lanes of multiply and fold over 32-byte stripes. Each step of a lane is a bijection of its state
 * for a given word and of the word for a given state, so a changed word cannot be forgotten within its lane. */
#include "base/hash.h"

#include <string.h>

static const uint64_t odd[4] = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu, 0xd6e8feb86659fd93u,
                                0xa0761d6478bd642fu};

static uint64_t word(const unsigned char *p)
{
    uint64_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

static uint64_t step(uint64_t lane, uint64_t w, uint64_t k)
{
    lane = (lane ^ w) * k;
    return lane ^ lane >> 31;
}

static uint64_t finish(uint64_t h)
{
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdu;
    h ^= h >> 29;
    h *= 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 32;
}

uint64_t hash64(const void *bytes, size_t n, uint64_t seed)
{
    const unsigned char *p = bytes;
    uint64_t a = seed ^ odd[0], b = seed ^ odd[1], c = seed ^ odd[2], d = seed ^ odd[3];
    size_t left = n;
    for (; left >= 32; left -= 32, p += 32) {
        a = step(a, word(p), odd[1]);
        b = step(b, word(p + 8), odd[2]);
        c = step(c, word(p + 16), odd[3]);
        d = step(d, word(p + 24), odd[0]);
    }
    unsigned char tail[32] = {0};
    if (left) memcpy(tail, p, left);
    a = step(a, word(tail), odd[1]);
    b = step(b, word(tail + 8), odd[2]);
    c = step(c, word(tail + 16), odd[3]);
    d = step(d, word(tail + 24), odd[0]);
    uint64_t h = finish(a) + n;
    h = finish(h ^ b);
    h = finish(h ^ c);
    return finish(h ^ d);
}
