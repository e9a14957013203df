/* decoder.c - forward ops of the shared decoder. See decoder.h.
 *
 *     x = embed(ids)
 *     per layer:  x = x + [norm](o_proj(attention(q, k, v))),      q, k, v = rotated([norm](linear([norm](x))))
 *                 x = x + [norm](down_proj(act(gate) * up)),       gate, up = linear([norm](x))
 *     logits = lm_head(norm(x))
 *
 * A norm in brackets is there where its row is; factors of the spec are left out above. In layers that have the router's row the feed-forward part is a mixture
 * of experts (experts.h).
 */
#include "model/decoder.h"
#include "model/build.h"
#include "model/experts.h"

const struct param_row decoder_params[DECODER_PARAMS] = {DECODER_ENDS(RULE_ONES), DECODER_ATTENTION,
                                                         DECODER_GATED, DECODER_NORMS};

static struct build_linear projection(struct builder *b, int weight, int bias, int add)
{
    struct build_linear l = {.weight = build_param(b, weight), .bias = build_param(b, bias), .add = add};
    return l;
}

static int project(struct builder *b, int x, int weight, int y)
{
    struct build_linear l =
        projection(b, weight, weight + 1, -1); /* a bias follows its weight in the table */
    return build_linear(b, x, &l, y);
}

static bool has(const struct builder *b, int row)
{
    const struct param_row *p = &b->spec->arch->params[row];
    return param_present(b->spec, p) && (b->layer < 0 || param_in_layer(b->spec, p, b->layer));
}

/* x itself where the model has no such norm. */
static int rms_norm(struct builder *b, int row, const char *label, const char *stat_label, int x)
{
    if (!has(b, row)) return x;
    struct build_norm n = {
        .label = label, .stat_label = stat_label, .weight = build_param(b, row), .bias = -1};
    return build_norm(b, &n, x);
}

/* Names of the parts at the end of a layer. */
struct branch {
    int weight, post;
    const char *y, *scaled, *norm, *stat, *sum;
};

/* x + linear(h), or x + norm(factor * linear(h)): only the former sum rides on the linear. */
static int end_branch(struct builder *b, const struct branch *e, int h, int x)
{
    double factor = b->spec->residual_scale;
    bool plain = !has(b, e->post) && (factor == 0 || factor == 1);
    struct build_linear l = projection(b, e->weight, e->weight + 1, plain ? x : -1);
    int y = build_linear(b, h, &l, build_act(b, plain ? e->sum : e->y, b->spec->hidden_size));
    if (plain) return y;
    y = build_scaled(b, e->scaled, y, factor);
    struct op op = tape_op(OP_ADD, b->layer);
    op.part = b->part;
    op.in[ADD_A] = rms_norm(b, e->post, e->norm, e->stat, y), op.in[ADD_B] = x;
    op.out[ADD_Y] = build_act(b, e->sum, b->spec->hidden_size);
    tape_append(b->tape, &op);
    return op.out[ADD_Y];
}

static int attention_block(struct builder *b, int x)
{
    static const struct branch end = {P_O,
                                      P_POST1,
                                      "attn.o[%d]",
                                      "attn.scaled[%d]",
                                      "attn.post[%d]",
                                      "attn.post.rstd[%d]",
                                      "attn.residual[%d]"};
    int h = rms_norm(b, P_NORM1, "attn.norm[%d]", "attn.norm.rstd[%d]", x);
    int64_t width = param_dim_size(b->spec, DIM_QKV);
    int qkv = project(b, h, P_QKV, build_act(b, "attn.qkv[%d]", width));
    int o = build_attention_normed(b, qkv, build_param(b, P_Q_NORM), build_param(b, P_K_NORM));
    return end_branch(b, &end, o, x);
}

static int mlp_block(struct builder *b, int x, const struct build_router *router)
{
    static const struct branch end = {P_DOWN,
                                      P_POST2,
                                      "mlp.down[%d]",
                                      "mlp.scaled[%d]",
                                      "mlp.post[%d]",
                                      "mlp.post.rstd[%d]",
                                      "mlp.residual[%d]"};
    bool among_mixtures = layer_set_has(&b->spec->dense_layers, b->layer);
    int64_t width = among_mixtures ? b->spec->dense_size : b->spec->intermediate_size;
    int h = rms_norm(b, P_NORM2, "mlp.norm[%d]", "mlp.norm.rstd[%d]", x);
    if (has(b, P_ROUTER)) return build_experts(b, router, h, x);
    struct op op = tape_op(OP_GLU, b->layer);
    op.part = b->part;
    op.attr.activation = b->spec->arch->act;
    if (has(b, P_GATE_UP)) {
        struct build_linear l = {.weight = build_param(b, P_GATE_UP), .bias = -1, .add = -1};
        op.attr.joint = true;
        op.in[GLU_GATE] = build_linear(b, h, &l, build_act(b, "mlp.gate_up[%d]", 2 * width));
    } else {
        op.in[GLU_GATE] = project(b, h, P_GATE, build_act(b, "mlp.gate[%d]", width));
        op.in[GLU_UP] = project(b, h, P_UP, build_act(b, "mlp.up[%d]", width));
    }
    op.out[GLU_H] = build_act(b, "mlp.h[%d]", width);
    tape_append(b->tape, &op);
    return end_branch(b, &end, op.out[GLU_H], x);
}

void decoder_emit(struct builder *b)
{
    b->attention_dropout = b->shape->training ? b->spec->dropout[0] : 0;
    build_inputs(b);
    int table = build_param(b, P_EMBED);
    int x = build_embed(b, "embed", b->ids, table, -1);
    bool experts = has(b, P_ROUTER);
    struct build_router router = experts ? build_router(b) : (struct build_router){-1, -1};
    for (b->layer = 0; b->layer < b->spec->num_layers; b->layer++) {
        x = attention_block(b, x);
        x = mlp_block(b, x, &router);
    }
    b->layer = -1;
    if (experts && build_learns(b)) build_router_loss(b, &router);
    x = rms_norm(b, P_NORM, "norm", "norm.rstd", x);
    if (b->spec->logits_divisor > 0) x = build_scaled(b, "norm.scaled", x, 1 / b->spec->logits_divisor);
    int head = build_param(b, P_HEAD);
    build_head(b, x, head >= 0 ? head : table);
}
