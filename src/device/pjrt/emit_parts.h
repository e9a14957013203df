/* emit_parts.h - pieces of programs that several emitters share: activations, rotation, dropout. Values are F32. */
#pragma once

#include "device/pjrt/emit.h"

/* An operand as [rows, width], in F32. */
struct hlo_value part_rows(struct emit *e, int slot, int64_t width);
/* As [rows, width], in its own type. */
static inline struct hlo_value part_rows_in(struct emit *e, int slot, int64_t width)
{
    struct hlo_value v = emit_in(e, slot);
    return hlo_reshape(e->h, v, HLO_SHAPE(hlo_count(&v) / width, width));
}

/* The op's activation of x (attr.activation, op.h). */
struct hlo_value part_activation(struct hlo *h, const struct op_attr *attr, struct hlo_value x);
/* P(X < -|x|) of a normal X. */
struct hlo_value part_normal_tail(struct hlo *h, struct hlo_value x);

/* The F32 number nearest to a / b, from a quotient q that is at most two numbers away. Integers decide, so a plug-in's own division need not be
 * exact. Where a, b or q is not positive, normal and finite: q. */
struct hlo_value part_nearest_quotient(struct hlo *h, struct hlo_value a, struct hlo_value b,
                                       struct hlo_value q);

/* column_scale's m / norm of each column, over the rows of `like` [R,C]. */
struct hlo_value part_column_factor(struct emit *e, int m, int norm, struct hlo_value like);

/* Heads x[B,T,H,D] rotated by table[B,T,E], or with `back` rotated back. */
struct hlo_value part_rotate(struct hlo *h, struct hlo_value x, struct hlo_value table, bool back);

/* Random bits of op.h, in U32: mix, and the line of each of `rows` rows of the micro-batch. */
struct hlo_value part_mix(struct hlo *h, struct hlo_value bits);
struct hlo_value part_drop_rows(struct emit *e, int scalars, int64_t rows);
/* The factor m of the elements with these indices and lines (U32, one shape). */
struct hlo_value part_drop(struct emit *e, struct hlo_value index, struct hlo_value line);
