/* build.c - the bricks of a forward tape. See build.h.
 *
 * Every tensor is made by exactly one op, residual additions ride on the linear that ends the branch, and
 * nothing is reshaped: a linear writes [B,T,H,D] directly because rows and row length are all it needs.
 */
#include "model/build.h"

#include <math.h>

/* The layer in the count of all stacks. */
static int counted_layer(const struct builder *b) { return b->layer < 0 ? -1 : b->below + b->layer; }

static int declare(struct builder *b, struct tensor t)
{
    t.layer = counted_layer(b);
    t.view_of = -1, t.owner = -1;
    return tape_tensor(b->tape, &t);
}

static struct op start(const struct builder *b, int kind)
{
    struct op op = tape_op(kind, counted_layer(b));
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

struct op build_op(const struct builder *b, int kind) { return start(b, kind); }

int build_tensor(struct builder *b, struct tensor t) { return declare(b, t); }

int build_feed(struct builder *b, const char *label, int64_t rows, int64_t columns)
{
    return declare(b, (struct tensor){.label = label,
                                      .type = DT_I32,
                                      .cls = CLASS_IO,
                                      .flags = TENSOR_INPUT,
                                      .ndim = columns ? 2 : 1,
                                      .dim = {rows, columns}});
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

/* All sets of frequencies in one constant: a program that rotates with one of them keeps the same bytes as the others. */
static int build_frequencies(struct builder *b)
{
    int sets = model_rope_sets(b->spec);
    struct tensor t = {.label = "rope.inv_freq",
                       .type = DT_F32,
                       .cls = CLASS_IO,
                       .flags = TENSOR_KEPT | TENSOR_STAT,
                       .ndim = sets > 1 ? 2 : 1};
    t.dim[0] = sets, t.dim[t.ndim - 1] = model_rotary_size(b->spec) / 2;
    return declare(b, t);
}

/* One set of them. */
static int frequency_set(struct builder *b, int all, int set)
{
    if (all < 0 || b->tape->tensors[all].ndim == 1) return all;
    struct tensor t = b->tape->tensors[all];
    t.ndim = 1, t.dim[0] = t.dim[1];
    t.view_of = all, t.view_offset = set * t.dim[0] * (int64_t)dtype_size(t.type);
    return tape_tensor(b->tape, &t);
}

static int build_rope_table(struct builder *b, int frequencies, int set)
{
    static const char *const labels[MODEL_ROPE_SETS] = {"rope.table", "rope.table.other"};
    int size = model_rotary_size(b->spec);
    struct op op = start(b, OP_ROPE_TABLE);
    op.in[ROPE_TABLE_POS] = b->pos;
    op.in[ROPE_TABLE_INV_FREQ] = frequency_set(b, frequencies, set);
    op.out[ROPE_TABLE_TABLE] = declare(b, (struct tensor){.label = labels[set],
                                                          .type = DT_F32,
                                                          .cls = CLASS_ACT,
                                                          .flags = TENSOR_STAT,
                                                          .ndim = 3,
                                                          .dim = {b->shape->batch, b->shape->time, size}});
    op.attr.head_dim = b->spec->head_dim;
    double factor = model_rope_attention_factor(b->spec, set);
    op.attr.scale = factor == 1 ? 0 : (float)factor;
    tape_append(b->tape, &op);
    return op.out[ROPE_TABLE_TABLE];
}

/* The set of frequencies a layer rotates with in this program, -1: none. */
static int layer_set(const struct builder *b, int layer)
{
    const struct model_shape *shape = b->shape;
    int64_t length = shape->kv_length > shape->time ? shape->kv_length : shape->time;
    if (!b->spec->arch->rope) return -1;
    if (shape->longest > length) length = shape->longest;
    return model_layer_rope(b->spec, layer, shape->flat.tokens ? shape->flat.length : length);
}

static void build_rope_tables(struct builder *b)
{
    bool used[MODEL_ROPE_SETS] = {false};
    int all = -1;
    for (int i = 0; i < b->spec->num_layers; i++)
        if (layer_set(b, i) >= 0) used[layer_set(b, i)] = true;
    for (int set = 0; set < MODEL_ROPE_SETS; set++) {
        if (!used[set]) continue;
        if (all < 0) all = build_frequencies(b);
        b->rope_table[set] = build_rope_table(b, all, set);
    }
}

void build_inputs(struct builder *b)
{
    if (b->shape->flat.tokens) {
        build_flat_inputs(b);
    } else {
        b->ids = input_i32(b, "ids");
        b->pos = input_i32(b, "pos");
    }
    for (int set = 0; set < MODEL_ROPE_SETS; set++) b->rope_table[set] = -1;
    build_rope_tables(b);
}

void build_encoder_inputs(struct builder *b)
{
    const struct model_shape *s = b->shape;
    b->ids = build_feed(b, "ids", s->batch, s->time);
    b->pos = build_feed(b, "pos", s->batch, s->time);
    if (b->spec->token_types > 0) b->types = build_feed(b, "types", s->batch, s->time);
    b->lengths = build_feed(b, "lengths", s->batch, 0);
    for (int set = 0; set < MODEL_ROPE_SETS; set++) b->rope_table[set] = -1;
}

int build_param(struct builder *b, int row)
{
    const struct param_row *p = &b->spec->arch->params[row];
    if (!param_present(b->spec, p)) return -1;
    if (b->layer >= 0 && !param_in_layer(b->spec, p, b->layer)) return -1;
    struct tensor t = {.label = p->label, .type = DT_F32, .cls = CLASS_PARAM, .flags = TENSOR_KEPT};
    for (; t.ndim < 3 && p->dim[t.ndim] != DIM_NONE; t.ndim++)
        t.dim[t.ndim] = param_dim_size(b->spec, p->dim[t.ndim]);
    if (t.ndim < 2) t.flags |= TENSOR_NEAR;
    t.layer = b->layer; /* its name has the stack's own count */
    t.view_of = -1, t.owner = -1;
    return tape_tensor(b->tape, &t);
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
    if (ids == b->pos) op.attr.first = model_first_position(b->spec);
    op.out[EMBED_Y] = build_act(b, label, b->spec->hidden_size);
    if (b->spec->embed_scale > 0) op.attr.scale = (float)b->spec->embed_scale;
    if (b->spec->arch->scaled_embed) op.attr.scale = (float)sqrt((double)b->spec->hidden_size);
    tape_append(b->tape, &op);
    return op.out[EMBED_Y];
}

/* Rows of one position: a norm over single heads has several. */
static int64_t rows_of_norm(const struct builder *b, const struct build_norm *n)
{
    if (n->heads == 0 || n->weight < 0) return 1;
    return (int64_t)n->heads * b->spec->head_dim / tensor_count(&b->tape->tensors[n->weight]);
}

int build_scaled(struct builder *b, const char *label, int x, double factor)
{
    if (factor == 0 || factor == 1) return x;
    struct op op = start(b, OP_ACT);
    op.attr.activation = ACTIVATION_SCALE;
    op.attr.scale = (float)factor;
    op.in[ACT_X] = x, op.out[ACT_Y] = build_act(b, label, b->spec->hidden_size);
    tape_append(b->tape, &op);
    return op.out[ACT_Y];
}

/* Numbers of ops' streams are above those of parameters. */
#define FIRST_STREAM (UINT32_C(1) << 30)

int build_dropout(struct builder *b, const char *label, int x, double dropout, int add)
{
    struct op op = start(b, OP_DROPOUT);
    const struct tensor *t = x < 0 ? NULL : &b->tape->tensors[x];
    int64_t width = t ? t->dim[t->ndim - 1] : b->spec->hidden_size;
    op.attr.dropout = (float)dropout;
    op.attr.stream = FIRST_STREAM + b->streams++;
    op.in[DROPOUT_X] = x, op.in[DROPOUT_SCALARS] = build_scalars(b), op.in[DROPOUT_ADD] = add;
    op.out[DROPOUT_Y] = build_act(b, label, width);
    tape_append(b->tape, &op);
    return op.out[DROPOUT_Y];
}

int build_norm(struct builder *b, const struct build_norm *n, int x)
{
    struct op op = start(b, OP_NORM);
    int64_t stats = (n->bias >= 0 ? 2 : 1) * rows_of_norm(b, n);
    op.attr.layer_norm = n->bias >= 0;
    op.attr.plus_one = b->spec->arch->norm_plus_one;
    op.attr.eps = (float)b->spec->norm_eps;
    op.in[NORM_X] = x, op.in[NORM_W] = n->weight, op.in[NORM_BIAS] = n->bias;
    op.out[NORM_Y] =
        n->heads ? build_heads(b, n->label, n->heads) : build_act(b, n->label, b->spec->hidden_size);
    op.out[NORM_STAT] = declare(b, (struct tensor){.label = n->stat_label,
                                                   .type = DT_F32,
                                                   .cls = CLASS_ACT,
                                                   .flags = TENSOR_STAT,
                                                   .ndim = 3,
                                                   .dim = {b->shape->batch, b->shape->time, stats}});
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

static struct build_parts build_split(struct builder *b, int qkv, int table)
{
    struct op op = start(b, OP_SPLIT3);
    op.attr = head_attributes(b->spec);
    op.in[SPLIT3_X] = qkv, op.in[SPLIT3_TABLE] = table;
    op.out[SPLIT3_Q] = build_heads(b, "attn.q[%d]", b->spec->num_heads);
    op.out[SPLIT3_K] = build_heads(b, "attn.k[%d]", b->spec->num_kv_heads);
    op.out[SPLIT3_V] = build_heads(b, "attn.v[%d]", b->spec->num_kv_heads);
    tape_append(b->tape, &op);
    return (struct build_parts){op.out[SPLIT3_Q], op.out[SPLIT3_K], op.out[SPLIT3_V]};
}

/* Heads behind their norm, rotated where there is a table. */
static int build_turned_norm(struct builder *b, const struct build_norm *n, int x, const char *label,
                             int table)
{
    int y = build_norm(b, n, x);
    if (table < 0) return y;
    struct op op = start(b, OP_ROPE);
    op.in[ROPE_X] = y, op.in[ROPE_TABLE] = table;
    op.out[ROPE_Y] = build_heads(b, label, n->heads);
    tape_append(b->tape, &op);
    return op.out[ROPE_Y];
}

/* Queries, keys and values as attention wants them. Without norms the rotation is part of the split. */
static struct build_parts build_queries(struct builder *b, int qkv, int q_norm, int k_norm)
{
    int set = layer_set(b, b->layer), table = set >= 0 ? b->rope_table[set] : -1;
    if (q_norm < 0) return build_split(b, qkv, table);
    struct build_parts p = build_split(b, qkv, -1);
    struct build_norm q = {"attn.q.norm[%d]", "attn.q.rstd[%d]", q_norm, -1, b->spec->num_heads},
                      k = {"attn.k.norm[%d]", "attn.k.rstd[%d]", k_norm, -1, b->spec->num_kv_heads};
    p.q = build_turned_norm(b, &q, p.q, "attn.q.turned[%d]", table);
    p.k = build_turned_norm(b, &k, p.k, "attn.k.turned[%d]", table);
    return p;
}

static int kv_tensor(struct builder *b, const char *label, int64_t length)
{
    const struct model_spec *spec = b->spec;
    return declare(b, (struct tensor){.label = label,
                                      .type = DT_F32,
                                      .cls = CLASS_KV,
                                      .flags = TENSOR_KEPT,
                                      .ndim = 4,
                                      .dim = {b->shape->batch, length, spec->num_kv_heads, spec->head_dim}});
}

struct build_pair build_cached(struct builder *b, const struct build_cache *c)
{
    int k = kv_tensor(b, c->k_label, c->length);
    return (struct build_pair){k, kv_tensor(b, c->v_label, c->length)};
}

struct build_pair build_cache(struct builder *b, const struct build_cache *c, struct build_pair new)
{
    struct op op = start(b, OP_KV_APPEND);
    struct build_pair cache = build_cached(b, c);
    op.attr = head_attributes(b->spec);
    op.in[KV_APPEND_K] = new.k, op.in[KV_APPEND_V] = new.v, op.in[KV_APPEND_POS] = c->pos;
    op.in[KV_APPEND_KC] = op.out[KV_APPEND_NEW_KC] = cache.k;
    op.in[KV_APPEND_VC] = op.out[KV_APPEND_NEW_VC] = cache.v;
    tape_append(b->tape, &op);
    return cache;
}

/* New keys and values join the layer's cache, and the cache takes their place. */
static void join_cache(struct builder *b, struct build_parts *p)
{
    struct build_cache c = {"kv.k", "kv.v", b->shape->kv_length, b->pos};
    struct build_pair cache = build_cache(b, &c, (struct build_pair){p->k, p->v});
    p->k = cache.k, p->v = cache.v;
}

/* Sets the attributes that all kinds of attention share. */
static void set_scores(const struct builder *b, struct op_attr *attr)
{
    const struct model_spec *spec = b->spec;
    double divisor = sqrt((double)(spec->query_scalar > 0 ? spec->query_scalar : spec->head_dim));
    attr->heads = spec->num_heads, attr->kv_heads = spec->num_kv_heads, attr->head_dim = spec->head_dim;
    attr->standard = b->shape->standard;
    attr->scale = (float)(spec->arch->source ? 1.0 : 1.0 / divisor); /* T5 scales its initial weights */
    if (spec->score_scale > 0) attr->scale = (float)spec->score_scale;
    if (spec->scale_by_layer) attr->scale /= (float)(b->layer + 1);
    attr->cap = (float)spec->attn_cap;
}

/* Appends an op of attention that has its attributes, queries, keys and mask. */
static int append_attention(struct builder *b, struct op *op, const char *label, const char *lse_label)
{
    const struct model_spec *spec = b->spec;
    if (b->attention_dropout > 0) {
        op->attr.dropout = (float)b->attention_dropout;
        op->attr.stream = FIRST_STREAM + b->streams++;
        op->in[ATTN_SCALARS] = build_scalars(b);
    }
    op->out[ATTN_O] = build_heads(b, label, spec->num_heads);
    op->out[ATTN_LSE] =
        declare(b, (struct tensor){.label = lse_label,
                                   .type = DT_F32,
                                   .cls = CLASS_ACT,
                                   .flags = TENSOR_STAT,
                                   .ndim = 3,
                                   .dim = {b->shape->batch, spec->num_heads, b->shape->time}});
    tape_append(b->tape, op);
    return op->out[ATTN_O];
}

int build_cross(struct builder *b, const struct build_cross *c)
{
    struct op op = start(b, OP_ATTN);
    set_scores(b, &op.attr);
    op.attr.mask = MASK_CROSS;
    op.in[ATTN_Q] = c->q, op.in[ATTN_K] = c->k, op.in[ATTN_V] = c->v, op.in[ATTN_LENGTHS] = c->lengths;
    return append_attention(b, &op, "cross.out[%d]", "cross.lse[%d]");
}

int build_attention(struct builder *b, int qkv) { return build_attention_normed(b, qkv, -1, -1); }

int build_attention_normed(struct builder *b, int qkv, int q_norm, int k_norm)
{
    bool full = b->spec->arch->encoder || b->full, cached = b->shape->kv_length > 0 && !full;
    struct build_parts p = build_queries(b, qkv, q_norm, k_norm);
    if (cached) join_cache(b, &p);
    struct op op = start(b, OP_ATTN);
    op.attr.cached = cached;
    op.attr.whole_rows = b->shape->whole_rows && !cached;
    op.attr.window = (int)model_layer_window(b->spec, b->layer);
    set_scores(b, &op.attr);
    if (b->shape->flat.tokens) return build_paged(b, &p, op.attr);
    op.in[ATTN_Q] = p.q, op.in[ATTN_K] = p.k, op.in[ATTN_V] = p.v;
    op.in[ATTN_LENGTHS] = b->lengths;
    if (full)
        op.attr.mask = MASK_FULL;
    else
        op.in[ATTN_POS] = b->pos;
    if (!full && b->spec->sparse_block > 0) {
        op.attr.mask = MASK_BLOCKS, op.attr.sparse_block = b->spec->sparse_block;
        op.attr.local_blocks = b->spec->local_blocks, op.attr.global_blocks = b->spec->global_blocks;
    }
    if (b->bias >= 0) {
        op.in[ATTN_BIAS] = b->bias;
        op.attr.two_sided = full, op.attr.bias_reach = b->spec->bias_reach;
    }
    return append_attention(b, &op, "attn.out[%d]", "attn.lse[%d]");
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

static int loss_tensor(struct builder *b, const char *label, int64_t numbers)
{
    return declare(b, (struct tensor){.label = label,
                                      .type = DT_F64,
                                      .cls = CLASS_IO,
                                      .flags = TENSOR_OUTPUT | TENSOR_STAT,
                                      .ndim = 1,
                                      .dim = {numbers}});
}

void build_loss(struct builder *b, int logits, int targets)
{
    struct op op = start(b, OP_XENT);
    op.accumulate = ACC_AFTER_FIRST;
    op.attr.cap = (float)b->spec->final_cap;
    op.in[XENT_LOGITS] = logits;
    op.in[XENT_TARGETS] = targets;
    op.in[XENT_SCALARS] = build_scalars(b);
    op.out[XENT_LOSS] = loss_tensor(b, "loss", 2);
    if (b->spec->arch->encoder && b->shape->head == HEAD_LOSS && !b->shape->training)
        op.out[XENT_HITS] = loss_tensor(b, "hits", 1);
    tape_append(b->tape, &op);
}

/* Log-probabilities of the targets, and the loss of samples by them. */
static void build_preference(struct builder *b, int logits, int targets)
{
    const struct preference_rule *rule = &b->shape->preference;
    int64_t rows = b->shape->batch;
    struct tensor sums = {.label = "sums", .type = DT_F32, .cls = CLASS_IO, .ndim = 1, .dim = {rows}};
    struct tensor logp = {
        .label = "logp", .type = DT_F32, .cls = CLASS_ACT, .ndim = 2, .dim = {rows, b->shape->time}};
    struct op xent = start(b, OP_XENT), op = start(b, OP_PREFERENCE);
    sums.flags = TENSOR_OUTPUT | TENSOR_STAT, logp.flags = TENSOR_STAT;
    xent.attr.cap = (float)b->spec->final_cap;
    xent.in[XENT_LOGITS] = logits, xent.in[XENT_TARGETS] = targets, xent.in[XENT_SCALARS] = build_scalars(b);
    xent.out[XENT_LOGP] = op.in[PREFERENCE_IN_LOGP] = declare(b, logp);
    tape_append(b->tape, &xent);
    op.accumulate = ACC_AFTER_FIRST;
    op.attr.preference = *rule;
    op.in[PREFERENCE_IN_TARGETS] = targets, op.in[PREFERENCE_IN_SCALARS] = build_scalars(b);
    if (rule->loss != PREFERENCE_ORPO) {
        op.in[PREFERENCE_IN_REFERENCE] = build_feed(b, "reference", rows, 0);
        b->tape->tensors[op.in[PREFERENCE_IN_REFERENCE]].type = DT_F32;
        b->tape->tensors[op.in[PREFERENCE_IN_REFERENCE]].flags |= TENSOR_STAT;
    }
    if (rule->loss >= PREFERENCE_LOSSES) op.in[PREFERENCE_IN_MARKS] = build_feed(b, "marks", rows, 0);
    op.out[PREFERENCE_OUT_LOSS] = loss_tensor(b, "loss", 2);
    op.out[PREFERENCE_OUT_STAT] = loss_tensor(b, "preference", PREFERENCE_STATS);
    op.out[PREFERENCE_OUT_SUMS] = declare(b, sums);
    tape_append(b->tape, &op);
}

/* Logits that leave the tape behind their soft-cap; a loss has it inside. */
static void build_cap(struct builder *b, int raw, int capped)
{
    struct op op = start(b, OP_ACT);
    op.attr.activation = ACTIVATION_TANH;
    op.attr.cap = (float)b->spec->final_cap;
    op.in[ACT_X] = raw, op.out[ACT_Y] = capped;
    tape_append(b->tape, &op);
}

void build_logits(struct builder *b, int x, const struct build_linear *l, int64_t width)
{
    enum model_head head = b->shape->head;
    bool loss = head == HEAD_LOSS || head == HEAD_LABELS || head == HEAD_PREFERENCE;
    b->part = PART_HEAD;
    struct tensor logits = {.label = "logits", .type = DT_F32, .cls = CLASS_ACT};
    bool capped = !loss && b->spec->final_cap > 0, flat = b->shape->flat.tokens > 0;
    logits.dim[logits.ndim++] = flat ? b->shape->flat.rows : b->shape->batch;
    if (flat)
        x = build_flat_last(b, x);
    else if (head == HEAD_LAST_LOGITS)
        x = last_tokens(b, x);
    else
        logits.dim[logits.ndim++] = b->shape->time;
    logits.dim[logits.ndim++] = width;
    struct tensor first = logits, last = logits;
    last.flags = loss ? 0 : TENSOR_OUTPUT;
    first.label = "logits.raw";
    int y = build_linear(b, x, l, declare(b, capped ? first : last)), whole = y;
    if (loss) (head == HEAD_PREFERENCE ? build_preference : build_loss)(b, y, input_i32(b, "targets"));
    if (capped) build_cap(b, y, whole = declare(b, last));
    if (flat) build_flat_sample(b, whole);
}

void build_head(struct builder *b, int x, int weight)
{
    struct build_linear l = {.weight = weight, .bias = -1, .add = -1};
    build_logits(b, x, &l, b->spec->vocab_size);
}
