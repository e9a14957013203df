/* row_dot.h - the dot product of two rows, in an order that depends only on their length. */
#pragma once

#include "device/cpu/call.h"

enum { ROW_DOT_STRIP = 512, ROW_DOT_LANES = 16 };

/* a . b, in lanes that are summed at the end of each strip. */
static inline double row_dot(enum dtype type, const void *a, const void *b, int64_t n)
{
    float x[ROW_DOT_STRIP], y[ROW_DOT_STRIP];
    double sum = 0;
    for (int64_t at = 0; at < n; at += ROW_DOT_STRIP) {
        int64_t width = lesser(ROW_DOT_STRIP, n - at);
        float lanes[ROW_DOT_LANES] = {0};
        dtype_convert(x, DT_F32, element(a, type, at), type, width);
        dtype_convert(y, DT_F32, element(b, type, at), type, width);
        for (int64_t i = width; i % ROW_DOT_LANES; i++) x[i] = y[i] = 0;
        for (int64_t i = 0; i < width; i += ROW_DOT_LANES)
            for (int j = 0; j < ROW_DOT_LANES; j++) lanes[j] += x[i + j] * y[i + j];
        for (int j = 0; j < ROW_DOT_LANES; j++) sum += (double)lanes[j];
    }
    return sum;
}
