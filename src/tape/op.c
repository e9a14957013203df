/* op.c - the op table and the one rule that reads its patterns. See op.h. */
#include "tape/op.h"
#include "tape/pass_grad.h"

#include <string.h>

static int64_t count_of(const struct tape *tape, int id) { return tensor_count(&tape->tensors[id]); }

/* Weight matmuls: 2 x rows x weight elements. `wide` has the weight's output width in its last dimension. */
static double matmul_flops(const struct tape *tape, int wide, int weight, bool kn)
{
    const struct tensor *w = &tape->tensors[weight];
    int64_t width = kn ? w->dim[1] : w->dim[0];
    return 2.0 * (double)(count_of(tape, wide) / width) * (double)tensor_count(w);
}

static void flops_linear(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->matmul_flops += matmul_flops(tape, op->out[0], op->in[1], op->attr.weight_kn);
}

static void flops_linear_dx(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->matmul_flops += matmul_flops(tape, op->in[0], op->in[1], op->attr.weight_kn);
}

static void flops_linear_dw(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->matmul_flops += matmul_flops(tape, op->in[0], op->out[0], op->attr.weight_kn);
}

/* Causal pairs of one head, bounded by the window. */
static double attn_pairs(const struct tape *tape, const struct op *op, int q, int k)
{
    double time = (double)tape->tensors[q].dim[1], keys = (double)tape->tensors[k].dim[1];
    double window = op->attr.window ? (double)op->attr.window : keys;
    if (op->attr.cached) return time * (window < keys ? window : keys);
    if (window >= time) return time * (time + 1) / 2;
    return window * (window + 1) / 2 + (time - window) * window;
}

static void flops_attn(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    const struct tensor *q = &tape->tensors[op->in[0]];
    cost->attn_flops +=
        4.0 * (double)(q->dim[0] * q->dim[2] * q->dim[3]) * attn_pairs(tape, op, op->in[0], op->in[1]);
}

static void flops_attn_bwd(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    const struct tensor *q = &tape->tensors[op->in[1]];
    cost->attn_flops +=
        10.0 * (double)(q->dim[0] * q->dim[2] * q->dim[3]) * attn_pairs(tape, op, op->in[1], op->in[2]);
}

static void flops_adamw8(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->coded += (double)tensor_count(&tape->tensors[op->in[0]]);
}

static const struct op_row rows[OP_KIND_COUNT] = {
    [OP_EMBED] = {"embed", {"i#R", "xVC", "x#RC?"}, {"x#RC"}, {3}, false, false, grad_embed, NULL},
    [OP_NORM] = {"norm", {"x#RC", "xC", "xC?"}, {"x#RC", "f#RS"}, {0}, true, false, grad_norm, NULL},
    [OP_LINEAR] =
        {"linear", {"x#RK", "wMK", "xM?", "x#RM?"}, {"x#RM"}, {4}, false, false, grad_linear, flops_linear},
    [OP_ROPE_TABLE] = {"rope_table", {"iBT", "fE"}, {"f#BT2E"}, {0}, false, false, grad_none, NULL},
    [OP_ATTN] = {"attn",
                 {"xBTHD", "xBSKD", "xBSKD", "iBT"},
                 {"xBTHD", "fBHT"},
                 {0},
                 false,
                 false,
                 grad_attn,
                 flops_attn},
    [OP_SWIGLU] = {"swiglu", {"x#N", "x#N"}, {"x#N"}, {1}, true, false, grad_swiglu, NULL},
    [OP_GELU] = {"gelu", {"x#N"}, {"x#N"}, {1}, true, false, grad_gelu, NULL},
    [OP_ADD] = {"add", {"x#N", "x#N"}, {"x#N"}, {1}, false, false, grad_add, NULL},
    [OP_XENT] = {"xent", {"x#RV", "i#R", "fZ"}, {"d2", "x#RV?"}, {0, 1}, false, false, NULL, NULL},
    [OP_KV_APPEND] = {"kv_append",
                      {"xBTKD", "xBTKD", "iBT", "xBSKD", "xBSKD"},
                      {"xBSKD", "xBSKD"},
                      {0},
                      false,
                      false,
                      NULL,
                      NULL},
    [OP_SPLIT3] =
        {"split3", {"xBTL", "fBTD?"}, {"xBTHD", "xBTKD", "xBTKD"}, {0}, false, false, grad_split3, NULL},
    [OP_EMBED_BWD] = {"embed_bwd", {"i#R", "x#RC"}, {"eVC"}, {0}, false, false, NULL, NULL},
    [OP_NORM_BWD] = {"norm_bwd",
                     {"x#RC", "x#RC", "xC", "f#RS", "x#RC?"},
                     {"x#RC", "eC", "eC?"},
                     {5},
                     false,
                     false,
                     NULL,
                     NULL},
    [OP_LINEAR_DX] =
        {"linear_dx", {"x#RM", "wMK", "x#RK?"}, {"x#RK"}, {3}, false, false, NULL, flops_linear_dx},
    [OP_LINEAR_DW] =
        {"linear_dw", {"x#RM", "x#RK"}, {"gMK", "eM?"}, {0}, false, false, NULL, flops_linear_dw},
    [OP_ATTN_BWD] = {"attn_bwd",
                     {"xBTHD", "xBTHD", "xBSKD", "xBSKD", "xBTHD", "fBHT", "iBT"},
                     {"xBTHD", "xBSKD", "xBSKD"},
                     {0},
                     false,
                     false,
                     NULL,
                     flops_attn_bwd},
    [OP_SWIGLU_BWD] =
        {"swiglu_bwd", {"x#N", "x#N", "x#N"}, {"x#N", "x#N", "x#N?"}, {2, 3, 1}, false, false, NULL, NULL},
    [OP_GELU_BWD] = {"gelu_bwd", {"x#N", "x#N"}, {"x#N", "x#N?"}, {1, 2}, false, false, NULL, NULL},
    [OP_JOIN3] = {"join3", {"xBTHD", "xBTKD", "xBTKD", "fBTD?"}, {"xBTL"}, {0}, false, false, NULL, NULL},
    [OP_SUMSQ] = {"sumsq", {"e#N"}, {"d1"}, {0}, false, true, NULL, NULL},
    [OP_CLIP] = {"clip", {"dG", "fZ"}, {"f4"}, {0}, false, false, NULL, NULL},
    [OP_ADAMW] = {"adamw",
                  {"x#N", "e#N", "s#N", "s#N", "m#N?", "fZ", "f4?"},
                  {"x#N", "s#N", "s#N", "m#N?"},
                  {1, 3, 4, 5},
                  false,
                  true,
                  NULL,
                  NULL},
    [OP_SGD] = {"sgd",
                {"x#N", "e#N", "s#N?", "m#N?", "fZ", "f4?"},
                {"x#N", "s#N?", "m#N?"},
                {1, 3, 4},
                false,
                false,
                NULL,
                NULL},
    [OP_ADAMW8] = {"adamw8",
                   {"x#N", "e#N", "q#N", "q#N", "f%N", "f%N", "m#N?", "fZ", "f4?"},
                   {"x#N", "q#N", "q#N", "f%N", "f%N", "m#N?"},
                   {1, 3, 4, 5, 6, 7},
                   false,
                   false,
                   NULL,
                   flops_adamw8},
    [OP_FACTOR_STAT] = {"factor_stat",
                        {"e#RC", "fR", "fC?", "fZ", "f4?"},
                        {"fR", "fC?", "f2"},
                        {2, 3},
                        false,
                        false,
                        NULL,
                        NULL},
    [OP_ADAFACTOR] = {"adafactor",
                      {"x#RC", "e#RC", "fR", "fC?", "f2", "s#RC?", "m#RC?", "fZ", "f4?"},
                      {"x#RC", "s#RC?", "m#RC?"},
                      {1, 6, 7},
                      false,
                      false,
                      NULL,
                      NULL},
    [OP_FETCH] = {"fetch", {"y#N"}, {"y#N"}, {0}, false, false, NULL, NULL},
    [OP_STORE] = {"store", {"y#N"}, {"y#N"}, {0}, false, false, NULL, NULL},
    [OP_HOLD] = {"hold",
                 {"*", "*?", "*?", "*?", "*?", "*?", "*?", "*?", "*?"},
                 {NULL},
                 {0},
                 false,
                 false,
                 NULL,
                 NULL},
};

const struct op_row *op_row(int kind) { return &rows[kind]; }

struct op_cost op_cost_of(const struct tape *tape, const struct op *op)
{
    struct op_cost cost = {0};
    const struct op_row *row = op_row(op->kind);
    for (int i = 0; i < OP_MAX_IN && row->in[i]; i++)
        if (op->in[i] >= 0) cost.bytes += (double)tensor_bytes(&tape->tensors[op->in[i]]);
    for (int i = 0; i < OP_MAX_OUT && row->out[i]; i++)
        if (op->out[i] >= 0) cost.bytes += (double)tensor_bytes(&tape->tensors[op->out[i]]);
    if (op->kind == OP_HOLD) return (struct op_cost){0};
    if (op_moves(op)) {
        cost.moved_bytes = cost.bytes / 2;
        cost.bytes = cost.moved_bytes;
    }
    if (op->kind == OP_EMBED || op->kind == OP_EMBED_BWD) { /* touches only the rows that are named */
        int table = op->kind == OP_EMBED ? op->in[1] : op->out[0];
        cost.bytes -= (double)tensor_bytes(&tape->tensors[table]);
        cost.bytes += (double)tensor_bytes(&tape->tensors[op->kind == OP_EMBED ? op->out[0] : op->in[1]]);
    }
    if (row->flops) row->flops(tape, op, &cost);
    return cost;
}
