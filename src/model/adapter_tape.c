/* adapter_tape.c - the ops of an adapter on a forward tape. See adapter.h.
 *
 *     y0 = x W' + bias + add                       the model's own op, into another tensor
 *     u  = (s dropout(x) A')                       [.., r]
 *     y  = u B' + y0                               the tensor that the model's other ops read
 *
 * With DoRA y0 = x W' + bias, z = u B' + y0, and y = (z - bias) m / |W + s B A| + bias + add.
 *
 * Queries, keys and values are one product. If all three have adapters of one rank and scale, these are one pair of matrices, too:
 * A [3r,in], B [out,r], and u B' is computed part by part (op.h, "Parts"). Split and rotation stay as they are. Otherwise, and with
 * DoRA, each part has its own y0 after the split, and queries and keys are rotated after their adapters.
 *
 * Ops that read the same x share its dropout. An embedding's u is s A'[ids]. */
#include "model/adapter_part.h"
#include "model/weights.h"
#include "tape/op.h"

#include <stdlib.h>
#include <string.h>

/* Streams of random bits above those of the model's own ops (build.c). */
#define FIRST_STREAM (UINT32_C(3) << 29)

/* A product of queries, keys and values whose adapters wait for its split. */
struct waiting {
    int y, x, weight, bias;
    const struct adapter_row *row; /* NULL: none */
};

struct applying {
    const struct adapter *adapter;
    const struct model_spec *spec;
    struct tape *tape;
    const struct op *op; /* the model's, at hand */
    enum op_part part;   /* of ops that are added */
    double dropout;
    uint32_t streams;
    int dropped, of; /* dropped(of) */
    struct waiting waiting;
};

/* One adapted product. */
struct product {
    const char *const *label;
    struct adapter_site site;
    int x, weight;   /* of the model's product */
    int64_t in, out; /* sizes of its rows */
    int64_t first;   /* the output's place among those of the weight */
    bool weight_kn;
    int bias;                    /* included in what is adapted; -1: none */
    int ends;                    /* experts: their rows, else -1 */
    int64_t experts;             /* 0: not a product of experts */
    int64_t part[ADAPTER_PARTS]; /* outputs of queries, keys and values; 0: not a product of them all */
};

static struct op start(const struct applying *a, int kind)
{
    struct op op = tape_op(kind, a->op->layer);
    op.part = a->part;
    return op;
}

/* Another tensor like `id`, under a name of its own. */
static int like(struct applying *a, int id, const char *label)
{
    struct tensor t = a->tape->tensors[id];
    t.label = label, t.flags &= ~(unsigned)(TENSOR_OUTPUT | TENSOR_INPUT);
    return tape_tensor(a->tape, &t);
}

static int param(struct applying *a, const struct product *p, enum adapter_label which, int64_t rows,
                 int64_t columns)
{
    struct tensor t = {.label = p->label[which],
                       .layer = a->tape->tensors[p->weight].layer,
                       .type = DT_F32,
                       .cls = CLASS_PARAM,
                       .flags = TENSOR_KEPT | TENSOR_ADDED,
                       .view_of = -1,
                       .owner = -1};
    if (p->experts) t.dim[t.ndim++] = p->experts;
    t.dim[t.ndim++] = rows;
    if (columns) t.dim[t.ndim++] = columns;
    if (t.ndim < 2) t.flags |= TENSOR_NEAR;
    return tape_tensor(a->tape, &t);
}

/* Rows of A: of each part r. */
static int64_t rank_of(const struct product *p) { return p->site.r * (p->part[0] ? ADAPTER_PARTS : 1); }

/* Rows of x, of r numbers each. */
static int narrow(struct applying *a, const struct product *p, const char *label)
{
    const struct tensor *x = &a->tape->tensors[p->x];
    struct tensor t = {.label = label,
                       .layer = a->op->layer,
                       .type = DT_F32,
                       .cls = CLASS_ACT,
                       .ndim = 3,
                       .dim = {x->dim[0], tensor_count(x) / p->in / x->dim[0], rank_of(p)},
                       .view_of = -1,
                       .owner = -1};
    if (p->experts) t.ndim = 2, t.dim[0] = tensor_count(x) / p->in, t.dim[1] = p->site.r;
    return tape_tensor(a->tape, &t);
}

static int scalars_of(struct applying *a)
{
    int there = tape_find(a->tape, "step.scalars", -1);
    if (there >= 0) return there;
    struct tensor t = {.label = "step.scalars",
                       .layer = -1,
                       .type = DT_F32,
                       .cls = CLASS_IO,
                       .flags = TENSOR_INPUT | TENSOR_STAT | TENSOR_KEPT,
                       .ndim = 1,
                       .dim = {SCALAR_COUNT},
                       .view_of = -1,
                       .owner = -1};
    return tape_tensor(a->tape, &t);
}

static int drop(struct applying *a, int x)
{
    if (!(a->dropout > 0)) return x;
    if (a->of == x) return a->dropped;
    struct op op = start(a, OP_DROPOUT);
    op.attr.dropout = (float)a->dropout, op.attr.stream = FIRST_STREAM + a->streams++;
    op.in[DROPOUT_X] = x, op.in[DROPOUT_SCALARS] = scalars_of(a);
    a->of = x, a->dropped = op.out[DROPOUT_Y] = like(a, x, "lora.dropped[%d]");
    tape_append(a->tape, &op);
    return a->dropped;
}

static int scaled(struct applying *a, int x, float by, int y)
{
    struct op op = start(a, OP_ACT);
    op.attr.activation = ACTIVATION_SCALE, op.attr.scale = by;
    op.in[ACT_X] = x, op.out[ACT_Y] = y;
    tape_append(a->tape, &op);
    return y;
}

/* y = x w' + add, or of experts without add. */
static int multiply(struct applying *a, const struct product *p, int x, int w, int add, int y)
{
    struct op op = start(a, p->experts ? OP_EXPERT_LINEAR : OP_LINEAR);
    if (p->experts) {
        op.in[EXPERT_LINEAR_X] = x, op.in[EXPERT_LINEAR_W] = w, op.in[EXPERT_LINEAR_ENDS] = p->ends;
        op.out[EXPERT_LINEAR_Y] = y;
    } else {
        op.in[LINEAR_X] = x, op.in[LINEAR_W] = w, op.in[LINEAR_ADD] = add, op.out[LINEAR_Y] = y;
    }
    tape_append(a->tape, &op);
    return y;
}

struct matrices {
    int a, b;
};

static struct matrices add_params(struct applying *a, const struct product *p)
{
    return (struct matrices){param(a, p, LABEL_A, rank_of(p), p->in),
                             param(a, p, LABEL_B, p->out, p->site.r)};
}

/* u = s dropout(x) A' */
static int project(struct applying *a, const struct product *p, struct matrices m)
{
    int u = multiply(a, p, drop(a, p->x), m.a, -1, narrow(a, p, "lora.u[%d]"));
    return p->site.scale == 1 ? u : scaled(a, u, p->site.scale, narrow(a, p, "lora.su[%d]"));
}

/* y = u B' + y0 */
static struct matrices add_adapter(struct applying *a, const struct product *p, int y0, int y)
{
    struct matrices m = add_params(a, p);
    int u = project(a, p, m);
    if (!p->experts) {
        multiply(a, p, u, m.b, y0, y);
        for (int i = 0; i < ADAPTER_PARTS && !a->tape->failed; i++)
            a->tape->ops[a->tape->nops - 1].attr.lines[i].lines = p->part[i];
        return m;
    }
    struct op sum = start(a, OP_ADD);
    sum.in[ADD_A] = multiply(a, p, u, m.b, -1, like(a, y, "lora.delta[%d]")), sum.in[ADD_B] = y0;
    sum.out[ADD_Y] = y;
    tape_append(a->tape, &sum);
    return m;
}

/* --- DoRA ------------------------------------------------------------------------------------------------------ */

/* |W + s B A| of each output; its rows of W begin at p->first. */
static int norms(struct applying *a, const struct product *p, struct matrices m)
{
    struct tensor norm = {.label = "dora.norm[%d]",
                          .layer = a->op->layer,
                          .type = DT_F32,
                          .cls = CLASS_ACT,
                          .flags = TENSOR_STAT,
                          .ndim = 1,
                          .dim = {p->out},
                          .view_of = -1,
                          .owner = -1};
    struct op op = start(a, OP_DORA_NORM);
    op.attr.scale = p->site.scale, op.attr.first = p->first, op.attr.weight_kn = p->weight_kn;
    op.in[DORA_NORM_A] = m.a, op.in[DORA_NORM_W] = p->weight, op.in[DORA_NORM_B] = m.b;
    op.out[DORA_NORM_Y] = tape_tensor(a->tape, &norm);
    tape_append(a->tape, &op);
    return op.out[DORA_NORM_Y];
}

/* y = (z - bias) m / norm + bias + add */
static void scale_columns(struct applying *a, const struct product *p, int z, int norm, int add, int y)
{
    struct op op = start(a, OP_COLUMN_SCALE);
    op.in[COLUMN_SCALE_X] = z, op.in[COLUMN_SCALE_M] = param(a, p, LABEL_MAGNITUDE, p->out, 0);
    op.in[COLUMN_SCALE_NORM] = norm;
    op.in[COLUMN_SCALE_BIAS] = p->bias, op.in[COLUMN_SCALE_ADD] = add;
    op.out[COLUMN_SCALE_Y] = y;
    tape_append(a->tape, &op);
}

/* z = u B' + y0, with its columns scaled */
static void add_dora(struct applying *a, const struct product *p, int y0, int add, int y)
{
    int z = like(a, y, "dora.z[%d]");
    struct matrices m = add_adapter(a, p, y0, z);
    scale_columns(a, p, z, norms(a, p, m), add, y);
}

/* --- products of the model -------------------------------------------------------------------------------------- */

static void adapt(struct applying *a, const struct product *p, int y0, int add, int y)
{
    if (a->adapter->dora)
        add_dora(a, p, y0, add, y);
    else
        add_adapter(a, p, y0, y);
}

static struct product linear_product(const struct applying *a, const struct op *op,
                                     const struct adapter_row *row)
{
    const struct tensor *w = &a->tape->tensors[op->in[LINEAR_W]];
    bool kn = op->attr.weight_kn;
    return (struct product){.label = row->label[0],
                            .site = row->site[adapter_layer(w)],
                            .x = op->in[LINEAR_X],
                            .weight = op->in[LINEAR_W],
                            .in = w->dim[kn ? 0 : 1],
                            .out = w->dim[kn ? 1 : 0],
                            .weight_kn = kn,
                            .bias = op->in[LINEAR_BIAS],
                            .ends = -1};
}

static void adapt_linear(struct applying *a, const struct op *op, const struct adapter_row *row)
{
    bool dora = a->adapter->dora;
    struct product p = linear_product(a, op, row);
    struct op base = *op;
    int y = op->out[LINEAR_Y];
    base.out[LINEAR_Y] = like(a, y, "lora.base[%d]");
    if (dora) base.in[LINEAR_ADD] = -1;
    tape_append(a->tape, &base);
    adapt(a, &p, base.out[LINEAR_Y], dora ? op->in[LINEAR_ADD] : -1, y);
}

/* The output projection and its adapter are neighbours before the loss, so that all are cut into slices; u and norms are made
 * before. */
static void adapt_head(struct applying *a, const struct op *op, const struct adapter_row *row)
{
    struct product p = linear_product(a, op, row);
    struct matrices m = add_params(a, &p);
    struct op base = *op;
    a->part = PART_FORWARD;
    bool dora = a->adapter->dora;
    int u = project(a, &p, m), norm = dora ? norms(a, &p, m) : -1, y = op->out[LINEAR_Y];
    int z = dora ? like(a, y, "dora.z[%d]") : y;
    a->part = PART_HEAD;
    base.out[LINEAR_Y] = like(a, y, "lora.base[%d]");
    tape_append(a->tape, &base);
    multiply(a, &p, u, m.b, base.out[LINEAR_Y], z);
    if (dora) scale_columns(a, &p, z, norm, -1, y);
}

/* Rows of the tokens, and their adapter. What the model multiplies its rows by applies to both. */
static void adapt_embed(struct applying *a, const struct op *op, const struct adapter_row *row)
{
    const struct tensor *w = &a->tape->tensors[op->in[EMBED_W]], *ids = &a->tape->tensors[op->in[EMBED_IDS]];
    struct product p = {.label = row->label[0],
                        .site = row->site[adapter_layer(w)],
                        .x = op->in[EMBED_IDS],
                        .weight = op->in[EMBED_W],
                        .in = w->dim[0],
                        .out = w->dim[1],
                        .weight_kn = true,
                        .bias = -1,
                        .ends = -1};
    struct tensor t = {.label = "lora.u[%d]",
                       .layer = op->layer,
                       .type = DT_F32,
                       .cls = CLASS_ACT,
                       .ndim = 3,
                       .dim = {ids->dim[0], tensor_count(ids) / ids->dim[0], p.site.r},
                       .view_of = -1,
                       .owner = -1};
    struct matrices m = add_params(a, &p);
    struct op base = *op, rows = *op;
    int u = tape_tensor(a->tape, &t), y = op->out[EMBED_Y];
    t.label = "lora.su[%d]";
    base.out[EMBED_Y] = like(a, y, "lora.base[%d]");
    if (a->adapter->dora) base.in[EMBED_ADD] = -1;
    tape_append(a->tape, &base);
    rows.attr.weight_kn = true;
    rows.in[EMBED_W] = m.a, rows.in[EMBED_ADD] = -1, rows.out[EMBED_Y] = u;
    tape_append(a->tape, &rows);
    if (p.site.scale != 1) u = scaled(a, u, p.site.scale, tape_tensor(a->tape, &t));
    if (!a->adapter->dora) {
        multiply(a, &p, u, m.b, base.out[EMBED_Y], y);
        return;
    }
    int z = multiply(a, &p, u, m.b, base.out[EMBED_Y], like(a, y, "dora.z[%d]"));
    scale_columns(a, &p, z, norms(a, &p, m), op->in[EMBED_ADD], y);
}

static void adapt_experts(struct applying *a, const struct op *op, const struct adapter_row *row)
{
    const struct tensor *w = &a->tape->tensors[op->in[EXPERT_LINEAR_W]];
    struct product p = {.label = row->label[0],
                        .site = row->site[adapter_layer(w)],
                        .x = op->in[EXPERT_LINEAR_X],
                        .weight = op->in[EXPERT_LINEAR_W],
                        .in = w->dim[2],
                        .out = w->dim[1],
                        .bias = -1,
                        .ends = op->in[EXPERT_LINEAR_ENDS],
                        .experts = w->dim[0]};
    struct op base = *op;
    base.out[EXPERT_LINEAR_Y] = like(a, op->out[EXPERT_LINEAR_Y], "lora.base[%d]");
    tape_append(a->tape, &base);
    add_adapter(a, &p, base.out[EXPERT_LINEAR_Y], op->out[EXPERT_LINEAR_Y]);
}

/* Queries, keys and values have adapters of one rank and scale: one A and one B for all of them, before the split. */
static bool is_joint(const struct applying *a, const struct adapter_row *row, int layer)
{
    const struct adapter_site *site = &row->site[layer * row->parts];
    bool same = row->parts > 1 && !a->adapter->dora;
    for (int p = 1; p < row->parts; p++)
        same = same && site[p].r == site[0].r && site[p].scale == site[0].scale;
    return same;
}

static void adapt_joint(struct applying *a, const struct op *op, const struct adapter_row *row)
{
    const int weight = op->in[LINEAR_W], layer = adapter_layer(&a->tape->tensors[weight]);
    struct product p = linear_product(a, op, row);
    struct op base = *op;
    p.label = row->joint, p.site = row->site[layer * row->parts];
    for (int i = 0; i < ADAPTER_PARTS; i++) p.part[i] = weights_part(a->spec, a->tape, weight, i).dim[0];
    base.out[LINEAR_Y] = like(a, op->out[LINEAR_Y], "lora.base[%d]");
    tape_append(a->tape, &base);
    add_adapter(a, &p, base.out[LINEAR_Y], op->out[LINEAR_Y]);
}

static const struct adapter_site *part_site(const struct applying *a, int part)
{
    const struct waiting *w = &a->waiting;
    return &w->row->site[adapter_layer(&a->tape->tensors[w->weight]) * ADAPTER_PARTS + part];
}

static void rotate(struct applying *a, int x, int table, int y)
{
    struct op op = start(a, OP_ROPE);
    op.in[ROPE_X] = x, op.in[ROPE_TABLE] = table, op.out[ROPE_Y] = y;
    tape_append(a->tape, &op);
}

/* Rows [first, first + count) of a parameter; all of them are the parameter itself. */
static int rows_of(struct applying *a, int id, int64_t first, int64_t count)
{
    return id < 0 ? -1 : tape_view_rows(a->tape, id, first, count);
}

/* The split that follows a product of queries, keys and values. */
static void adapt_split(struct applying *a, const struct op *op)
{
    static const char *const labels[3] = {"lora.q[%d]", "lora.k[%d]", "lora.v[%d]"};
    const struct waiting w = a->waiting;
    int table = op->in[SPLIT3_TABLE], made[3];
    bool turns = table >= 0 && (part_site(a, SPLIT3_Q)->r || part_site(a, SPLIT3_K)->r);
    struct op split = *op;
    if (turns) split.in[SPLIT3_TABLE] = -1;
    for (int p = SPLIT3_Q; p <= SPLIT3_V; p++) {
        bool apart = part_site(a, p)->r || (turns && p != SPLIT3_V);
        split.out[p] = apart ? like(a, op->out[p], labels[p]) : op->out[p];
    }
    tape_append(a->tape, &split);
    int64_t first = 0;
    for (int p = SPLIT3_Q; p <= SPLIT3_V; p++) {
        const struct tensor *t = &a->tape->tensors[op->out[p]], *weight = &a->tape->tensors[w.weight];
        int64_t out = t->dim[2] * t->dim[3], in = weight->dim[1];
        made[p] = split.out[p];
        if (part_site(a, p)->r) {
            bool last = !turns || p == SPLIT3_V;
            int y = last ? op->out[p] : like(a, op->out[p], "lora.turned[%d]");
            struct product product = {.label = w.row->label[p],
                                      .site = *part_site(a, p),
                                      .x = w.x,
                                      .weight = w.weight,
                                      .in = in,
                                      .out = out,
                                      .first = first,
                                      .bias = a->adapter->dora ? rows_of(a, w.bias, first, out) : -1,
                                      .ends = -1};
            adapt(a, &product, made[p], -1, y);
            made[p] = y;
        }
        first += out;
    }
    for (int p = SPLIT3_Q; p <= SPLIT3_K && turns; p++) rotate(a, made[p], table, op->out[p]);
    a->waiting.row = NULL;
}

/* --- the tape -------------------------------------------------------------------------------------------------- */

static bool has_site(const struct adapter_row *row, const struct tensor *weight)
{
    for (int p = 0; row && p < row->parts; p++)
        if (row->site[adapter_layer(weight) * row->parts + p].r) return true;
    return false;
}

static void emit(struct applying *a, const struct op *op)
{
    bool linear = op->kind == OP_LINEAR, experts = op->kind == OP_EXPERT_LINEAR, embed = op->kind == OP_EMBED;
    int weight = linear ? op->in[LINEAR_W] : experts ? op->in[EXPERT_LINEAR_W] : embed ? op->in[EMBED_W] : -1;
    const struct tensor *w = weight >= 0 ? &a->tape->tensors[weight] : NULL;
    const struct adapter_row *row = w && w->cls == CLASS_PARAM ? adapter_row_of(a->adapter, w) : NULL;
    a->op = op, a->part = op->part;
    if (op->kind == OP_SPLIT3 && a->waiting.row && op->in[SPLIT3_X] == a->waiting.y) {
        adapt_split(a, op);
    } else if (!row || !has_site(row, w)) {
        tape_append(a->tape, op);
    } else if (is_joint(a, row, adapter_layer(w))) {
        adapt_joint(a, op, row);
    } else if (row->parts > 1) {
        tape_append(a->tape, op);
        a->waiting = (struct waiting){op->out[LINEAR_Y], op->in[LINEAR_X], weight, op->in[LINEAR_BIAS], row};
    } else if (embed) {
        adapt_embed(a, op, row);
    } else if (experts) {
        adapt_experts(a, op, row);
    } else if (row->place == PLACE_HEAD) {
        adapt_head(a, op, row);
    } else {
        adapt_linear(a, op, row);
    }
}

static void freeze(const struct adapter *a, struct tape *tape)
{
    for (int i = 0; i < tape->ntensors; i++) {
        struct tensor *t = &tape->tensors[i];
        const struct adapter_row *row = t->cls == CLASS_PARAM ? adapter_row_of(a, t) : NULL;
        if (row && !row->trained[adapter_layer(t)]) t->flags |= TENSOR_FROZEN;
    }
}

enum plim_status adapter_apply(const struct adapter *adapter, const struct model_spec *spec, bool training,
                               struct tape *tape, struct plim_error *err)
{
    if (!adapter) return PLIM_OK;
    struct applying a = {.adapter = adapter,
                         .spec = spec,
                         .tape = tape,
                         .dropout = training ? adapter->options->dropout : 0,
                         .of = -1};
    freeze(adapter, tape);
    struct op_list old = tape_take_ops(tape);
    for (int i = 0; i < old.count && !tape->failed; i++) emit(&a, &old.ops[i]);
    tape->loop_end = tape->nops;
    tape_drop_ops(tape, &old);
    return tape->failed ? plim_fail(err, PLIM_NO_MEMORY, "out of memory while an adapter was added")
                        : PLIM_OK;
}
