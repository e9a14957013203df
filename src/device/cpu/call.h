/* call.h - access to a kernel_call: descriptors, element addresses, and the size of work items. */
#pragma once

#include "base/threads.h"
#include "device/device.h"

/* Address of element i; NULL stays NULL, so missing operands need no check. */
static inline void *element(const void *base, enum dtype type, int64_t i)
{
    return base ? (char *)base + i * (int64_t)dtype_size(type) : NULL;
}

/* Address of element i of an operand; NULL where it is absent. */
static inline void *in_at(const struct kernel_call *call, int slot, int64_t i)
{
    return call->in[slot] ? element(call->in[slot], call_in(call, slot)->type, i) : NULL;
}

static inline void *out_at(const struct kernel_call *call, int slot, int64_t i)
{
    return call->out[slot] ? element(call->out[slot], call_out(call, slot)->type, i) : NULL;
}

/* threads_each for a body that gets the call itself. */
static inline void call_each(const struct kernel_call *call, int64_t n, int64_t grain, threads_body *body)
{
    threads_each(call->team, n, grain, body, (void *)call);
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
