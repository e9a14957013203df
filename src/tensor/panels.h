/* panels.h - lines of blocks (blocks.h) laid side by side, so that a kernel loads whole vectors.
 *
 *     int64_t bytes = panels_bytes(q, lines, k);               // of a matrix [lines, k]; k: whole blocks
 *     panel_pack(q, k, rows, panel);                           // 16 lines as a file has them -> one panel
 *     panel_read(q, k, panel, 3, values);                      // line 3 of a panel as f32
 *
 * A matrix is panels of PANEL_LINES = 16 lines; the last is filled up with lines of zero bytes. A panel is its 16 lines'
 * first blocks, then their second blocks, and so on: 16 blocks at a time, and in them field after field
 * (block_type.field): the first unit of all 16 lines, the second unit of all 16 lines, ... Units are as wide as a
 * product wants them: two bytes of a scale, one of a part's scale, and four bytes of codes, which are consecutive along k.
 * So 64 bytes of codes are 16 lines by four of k, the operand of one dot product instruction, and nothing is added to the
 * bytes of a file: they are only in another order.
 */
#pragma once

#include "tensor/blocks.h"
#include "tensor/dtype.h"

#define PANEL_LINES 16

static inline int64_t panel_row_bytes(const struct block_type *type, int64_t k)
{
    return k / type->elements * type->bytes;
}

static inline int64_t panel_bytes(const struct block_type *type, int64_t k)
{
    return PANEL_LINES * panel_row_bytes(type, k);
}

static inline int64_t panels_count(int64_t lines) { return (lines + PANEL_LINES - 1) / PANEL_LINES; }

static inline int64_t panels_bytes(const struct block_type *type, int64_t lines, int64_t k)
{
    return panels_count(lines) * panel_bytes(type, k);
}

/* 16 lines, panel_row_bytes apart, into a panel. The two may not overlap. */
void panel_pack(const struct block_type *type, int64_t k, const unsigned char *rows, unsigned char *panel);

/* One line of a panel as its k elements in f32. */
void panel_read(const struct block_type *type, int64_t k, const unsigned char *panel, int line, float *out);

/* Blocks [first, first + n) of `lines` lines of a panel as elements of a floating type; line i begins at out + i * stride
 * bytes. Each is the value that type->read gives, rounded once. */
struct panel_span {
    const struct block_type *type;
    const unsigned char *panel;
    int64_t first, n;
    int lines;
    enum dtype to;
    void *out;
    int64_t stride;
};
void panel_widen(const struct panel_span *span);
