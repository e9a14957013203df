/* emit_blocks.c - see emit_blocks.h. A decoder below is the reader of tensor/blocks.c for all blocks of N lines at once. */
#include "device/pjrt/emit_blocks.h"
#include "tensor/blocks_4bit.h"

#include <assert.h>

/* Blocks [N,B] of one type, field by field (block_type.field): U32 [N,B,bytes], a byte in each. */
struct blocks {
    struct hlo *h;
    const struct block_type *type;
    int64_t lines, count;
    struct hlo_value field[BLOCK_FIELDS];
};

/* --- pieces of a block ------------------------------------------------------------------------------------------ */

static struct hlo_value right(struct hlo *h, struct hlo_value v, int bits)
{
    return hlo_binary(h, "shift_right_logical", v, hlo_like(h, v, bits));
}

static struct hlo_value left(struct hlo *h, struct hlo_value v, int bits)
{
    return hlo_binary(h, "shift_left", v, hlo_like(h, v, bits));
}

static struct hlo_value masked(struct hlo *h, struct hlo_value v, int mask)
{
    return hlo_binary(h, "and", v, hlo_like(h, v, mask));
}

/* The number of `size` bytes of a field, the low one first: U32 [N,B,1]. */
static struct hlo_value word_at(const struct blocks *b, int field, int64_t at, int size)
{
    struct hlo_value word = hlo_slice(b->h, b->field[field], 2, at, 1);
    for (int i = 1; i < size; i++) {
        struct hlo_value byte = hlo_slice(b->h, b->field[field], 2, at + i, 1);
        word = hlo_binary(b->h, "or", word, left(b->h, byte, 8 * i));
    }
    return word;
}

static struct hlo_value half_at(const struct blocks *b, int field, int64_t at)
{
    struct hlo_value bits = hlo_convert(b->h, word_at(b, field, at, 2), HLO_U16);
    return hlo_convert(b->h, hlo_bits(b->h, bits, HLO_F16), HLO_F32);
}

static struct hlo_value single_at(const struct blocks *b, int field, int64_t at)
{
    return hlo_bits(b->h, word_at(b, field, at, 4), HLO_F32);
}

/* Codes of `bits` bits. The field is `groups` equal pieces, whose bytes hold their low codes first: the first codes of all bytes of a
 * piece, then their second codes, and so on. U32 [N,B,codes]. */
static struct hlo_value codes_of(const struct blocks *b, int field, int64_t groups, int bits)
{
    struct hlo *h = b->h;
    int64_t bytes = b->field[field].dim[2], width = bytes / groups, each = 8 / bits;
    struct hlo_value v = hlo_reshape(h, b->field[field], HLO_SHAPE(b->lines, b->count, groups, width));
    v = hlo_broadcast(h, v, (const int[]){0, 1, 2, 4}, HLO_SHAPE(b->lines, b->count, groups, each, width));
    struct hlo_value shift = hlo_times(h, hlo_iota(h, HLO_U32, 3, v.ndim, v.dim), bits);
    v = masked(h, hlo_binary(h, "shift_right_logical", v, shift), (1 << bits) - 1);
    return hlo_reshape(h, v, HLO_SHAPE(b->lines, b->count, bytes * each));
}

/* Bytes as signed numbers, F32. */
static struct hlo_value signed_of(struct hlo *h, struct hlo_value bytes)
{
    struct hlo_value x = hlo_convert(h, bytes, HLO_F32);
    return hlo_select(h, hlo_compare_to(h, "GE", x, 128), hlo_plus(h, x, -256), x);
}

/* A number of each part of a block [N,B,parts], for each element. */
static struct hlo_value by_part(const struct blocks *b, struct hlo_value v)
{
    int64_t parts = v.dim[2], width = b->type->elements / parts;
    v = hlo_broadcast(b->h, v, (const int[]){0, 1, 2}, HLO_SHAPE(b->lines, b->count, parts, width));
    return hlo_reshape(b->h, v, HLO_SHAPE(b->lines, b->count, b->type->elements));
}

/* --- decoders: F32 [N,B,elements] ------------------------------------------------------------------------------- */

static struct hlo_value read_q8_0(const struct blocks *b)
{
    return hlo_mul(b->h, by_part(b, half_at(b, 0, 0)), signed_of(b->h, b->field[1]));
}

static struct hlo_value read_q4_0(const struct blocks *b)
{
    struct hlo_value q = hlo_plus(b->h, hlo_convert(b->h, codes_of(b, 1, 1, 4), HLO_F32), -8);
    return hlo_mul(b->h, by_part(b, half_at(b, 0, 0)), q);
}

/* Numbers of 6 bits of eight parts: those of the first four are `first`, the others have two bits above them and four in `rest`. */
static struct hlo_value six_bits(struct hlo *h, struct hlo_value first, struct hlo_value rest)
{
    struct hlo_value other = hlo_binary(h, "or", rest, left(h, right(h, first, 6), 4));
    return hlo_convert(h, hlo_concat(h, 2, masked(h, first, 63), other), HLO_F32);
}

/* part scale * q - part minimum */
static struct hlo_value by_eighths(const struct blocks *b, struct hlo_value q)
{
    struct hlo *h = b->h;
    struct hlo_value packed = b->field[1], rest = hlo_slice(h, packed, 2, 8, 4);
    struct hlo_value scale = six_bits(h, hlo_slice(h, packed, 2, 0, 4), masked(h, rest, 15));
    struct hlo_value least = six_bits(h, hlo_slice(h, packed, 2, 4, 4), right(h, rest, 4));
    scale = hlo_mul(h, hlo_over(h, half_at(b, 0, 0), scale, 0), scale);
    least = hlo_mul(h, hlo_over(h, half_at(b, 0, 2), least, 0), least);
    q = hlo_mul(h, by_part(b, scale), hlo_convert(h, q, HLO_F32));
    return hlo_sub(h, q, by_part(b, least));
}

static struct hlo_value read_q4_k(const struct blocks *b) { return by_eighths(b, codes_of(b, 2, 4, 4)); }

static struct hlo_value read_q5_k(const struct blocks *b)
{
    struct hlo_value high = left(b->h, codes_of(b, 2, 1, 1), 4);
    return by_eighths(b, hlo_binary(b->h, "or", codes_of(b, 3, 4, 4), high));
}

static struct hlo_value read_q6_k(const struct blocks *b)
{
    struct hlo *h = b->h;
    struct hlo_value q = hlo_binary(h, "or", codes_of(b, 0, 2, 4), left(h, codes_of(b, 1, 2, 2), 4));
    struct hlo_value scale = signed_of(h, b->field[2]);
    scale = hlo_mul(h, hlo_over(h, half_at(b, 3, 0), scale, 0), scale);
    return hlo_mul(h, by_part(b, scale), hlo_plus(h, hlo_convert(h, q, HLO_F32), -32));
}

/* table[code], F32 */
static struct hlo_value looked_up(struct hlo *h, const double *table, int count, struct hlo_value codes)
{
    return hlo_take(h, hlo_vector(h, HLO_F32, count, table), hlo_convert(h, codes, HLO_I32));
}

/* Codes are the last field, in pieces of 16 bytes. */
static struct hlo_value by_table(const struct blocks *b, int field, struct hlo_value magnitude)
{
    double table[16];
    for (int i = 0; i < 16; i++) table[i] = (double)b->type->table[i];
    struct hlo_value q = codes_of(b, field, b->type->elements / 32, 4);
    return hlo_mul(b->h, looked_up(b->h, table, 16, q), by_part(b, magnitude));
}

static struct hlo_value read_4bit(const struct blocks *b) { return by_table(b, 1, single_at(b, 0, 0)); }

static struct hlo_value read_4bit_dq(const struct blocks *b)
{
    struct hlo *h = b->h;
    double map[256];
    for (int i = 0; i < 256; i++) map[i] = (double)block4_map(i);
    struct hlo_value size = looked_up(h, map, 256, b->field[1]);
    size = hlo_mul(h, size, hlo_over(h, single_at(b, 0, 4), size, 0));
    return by_table(b, 2, hlo_add(h, size, hlo_over(h, single_at(b, 0, 0), size, 0)));
}

static struct hlo_value (*const decoders[])(const struct blocks *) = {
    [BLOCK_Q4_0] = read_q4_0, [BLOCK_Q8_0] = read_q8_0,      [BLOCK_Q4_K] = read_q4_k,
    [BLOCK_Q5_K] = read_q5_k, [BLOCK_Q6_K] = read_q6_k,      [BLOCK_NF4] = read_4bit,
    [BLOCK_FP4] = read_4bit,  [BLOCK_NF4_DQ] = read_4bit_dq, [BLOCK_FP4_DQ] = read_4bit_dq,
};

bool blocks_decoded(int number)
{
    return number >= 0 && number < (int)(sizeof decoders / sizeof *decoders) && decoders[number];
}

/* [N,k] */
static struct hlo_value decoded(const struct blocks *b)
{
    int number = block_type_number(b->type->name);
    assert(blocks_decoded(number));
    return hlo_reshape(b->h, decoders[number](b), HLO_SHAPE(b->lines, b->count * b->type->elements));
}

/* --- from panels to blocks -------------------------------------------------------------------------------------- */

/* 0, as a number that is made of x[R,K]. Decoded weights depend on it: a compiler that decodes all weights of a program at its beginning
 * would need the memory of all of them. */
static struct hlo_value zero_after(struct hlo *h, struct hlo_value x)
{
    struct hlo_value v = hlo_slice(h, hlo_slice(h, x, 0, 0, 1), 1, 0, 1);
    v = hlo_bits(h, hlo_convert(h, hlo_reshape(h, v, 0, NULL), HLO_F32), HLO_U32);
    return right(h, right(h, v, 31), 1);
}

/* All lines of panels [P,bytes], in F32 [16 P,k]. */
static struct hlo_value panels_read(struct hlo *h, const struct block_type *type, int64_t k,
                                    struct hlo_value panels, struct hlo_value zero)
{
    int64_t count = panels.dim[0], blocks = k / type->elements, at = 0;
    struct blocks b = {.h = h, .type = type, .lines = count * PANEL_LINES, .count = blocks};
    panels = hlo_reshape(h, panels, HLO_SHAPE(count, blocks, type->bytes * PANEL_LINES));
    for (int f = 0; f < BLOCK_FIELDS && type->field[f].bytes; f++) {
        int64_t bytes = type->field[f].bytes, unit = type->field[f].unit;
        struct hlo_value v = hlo_slice(h, panels, 2, at, bytes * PANEL_LINES);
        v = hlo_reshape(h, v, HLO_SHAPE(count, blocks, bytes / unit, PANEL_LINES, unit));
        v = hlo_transpose(h, v, (const int[]){0, 3, 1, 2, 4});
        v = hlo_convert(h, hlo_reshape(h, v, HLO_SHAPE(b.lines, blocks, bytes)), HLO_U32);
        b.field[f] = hlo_binary(h, "or", v, hlo_over(h, zero, v, 0));
        at += bytes * PANEL_LINES;
    }
    return decoded(&b);
}

/* Places of the units of field f of lines ids[R], counted in units: [R,B,units]. `at`: the field's first byte in a group of 16 blocks. */
static struct hlo_value unit_places(struct hlo *h, const struct block_type *type, int64_t blocks, int f,
                                    int64_t at, struct hlo_value ids)
{
    int64_t unit = type->field[f].unit, group = type->bytes * PANEL_LINES / unit;
    struct hlo_value panel = hlo_div(h, ids, hlo_like(h, ids, PANEL_LINES));
    struct hlo_value line = hlo_sub(h, ids, hlo_times(h, panel, PANEL_LINES));
    struct hlo_value first = hlo_add(h, hlo_times(h, panel, (double)(blocks * group)), line);
    int64_t shape[] = {ids.dim[0], blocks, type->field[f].bytes / unit};
    struct hlo_value block = hlo_times(h, hlo_iota(h, ids.type, 1, 3, shape), (double)group);
    struct hlo_value each = hlo_times(h, hlo_iota(h, ids.type, 2, 3, shape), PANEL_LINES);
    block = hlo_plus(h, hlo_add(h, block, each), (double)(at / unit));
    return hlo_add(h, block, hlo_over(h, first, block, 0));
}

/* Lines ids[R] of a part. */
static struct hlo_value lines_read(struct hlo *h, const struct block_type *type, int64_t k,
                                   struct hlo_value bytes, struct hlo_value ids)
{
    int64_t all = hlo_count(&bytes), blocks = k / type->elements, at = 0;
    struct blocks b = {.h = h, .type = type, .lines = ids.dim[0], .count = blocks};
    ids = hlo_convert(h, ids, all >> 31 ? HLO_I64 : HLO_I32);
    for (int f = 0; f < BLOCK_FIELDS && type->field[f].bytes; f++) {
        int64_t size = type->field[f].bytes, unit = type->field[f].unit;
        struct hlo_value units = hlo_reshape(h, bytes, HLO_SHAPE(all / unit, unit));
        struct hlo_value v = hlo_take(h, units, unit_places(h, type, blocks, f, at, ids));
        b.field[f] = hlo_convert(h, hlo_reshape(h, v, HLO_SHAPE(b.lines, blocks, size)), HLO_U32);
        at += size * PANEL_LINES;
    }
    return decoded(&b);
}

struct hlo_value blocks_rows(struct hlo *h, const struct op_attr *attr, int64_t k, struct hlo_value bytes,
                             struct hlo_value ids)
{
    struct quantised_part p;
    struct hlo_value rows = {.id = -1};
    for (int i = 0; quantised_part(attr, k, i, &p); i++) {
        struct hlo_value own = hlo_slice(h, bytes, 0, p.offset, panels_bytes(p.type, p.lines, k));
        struct hlo_value line = i ? hlo_plus(h, ids, -(double)p.first) : ids;
        struct hlo_value read = lines_read(h, p.type, k, own, line);
        struct hlo_value mine = hlo_broadcast(h, hlo_compare_to(h, "GE", line, 0), (const int[]){0},
                                              HLO_SHAPE(read.dim[0], read.dim[1]));
        rows = i ? hlo_select(h, mine, read, rows) : read;
    }
    return rows;
}

/* --- products --------------------------------------------------------------------------------------------------- */

/* Panels of a part that are decoded at a time. */
static int64_t tile_panels(int64_t panels, int64_t k)
{
    int64_t most = BLOCKS_TILE / (PANEL_LINES * k);
    return most < 1 ? 1 : most < panels ? most : panels;
}

/* The product of one part of W. */
struct product {
    struct hlo *h;
    const struct block_type *type;
    int64_t k, panels, tile;
    struct hlo_value bytes; /* [panels, bytes of a panel] */
};

static struct product product_of(struct hlo *h, const struct quantised_part *p, int64_t k,
                                 struct hlo_value bytes)
{
    struct product a = {.h = h, .type = p->type, .k = k, .panels = panels_count(p->lines)};
    a.tile = tile_panels(a.panels, k);
    a.bytes = hlo_slice(h, bytes, 0, p->offset, panels_bytes(p->type, p->lines, k));
    a.bytes = hlo_reshape(h, a.bytes, HLO_SHAPE(a.panels, panel_bytes(p->type, k)));
    return a;
}

/* In the type of x, and not before x is there. */
static struct hlo_value tile_read(const struct product *a, struct hlo_value panels, struct hlo_value x)
{
    struct hlo_value w = panels_read(a->h, a->type, a->k, panels, zero_after(a->h, x));
    return hlo_convert(a->h, w, x.type);
}

/* W x' of x[R,K]: F32 [16 panels,R]. Whole tiles in a loop, then the rest. */
static struct hlo_value part_product(const struct product *a, struct hlo_value x)
{
    static const struct hlo_pairs pairs = {.sum = 1, .a_sum = {1}, .b_sum = {1}};
    struct hlo *h = a->h;
    int64_t whole = a->panels / a->tile, rest = a->panels % a->tile, lines = a->tile * PANEL_LINES;
    if (whole == 1 && !rest) return hlo_dot(h, tile_read(a, a->bytes, x), x, &pairs);
    struct hlo_value y = hlo_fill(h, HLO_F32, 0, HLO_SHAPE(whole * lines, x.dim[0]));
    struct hlo_loop loop;
    hlo_loop_begin(h, &loop, whole, 1, &y);
    struct hlo_value panels = hlo_window(h, a->bytes, hlo_times(h, loop.index, (double)a->tile), a->tile);
    struct hlo_value tile = hlo_dot(h, tile_read(a, panels, x), x, &pairs);
    y = hlo_replace_at(h, y, tile, hlo_times(h, loop.index, (double)lines));
    hlo_loop_end(h, &loop, &y);
    if (!rest) return y;
    panels = hlo_slice(h, a->bytes, 0, whole * a->tile, rest);
    return hlo_concat(h, 0, y, hlo_dot(h, tile_read(a, panels, x), x, &pairs));
}

/* dy W of dy[16 panels,R]: F32 [R,K]. */
static struct hlo_value part_product_back(const struct product *a, struct hlo_value dy)
{
    static const struct hlo_pairs pairs = {.sum = 1, .a_sum = {0}, .b_sum = {0}};
    struct hlo *h = a->h;
    int64_t whole = a->panels / a->tile, rest = a->panels % a->tile, lines = a->tile * PANEL_LINES;
    if (whole == 1 && !rest) return hlo_dot(h, dy, tile_read(a, a->bytes, dy), &pairs);
    struct hlo_value dx = hlo_fill(h, HLO_F32, 0, HLO_SHAPE(dy.dim[1], a->k));
    struct hlo_loop loop;
    hlo_loop_begin(h, &loop, whole, 1, &dx);
    struct hlo_value panels = hlo_window(h, a->bytes, hlo_times(h, loop.index, (double)a->tile), a->tile);
    struct hlo_value own = hlo_window(h, dy, hlo_times(h, loop.index, (double)lines), lines);
    dx = hlo_add(h, dx, hlo_dot(h, own, tile_read(a, panels, dy), &pairs));
    hlo_loop_end(h, &loop, &dx);
    if (!rest) return dx;
    panels = hlo_slice(h, a->bytes, 0, whole * a->tile, rest);
    own = hlo_slice(h, dy, 0, whole * lines, rest * PANEL_LINES);
    return hlo_add(h, dx, hlo_dot(h, own, tile_read(a, panels, dy), &pairs));
}

static const int turned[] = {1, 0};

struct hlo_value blocks_product(struct hlo *h, const struct op_attr *attr, struct hlo_value x,
                                struct hlo_value bytes)
{
    struct quantised_part p;
    struct hlo_value y = {.id = -1};
    for (int i = 0; quantised_part(attr, x.dim[1], i, &p); i++) {
        struct product a = product_of(h, &p, x.dim[1], bytes);
        struct hlo_value part = hlo_slice(h, part_product(&a, x), 0, 0, p.lines);
        y = i ? hlo_concat(h, 0, y, part) : part;
    }
    return hlo_transpose(h, y, turned);
}

struct hlo_value blocks_product_back(struct hlo *h, const struct op_attr *attr, struct hlo_value dy,
                                     struct hlo_value bytes)
{
    int64_t k = quantised_columns(attr, hlo_count(&bytes));
    struct quantised_part p;
    struct hlo_value dx = {.id = -1};
    dy = hlo_transpose(h, dy, turned);
    for (int i = 0; quantised_part(attr, k, i, &p); i++) {
        struct product a = product_of(h, &p, k, bytes);
        struct hlo_value own = hlo_slice(h, dy, 0, p.first, p.lines);
        int64_t fill = a.panels * PANEL_LINES - p.lines;
        if (fill) own = hlo_concat(h, 0, own, hlo_fill(h, dy.type, 0, HLO_SHAPE(fill, dy.dim[1])));
        struct hlo_value part = part_product_back(&a, own);
        dx = i ? hlo_add(h, dx, part) : part;
    }
    return dx;
}

/* Decoded elements of a tile. Two products may have them at the same time, if both multiply the same x. */
size_t blocks_workspace(const struct op_attr *attr, int64_t k)
{
    int64_t lines = 0;
    for (int i = 0; i < OP_LINE_PARTS; i++) {
        int64_t tile = PANEL_LINES * tile_panels(panels_count(attr->lines[i].lines), k);
        if (attr->lines[i].lines && tile > lines) lines = tile;
    }
    return (size_t)(lines * k) * 2 * sizeof(float);
}
