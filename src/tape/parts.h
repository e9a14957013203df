/* parts.h - the parts of a linear's weight (op.h, "Parts").
 *
 *     struct weight_part part;
 *     for (int i = 0; weight_part(attr, m, k, i, &part); i++) ... // lines [part.line, part.line + part.lines) of W[m,k]
 *
 * A weight without parts has one: all of it. */
#pragma once

#include "tape/tape.h"

struct weight_part {
    int64_t line, lines; /* of W, and columns of y */
    int64_t column;      /* of x: the first of k */
};

/* False behind the last part. */
static inline bool weight_part(const struct op_attr *attr, int64_t m, int64_t k, int i,
                               struct weight_part *out)
{
    bool whole = !attr->lines[0].lines;
    if (i >= (whole ? 1 : OP_LINE_PARTS) || (!whole && !attr->lines[i].lines)) return false;
    *out = (struct weight_part){.lines = whole ? m : attr->lines[i].lines, .column = i * k};
    for (int p = 0; p < i; p++) out->line += attr->lines[p].lines;
    return true;
}

static inline int weight_parts(const struct op_attr *attr)
{
    int count = 0;
    while (count < OP_LINE_PARTS && attr->lines[count].lines) count++;
    return count ? count : 1;
}
