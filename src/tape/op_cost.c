/* op_cost.c - what ops cost, for the planner's clock. See op.h and op_cost.h. */
#include "tape/op_cost.h"
#include "tape/quantised.h"
#include "tensor/blocks.h"
#include "tensor/f8_lines.h"

static int64_t count_of(const struct tape *tape, int id) { return tensor_count(&tape->tensors[id]); }

/* Weight matmuls: 2 x rows x weight elements. `wide` has the weight's output width in its last dimension. */
static double matmul_flops(const struct tape *tape, int wide, int weight, bool kn)
{
    const struct tensor *w = &tape->tensors[weight];
    int64_t width = kn ? w->dim[1] : w->dim[0];
    return 2.0 * (double)(count_of(tape, wide) / width) * (double)tensor_count(w);
}

enum { FEW_ROWS = 16 }; /* of generation: a weight is read as it lies */

static double bytes_of(const struct tape *tape, int id) { return (double)tensor_bytes(&tape->tensors[id]); }

/* `wide` as matmul_flops has it, `rows`: the operand whose rows are multiplied. */
static void add_product(const struct tape *tape, int wide, int weight, bool kn, int rows,
                        struct op_cost *cost)
{
    double flops = matmul_flops(tape, wide, weight, kn);
    bool many = flops > 2.0 * FEW_ROWS * (double)count_of(tape, weight);
    cost->matmul_flops += flops;
    cost->products += many;
    cost->packed += many ? bytes_of(tape, rows) : 0;
}

void cost_linear(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->type = tape->tensors[op->in[LINEAR_X]].type;
    add_product(tape, op->out[LINEAR_Y], op->in[LINEAR_W], op->attr.weight_kn, op->in[LINEAR_X], cost);
}

/* Not a product of matrices: fp32 arithmetic. */
void cost_dora_norm(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->type = DT_F32;
    cost->matmul_flops += 2.0 * (double)tape->tensors[op->in[DORA_NORM_A]].dim[1] *
                          (double)tensor_count(&tape->tensors[op->in[DORA_NORM_B]]);
}

/* The codes are read, the numbers are written and read: on devices that widen weights (facts.h). Types with a table and exact rows (keep_x) are
 * widened; otherwise rows of x are rounded and meet the codes as they lie. */
static double widened(const struct tape *tape, const struct op *op, int weight, int64_t k, enum dtype type,
                      bool always)
{
    bool wide = always || op->attr.keep_x;
    for (int i = 0; i < OP_LINE_PARTS && op->attr.lines[i].lines; i++)
        wide = wide || block_type_of((uint32_t)op->attr.lines[i].type)->table;
    if (!wide) return 0;
    return bytes_of(tape, weight) + 2.0 * (double)(quantised_lines(&op->attr) * k) * (double)dtype_size(type);
}

/* A weight in blocks: every element of it once for each row. */
void cost_linear_q(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    const struct tensor *y = &tape->tensors[op->out[LINEAR_Q_Y]];
    int64_t k = quantised_columns(&op->attr, tensor_bytes(&tape->tensors[op->in[LINEAR_Q_W]]));
    cost->type = tape->tensors[op->in[LINEAR_Q_X]].type;
    cost->matmul_flops += 2.0 * (double)tensor_count(y) * (double)k;
    cost->widened += widened(tape, op, op->in[LINEAR_Q_W], k, cost->type, false);
}

void cost_linear_q_dx(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    const struct tensor *dx = &tape->tensors[op->out[LINEAR_Q_DX_DX]];
    cost->type = dx->type;
    cost->matmul_flops += 2.0 * (double)tensor_count(dx) * (double)quantised_lines(&op->attr);
    int64_t k = quantised_columns(&op->attr, tensor_bytes(&tape->tensors[op->in[LINEAR_Q_DX_W]]));
    cost->widened += widened(tape, op, op->in[LINEAR_Q_DX_W], k, cost->type, true);
}

void cost_linear_dx(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->type = tape->tensors[op->in[LINEAR_DX_DY]].type;
    add_product(tape, op->in[LINEAR_DX_DY], op->in[LINEAR_DX_W], op->attr.weight_kn, op->in[LINEAR_DX_DY],
                cost);
}

void cost_linear_dw(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    if (op->out[LINEAR_DW_DW] < 0) return;
    cost->type = tape->tensors[op->in[LINEAR_DW_DY]].type;
    add_product(tape, op->in[LINEAR_DW_DY], op->out[LINEAR_DW_DW], op->attr.weight_kn, op->in[LINEAR_DW_DY],
                cost);
}

/* Every row meets the matrix of one adapter. As many of them are read as there are rows, at most all. */
void cost_adapter_linear(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    const struct tensor *w = &tape->tensors[op->in[ADAPTER_LINEAR_W]],
                        *y = &tape->tensors[op->out[ADAPTER_LINEAR_Y]];
    double rows = (double)(tensor_count(y) / w->dim[1]), unread = (double)w->dim[0] - rows;
    cost->type = y->type;
    cost->matmul_flops += 2.0 * (double)tensor_count(y) * (double)w->dim[2];
    if (unread > 0) cost->bytes -= unread / (double)w->dim[0] * (double)tensor_bytes(w);
}

/* The tensor is read twice: for its largest number, and to be converted. */
void cost_quantise8(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->bytes += (double)tensor_bytes(&tape->tensors[op->in[QUANTISE8_X]]);
}

/* Every row of x with every row of W; e5m2 is as fast as e4m3. */
static void product8(const struct tape *tape, int x, int w, struct op_cost *cost)
{
    cost->type = DT_E4M3;
    cost->matmul_flops += 2.0 * (double)count_of(tape, x) * (double)tape->tensors[w].dim[0];
    cost->products += tape->tensors[x].dim[0] > FEW_ROWS;
}

void cost_linear8(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    product8(tape, op->in[LINEAR8_X], op->in[LINEAR8_W], cost);
}

void cost_linear8_dw(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    product8(tape, op->in[LINEAR8_DW_DY], op->in[LINEAR8_DW_X], cost);
}

void cost_linear_f8(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    int64_t y = count_of(tape, op->out[LINEAR_F8_Y]), m = op->attr.lines[0].lines;
    cost->type = DT_E4M3;
    cost->matmul_flops += 2.0 * (double)y * (double)f8_columns(count_of(tape, op->in[LINEAR_F8_W]), m);
    cost->products += y / m > FEW_ROWS;
}

/* Experts: every row meets one expert's matrix, whichever it is. `row`: a tensor of the rows of `width`. */
static void expert_flops(const struct tape *tape, int row, int64_t width, int weight, struct op_cost *cost)
{
    const struct tensor *w = &tape->tensors[weight];
    cost->type = tape->tensors[row].type;
    cost->matmul_flops += 2.0 * (double)(count_of(tape, row) / width) * (double)(w->dim[1] * w->dim[2]);
}

void cost_expert_linear(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    int w = op->in[EXPERT_LINEAR_W];
    expert_flops(tape, op->in[EXPERT_LINEAR_X], tape->tensors[w].dim[2], w, cost);
}

/* The bytes that are read are those of all experts, as of expert_linear. */
void cost_expert_linear_q(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    const struct tensor *x = &tape->tensors[op->in[EXPERT_LINEAR_Q_X]];
    cost->type = x->type;
    cost->matmul_flops += 2.0 * (double)tensor_count(x) * (double)quantised_lines(&op->attr);
}

void cost_expert_linear_q_dx(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    const struct tensor *dx = &tape->tensors[op->out[EXPERT_LINEAR_Q_DX_DX]];
    cost->type = dx->type;
    cost->matmul_flops += 2.0 * (double)tensor_count(dx) * (double)quantised_lines(&op->attr);
}

void cost_expert_linear_dx(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    int w = op->in[EXPERT_LINEAR_DX_W];
    expert_flops(tape, op->in[EXPERT_LINEAR_DX_DY], tape->tensors[w].dim[1], w, cost);
}

void cost_expert_linear_dw(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    int w = op->out[EXPERT_LINEAR_DW_DW];
    expert_flops(tape, op->in[EXPERT_LINEAR_DW_DY], tape->tensors[w].dim[1], w, cost);
}

/* Keys a causal query sees at most. */
static double attn_reach(const struct op_attr *attr, double keys)
{
    if (attr->mask ==
        MASK_BLOCKS) /* half of its own block on average: near enough, and never less than it sees */
        return (double)attr->sparse_block * (attr->local_blocks + attr->global_blocks);
    return attr->window ? attr->window : keys;
}

/* Pairs of query and key of one head. */
static double attn_pairs(const struct tape *tape, const struct op *op, int q, int k)
{
    double time = (double)tape->tensors[q].dim[1], keys = (double)tape->tensors[k].dim[1];
    if (op->attr.mask == MASK_FULL || op->attr.mask == MASK_CROSS) return time * keys;
    double window = attn_reach(&op->attr, keys);
    if (op->attr.cached) return time * (window < keys ? window : keys);
    if (window >= time) return time * (time + 1) / 2;
    return window * (window + 1) / 2 + (time - window) * window;
}

/* Two fifths of what a row of forward takes besides its scores are its query and its result, by their size: 1 for a head of 64. */
static double row_ends(double size) { return 0.6 + 0.4 * size / 64; }

/* `products`: of two numbers each, for each element of a head and pair of query and key. */
static void attn_flops(const struct tape *tape, const struct op *op, int q_id, int k_id, double products,
                       struct op_cost *cost)
{
    const struct tensor *q = &tape->tensors[q_id];
    double heads = (double)(q->dim[0] * q->dim[2]), scores = heads * attn_pairs(tape, op, q_id, k_id);
    bool back = products > 2;
    double share = back ? 1.5 : 1; /* backward has the slope beside the value */
    cost->type = q->type;
    cost->attn_flops += 2 * products * (double)q->dim[3] * scores;
    cost->scores += share * scores;
    cost->score_rows += (back ? share : row_ends((double)q->dim[3])) * heads * (double)q->dim[1];
}

bool op_attn_is_simple(const struct op *op)
{
    bool back = op->kind == OP_ATTN_BWD;
    bool bias = op->in[back ? ATTN_BWD_BIAS : ATTN_BIAS] >= 0;
    bool lengths = op->in[back ? ATTN_BWD_LENGTHS : ATTN_LENGTHS] >= 0;
    const struct op_attr *attr = &op->attr;
    return attr->mask == MASK_CAUSAL && !attr->standard && !bias && !lengths && !(attr->cap > 0) &&
           !(attr->dropout > 0);
}

void cost_attn(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    attn_flops(tape, op, op->in[ATTN_Q], op->in[ATTN_K], 2, cost);
}

void cost_attn_bwd(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    attn_flops(tape, op, op->in[ATTN_BWD_Q], op->in[ATTN_BWD_K], 5, cost);
}

/* A slope takes half as long again as a value, which is made beside it where it is wanted. */
static double slope_of(const struct tape *tape, int dy, int value)
{
    return (1.5 + (value >= 0)) * (double)count_of(tape, dy);
}

/* Elements of a norm, with as many more for each row as its sums and its root take. */
static double rows_of(const struct tape *tape, int x, int weight)
{
    enum { ROW_ENDS = 80 };
    double width =
        (double)(weight >= 0 ? count_of(tape, weight) : tape->tensors[x].dim[tape->tensors[x].ndim - 1]);
    return (double)count_of(tape, x) * (1 + ROW_ENDS / width);
}

void cost_norm(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->plain += rows_of(tape, op->in[NORM_X], op->in[NORM_W]);
}

/* Two sums of a row, then its gradient and the weight's. */
void cost_norm_bwd(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->plain += 2 * rows_of(tape, op->in[NORM_BWD_X], op->in[NORM_BWD_W]);
}

enum { NARROW_HEAD = 32 }; /* elements of a head below which it is rotated one by one */

/* Two thirds of the elements are rotated, the others copied. */
static double turned(const struct tape *tape, int whole, int q)
{
    double weight = tape->tensors[q].dim[3] < NARROW_HEAD ? 3.6 : 0.6;
    return weight * (double)count_of(tape, whole);
}

void cost_split3(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    if (op->in[SPLIT3_TABLE] >= 0) cost->plain += turned(tape, op->in[SPLIT3_X], op->out[SPLIT3_Q]);
}

void cost_join3(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    if (op->in[JOIN3_TABLE] >= 0) cost->plain += turned(tape, op->out[JOIN3_X], op->in[JOIN3_Q]);
}

/* A sine or a cosine takes as long as four exponentials. */
void cost_rope_table(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->curved += 4 * (double)count_of(tape, op->out[ROPE_TABLE_TABLE]);
}

/* An exponential of every logit for the sum, and another one for the gradient. A SiLU is an exponential and a division. */
void cost_xent(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->curved += 0.9 * (1 + (op->out[XENT_DLOGITS] >= 0)) * (double)count_of(tape, op->in[XENT_LOGITS]);
}

void cost_sumsq(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->plain += 0.5 * (double)count_of(tape, op->in[SUMSQ_GRAD]);
}

void cost_adamw(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->updated += (double)count_of(tape, op->in[ADAMW_P]);
}

void cost_glu(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->curved += (double)count_of(tape, op->out[GLU_H]);
}

void cost_glu_bwd(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->curved += slope_of(tape, op->in[GLU_BWD_DH], op->out[GLU_BWD_H]);
}

void cost_act(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->curved += (double)count_of(tape, op->out[ACT_Y]);
}

void cost_act_bwd(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->curved += slope_of(tape, op->in[ACT_BWD_DY], op->out[ACT_BWD_Y]);
}

void cost_adamw8(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->coded += (double)count_of(tape, op->in[ADAMW8_P]);
}

/* An embedding touches only the rows that are named. */
void cost_embed(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->bytes += bytes_of(tape, op->out[EMBED_Y]) - bytes_of(tape, op->in[EMBED_W]);
}

void cost_embed_q(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->bytes += bytes_of(tape, op->out[EMBED_Q_Y]) - bytes_of(tape, op->in[EMBED_Q_W]);
}

void cost_embed_bwd(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->bytes += bytes_of(tape, op->in[EMBED_BWD_DY]) - bytes_of(tape, op->out[EMBED_BWD_DW]);
}

/* Only the tokens' places in the pool are touched. */
void cost_kv_put(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->bytes += 2 * bytes_of(tape, op->in[KV_PUT_K]) - 2 * bytes_of(tape, op->in[KV_PUT_POOL]);
}

/* The bytes that a step reads depend on its requests' lengths. Every row is counted at half of its maximum, and every
 * query at half of a row's. */
void cost_attn_paged(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    const struct tensor *q = &tape->tensors[op->in[ATTN_PAGED_Q]],
                        *pool = &tape->tensors[op->in[ATTN_PAGED_POOL]],
                        *blocks = &tape->tensors[op->in[ATTN_PAGED_BLOCKS]];
    double reach = (double)blocks->dim[1] * KV_BLOCK / 2, window = op->attr.window;
    if (window > 0 && window < reach) reach = window;
    double position = 2 * (double)(q->dim[3] * pool->dim[2]) * (double)dtype_size(pool->type);
    cost->type = q->type;
    cost->attn_flops += 4 * (double)tensor_count(q) * reach;
    cost->bytes += (double)blocks->dim[0] * reach * position - bytes_of(tape, op->in[ATTN_PAGED_POOL]);
}

void cost_move(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->bytes = bytes_of(tape, op->in[MOVE_FROM]);
}

/* A rank sends everything but its own piece; counted as everything. */
void cost_gather(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->link_bytes = bytes_of(tape, op->out[MOVE_TO]);
}

void cost_reduce(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->link_bytes = bytes_of(tape, op->in[MOVE_FROM]);
}

void cost_sum(const struct tape *tape, const struct op *op, struct op_cost *cost)
{
    cost->link_bytes = 2 * bytes_of(tape, op->in[MOVE_FROM]);
}

void cost_hold(const struct tape *, const struct op *, struct op_cost *cost) { *cost = (struct op_cost){0}; }

struct op_cost op_cost_of(const struct tape *tape, const struct op *op, const double *bytes)
{
    struct op_cost cost = {0};
    const struct op_row *row = op_row(op->kind);
    for (int i = 0; i < OP_MAX_IN && row->in[i]; i++)
        if (op->in[i] >= 0) cost.bytes += bytes ? bytes[op->in[i]] : bytes_of(tape, op->in[i]);
    for (int i = 0; i < OP_MAX_OUT && row->out[i]; i++)
        if (op->out[i] >= 0) cost.bytes += bytes ? bytes[op->out[i]] : bytes_of(tape, op->out[i]);
    if (row->cost) row->cost(tape, op, &cost);
    return cost;
}
