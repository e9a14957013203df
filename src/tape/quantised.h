/* quantised.h - the layout of a weight in quantised blocks (op.h, linear_q and embed_q).
 *
 *     int64_t k = quantised_columns(&op->attr, bytes);
 *     struct quantised_part p;
 *     for (int i = 0; quantised_part(&op->attr, k, i, &p); i++) ... lines [p.first, p.first + p.lines) from p.offset on
 */
#pragma once

#include "tape/tape.h"
#include "tensor/panels.h"

struct quantised_part {
    const struct block_type *type;
    int64_t first, lines; /* of the matrix */
    int64_t offset;       /* of its first panel among the bytes */
};

static inline int64_t quantised_lines(const struct op_attr *attr)
{
    int64_t lines = 0;
    for (int i = 0; i < OP_LINE_PARTS; i++) lines += attr->lines[i].lines;
    return lines;
}

static inline int64_t quantised_bytes(const struct op_attr *attr, int64_t k)
{
    int64_t bytes = 0;
    for (int i = 0; i < OP_LINE_PARTS && attr->lines[i].lines; i++)
        bytes += panels_bytes(block_type_of((uint32_t)attr->lines[i].type), attr->lines[i].lines, k);
    return bytes;
}

/* Elements in a line of `bytes`. The line must consist of whole blocks: bytes equals quantised_bytes exactly. */
static inline int64_t quantised_columns(const struct op_attr *attr, int64_t bytes)
{
    int64_t each = quantised_bytes(attr, BLOCK_MOST); /* bytes of BLOCK_MOST columns */
    return each ? bytes / each * BLOCK_MOST + bytes % each * BLOCK_MOST / each : 0;
}

/* Fills part i. Returns false if there are no more. */
static inline bool quantised_part(const struct op_attr *attr, int64_t k, int i, struct quantised_part *out)
{
    if (i >= OP_LINE_PARTS || !attr->lines[i].lines) return false;
    if (i == 0) *out = (struct quantised_part){0};
    if (i > 0) out->first += out->lines, out->offset += panels_bytes(out->type, out->lines, k);
    out->type = block_type_of((uint32_t)attr->lines[i].type), out->lines = attr->lines[i].lines;
    return true;
}
