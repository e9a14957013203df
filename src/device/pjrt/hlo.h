/* hlo.h - writes a StableHLO program as text, value by value.
 *
 *     struct hlo h = {0};
 *     struct hlo_value s = hlo_reduce(&h, "add", hlo_mul(&h, x, x), 1u << (x.ndim - 1));   // sums of squares of rows
 *     struct hlo_value y = hlo_mul(&h, x, hlo_over(&h, s, x, 0));                           // each row times its sum
 *
 * A value is a tensor of a type and a shape; values are plain structs and never change. Operands of one operation have the same type
 * and shape unless its comment says otherwise: nothing is converted or broadcast silently, except that the second operand of
 * hlo_binary may have the same elements in another shape. Every operation is written in MLIR's generic
 * form with attributes of StableHLO 1.0, which old and new plug-ins parse.
 *
 * Running out of memory is sticky in `text` (base/strbuf.h); the caller checks once at the end.
 */
#pragma once

#include "base/strbuf.h"
#include "tensor/dtype.h"

/* The first are enum dtype's, in its order. */
enum hlo_type {
    HLO_F32,
    HLO_BF16,
    HLO_F16,
    HLO_F64,
    HLO_I32,
    HLO_U16,
    HLO_U8,
    HLO_U32,
    HLO_I64,
    HLO_BOOL,
    HLO_TYPES
};

enum { HLO_MAX_DIM = 8 };

struct hlo_value {
    int id, part; /* part -1: the only result of its operation */
    enum hlo_type type;
    int ndim;
    int64_t dim[HLO_MAX_DIM];
};

struct hlo {
    struct strbuf text;
    int next; /* number of the next value */
};

/* --- writing ------------------------------------------------------------------------------------------------- */

/* "tensor<2x3xf32>" */
void hlo_write_type(struct hlo *h, const struct hlo_value *v);
/* "%v7" or "%v7#1" */
void hlo_write_name(struct hlo *h, const struct hlo_value *v);
/* A value of this type and shape with a new number, for operations that are written by hand. */
struct hlo_value hlo_new(struct hlo *h, enum hlo_type type, int ndim, const int64_t *dim);
/* A shape for the functions below: HLO_SHAPE(b, t, c) is "ndim, dims". */
#define HLO_SHAPE(...)                                                                                       \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }

static inline int64_t hlo_count(const struct hlo_value *v)
{
    int64_t n = 1;
    for (int i = 0; i < v->ndim; i++) n *= v->dim[i];
    return n;
}

/* --- constants ----------------------------------------------------------------------------------------------- */

/* A tensor filled with one number; without dimensions a scalar. */
struct hlo_value hlo_fill(struct hlo *h, enum hlo_type type, double number, int ndim, const int64_t *dim);
struct hlo_value hlo_scalar(struct hlo *h, enum hlo_type type, double number);
/* A number in v's type and shape. */
struct hlo_value hlo_like(struct hlo *h, struct hlo_value v, double number);
/* A vector of given numbers, F32, F64 or integers. */
struct hlo_value hlo_vector(struct hlo *h, enum hlo_type type, int count, const double *numbers);
/* Each element is its index along `axis`. */
struct hlo_value hlo_iota(struct hlo *h, enum hlo_type type, int axis, int ndim, const int64_t *dim);

/* --- elements ------------------------------------------------------------------------------------------------ */

/* "exponential", "log", "tanh", "sqrt", "rsqrt", "negate", "abs", "logistic", "cosine", "sine", "floor", "not", ... */
struct hlo_value hlo_unary(struct hlo *h, const char *name, struct hlo_value v);
/* "add", "subtract", "multiply", "divide", "maximum", "minimum", "and", "or", "xor", "shift_left",
 * "shift_right_logical", "remainder", "power", ... */
struct hlo_value hlo_binary(struct hlo *h, const char *name, struct hlo_value a, struct hlo_value b);
struct hlo_value hlo_add(struct hlo *h, struct hlo_value a, struct hlo_value b);
struct hlo_value hlo_sub(struct hlo *h, struct hlo_value a, struct hlo_value b);
struct hlo_value hlo_mul(struct hlo *h, struct hlo_value a, struct hlo_value b);
struct hlo_value hlo_div(struct hlo *h, struct hlo_value a, struct hlo_value b);
/* v times, or plus, a number. */
struct hlo_value hlo_times(struct hlo *h, struct hlo_value v, double number);
struct hlo_value hlo_plus(struct hlo *h, struct hlo_value v, double number);
/* "EQ", "NE", "LT", "LE", "GT", "GE"; the result is BOOL. */
struct hlo_value hlo_compare(struct hlo *h, const char *direction, struct hlo_value a, struct hlo_value b);
/* Compared with a number. */
struct hlo_value hlo_compare_to(struct hlo *h, const char *direction, struct hlo_value v, double number);
/* yes where condition (BOOL, of the same shape), else no. */
struct hlo_value hlo_select(struct hlo *h, struct hlo_value condition, struct hlo_value yes,
                            struct hlo_value no);
/* To another type; floats are rounded to nearest even, and to integers towards 0. Same type: v itself. */
struct hlo_value hlo_convert(struct hlo *h, struct hlo_value v, enum hlo_type type);
/* v's bits as another type of the same size. */
struct hlo_value hlo_bits(struct hlo *h, struct hlo_value v, enum hlo_type type);

/* --- shapes -------------------------------------------------------------------------------------------------- */

struct hlo_value hlo_reshape(struct hlo *h, struct hlo_value v, int ndim, const int64_t *dim);
struct hlo_value hlo_transpose(struct hlo *h, struct hlo_value v,
                               const int *order); /* result dim i is v's order[i] */
/* v's dimensions become dimensions first, first + 1, ... of `like`'s shape; the others are repeated. A dimension of 1 is repeated
 * too. Result: v's type, like's shape. */
struct hlo_value hlo_over(struct hlo *h, struct hlo_value v, struct hlo_value like, int first);
/* v's dimension i becomes dimension map[i] of this shape. */
struct hlo_value hlo_broadcast(struct hlo *h, struct hlo_value v, const int *map, int ndim,
                               const int64_t *dim);
/* Elements [first, first + count) along an axis. */
struct hlo_value hlo_slice(struct hlo *h, struct hlo_value v, int axis, int64_t first, int64_t count);
struct hlo_value hlo_concat(struct hlo *h, int axis, struct hlo_value a, struct hlo_value b);
/* `whole` with `part` in place of its elements from `first` on along axis 0. */
struct hlo_value hlo_replace(struct hlo *h, struct hlo_value whole, struct hlo_value part, int64_t first);
/* `count` elements along axis 0, and `whole` with `part` in place of as many, from a position that the program computes (an I32
 * scalar). A position that leaves no room for all of them is moved. */
struct hlo_value hlo_window(struct hlo *h, struct hlo_value v, struct hlo_value first, int64_t count);
struct hlo_value hlo_replace_at(struct hlo *h, struct hlo_value whole, struct hlo_value part,
                                struct hlo_value first);
/* One element along axis 0 at a position that the program computes (an I32 scalar); the axis disappears. */
struct hlo_value hlo_element(struct hlo *h, struct hlo_value v, struct hlo_value index);

/* --- sums, products, rows -------------------------------------------------------------------------------------- */

/* "add", "maximum", "minimum", "and", "or" over the axes of a bit mask, which disappear. */
struct hlo_value hlo_reduce(struct hlo *h, const char *name, struct hlo_value v, unsigned axes);
/* Position of the largest element along the last axis, the first of equal ones: I32; the axis disappears. */
struct hlo_value hlo_argmax(struct hlo *h, struct hlo_value v);

/* A product of a and b: `batch` pairs of dimensions stay, in front, `sum` pairs disappear; a's others follow, then b's. Sums of
 * narrow types are F32; F32 is multiplied exactly. */
struct hlo_pairs {
    int batch, sum;
    int a_batch[3], b_batch[3];
    int a_sum[3], b_sum[3];
};
struct hlo_value hlo_dot(struct hlo *h, struct hlo_value a, struct hlo_value b,
                         const struct hlo_pairs *pairs);
/* a[..., K] by b[M, K]: [..., M]. a may have any number of dimensions. */
struct hlo_value hlo_matmul(struct hlo *h, struct hlo_value a, struct hlo_value b);

/* Rows of `table` by `ids` (I32, any shape): ids' shape, then table's other dimensions. An id outside the table is clamped. */
struct hlo_value hlo_take(struct hlo *h, struct hlo_value table, struct hlo_value ids);
/* `table` with rows[i] in place of, or with `add` added to, row ids[i]. Ids outside the table are ignored. Of equal ids without `add`, any. */
struct hlo_value hlo_put(struct hlo *h, struct hlo_value table, struct hlo_value ids, struct hlo_value rows,
                         bool add);
/* Sorts pairs (key, other) of two vectors by key, ascending and stable. */
void hlo_sort(struct hlo *h, struct hlo_value *key, struct hlo_value *other);

/* --- loops --------------------------------------------------------------------------------------------------- */

/* Runs the code between begin and end `count` times. `carried` are replaced by their values inside the loop, and after hlo_loop_end
 * by the results; `index` counts from 0 (I32).
 *
 *     struct hlo_value sum = zeros;
 *     struct hlo_loop loop;
 *     hlo_loop_begin(h, &loop, count, 1, &sum);
 *     sum = hlo_add(h, sum, hlo_element(h, x, loop.index));
 *     hlo_loop_end(h, &loop, &sum);
 */
enum { HLO_CARRIED = 4 };
struct hlo_loop {
    struct hlo_value index;
    int count, id;
    struct hlo_value carried[HLO_CARRIED];
};
void hlo_loop_begin(struct hlo *h, struct hlo_loop *loop, int64_t times, int count,
                    struct hlo_value *carried);
/* As often as the program says: `times` is an I32 scalar. */
void hlo_loop_begin_times(struct hlo *h, struct hlo_loop *loop, struct hlo_value times, int count,
                          struct hlo_value *carried);
void hlo_loop_end(struct hlo *h, struct hlo_loop *loop, struct hlo_value *carried);
