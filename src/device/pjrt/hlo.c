/* hlo.c - see hlo.h. */
#include "device/pjrt/hlo.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    int bytes; /* 0: a BOOL */
    bool real;
} types[HLO_TYPES] = {
    [HLO_F32] = {"f32", 4, true},  [HLO_BF16] = {"bf16", 2, true}, [HLO_F16] = {"f16", 2, true},
    [HLO_F64] = {"f64", 8, true},  [HLO_I32] = {"i32", 4, false},  [HLO_U16] = {"ui16", 2, false},
    [HLO_U8] = {"ui8", 1, false},  [HLO_U32] = {"ui32", 4, false}, [HLO_I64] = {"i64", 8, false},
    [HLO_BOOL] = {"i1", 0, false},
};

/* --- writing ------------------------------------------------------------------------------------------------- */

void hlo_write_type(struct hlo *h, const struct hlo_value *v)
{
    strbuf_add(&h->text, "tensor<");
    for (int i = 0; i < v->ndim; i++) strbuf_addf(&h->text, "%lldx", (long long)v->dim[i]);
    strbuf_addf(&h->text, "%s>", types[v->type].name);
}

void hlo_write_name(struct hlo *h, const struct hlo_value *v)
{
    strbuf_addf(&h->text, v->part < 0 ? "%%v%d" : "%%v%d#%d", v->id, v->part);
}

struct hlo_value hlo_new(struct hlo *h, enum hlo_type type, int ndim, const int64_t *dim)
{
    struct hlo_value v = {.id = h->next++, .part = -1, .type = type, .ndim = ndim};
    assert(ndim <= HLO_MAX_DIM);
    if (ndim) memcpy(v.dim, dim, (size_t)ndim * sizeof *dim);
    return v;
}

static struct hlo_value hlo_shaped(struct hlo *h, enum hlo_type type, const struct hlo_value *like)
{
    return hlo_new(h, type, like->ndim, like->dim);
}

/* "%v7 = "stablehlo.add"(%v1, %v2) " */
static void begin(struct hlo *h, const struct hlo_value *out, const char *name, int count,
                  const struct hlo_value *operands)
{
    strbuf_add(&h->text, "    ");
    hlo_write_name(h, out);
    strbuf_addf(&h->text, " = \"stablehlo.%s\"(", name);
    for (int i = 0; i < count; i++) {
        if (i) strbuf_add(&h->text, ", ");
        hlo_write_name(h, &operands[i]);
    }
    strbuf_add(&h->text, ") ");
}

/* ": (tensor<..>, tensor<..>) -> tensor<..>" */
static void end(struct hlo *h, const struct hlo_value *out, int count, const struct hlo_value *operands)
{
    strbuf_add(&h->text, ": (");
    for (int i = 0; i < count; i++) {
        if (i) strbuf_add(&h->text, ", ");
        hlo_write_type(h, &operands[i]);
    }
    strbuf_add(&h->text, ") -> ");
    hlo_write_type(h, out);
    strbuf_addc(&h->text, '\n');
}

static void add_ints(struct hlo *h, const char *name, int count, const int64_t *numbers)
{
    strbuf_addf(&h->text, "%s = array<i64", name);
    for (int i = 0; i < count; i++) strbuf_addf(&h->text, "%s%lld", i ? ", " : ": ", (long long)numbers[i]);
    strbuf_addc(&h->text, '>');
}

static void add_list(struct hlo *h, const char *name, int count, const int *numbers)
{
    strbuf_addf(&h->text, "%s = [", name);
    for (int i = 0; i < count; i++) strbuf_addf(&h->text, "%s%d", i ? ", " : "", numbers[i]);
    strbuf_addc(&h->text, ']');
}

/* --- constants ----------------------------------------------------------------------------------------------- */

static void add_number(struct hlo *h, enum hlo_type type, double number)
{
    uint64_t bits = 0;
    float f = (float)number;
    if (type == HLO_BOOL) {
        strbuf_add(&h->text, number != 0 ? "true" : "false");
    } else if (!types[type].real) {
        strbuf_addf(&h->text, "%lld", (long long)number);
    } else if (type == HLO_F64) {
        memcpy(&bits, &number, 8);
        strbuf_addf(&h->text, "0x%016llX", (unsigned long long)bits);
    } else if (type == HLO_F32) {
        memcpy(&bits, &f, 4);
        strbuf_addf(&h->text, "0x%08llX", (unsigned long long)bits);
    } else {
        strbuf_addf(&h->text, "0x%04X", type == HLO_BF16 ? f32_to_bf16(f) : f32_to_f16(f));
    }
}

struct hlo_value hlo_fill(struct hlo *h, enum hlo_type type, double number, int ndim, const int64_t *dim)
{
    struct hlo_value v = hlo_new(h, type, ndim, dim);
    begin(h, &v, "constant", 0, NULL);
    strbuf_add(&h->text, "{value = dense<");
    add_number(h, type, number);
    strbuf_add(&h->text, "> : ");
    hlo_write_type(h, &v);
    strbuf_add(&h->text, "} ");
    end(h, &v, 0, NULL);
    return v;
}

struct hlo_value hlo_scalar(struct hlo *h, enum hlo_type type, double number)
{
    return hlo_fill(h, type, number, 0, NULL);
}

struct hlo_value hlo_like(struct hlo *h, struct hlo_value v, double number)
{
    return hlo_fill(h, v.type, number, v.ndim, v.dim);
}

struct hlo_value hlo_vector(struct hlo *h, enum hlo_type type, int count, const double *numbers)
{
    struct hlo_value v = hlo_new(h, type, 1, (const int64_t[]){count});
    begin(h, &v, "constant", 0, NULL);
    strbuf_add(&h->text, "{value = dense<[");
    for (int i = 0; i < count; i++) {
        if (i) strbuf_add(&h->text, ", ");
        add_number(h, type, numbers[i]);
    }
    strbuf_add(&h->text, "]> : ");
    hlo_write_type(h, &v);
    strbuf_add(&h->text, "} ");
    end(h, &v, 0, NULL);
    return v;
}

struct hlo_value hlo_iota(struct hlo *h, enum hlo_type type, int axis, int ndim, const int64_t *dim)
{
    struct hlo_value v = hlo_new(h, type, ndim, dim);
    begin(h, &v, "iota", 0, NULL);
    strbuf_addf(&h->text, "{iota_dimension = %d : i64} ", axis);
    end(h, &v, 0, NULL);
    return v;
}

/* --- elements ------------------------------------------------------------------------------------------------ */

/* An operation without attributes. */
static struct hlo_value plain(struct hlo *h, const char *name, struct hlo_value out, int count,
                              const struct hlo_value *operands)
{
    begin(h, &out, name, count, operands);
    end(h, &out, count, operands);
    return out;
}

struct hlo_value hlo_unary(struct hlo *h, const char *name, struct hlo_value v)
{
    return plain(h, name, hlo_shaped(h, v.type, &v), 1, &v);
}

struct hlo_value hlo_binary(struct hlo *h, const char *name, struct hlo_value a, struct hlo_value b)
{
    assert(a.type == b.type && hlo_count(&a) == hlo_count(&b));
    b = hlo_reshape(h, b, a.ndim, a.dim);
    return plain(h, name, hlo_shaped(h, a.type, &a), 2, (struct hlo_value[]){a, b});
}

struct hlo_value hlo_add(struct hlo *h, struct hlo_value a, struct hlo_value b)
{
    return hlo_binary(h, "add", a, b);
}

struct hlo_value hlo_sub(struct hlo *h, struct hlo_value a, struct hlo_value b)
{
    return hlo_binary(h, "subtract", a, b);
}

struct hlo_value hlo_mul(struct hlo *h, struct hlo_value a, struct hlo_value b)
{
    return hlo_binary(h, "multiply", a, b);
}

struct hlo_value hlo_div(struct hlo *h, struct hlo_value a, struct hlo_value b)
{
    return hlo_binary(h, "divide", a, b);
}

struct hlo_value hlo_times(struct hlo *h, struct hlo_value v, double number)
{
    return number == 1 ? v : hlo_mul(h, v, hlo_like(h, v, number));
}

struct hlo_value hlo_plus(struct hlo *h, struct hlo_value v, double number)
{
    return hlo_add(h, v, hlo_like(h, v, number));
}

struct hlo_value hlo_compare(struct hlo *h, const char *direction, struct hlo_value a, struct hlo_value b)
{
    struct hlo_value out = hlo_shaped(h, HLO_BOOL, &a), operands[] = {a, b};
    assert(a.type == b.type && a.ndim == b.ndim && hlo_count(&a) == hlo_count(&b));
    begin(h, &out, "compare", 2, operands);
    strbuf_addf(&h->text, "{comparison_direction = #stablehlo<comparison_direction %s>} ", direction);
    end(h, &out, 2, operands);
    return out;
}

struct hlo_value hlo_compare_to(struct hlo *h, const char *direction, struct hlo_value v, double number)
{
    return hlo_compare(h, direction, v, hlo_like(h, v, number));
}

struct hlo_value hlo_select(struct hlo *h, struct hlo_value condition, struct hlo_value yes,
                            struct hlo_value no)
{
    return plain(h, "select", hlo_shaped(h, yes.type, &yes), 3, (struct hlo_value[]){condition, yes, no});
}

struct hlo_value hlo_convert(struct hlo *h, struct hlo_value v, enum hlo_type type)
{
    return v.type == type ? v : plain(h, "convert", hlo_shaped(h, type, &v), 1, &v);
}

struct hlo_value hlo_bits(struct hlo *h, struct hlo_value v, enum hlo_type type)
{
    assert(types[v.type].bytes == types[type].bytes);
    return v.type == type ? v : plain(h, "bitcast_convert", hlo_shaped(h, type, &v), 1, &v);
}

/* --- shapes -------------------------------------------------------------------------------------------------- */

struct hlo_value hlo_reshape(struct hlo *h, struct hlo_value v, int ndim, const int64_t *dim)
{
    bool same = ndim == v.ndim && (!ndim || !memcmp(dim, v.dim, (size_t)ndim * sizeof *dim));
    return same ? v : plain(h, "reshape", hlo_new(h, v.type, ndim, dim), 1, &v);
}

struct hlo_value hlo_transpose(struct hlo *h, struct hlo_value v, const int *order)
{
    int64_t dim[HLO_MAX_DIM], wide[HLO_MAX_DIM];
    for (int i = 0; i < v.ndim; i++) dim[i] = v.dim[order[i]], wide[i] = order[i];
    struct hlo_value out = hlo_new(h, v.type, v.ndim, dim);
    begin(h, &out, "transpose", 1, &v);
    strbuf_addc(&h->text, '{');
    add_ints(h, "permutation", v.ndim, wide);
    strbuf_add(&h->text, "} ");
    end(h, &out, 1, &v);
    return out;
}

struct hlo_value hlo_broadcast(struct hlo *h, struct hlo_value v, const int *map, int ndim,
                               const int64_t *dim)
{
    int64_t wide[HLO_MAX_DIM];
    for (int i = 0; i < v.ndim; i++) wide[i] = map[i];
    struct hlo_value out = hlo_new(h, v.type, ndim, dim);
    begin(h, &out, "broadcast_in_dim", 1, &v);
    strbuf_addc(&h->text, '{');
    add_ints(h, "broadcast_dimensions", v.ndim, wide);
    strbuf_add(&h->text, "} ");
    end(h, &out, 1, &v);
    return out;
}

struct hlo_value hlo_over(struct hlo *h, struct hlo_value v, struct hlo_value like, int first)
{
    int map[HLO_MAX_DIM];
    for (int i = 0; i < v.ndim; i++) map[i] = first + i;
    return hlo_broadcast(h, v, map, like.ndim, like.dim);
}

struct hlo_value hlo_slice(struct hlo *h, struct hlo_value v, int axis, int64_t first, int64_t count)
{
    int64_t from[HLO_MAX_DIM] = {0}, to[HLO_MAX_DIM], step[HLO_MAX_DIM], dim[HLO_MAX_DIM];
    if (!first && count == v.dim[axis]) return v;
    for (int i = 0; i < v.ndim; i++) dim[i] = to[i] = v.dim[i], step[i] = 1;
    from[axis] = first, to[axis] = first + count, dim[axis] = count;
    struct hlo_value out = hlo_new(h, v.type, v.ndim, dim);
    begin(h, &out, "slice", 1, &v);
    strbuf_addc(&h->text, '{');
    add_ints(h, "start_indices", v.ndim, from);
    add_ints(h, ", limit_indices", v.ndim, to);
    add_ints(h, ", strides", v.ndim, step);
    strbuf_add(&h->text, "} ");
    end(h, &out, 1, &v);
    return out;
}

struct hlo_value hlo_concat(struct hlo *h, int axis, struct hlo_value a, struct hlo_value b)
{
    struct hlo_value out = hlo_shaped(h, a.type, &a), operands[] = {a, b};
    out.dim[axis] += b.dim[axis];
    begin(h, &out, "concatenate", 2, operands);
    strbuf_addf(&h->text, "{dimension = %d : i64} ", axis);
    end(h, &out, 2, operands);
    return out;
}

struct hlo_value hlo_replace(struct hlo *h, struct hlo_value whole, struct hlo_value part, int64_t first)
{
    struct hlo_value operands[2 + HLO_MAX_DIM] = {whole, part};
    for (int i = 0; i < whole.ndim; i++) operands[2 + i] = hlo_scalar(h, HLO_I64, i ? 0 : (double)first);
    return plain(h, "dynamic_update_slice", hlo_shaped(h, whole.type, &whole), 2 + whole.ndim, operands);
}

struct hlo_value hlo_replace_at(struct hlo *h, struct hlo_value whole, struct hlo_value part,
                                struct hlo_value first)
{
    struct hlo_value operands[2 + HLO_MAX_DIM] = {whole, part, first};
    for (int i = 1; i < whole.ndim; i++) operands[2 + i] = hlo_scalar(h, HLO_I32, 0);
    return plain(h, "dynamic_update_slice", hlo_shaped(h, whole.type, &whole), 2 + whole.ndim, operands);
}

struct hlo_value hlo_window(struct hlo *h, struct hlo_value v, struct hlo_value first, int64_t count)
{
    struct hlo_value operands[1 + HLO_MAX_DIM] = {v, first};
    int64_t dim[HLO_MAX_DIM];
    memcpy(dim, v.dim, sizeof dim);
    for (int i = 1; i < v.ndim; i++) operands[1 + i] = hlo_scalar(h, HLO_I32, 0);
    dim[0] = count;
    struct hlo_value out = hlo_new(h, v.type, v.ndim, dim);
    begin(h, &out, "dynamic_slice", 1 + v.ndim, operands);
    strbuf_addc(&h->text, '{');
    add_ints(h, "slice_sizes", v.ndim, dim);
    strbuf_add(&h->text, "} ");
    end(h, &out, 1 + v.ndim, operands);
    return out;
}

struct hlo_value hlo_element(struct hlo *h, struct hlo_value v, struct hlo_value index)
{
    return hlo_reshape(h, hlo_window(h, v, index, 1), v.ndim - 1, v.dim + 1);
}

/* --- sums, products, rows -------------------------------------------------------------------------------------- */

/* A reduction begins with this number. */
static double neutral(const char *name, enum hlo_type type)
{
    double most = types[type].real ? INFINITY : type == HLO_I32 ? 2147483647.0 : 255.0;
    if (!strcmp(name, "maximum")) return types[type].real || type == HLO_I32 ? -most - !types[type].real : 0;
    if (!strcmp(name, "minimum")) return most;
    return !strcmp(name, "and") || !strcmp(name, "multiply");
}

/* "({ ^bb0(%a, %b): %c = name(%a, %b) return %c })": how two numbers become one. */
static void add_region(struct hlo *h, const char *name, enum hlo_type type)
{
    const char *t = types[type].name;
    int a = h->next++;
    strbuf_addf(&h->text, "({^bb0(%%a%d: tensor<%s>, %%b%d: tensor<%s>): ", a, t, a, t);
    strbuf_addf(&h->text, "%%c%d = \"stablehlo.%s\"(%%a%d, %%b%d) : (tensor<%s>, tensor<%s>) -> tensor<%s> ",
                a, name, a, a, t, t, t);
    strbuf_addf(&h->text, "\"stablehlo.return\"(%%c%d) : (tensor<%s>) -> () }) ", a, t);
}

struct hlo_value hlo_reduce(struct hlo *h, const char *name, struct hlo_value v, unsigned axes)
{
    int64_t dim[HLO_MAX_DIM], gone[HLO_MAX_DIM];
    int left = 0, ngone = 0;
    for (int i = 0; i < v.ndim; i++)
        if (axes >> i & 1)
            gone[ngone++] = i;
        else
            dim[left++] = v.dim[i];
    struct hlo_value operands[] = {v, hlo_scalar(h, v.type, neutral(name, v.type))};
    struct hlo_value out = hlo_new(h, v.type, left, dim);
    begin(h, &out, "reduce", 2, operands);
    add_region(h, name, v.type);
    strbuf_addc(&h->text, '{');
    add_ints(h, "dimensions", ngone, gone);
    strbuf_add(&h->text, "} ");
    end(h, &out, 2, operands);
    return out;
}

struct hlo_value hlo_argmax(struct hlo *h, struct hlo_value v)
{
    unsigned last = 1u << (v.ndim - 1);
    struct hlo_value most = hlo_over(h, hlo_reduce(h, "maximum", v, last), v, 0);
    struct hlo_value at = hlo_iota(h, HLO_I32, v.ndim - 1, v.ndim, v.dim);
    struct hlo_value other = hlo_like(h, at, (double)(v.dim[v.ndim - 1] - 1));
    return hlo_reduce(h, "minimum", hlo_select(h, hlo_compare(h, "EQ", v, most), at, other), last);
}

struct hlo_value hlo_dot(struct hlo *h, struct hlo_value a, struct hlo_value b, const struct hlo_pairs *p)
{
    int64_t dim[HLO_MAX_DIM];
    int n = 0;
    for (int i = 0; i < p->batch; i++) dim[n++] = a.dim[p->a_batch[i]];
    for (int side = 0; side < 2; side++) {
        const struct hlo_value *v = side ? &b : &a;
        unsigned used = 0;
        for (int i = 0; i < p->batch; i++) used |= 1u << (side ? p->b_batch : p->a_batch)[i];
        for (int i = 0; i < p->sum; i++) used |= 1u << (side ? p->b_sum : p->a_sum)[i];
        for (int i = 0; i < v->ndim; i++)
            if (!(used >> i & 1)) dim[n++] = v->dim[i];
    }
    struct hlo_value out = hlo_new(h, a.type == HLO_F64 ? HLO_F64 : HLO_F32, n, dim), operands[] = {a, b};
    assert(a.type == b.type);
    begin(h, &out, "dot_general", 2, operands);
    strbuf_add(&h->text, "{dot_dimension_numbers = #stablehlo.dot<");
    if (p->batch) {
        add_list(h, "lhs_batching_dimensions", p->batch, p->a_batch);
        add_list(h, ", rhs_batching_dimensions", p->batch, p->b_batch);
        strbuf_add(&h->text, ", ");
    }
    add_list(h, "lhs_contracting_dimensions", p->sum, p->a_sum);
    add_list(h, ", rhs_contracting_dimensions", p->sum, p->b_sum);
    const char *precision = a.type == HLO_F32 ? "HIGHEST" : "DEFAULT";
    strbuf_addf(&h->text, ">, precision_config = [#stablehlo<precision %s>, #stablehlo<precision %s>]} ",
                precision, precision);
    end(h, &out, 2, operands);
    return out;
}

struct hlo_value hlo_matmul(struct hlo *h, struct hlo_value a, struct hlo_value b)
{
    return hlo_dot(h, a, b, &(struct hlo_pairs){.sum = 1, .a_sum = {a.ndim - 1}, .b_sum = {1}});
}

struct hlo_value hlo_take(struct hlo *h, struct hlo_value table, struct hlo_value ids)
{
    int64_t dim[HLO_MAX_DIM], size[HLO_MAX_DIM];
    int n = 0, offset[HLO_MAX_DIM];
    for (int i = 0; i < ids.ndim; i++) dim[n++] = ids.dim[i];
    for (int i = 0; i < table.ndim; i++) size[i] = i ? table.dim[i] : 1;
    for (int i = 1; i < table.ndim; i++) offset[i - 1] = n, dim[n++] = table.dim[i];
    struct hlo_value out = hlo_new(h, table.type, n, dim), operands[] = {table, ids};
    begin(h, &out, "gather", 2, operands);
    strbuf_add(&h->text, "{dimension_numbers = #stablehlo.gather<");
    if (table.ndim > 1) {
        add_list(h, "offset_dims", table.ndim - 1, offset);
        strbuf_add(&h->text, ", ");
    }
    strbuf_addf(&h->text, "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = %d>, ",
                ids.ndim);
    add_ints(h, "slice_sizes", table.ndim, size);
    strbuf_add(&h->text, ", indices_are_sorted = false} ");
    end(h, &out, 2, operands);
    return out;
}

struct hlo_value hlo_put(struct hlo *h, struct hlo_value table, struct hlo_value ids, struct hlo_value rows,
                         bool add)
{
    const char *t = types[table.type].name;
    int a = h->next++, window[HLO_MAX_DIM];
    for (int i = 1; i < table.ndim; i++) window[i - 1] = ids.ndim + i - 1;
    struct hlo_value out = hlo_shaped(h, table.type, &table), operands[] = {table, ids, rows};
    begin(h, &out, "scatter", 3, operands);
    if (add)
        add_region(h, "add", table.type);
    else
        strbuf_addf(&h->text,
                    "({^bb0(%%a%d: tensor<%s>, %%b%d: tensor<%s>): \"stablehlo.return\"(%%b%d) : "
                    "(tensor<%s>) -> () }) ",
                    a, t, a, t, a, t);
    strbuf_add(&h->text, "{scatter_dimension_numbers = #stablehlo.scatter<");
    if (table.ndim > 1) {
        add_list(h, "update_window_dims", table.ndim - 1, window);
        strbuf_add(&h->text, ", ");
    }
    strbuf_addf(&h->text,
                "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = %d>, "
                "indices_are_sorted = false, unique_indices = false} ",
                ids.ndim);
    end(h, &out, 3, operands);
    return out;
}

void hlo_sort(struct hlo *h, struct hlo_value *key, struct hlo_value *other)
{
    const char *k = types[key->type].name, *o = types[other->type].name;
    int n = h->next++;
    strbuf_addf(&h->text, "    %%v%d:2 = \"stablehlo.sort\"(", n);
    hlo_write_name(h, key), strbuf_add(&h->text, ", "), hlo_write_name(h, other);
    strbuf_addf(&h->text,
                ") ({^bb0(%%a%d: tensor<%s>, %%b%d: tensor<%s>, %%c%d: tensor<%s>, %%d%d: tensor<%s>): ", n,
                k, n, k, n, o, n, o);
    strbuf_addf(
        &h->text,
        "%%e%d = \"stablehlo.compare\"(%%a%d, %%b%d) {comparison_direction = #stablehlo<comparison_direction "
        "LT>} "
        ": (tensor<%s>, tensor<%s>) -> tensor<i1> \"stablehlo.return\"(%%e%d) : (tensor<i1>) -> () }) "
        "{dimension = 0 : i64, is_stable = true} : (",
        n, n, n, k, k, n);
    hlo_write_type(h, key), strbuf_add(&h->text, ", "), hlo_write_type(h, other);
    strbuf_add(&h->text, ") -> (");
    hlo_write_type(h, key), strbuf_add(&h->text, ", "), hlo_write_type(h, other);
    strbuf_add(&h->text, ")\n");
    key->id = other->id = n;
    key->part = 0, other->part = 1;
}

/* --- loops --------------------------------------------------------------------------------------------------- */

static void add_types(struct hlo *h, const struct hlo_loop *loop)
{
    strbuf_add(&h->text, "(tensor<i32>");
    for (int i = 0; i < loop->count; i++) {
        strbuf_add(&h->text, ", ");
        hlo_write_type(h, &loop->carried[i]);
    }
    strbuf_addc(&h->text, ')');
}

/* "^bb0(%v1: tensor<i32>, ...):" with new values for the index and what is carried. */
static void add_block(struct hlo *h, struct hlo_loop *loop, struct hlo_value *index,
                      struct hlo_value *carried)
{
    *index = hlo_new(h, HLO_I32, 0, NULL);
    strbuf_addf(&h->text, "^bb0(%%v%d: tensor<i32>", index->id);
    for (int i = 0; i < loop->count; i++) {
        carried[i] = hlo_shaped(h, loop->carried[i].type, &loop->carried[i]);
        strbuf_addf(&h->text, ", %%v%d: ", carried[i].id);
        hlo_write_type(h, &carried[i]);
    }
    strbuf_add(&h->text, "):\n");
}

void hlo_loop_begin_times(struct hlo *h, struct hlo_loop *loop, struct hlo_value times, int count,
                          struct hlo_value *carried)
{
    struct hlo_value zero = hlo_scalar(h, HLO_I32, 0), index, unused[HLO_CARRIED];
    *loop = (struct hlo_loop){.count = count, .id = h->next++};
    memcpy(loop->carried, carried, (size_t)count * sizeof *carried);
    strbuf_addf(&h->text, "    %%v%d:%d = \"stablehlo.while\"(", loop->id, count + 1);
    hlo_write_name(h, &zero);
    for (int i = 0; i < count; i++) strbuf_add(&h->text, ", "), hlo_write_name(h, &carried[i]);
    strbuf_add(&h->text, ") ({");
    add_block(h, loop, &index, unused);
    struct hlo_value more = hlo_compare(h, "LT", index, times);
    strbuf_addf(&h->text, "    \"stablehlo.return\"(%%v%d) : (tensor<i1>) -> () }, {", more.id);
    add_block(h, loop, &loop->index, carried);
}

void hlo_loop_begin(struct hlo *h, struct hlo_loop *loop, int64_t times, int count, struct hlo_value *carried)
{
    hlo_loop_begin_times(h, loop, hlo_scalar(h, HLO_I32, (double)times), count, carried);
}

void hlo_loop_end(struct hlo *h, struct hlo_loop *loop, struct hlo_value *carried)
{
    struct hlo_value next = hlo_plus(h, loop->index, 1);
    strbuf_addf(&h->text, "    \"stablehlo.return\"(%%v%d", next.id);
    for (int i = 0; i < loop->count; i++) strbuf_add(&h->text, ", "), hlo_write_name(h, &carried[i]);
    strbuf_add(&h->text, ") : ");
    add_types(h, loop);
    strbuf_add(&h->text, " -> () }) : ");
    add_types(h, loop);
    strbuf_add(&h->text, " -> ");
    add_types(h, loop);
    strbuf_addc(&h->text, '\n');
    for (int i = 0; i < loop->count; i++) {
        carried[i] = loop->carried[i];
        carried[i].id = loop->id, carried[i].part = i + 1;
    }
}
