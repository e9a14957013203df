/* pack_sort.c - a radix sort: the greedy passes sort thousands of small keys many times over. */
#include "plan/pack_internal.h"
#include <string.h>

enum { DIGIT = 10, DIGITS = 1 << DIGIT };

void pack_sort(struct pack_key *keys, struct pack_key *tmp, int n)
{
    uint64_t some = 0, every = ~(uint64_t)0;
    for (int i = 0; i < n; i++) some |= keys[i].key, every &= keys[i].key;
    uint64_t varies = some & ~every; /* digits that are the same everywhere need no pass */
    struct pack_key *from = keys, *to = tmp;
    for (int shift = 0; shift < 64; shift += DIGIT) {
        if (!(varies >> shift & (DIGITS - 1))) continue;
        int at[DIGITS + 1] = {0};
        for (int i = 0; i < n; i++) at[(from[i].key >> shift & (DIGITS - 1)) + 1]++;
        for (int i = 0; i < DIGITS; i++) at[i + 1] += at[i];
        for (int i = 0; i < n; i++) to[at[from[i].key >> shift & (DIGITS - 1)]++] = from[i];
        struct pack_key *other = from;
        from = to, to = other;
    }
    if (from != keys) memcpy(keys, from, (size_t)n * sizeof *keys);
}

uint64_t pack_key_of(double positive)
{
    uint64_t bits; /* the bits of positive doubles have the order of their values */
    memcpy(&bits, &positive, sizeof bits);
    return bits;
}
