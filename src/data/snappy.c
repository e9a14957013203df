/* snappy.c - snappy's block format: a length, then runs of bytes and copies of what came before. See parquet_column.h. */
#include "data/parquet_column.h"

#include <string.h>

/* A copy may overlap what it writes: byte by byte then. */
static void copy_back(unsigned char *to, size_t back, size_t len)
{
    const unsigned char *from = to - back;
    if (back >= len)
        memcpy(to, from, len);
    else
        for (size_t i = 0; i < len; i++) to[i] = from[i];
}

/* `count` bytes, the lowest first. */
static size_t little(const unsigned char *at, size_t count)
{
    size_t x = 0;
    for (size_t i = 0; i < count; i++) x |= (size_t)at[i] << 8 * i;
    return x;
}

bool snappy_undo(const unsigned char *in, size_t len, unsigned char *out, size_t n)
{
    const unsigned char *end = in + len;
    size_t done = 0, size = 0;
    for (int shift = 0;; shift += 7) {
        if (in == end || shift > 28) return false;
        size |= (size_t)(*in & 127) << shift;
        if (*in++ < 128) break;
    }
    if (size != n) return false;
    while (in < end) {
        unsigned tag = *in++, kind = tag & 3;
        static const size_t extra_of[] = {0, 1, 2, 4};
        size_t extra = kind ? extra_of[kind] : tag >> 2 >= 60 ? (tag >> 2) - 59 : 0;
        if ((size_t)(end - in) < extra) return false;
        size_t number = little(in, extra), run = (tag >> 2) + 1;
        in += extra;
        if (kind == 0) {
            if (extra) run = number + 1;
            if ((size_t)(end - in) < run || n - done < run) return false;
            memcpy(out + done, in, run);
            in += run;
        } else {
            if (kind == 1) run = (tag >> 2 & 7) + 4, number |= (size_t)(tag >> 5) << 8;
            if (!number || number > done || n - done < run) return false;
            copy_back(out + done, number, run);
        }
        done += run;
    }
    return done == n;
}
