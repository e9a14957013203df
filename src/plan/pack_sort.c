/* pack_sort.c - a radix sort: the greedy passes sort thousands of small keys many times over. */
#include "plan/pack_internal.h"
#include <string.h>

void pack_sort(struct pack_key *keys, struct pack_key *tmp, int n) {
    uint64_t some = 0, every = ~(uint64_t)0;
    for (int i = 0; i < n; i++) some |= keys[i].key, every &= keys[i].key;
    uint64_t varies = some & ~every; /* bytes that are the same everywhere need no pass */
    struct pack_key *from = keys, *to = tmp;
    for (int shift = 0; shift < 64; shift += 8) {
        if (!(varies >> shift & 255)) continue;
        int at[257] = {0};
        for (int i = 0; i < n; i++) at[(from[i].key >> shift & 255) + 1]++;
        for (int i = 0; i < 256; i++) at[i + 1] += at[i];
        for (int i = 0; i < n; i++) to[at[from[i].key >> shift & 255]++] = from[i];
        struct pack_key *other = from;
        from = to, to = other;
    }
    if (from != keys) memcpy(keys, from, (size_t)n * sizeof *keys);
}

uint64_t pack_key_of(double positive) {
    uint64_t bits; /* the bits of positive doubles have the order of their values */
    memcpy(&bits, &positive, sizeof bits);
    return bits;
}
