/* lz_formats.c - the block formats of snappy and LZ4: runs of bytes and copies of what came before. See parquet_column.h. */
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

/* A length of 15 goes on in bytes that are added up, as long as they are 255. False: it is cut off. */
static bool more_length(const unsigned char **in, const unsigned char *end, size_t *length)
{
    for (unsigned byte = 255; byte == 255; *length += byte) {
        if (*in == end) return false;
        byte = *(*in)++;
    }
    return true;
}

bool lz4_undo(const unsigned char *in, size_t len, unsigned char *out, size_t n)
{
    const unsigned char *end = in + len;
    size_t done = 0;
    while (in < end) {
        size_t tag = *in++, run = tag >> 4, copy = tag & 15;
        if (run == 15 && !more_length(&in, end, &run)) return false;
        if ((size_t)(end - in) < run || n - done < run) return false;
        memcpy(out + done, in, run);
        in += run, done += run;
        if (in == end) break; /* the last run has no copy behind it */
        if (end - in < 2) return false;
        size_t back = little(in, 2);
        in += 2;
        if (copy == 15 && !more_length(&in, end, &copy)) return false;
        copy += 4;
        if (!back || back > done || n - done < copy) return false;
        copy_back(out + done, back, copy);
        done += copy;
    }
    return done == n;
}
