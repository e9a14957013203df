/* panels.c - see panels.h. */
#include "tensor/panels.h"
#include "tensor/blocks_4bit.h"

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

/* --- several lines at once ----------------------------------------------------------------------------------- */

/* The 16 numbers of a part of 64 elements, in the type asked for: as many roundings as there are numbers, not elements. */
struct numbers {
    union {
        uint16_t narrow[16];
        uint32_t wide[16];
    } of;
};

static struct numbers scaled(const float *table, float magnitude, enum dtype to)
{
    struct numbers n;
    float values[16];
    for (int i = 0; i < 16; i++) values[i] = table[i] * magnitude;
    if (dtype_size(to) == 2)
        dtype_convert(n.of.narrow, to, values, DT_F32, 16);
    else
        memcpy(n.of.wide, values, sizeof values);
    return n;
}

/* 64 elements, whose codes lie 64 bytes apart in fours. */
#define PUT_PART(name, word, member)                                                                         \
    static void name(const struct numbers *n, const unsigned char *codes, word *out)                         \
    {                                                                                                        \
        for (int u = 0; u < 8; u++, codes += 4 * PANEL_LINES)                                                \
            for (int i = 0; i < 4; i++) {                                                                    \
                word *at = out + u / 4 * 32 + u % 4 * 4 + i;                                                 \
                at[0] = n->of.member[codes[i] & 15];                                                         \
                at[16] = n->of.member[codes[i] >> 4];                                                        \
            }                                                                                                \
    }
PUT_PART(put_narrow, uint16_t, narrow)
PUT_PART(put_wide, uint32_t, wide)

static float float_at(const unsigned char *p)
{
    float f;
    memcpy(&f, p, sizeof f);
    return f;
}

/* Magnitude of part `part` of a line's block, in the group of 16 blocks. */
static float magnitude_of(const struct block_type *type, const unsigned char *group, int line, int part)
{
    if (type->elements == BLOCK4_PART) return float_at(group + 4 * line);
    const unsigned char *codes = group + 8 * PANEL_LINES + 4 * line;
    return block4_dq_magnitude(float_at(group + 4 * line), float_at(group + 4 * (PANEL_LINES + line)),
                               codes[part]);
}

static void widen_table(const struct panel_span *s)
{
    int size = (int)dtype_size(s->to), parts = s->type->elements / BLOCK4_PART,
        head = s->type->bytes - 32 * parts;
    for (int64_t b = 0; b < s->n; b++) {
        const unsigned char *group = s->panel + (s->first + b) * PANEL_LINES * s->type->bytes;
        for (int line = 0; line < s->lines; line++)
            for (int p = 0; p < parts; p++) {
                const unsigned char *codes = group + (head + 32 * p) * PANEL_LINES + 4 * line;
                void *to = (char *)s->out + line * s->stride + (b * parts + p) * BLOCK4_PART * size;
                struct numbers n = scaled(s->type->table, magnitude_of(s->type, group, line, p), s->to);
                if (size == 2)
                    put_narrow(&n, codes, to);
                else
                    put_wide(&n, codes, to);
            }
    }
}

void panel_widen(const struct panel_span *s)
{
    unsigned char block[BLOCK_BYTES_MOST], *panel = (unsigned char *)(uintptr_t)s->panel;
    float values[BLOCK_MOST];
    int64_t bytes = s->type->elements * (int64_t)dtype_size(s->to);
    if (s->type->table) {
        widen_table(s);
        return;
    }
    for (int line = 0; line < s->lines; line++)
        for (int64_t b = 0; b < s->n; b++) {
            move_block(s->type, line, block, panel + (s->first + b) * PANEL_LINES * s->type->bytes, false);
            s->type->read(block, values, 1);
            dtype_convert((char *)s->out + line * s->stride + b * bytes, s->to, values, DT_F32,
                          s->type->elements);
        }
}
