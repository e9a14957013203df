/* decoder.c - parameters and forward ops of the shared decoder. See decoder.h.
 *
 *     x = embed(ids)
 *     per layer:  x = x + o_proj(attention(q, k, v)),         q, k, v = rotated(linear(norm(x)))
 *                 x = x + down_proj(silu(gate) * up),         gate, up = linear(norm(x))
 *     logits = lm_head(norm(x))
 */
#include "model/build.h"
#include "model/decoder.h"

enum {
    P_EMBED,
    P_NORM1,
    P_QKV,
    P_QKV_BIAS,
    P_O,
    P_O_BIAS,
    P_NORM2,
    P_GATE,
    P_GATE_BIAS,
    P_UP,
    P_UP_BIAS,
    P_DOWN,
    P_DOWN_BIAS,
    P_NORM,
    P_HEAD,
    P_COUNT
};
_Static_assert(P_COUNT == DECODER_PARAMS, "the table and its header agree");

#define LAYER "model.layers.%d."

const struct param_row decoder_params[DECODER_PARAMS] = {
    [P_EMBED] = {"model.embed_tokens.weight", {DIM_V, DIM_C}, RULE_NORMAL, WHEN_ALWAYS},
    [P_NORM1] = {LAYER "input_layernorm.weight", {DIM_C}, RULE_ONES, WHEN_ALWAYS},
    [P_QKV] = {LAYER "self_attn.{q,k,v}_proj.weight", {DIM_QKV, DIM_C}, RULE_NORMAL, WHEN_ALWAYS},
    [P_QKV_BIAS] = {LAYER "self_attn.{q,k,v}_proj.bias", {DIM_QKV}, RULE_ZEROS, WHEN_QKV_BIAS},
    [P_O] = {LAYER "self_attn.o_proj.weight", {DIM_C, DIM_HD}, RULE_NORMAL, WHEN_ALWAYS},
    [P_O_BIAS] = {LAYER "self_attn.o_proj.bias", {DIM_C}, RULE_ZEROS, WHEN_O_BIAS},
    [P_NORM2] = {LAYER "post_attention_layernorm.weight", {DIM_C}, RULE_ONES, WHEN_ALWAYS},
    [P_GATE] = {LAYER "mlp.gate_proj.weight", {DIM_F, DIM_C}, RULE_NORMAL, WHEN_ALWAYS},
    [P_GATE_BIAS] = {LAYER "mlp.gate_proj.bias", {DIM_F}, RULE_ZEROS, WHEN_MLP_BIAS},
    [P_UP] = {LAYER "mlp.up_proj.weight", {DIM_F, DIM_C}, RULE_NORMAL, WHEN_ALWAYS},
    [P_UP_BIAS] = {LAYER "mlp.up_proj.bias", {DIM_F}, RULE_ZEROS, WHEN_MLP_BIAS},
    [P_DOWN] = {LAYER "mlp.down_proj.weight", {DIM_C, DIM_F}, RULE_NORMAL, WHEN_ALWAYS},
    [P_DOWN_BIAS] = {LAYER "mlp.down_proj.bias", {DIM_C}, RULE_ZEROS, WHEN_MLP_BIAS},
    [P_NORM] = {"model.norm.weight", {DIM_C}, RULE_ONES, WHEN_ALWAYS},
    [P_HEAD] = {"lm_head.weight", {DIM_V, DIM_C}, RULE_NORMAL, WHEN_UNTIED},
};

const struct model_keys decoder_keys = {
    .hidden = "hidden_size",
    .intermediate = "intermediate_size",
    .layers = "num_hidden_layers",
    .heads = "num_attention_heads",
    .kv_heads = "num_key_value_heads",
    .positions = "max_position_embeddings",
    .norm_eps = "rms_norm_eps",
    .activation = "hidden_act",
    .dropout = {"attention_dropout"},
};

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

static int rms_norm(struct builder *b, int row, const char *label, const char *stat_label, int x)
{
    struct build_norm n = {
        .label = label, .stat_label = stat_label, .weight = build_param(b, row), .bias = -1};
    return build_norm(b, &n, x);
}

static int attention_block(struct builder *b, int x)
{
    const struct model_spec *spec = b->spec;
    int h = rms_norm(b, P_NORM1, "attn.norm[%d]", "attn.norm.rstd[%d]", x);
    int64_t width = param_dim_size(spec, DIM_QKV);
    int o = build_attention(b, project(b, h, P_QKV, build_act(b, "attn.qkv[%d]", width)));
    struct build_linear l = projection(b, P_O, P_O_BIAS, x);
    return build_linear(b, o, &l, build_act(b, "attn.residual[%d]", spec->hidden_size));
}

static int mlp_block(struct builder *b, int x)
{
    const struct model_spec *spec = b->spec;
    int h = rms_norm(b, P_NORM2, "mlp.norm[%d]", "mlp.norm.rstd[%d]", x);
    struct op op = tape_op(OP_GLU, b->layer);
    op.part = b->part;
    op.in[GLU_GATE] = project(b, h, P_GATE, build_act(b, "mlp.gate[%d]", spec->intermediate_size));
    op.in[GLU_UP] = project(b, h, P_UP, build_act(b, "mlp.up[%d]", spec->intermediate_size));
    op.out[GLU_H] = build_act(b, "mlp.h[%d]", spec->intermediate_size);
    tape_append(b->tape, &op);
    struct build_linear l = projection(b, P_DOWN, P_DOWN_BIAS, x);
    return build_linear(b, op.out[GLU_H], &l, build_act(b, "mlp.residual[%d]", spec->hidden_size));
}

void decoder_emit(struct builder *b)
{
    b->attention_dropout = b->shape->training ? b->spec->dropout[0] : 0;
    build_inputs(b);
    int table = build_param(b, P_EMBED);
    int x = build_embed(b, "embed", b->ids, table, -1);
    for (b->layer = 0; b->layer < b->spec->num_layers; b->layer++) {
        x = attention_block(b, x);
        x = mlp_block(b, x);
    }
    b->layer = -1;
    x = rms_norm(b, P_NORM, "norm", "norm.rstd", x);
    int head = build_param(b, P_HEAD);
    build_head(b, x, head >= 0 ? head : table);
}
