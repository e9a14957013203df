/* panels.c - see panels.h. */
#include "tensor/panels.h"

#include <string.h>

enum { BLOCK_BYTES_MOST = 256 }; /* of a block that is multiplied as it is */

/* A unit; of a size that the compiler knows it is one move. */
static inline void move_unit(unsigned char *to, const unsigned char *from, int unit)
{
    if (unit == 4)
        memcpy(to, from, 4);
    else
        memcpy(to, from, unit == 2 ? 2 : 1);
}

/* Units of one block to or from their places among those of 16 lines. */
static void move_block(const struct block_type *type, int line, unsigned char *block, unsigned char *group,
                       bool in)
{
    unsigned char *to = group;
    for (int f = 0; f < BLOCK_FIELDS && type->field[f].bytes; f++) {
        const struct block_field *field = &type->field[f];
        for (int i = 0; i < field->bytes; i += field->unit) {
            unsigned char *outside = block + field->at + i,
                          *inside = to + i * PANEL_LINES + line * field->unit;
            move_unit(in ? inside : outside, in ? outside : inside, field->unit);
        }
        to += field->bytes * PANEL_LINES;
    }
}

void panel_pack(const struct block_type *type, int64_t k, const unsigned char *rows, unsigned char *panel)
{
    int64_t blocks = k / type->elements, row = panel_row_bytes(type, k);
    unsigned char block[BLOCK_BYTES_MOST];
    for (int64_t b = 0; b < blocks; b++, panel += PANEL_LINES * type->bytes)
        for (int line = 0; line < PANEL_LINES; line++) {
            memcpy(block, rows + line * row + b * type->bytes, (size_t)type->bytes);
            move_block(type, line, block, panel, true);
        }
}

void panel_read(const struct block_type *type, int64_t k, const unsigned char *panel, int line, float *out)
{
    unsigned char block[BLOCK_BYTES_MOST], *group = (unsigned char *)(uintptr_t)panel;
    for (int64_t b = 0; b < k / type->elements; b++) {
        move_block(type, line, block, group + b * PANEL_LINES * type->bytes, false);
        type->read(block, out + b * type->elements, 1);
    }
}
