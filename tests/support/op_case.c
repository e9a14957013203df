/* op_case.c - making cases: the table of makers and what they all share. See op_case.h. */
#include "support/op_case.h"
#include "support/op_make.h"

#include "reference/reference.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static op_maker *const makers[OP_KIND_COUNT] = {
    [OP_EMBED] = make_embed,
    [OP_NORM] = make_norm,
    [OP_LINEAR] = make_linear,
    [OP_ROPE_TABLE] = make_rope_table,
    [OP_ATTN] = make_attn,
    [OP_ROPE] = make_rope,
    [OP_DROPOUT] = make_dropout,
    [OP_GLU] = make_glu,
    [OP_ACT] = make_act,
    [OP_ADD] = make_add,
    [OP_ROW_GATE] = make_row_gate,
    [OP_ROW_GATE_BWD] = make_row_gate_bwd,
    [OP_ADAPTER_LINEAR] = make_adapter_linear,
    [OP_TAKE] = make_take,
    [OP_DORA_NORM] = make_dora_norm,
    [OP_DORA_NORM_Q] = make_dora_norm_q,
    [OP_COLUMN_SCALE] = make_column_scale,
    [OP_COLUMN_SCALE_BWD] = make_column_scale_bwd,
    [OP_XENT] = make_xent,
    [OP_PREFERENCE] = make_preference,
    [OP_KV_APPEND] = make_kv_append,
    [OP_KV_PUT] = make_kv_put,
    [OP_ATTN_PAGED] = make_attn_paged,
    [OP_SAMPLE] = make_sample,
    [OP_KV_PUT8] = make_kv_put8,
    [OP_ATTN_PAGED8] = make_attn_paged8,
    [OP_LINEAR_Q] = make_linear_q,
    [OP_EMBED_Q] = make_embed_q,
    [OP_EXPERT_LINEAR_Q] = make_expert_linear_q,
    [OP_LINEAR_Q_DX] = make_linear_q_dx,
    [OP_EXPERT_LINEAR_Q_DX] = make_expert_linear_q_dx,
    [OP_SPLIT3] = make_split3,
    [OP_EMBED_BWD] = make_embed_bwd,
    [OP_NORM_BWD] = make_norm_bwd,
    [OP_LINEAR_DX] = make_linear_dx,
    [OP_LINEAR_DW] = make_linear_dw,
    [OP_ATTN_BWD] = make_attn_bwd,
    [OP_GLU_BWD] = make_glu_bwd,
    [OP_ACT_BWD] = make_act_bwd,
    [OP_JOIN3] = make_join3,
    [OP_POOL] = make_pool,
    [OP_POOL_BWD] = make_pool_bwd,
    [OP_ROUTE] = make_route,
    [OP_DISPATCH] = make_dispatch,
    [OP_EXPERT_LINEAR] = make_expert_linear,
    [OP_COMBINE] = make_combine,
    [OP_ROUTER_LOSS] = make_router_loss,
    [OP_ROUTE_BWD] = make_route_bwd,
    [OP_EXPERT_LINEAR_DX] = make_expert_linear_dx,
    [OP_EXPERT_LINEAR_DW] = make_expert_linear_dw,
    [OP_COMBINE_DW] = make_combine_dw,
    [OP_SUMSQ] = make_sumsq,
    [OP_CLIP] = make_clip,
    [OP_ADAMW] = make_adamw,
    [OP_SGD] = make_sgd,
    [OP_ADAMW8] = make_adamw8,
    [OP_FACTOR_STAT] = make_factor_stat,
    [OP_ADAFACTOR] = make_adafactor,
    [OP_QUANTISE8] = make_quantise8,
    [OP_LINEAR8] = make_linear8,
    [OP_LINEAR8_DW] = make_linear8_dw,
    [OP_LINEAR_F8] = make_linear_f8,
    [OP_FETCH] = make_fetch,
    [OP_STORE] = make_store,
};

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "op case: %s\n", what);
    abort();
}

static void *must_alloc(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p) give_up("out of memory");
    return p;
}

/* --- random numbers: splitmix64 ------------------------------------------------------------------------- */

static uint64_t draw(struct op_case *c)
{
    uint64_t z = (c->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t case_below(struct op_case *c, int64_t n) { return (int64_t)(draw(c) % (uint64_t)n); }
bool case_flip(struct op_case *c) { return draw(c) >> 63; }

double case_uniform(struct op_case *c, double low, double high)
{
    return low + (high - low) * ((double)(draw(c) >> 11) * 0x1p-53);
}

double case_normal(struct op_case *c)
{
    double u = case_uniform(c, 0, 1), v = case_uniform(c, 0, 1);
    return sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v);
}

int64_t case_pick(struct op_case *c, const int64_t *from, int n) { return from[case_below(c, n)]; }

/* --- operands ------------------------------------------------------------------------------------------- */

static int declare(struct op_case *c, const char *label, enum dtype type, int ndim, const int64_t *dim)
{
    struct tensor t = {.label = label,
                       .layer = -1,
                       .type = type,
                       .cls = CLASS_ACT,
                       .ndim = ndim,
                       .view_of = -1,
                       .owner = -1};
    for (int i = 0; i < ndim; i++) t.dim[i] = dim[i];
    return tape_tensor(&c->tape, &t);
}

static const char *const in_names[OP_MAX_IN] = {"in0", "in1", "in2", "in3", "in4",
                                                "in5", "in6", "in7", "in8", "in9"};
static const char *const out_names[OP_MAX_OUT] = {"out0", "out1", "out2", "out3", "out4", "out5"};

const struct tensor *op_case_in(const struct op_case *c, int slot)
{
    return c->op.in[slot] < 0 ? NULL : &c->tape.tensors[c->op.in[slot]];
}

const struct tensor *op_case_out(const struct op_case *c, int slot)
{
    return c->op.out[slot] < 0 ? NULL : &c->tape.tensors[c->op.out[slot]];
}

int64_t case_count(const struct op_case *c, int slot) { return tensor_count(op_case_in(c, slot)); }

static double get_any(enum dtype type, const void *image, int64_t i)
{
    switch (type) {
    case DT_F32:
        return (double)((const float *)image)[i];
    case DT_F64:
        return ((const double *)image)[i];
    case DT_BF16:
        return (double)bf16_to_f32(((const uint16_t *)image)[i]);
    case DT_F16:
        return (double)f16_to_f32(((const uint16_t *)image)[i]);
    default:
        return 0;
    }
}

static void set_any(enum dtype type, void *image, int64_t i, double value)
{
    switch (type) {
    case DT_F32:
        ((float *)image)[i] = (float)value;
        break;
    case DT_F64:
        ((double *)image)[i] = value;
        break;
    case DT_BF16:
        ((uint16_t *)image)[i] = f32_to_bf16((float)value);
        break;
    case DT_F16:
        ((uint16_t *)image)[i] = f32_to_f16((float)value);
        break;
    default:
        give_up("integer operand filled with a real number");
    }
}

static bool is_floating(enum dtype type)
{
    return type == DT_F32 || type == DT_F64 || type == DT_BF16 || type == DT_F16;
}

static void fill(struct op_case *c, const struct tensor *t, void *image, double mean, double deviation)
{
    int64_t n = tensor_count(t);
    for (int64_t i = 0; i < n; i++) set_any(t->type, image, i, mean + deviation * case_normal(c));
}

void case_in(struct op_case *c, int slot, enum dtype type, int ndim, const int64_t *dim)
{
    c->op.in[slot] = declare(c, in_names[slot], type, ndim, dim);
    const struct tensor *t = op_case_in(c, slot);
    c->in[slot] = must_alloc((size_t)tensor_bytes(t));
    if (is_floating(type))
        fill(c, t, c->in[slot], 0, 1);
    else
        memset(c->in[slot], 0, (size_t)tensor_bytes(t));
}

void case_out(struct op_case *c, int slot, enum dtype type, int ndim, const int64_t *dim)
{
    c->op.out[slot] = declare(c, out_names[slot], type, ndim, dim);
    size_t bytes = (size_t)tensor_bytes(op_case_out(c, slot));
    c->out[slot] = must_alloc(bytes);
    memset(c->out[slot], 0xff, bytes);
}

void case_acc(struct op_case *c, int slot, enum dtype type, int ndim, const int64_t *dim)
{
    case_out(c, slot, type, ndim, dim);
    if (c->op.accumulate == ACC_ADD) fill(c, op_case_out(c, slot), c->out[slot], 0, 1);
}

void case_same(struct op_case *c, int out_slot, int in_slot)
{
    size_t bytes = (size_t)tensor_bytes(op_case_in(c, in_slot));
    c->op.out[out_slot] = c->op.in[in_slot];
    c->out[out_slot] = must_alloc(bytes);
    memcpy(c->out[out_slot], c->in[in_slot], bytes);
}

struct lead case_lead(struct op_case *c, int64_t max_rows)
{
    int64_t rows = 1 + case_below(c, case_flip(c) ? max_rows : (max_rows < 9 ? max_rows : 9));
    struct lead lead = {.ndim = 1, .dim = {rows}, .rows = rows};
    for (int64_t b = 5; b > 1; b--) {
        if (rows % b || case_flip(c)) continue;
        return (struct lead){.ndim = 2, .dim = {b, rows / b}, .rows = rows};
    }
    return lead;
}

bool case_adapter(struct op_case *c, struct lead *lead, int64_t *m, int64_t *k)
{
    if (case_below(c, 6)) return false;
    int64_t rows = 130 + case_below(c, 800), r = PICK(c, 8, 16, 16, 24, 32, 48, 64);
    int64_t wide = PICK(c, 72, 136, 520, 648, 1032);
    *lead = (struct lead){.ndim = 1, .dim = {rows}, .rows = rows};
    bool first = case_flip(c);
    *m = first ? r : wide, *k = first ? wide : r;
    return true;
}

int64_t case_parts(struct op_case *c, int64_t m)
{
    int64_t parts = m >= 3 && case_below(c, 4) == 0 ? 2 + case_below(c, 2) : 1, lines = 0;
    for (int64_t p = 0; p < parts && parts > 1; lines += c->op.attr.lines[p++].lines) {
        int64_t some = case_flip(c) ? m / parts / 8 * 8 : 1 + case_below(c, m / parts);
        c->op.attr.lines[p].lines = p + 1 < parts ? some > 0 ? some : 1 : m - lines;
    }
    return parts;
}

void case_in_rows(struct op_case *c, int slot, enum dtype type, struct lead lead, int64_t width)
{
    lead.dim[lead.ndim] = width;
    case_in(c, slot, type, lead.ndim + 1, lead.dim);
}

void case_out_rows(struct op_case *c, int slot, enum dtype type, struct lead lead, int64_t width)
{
    lead.dim[lead.ndim] = width;
    case_out(c, slot, type, lead.ndim + 1, lead.dim);
}

double case_get(const struct op_case *c, int slot, int64_t i)
{
    return get_any(op_case_in(c, slot)->type, c->in[slot], i);
}

void case_set(struct op_case *c, int slot, int64_t i, double value)
{
    set_any(op_case_in(c, slot)->type, c->in[slot], i, value);
}

void case_set_int(struct op_case *c, int slot, int64_t i, int32_t value)
{
    ((int32_t *)c->in[slot])[i] = value;
}

void case_fill(struct op_case *c, int slot, double mean, double deviation)
{
    fill(c, op_case_in(c, slot), c->in[slot], mean, deviation);
}

void case_forward(struct op_case *c, int kind, const int *from, const int *to)
{
    struct op op = c->op;
    op.kind = kind;
    struct kernel_call call = {.op = &op};
    for (int i = 0; from[i] >= 0; i++)
        if (c->op.in[from[i]] >= 0) call.desc[i] = op_case_in(c, from[i]), call.in[i] = c->in[from[i]];
    for (int i = 0; to[i] >= 0; i++)
        call.desc[OP_MAX_IN + i] = op_case_in(c, to[i]), call.out[i] = c->in[to[i]];
    call.work = must_alloc(reference_bytes(call.desc));
    reference_kernels[kind]->run(&call);
    free(call.work);
}

void case_scalars(struct op_case *c, int slot)
{
    case_in(c, slot, DT_F32, DIMS(SCALAR_COUNT));
    case_set(c, slot, SCALAR_KEY_LOW, (double)case_below(c, 65536));
    case_set(c, slot, SCALAR_KEY_HIGH, (double)case_below(c, 65536));
    case_set(c, slot, SCALAR_FIRST_ROW, (double)case_below(c, 1000));
    case_set(c, slot, SCALAR_ROW_SKIP, (double)case_below(c, 4));
    c->op.attr.stream = (uint32_t)case_below(c, 1 << 30);
}

void case_note(struct op_case *c, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(c->note, sizeof c->note, fmt, args);
    va_end(args);
}

double case_magnified(const struct op_case *c, int slot, int64_t width, bool layer)
{
    double most = 0;
    for (int64_t begin = 0; begin < case_count(c, slot); begin += width) {
        double sum = 0, squares = 0, top = 0;
        for (int64_t i = begin; i < begin + width; i++) sum += case_get(c, slot, i);
        double mean = layer ? sum / (double)width : 0;
        for (int64_t i = begin; i < begin + width; i++) {
            squares += pow(case_get(c, slot, i) - mean, 2);
            top = fmax(top, fabs(case_get(c, slot, i)));
        }
        most = fmax(most, top / sqrt(squares / (double)width + (double)c->op.attr.eps));
    }
    return most;
}

double sum_error(int64_t n) { return F32_UNIT * (4 + 4 * sqrt((double)n)); }

double dtype_unit(enum dtype type)
{
    switch (type) {
    case DT_F32:
        return 0x1p-24;
    case DT_BF16:
        return 0x1p-8;
    case DT_F16:
        return 0x1p-11;
    case DT_F64:
        return 0x1p-53;
    default:
        return 0;
    }
}

double dtype_tiny(enum dtype type)
{
    switch (type) {
    case DT_F32:
    case DT_BF16:
        return 0x1p-126;
    case DT_F16:
        return 0x1p-14;
    default:
        return 0;
    }
}

/* --- the case ------------------------------------------------------------------------------------------- */

/* Of fp32 products whose operands were taken as sums of two bf16: 2^-16 of each product (tape/op.h), and some products are
 * larger than what they add up to. */
#define PARTS_ERROR 0x1p-14
_Static_assert(LINEAR_Y == 0 && LINEAR_DX_DX == 0 && LINEAR_DW_DW == 0, "a product is the first output");

bool op_case_product(const struct op_case *c)
{
    return c->kind == OP_LINEAR || c->kind == OP_LINEAR_DX || c->kind == OP_LINEAR_DW;
}

void op_case_make(struct op_case *c, int kind, uint64_t seed, int index)
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    struct plim_error err = {0};
    *c = (struct op_case){.kind = kind, .index = index, .seed = seed, .type = types[index % 3]};
    c->random = seed * 0x100000001b3u + (uint64_t)kind * 1000003u + (uint64_t)index;
    tape_init(&c->tape);
    c->op = tape_op(kind, -1);
    c->op.accumulate = case_flip(c) ? ACC_ADD : ACC_OVERWRITE;
    c->op.attr.tf32 = op_case_product(c) && case_flip(c);
    makers[kind](c);
    c->op.attr.repeatable = case_below(c, 3) == 0; /* last: the operands are what they were without */
    c->op.attr.split = op_case_product(c) && case_flip(c);
    if (c->op.attr.split && c->type == DT_F32) c->inner[0] += PARTS_ERROR;
    tape_append(&c->tape, &c->op);
    if (c->tape.failed) give_up("out of memory");
    if (op_check(&c->tape, &c->op, &err) != PLIM_OK) give_up(err.text);
}

void op_case_release(struct op_case *c)
{
    for (int i = 0; i < OP_MAX_IN; i++) free(c->in[i]);
    for (int i = 0; i < OP_MAX_OUT; i++) free(c->out[i]);
    tape_release(&c->tape);
}

static int put_operand(char *buf, size_t size, const struct tensor *t)
{
    int used = snprintf(buf, size, " %s:%s[", t->label, dtype_name(t->type));
    for (int i = 0; i < t->ndim && (size_t)used < size; i++)
        used += snprintf(buf + used, size - (size_t)used, "%s%lld", i ? "," : "", (long long)t->dim[i]);
    if ((size_t)used < size) used += snprintf(buf + used, size - (size_t)used, "]");
    return used;
}

const char *op_case_text(const struct op_case *c, char *buf, size_t size)
{
    int used = snprintf(buf, size, "%s case %d (OP_SEED=%llu): %s;", op_name(c->kind), c->index,
                        (unsigned long long)c->seed, c->note);
    for (int i = 0; i < OP_MAX_IN + OP_MAX_OUT && (size_t)used < size; i++) {
        const struct tensor *t = i < OP_MAX_IN ? op_case_in(c, i) : op_case_out(c, i - OP_MAX_IN);
        if (t) used += put_operand(buf + used, size - (size_t)used, t);
    }
    const char *const more[] = {c->op.accumulate == ACC_ADD ? " adding" : "",
                                c->op.attr.repeatable ? " repeatable" : "", c->op.attr.tf32 ? " tf32" : "",
                                c->op.attr.split ? " in parts" : ""};
    if ((size_t)used < size)
        snprintf(buf + used, size - (size_t)used, "%s%s%s%s", more[0], more[1], more[2], more[3]);
    return buf;
}
