/* f8_lines.c - see f8_lines.h. */
#include "tensor/f8_lines.h"

#include <math.h>
#include <string.h>

int f8_exponent(float largest)
{
    enum { MOST = 100 };
    int top, own;
    if (largest == 0) return 0;
    bool above = frexpf(448, &top) < frexpf(largest, &own);
    int e = top - own - above;
    return e > MOST ? MOST : e;
}

/* Magnitudes are compared as bits, which compilers make vectors of. */
static float largest_of(const float *x, int64_t k)
{
    uint32_t most = 0;
    float value;
    for (int64_t i = 0; i < k; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffffu;
        bits = bits < 0x7f800000u ? bits : 0;
        most = bits > most ? bits : most;
    }
    memcpy(&value, &most, sizeof value);
    return value;
}

float f8_write_line(const float *x, int64_t k, uint8_t *codes)
{
    int e = f8_exponent(largest_of(x, k));
    float factor = ldexpf(1, e);
    for (int64_t i = 0; i < k; i++) codes[i] = f32_to_e4m3(x[i] * factor);
    return ldexpf(1, -e);
}
