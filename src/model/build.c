/* build.c - the bricks of a forward tape. See build.h.
 *
 * Every tensor is made by exactly one op, residual additions ride on the linear that ends the branch, and
 * nothing is reshaped: a linear writes [B,T,H,D] directly because rows and row length are all it needs.
 */
#include "model/build.h"

#include <math.h>

static int declare(struct builder *b, struct tensor t)
{
    t.layer = b->layer;
    t.view_of = -1, t.owner = -1;
    return tape_tensor(b->tape, &t);
}

static struct op start(const struct builder *b, int kind)
{
    struct op op = tape_op(kind, b->layer);
    op.part = b->part;
    return op;
}

static int input_i32(struct builder *b, const char *label)
{
    return declare(b, (struct tensor){.label = label,
                                      .type = DT_I32,
                                      .cls = CLASS_IO,
                                      .flags = TENSOR_INPUT,
                                      .ndim = 2,
                                      .dim = {b->shape->batch, b->shape->time}});
}

int build_scalars(struct builder *b)
{
    int there = tape_find(b->tape, "step.scalars", -1);
    if (there >= 0) return there;
    return tape_tensor(b->tape, &(struct tensor){.label = "step.scalars",
                                                 .layer = -1,
                                                 .type = DT_F32,
                                                 .cls = CLASS_IO,
                                                 .flags = TENSOR_INPUT | TENSOR_STAT | TENSOR_KEPT,
                                                 .ndim = 1,
                                                 .dim = {SCALAR_COUNT},
                                                 .view_of = -1,
                                                 .owner = -1});
}

static void build_rope_table(struct builder *b)
{
    int head_dim = b->spec->head_dim;
    struct op op = start(b, OP_ROPE_TABLE);
    op.in[ROPE_TABLE_POS] = b->pos;
    op.in[ROPE_TABLE_INV_FREQ] = declare(b, (struct tensor){.label = "rope.inv_freq",
                                                            .type = DT_F32,
                                                            .cls = CLASS_IO,
                                                            .flags = TENSOR_KEPT | TENSOR_STAT,
                                                            .ndim = 1,
                                                            .dim = {head_dim / 2}});
    op.out[ROPE_TABLE_TABLE] =
        declare(b, (struct tensor){.label = "rope.table",
                                   .type = DT_F32,
                                   .cls = CLASS_ACT,
                                   .flags = TENSOR_STAT,
                                   .ndim = 3,
                                   .dim = {b->shape->batch, b->shape->time, head_dim}});
    op.attr.head_dim = head_dim;
    tape_append(b->tape, &op);
    b->rope_table = op.out[ROPE_TABLE_TABLE];
}

void build_inputs(struct builder *b)
{
    if (b->shape->flat.tokens) {
        build_flat_inputs(b);
    } else {
        b->ids = input_i32(b, "ids");
        b->pos = input_i32(b, "pos");
    }
    b->rope_table = -1;
    if (b->spec->arch->rope) build_rope_table(b);
}

int build_param(struct builder *b, int row)
{
    const struct param_row *p = &b->spec->arch->params[row];
    if (!param_present(b->spec, p)) return -1;
    struct tensor t = {.label = p->label, .type = DT_F32, .cls = CLASS_PARAM, .flags = TENSOR_KEPT};
    for (; t.ndim < 2 && p->dim[t.ndim] != DIM_NONE; t.ndim++)
        t.dim[t.ndim] = param_dim_size(b->spec, p->dim[t.ndim]);
    if (t.ndim < 2) t.flags |= TENSOR_NEAR;
    return declare(b, t);
}

int build_act(struct builder *b, const char *label, int64_t last)
{
    return declare(b, (struct tensor){.label = label,
                                      .type = DT_F32,
                                      .cls = CLASS_ACT,
                                      .ndim = 3,
                                      .dim = {b->shape->batch, b->shape->time, last}});
}

int build_heads(struct builder *b, const char *label, int heads)
{
    return declare(b, (struct tensor){.label = label,
                                      .type = DT_F32,
                                      .cls = CLASS_ACT,
                                      .ndim = 4,
                                      .dim = {b->shape->batch, b->shape->time, heads, b->spec->head_dim}});
}

int build_embed(struct builder *b, const char *label, int ids, int weight, int add)
{
    struct op op = start(b, OP_EMBED);
    op.in[EMBED_IDS] = ids, op.in[EMBED_W] = weight, op.in[EMBED_ADD] = add;
    op.out[EMBED_Y] = build_act(b, label, b->spec->hidden_size);
    tape_append(b->tape, &op);
    return op.out[EMBED_Y];
}

/* Numbers of ops' streams are above those of parameters. */
#define FIRST_STREAM (UINT32_C(1) << 30)

int build_dropout(struct builder *b, const char *label, int x, double dropout, int add)
{
    struct op op = start(b, OP_DROPOUT);
    op.attr.dropout = (float)dropout;
    op.attr.stream = FIRST_STREAM + b->streams++;
    op.in[DROPOUT_X] = x, op.in[DROPOUT_SCALARS] = build_scalars(b), op.in[DROPOUT_ADD] = add;
    op.out[DROPOUT_Y] = build_act(b, label, b->spec->hidden_size);
    tape_append(b->tape, &op);
    return op.out[DROPOUT_Y];
}

int build_norm(struct builder *b, const struct build_norm *n, int x)
{
    struct op op = start(b, OP_NORM);
    op.attr.layer_norm = n->bias >= 0;
    op.attr.eps = (float)b->spec->norm_eps;
    op.in[NORM_X] = x, op.in[NORM_W] = n->weight, op.in[NORM_BIAS] = n->bias;
    op.out[NORM_Y] = build_act(b, n->label, b->spec->hidden_size);
    op.out[NORM_STAT] =
        declare(b, (struct tensor){.label = n->stat_label,
                                   .type = DT_F32,
                                   .cls = CLASS_ACT,
                                   .flags = TENSOR_STAT,
                                   .ndim = 3,
                                   .dim = {b->shape->batch, b->shape->time, n->bias >= 0 ? 2 : 1}});
    tape_append(b->tape, &op);
    return op.out[NORM_Y];
}

int build_linear(struct builder *b, int x, const struct build_linear *l, int y)
{
    struct op op = start(b, OP_LINEAR);
    op.attr.weight_kn = l->weight_kn;
    op.in[LINEAR_X] = x, op.in[LINEAR_W] = l->weight, op.in[LINEAR_BIAS] = l->bias,
    op.in[LINEAR_ADD] = l->add;
    op.out[LINEAR_Y] = y;
    tape_append(b->tape, &op);
    return y;
}

static struct op_attr head_attributes(const struct model_spec *spec)
{
    return (struct op_attr){
        .heads = spec->num_heads, .kv_heads = spec->num_kv_heads, .head_dim = spec->head_dim};
}

static struct build_parts build_split(struct builder *b, int qkv)
{
    struct op op = start(b, OP_SPLIT3);
    op.attr = head_attributes(b->spec);
    op.in[SPLIT3_X] = qkv, op.in[SPLIT3_TABLE] = b->rope_table;
    op.out[SPLIT3_Q] = build_heads(b, "attn.q[%d]", b->spec->num_heads);
    op.out[SPLIT3_K] = build_heads(b, "attn.k[%d]", b->spec->num_kv_heads);
    op.out[SPLIT3_V] = build_heads(b, "attn.v[%d]", b->spec->num_kv_heads);
    tape_append(b->tape, &op);
    return (struct build_parts){op.out[SPLIT3_Q], op.out[SPLIT3_K], op.out[SPLIT3_V]};
}

static int kv_tensor(struct builder *b, const char *label)
{
    const struct model_spec *spec = b->spec;
    return declare(b, (struct tensor){
                          .label = label,
                          .type = DT_F32,
                          .cls = CLASS_KV,
                          .flags = TENSOR_KEPT,
                          .ndim = 4,
                          .dim = {b->shape->batch, b->shape->kv_length, spec->num_kv_heads, spec->head_dim}});
}

/* New keys and values join the layer's cache, and the cache takes their place. */
static void build_cache(struct builder *b, struct build_parts *p)
{
    struct op op = start(b, OP_KV_APPEND);
    op.attr = head_attributes(b->spec);
    op.in[KV_APPEND_K] = p->k, op.in[KV_APPEND_V] = p->v, op.in[KV_APPEND_POS] = b->pos;
    op.in[KV_APPEND_KC] = op.out[KV_APPEND_NEW_KC] = kv_tensor(b, "kv.k");
    op.in[KV_APPEND_VC] = op.out[KV_APPEND_NEW_VC] = kv_tensor(b, "kv.v");
    tape_append(b->tape, &op);
    p->k = op.out[KV_APPEND_NEW_KC], p->v = op.out[KV_APPEND_NEW_VC];
}

int build_attention(struct builder *b, int qkv)
{
    const struct model_spec *spec = b->spec;
    bool cached = b->shape->kv_length > 0;
    struct build_parts p = build_split(b, qkv);
    if (cached) build_cache(b, &p);
    struct op op = start(b, OP_ATTN);
    op.attr = head_attributes(spec);
    op.attr.cached = cached;
    op.attr.whole_rows = b->shape->whole_rows && !cached;
    op.attr.standard = b->shape->standard;
    op.attr.window = (int)model_layer_window(spec, b->layer);
    op.attr.scale = (float)(1.0 / sqrt(spec->head_dim));
    if (b->shape->flat.tokens) return build_paged(b, &p, op.attr);
    op.in[ATTN_Q] = p.q, op.in[ATTN_K] = p.k, op.in[ATTN_V] = p.v, op.in[ATTN_POS] = b->pos;
    if (b->attention_dropout > 0) {
        op.attr.dropout = (float)b->attention_dropout;
        op.attr.stream = FIRST_STREAM + b->streams++;
        op.in[ATTN_SCALARS] = build_scalars(b);
    }
    op.out[ATTN_O] = build_heads(b, "attn.out[%d]", spec->num_heads);
    op.out[ATTN_LSE] = declare(b, (struct tensor){.label = "attn.lse[%d]",
                                                  .type = DT_F32,
                                                  .cls = CLASS_ACT,
                                                  .flags = TENSOR_STAT,
                                                  .ndim = 3,
                                                  .dim = {b->shape->batch, spec->num_heads, b->shape->time}});
    tape_append(b->tape, &op);
    return op.out[ATTN_O];
}

/* The last token of each row as [B,C]; model_emit made sure that those rows are neighbours. */
static int last_tokens(struct builder *b, int x)
{
    if (x < 0) return -1;
    struct tensor t = b->tape->tensors[x];
    int64_t time = b->shape->time;
    t.label = "head.last";
    t.ndim = 2, t.dim[0] = b->shape->batch, t.dim[1] = b->spec->hidden_size;
    t.view_of = x;
    t.view_offset = (time - 1) * b->spec->hidden_size * (int64_t)dtype_size(t.type);
    return tape_tensor(b->tape, &t);
}

static void build_loss(struct builder *b, int logits)
{
    struct op op = start(b, OP_XENT);
    op.accumulate = ACC_AFTER_FIRST;
    op.in[XENT_LOGITS] = logits;
    op.in[XENT_TARGETS] = input_i32(b, "targets");
    op.in[XENT_SCALARS] = build_scalars(b);
    op.out[XENT_LOSS] = declare(b, (struct tensor){.label = "loss",
                                                   .type = DT_F64,
                                                   .cls = CLASS_IO,
                                                   .flags = TENSOR_OUTPUT | TENSOR_STAT,
                                                   .ndim = 1,
                                                   .dim = {2}});
    tape_append(b->tape, &op);
}

void build_head(struct builder *b, int x, int weight)
{
    enum model_head head = b->shape->head;
    int64_t vocab = b->spec->vocab_size;
    b->part = PART_HEAD;
    struct tensor logits = {.label = "logits", .type = DT_F32, .cls = CLASS_ACT};
    if (b->shape->flat.tokens) {
        x = build_flat_last(b, x);
        logits.ndim = 2, logits.dim[0] = b->shape->flat.rows, logits.dim[1] = vocab;
    } else if (head == HEAD_LAST_LOGITS) {
        x = last_tokens(b, x);
        logits.ndim = 2, logits.dim[0] = b->shape->batch, logits.dim[1] = vocab;
    } else {
        logits.ndim = 3, logits.dim[0] = b->shape->batch, logits.dim[1] = b->shape->time,
        logits.dim[2] = vocab;
    }
    if (head != HEAD_LOSS) logits.flags = TENSOR_OUTPUT;
    struct build_linear l = {.weight = weight, .bias = -1, .add = -1};
    int y = build_linear(b, x, &l, declare(b, logits));
    if (head == HEAD_LOSS) build_loss(b, y);
}
