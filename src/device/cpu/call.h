/* call.h - access to a kernel_call: descriptors, element addresses, and the size of work items. */
#ifndef PLIM_DEVICE_CPU_CALL_H
#define PLIM_DEVICE_CPU_CALL_H

#include "device/device.h"

/* Address of element i; NULL stays NULL, so missing operands need no check. */
static inline void *element(const void *base, enum dtype type, int64_t i)
{
    return base ? (char *)base + i * (int64_t)dtype_size(type) : NULL;
}

static inline int64_t blocks_of(int64_t n, int64_t block) { return (n + block - 1) / block; }

static inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

/* Elements per work item over a span: enough to hide the cost of handing it out, few enough to balance
 * well. */
enum { SPAN_GRAIN = 16384 };

/* Rows that together hold about SPAN_GRAIN elements. */
static inline int64_t row_grain(int64_t columns)
{
    int64_t rows = SPAN_GRAIN / (columns > 0 ? columns : 1);
    return rows > 0 ? rows : 1;
}

#endif
