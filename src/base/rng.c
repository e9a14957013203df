/* rng.c - Philox-4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
 * 2011).
 *
 * Counter words: index low, index high, stream low, stream high. Key words: seed low, seed high. One block of
 * four words is two 64-bit draws: rng_u64 uses the first, Box-Muller both, each for a pair.
 */
#include "base/rng.h"
#include <math.h>

void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t a = counter[0], b = counter[1], c = counter[2], d = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * a, p1 = (uint64_t)0xCD9E8D57u * c;
        a = (uint32_t)(p1 >> 32) ^ b ^ k0;
        b = (uint32_t)p1;
        c = (uint32_t)(p0 >> 32) ^ d ^ k1;
        d = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = a;
    out[1] = b;
    out[2] = c;
    out[3] = d;
}

struct draw {
    uint64_t first, second;
};

static struct draw draw(uint64_t seed, uint64_t stream, uint64_t index)
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream,
                                 (uint32_t)(stream >> 32)};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    rng_philox(counter, key, out);
    return (struct draw){(uint64_t)out[1] << 32 | out[0], (uint64_t)out[3] << 32 | out[2]};
}

uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t index) { return draw(seed, stream, index).first; }

double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    return (double)(rng_u64(seed, stream, index) >> 11) * 0x1p-53;
}

uint64_t rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)rng_u64(seed, stream, index) * n) >> 64);
}

/* The normals of indices 4k to 4k+3: two pairs by Box-Muller. The radius' uniform is shifted into (0,1] to keep the
 * logarithm finite. Single precision is enough: the tail ends at 6.6 deviations. */
static void four_normals(uint64_t seed, uint64_t stream, uint64_t k, float out[4])
{
    struct draw bits = draw(seed, stream, k);
    const uint64_t pairs[2] = {bits.first, bits.second};
    for (int i = 0; i < 2; i++) {
        float u = ((float)(uint32_t)pairs[i] + 1) * 0x1p-32f,
              angle = (float)(pairs[i] >> 32) * (6.2831853f * 0x1p-32f);
        float radius = sqrtf(-2.0f * logf(u < 1 ? u : 1));
        out[2 * i] = radius * cosf(angle);
        out[2 * i + 1] = radius * sinf(angle);
    }
}

double rng_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    float four[4];
    four_normals(seed, stream, index >> 2, four);
    return (double)four[index & 3];
}

void rng_fill_normal(uint64_t seed, uint64_t stream, uint64_t first, float *out, size_t n, float mean,
                     float deviation)
{
    float four[4];
    for (size_t i = 0; i < n; i++) {
        uint64_t index = first + i;
        if (i == 0 || (index & 3) == 0) four_normals(seed, stream, index >> 2, four);
        out[i] = (float)((double)mean + (double)deviation * (double)four[index & 3]);
    }
}
