/* gpt2.c - GPT-2: LayerNorm, learned positions, tanh GELU, and Conv1D weights stored [in,out].
 *
 *     x = drop(wte[ids] + wpe[pos])
 *     per layer:  x = x + drop(c_proj(attention(split3(c_attn(ln_1(x))))))
 *                 x = x + drop(c_proj(gelu(c_fc(ln_2(x)))))
 *     logits = ln_f(x) wte'
 */
#include "model/build.h"

enum {
    P_WTE,
    P_WPE,
    P_LN1,
    P_LN1_BIAS,
    P_QKV,
    P_QKV_BIAS,
    P_O,
    P_O_BIAS,
    P_LN2,
    P_LN2_BIAS,
    P_FC,
    P_FC_BIAS,
    P_PROJ,
    P_PROJ_BIAS,
    P_LNF,
    P_LNF_BIAS,
    P_HEAD,
    P_COUNT
};

#define LAYER "transformer.h.%d."

static const struct param_row params[P_COUNT] = {
    [P_WTE] = {"transformer.wte.weight", {DIM_V, DIM_C}, RULE_NORMAL, WHEN_ALWAYS},
    [P_WPE] = {"transformer.wpe.weight", {DIM_P, DIM_C}, RULE_NORMAL, WHEN_ALWAYS},
    [P_LN1] = {LAYER "ln_1.weight", {DIM_C}, RULE_ONES, WHEN_ALWAYS},
    [P_LN1_BIAS] = {LAYER "ln_1.bias", {DIM_C}, RULE_ZEROS, WHEN_ALWAYS},
    [P_QKV] = {LAYER "attn.c_attn.weight", {DIM_C, DIM_QKV}, RULE_NORMAL, WHEN_ALWAYS},
    [P_QKV_BIAS] = {LAYER "attn.c_attn.bias", {DIM_QKV}, RULE_ZEROS, WHEN_ALWAYS},
    [P_O] = {LAYER "attn.c_proj.weight", {DIM_C, DIM_C}, RULE_RESIDUAL, WHEN_ALWAYS},
    [P_O_BIAS] = {LAYER "attn.c_proj.bias", {DIM_C}, RULE_ZEROS, WHEN_ALWAYS},
    [P_LN2] = {LAYER "ln_2.weight", {DIM_C}, RULE_ONES, WHEN_ALWAYS},
    [P_LN2_BIAS] = {LAYER "ln_2.bias", {DIM_C}, RULE_ZEROS, WHEN_ALWAYS},
    [P_FC] = {LAYER "mlp.c_fc.weight", {DIM_C, DIM_F}, RULE_NORMAL, WHEN_ALWAYS},
    [P_FC_BIAS] = {LAYER "mlp.c_fc.bias", {DIM_F}, RULE_ZEROS, WHEN_ALWAYS},
    [P_PROJ] = {LAYER "mlp.c_proj.weight", {DIM_F, DIM_C}, RULE_RESIDUAL, WHEN_ALWAYS},
    [P_PROJ_BIAS] = {LAYER "mlp.c_proj.bias", {DIM_C}, RULE_ZEROS, WHEN_ALWAYS},
    [P_LNF] = {"transformer.ln_f.weight", {DIM_C}, RULE_ONES, WHEN_ALWAYS},
    [P_LNF_BIAS] = {"transformer.ln_f.bias", {DIM_C}, RULE_ZEROS, WHEN_ALWAYS},
    [P_HEAD] = {"lm_head.weight", {DIM_V, DIM_C}, RULE_NORMAL, WHEN_UNTIED},
};

/* Which of a spec's dropouts is which. */
enum { DROP_RESIDUAL, DROP_EMBEDDING, DROP_ATTENTION };

static void defaults(struct model_spec *spec)
{
    spec->max_positions = 1024;
    spec->norm_eps = 1e-5;
    spec->tie_embeddings = true;
    spec->qkv_bias = spec->o_bias = spec->mlp_bias = true;
    for (int i = 0; i < MODEL_DROPOUTS; i++) spec->dropout[i] = 0.1;
    spec->bos_token_id = 50256;
    spec->eos_token_ids[0] = 50256, spec->eos_count = 1;
}

/* The linear of a Conv1D whose bias follows its weight in the table. */
static int conv(struct builder *b, int x, int row, int add, int y)
{
    struct build_linear l = {
        .weight = build_param(b, row), .bias = build_param(b, row + 1), .add = add, .weight_kn = true};
    return build_linear(b, x, &l, y);
}

static double dropped(const struct builder *b, int which)
{
    return b->shape->training ? b->spec->dropout[which] : 0;
}

/* Adds the end of a branch to the residual stream x. The linear adds it unless dropout comes between. */
static int join(struct builder *b, int h, int row, int x, const char *label, const char *before)
{
    double drop = dropped(b, DROP_RESIDUAL);
    int64_t hidden = b->spec->hidden_size;
    if (drop == 0) return conv(b, h, row, x, build_act(b, label, hidden));
    return build_dropout(b, label, conv(b, h, row, -1, build_act(b, before, hidden)), drop, x);
}

static int layer_norm(struct builder *b, int row, const char *label, const char *stat_label, int x)
{
    struct build_norm n = {.label = label,
                           .stat_label = stat_label,
                           .weight = build_param(b, row),
                           .bias = build_param(b, row + 1)};
    return build_norm(b, &n, x);
}

static int attention_block(struct builder *b, int x)
{
    int64_t hidden = b->spec->hidden_size;
    int h = layer_norm(b, P_LN1, "attn.norm[%d]", "attn.norm.stat[%d]", x);
    int qkv = conv(b, h, P_QKV, -1, build_act(b, "attn.qkv[%d]", 3 * hidden));
    return join(b, build_attention(b, qkv), P_O, x, "attn.residual[%d]", "attn.o[%d]");
}

static int mlp_block(struct builder *b, int x)
{
    int64_t inner = b->spec->intermediate_size;
    int h = layer_norm(b, P_LN2, "mlp.norm[%d]", "mlp.norm.stat[%d]", x);
    struct op op = tape_op(OP_ACT, b->layer);
    op.attr.activation = ACTIVATION_GELU_TANH;
    op.part = b->part;
    op.in[ACT_X] = conv(b, h, P_FC, -1, build_act(b, "mlp.fc[%d]", inner));
    op.out[ACT_Y] = build_act(b, "mlp.h[%d]", inner);
    tape_append(b->tape, &op);
    return join(b, op.out[ACT_Y], P_PROJ, x, "mlp.residual[%d]", "mlp.proj[%d]");
}

static void emit(struct builder *b)
{
    double drop = dropped(b, DROP_EMBEDDING);
    b->attention_dropout = dropped(b, DROP_ATTENTION);
    build_inputs(b);
    int wte = build_param(b, P_WTE), wpe = build_param(b, P_WPE);
    int x = build_embed(b, "embed.token", b->ids, wte, -1);
    x = build_embed(b, "embed", b->pos, wpe, x);
    if (drop > 0) x = build_dropout(b, "embed.dropped", x, drop, -1);
    for (b->layer = 0; b->layer < b->spec->num_layers; b->layer++) {
        x = attention_block(b, x);
        x = mlp_block(b, x);
    }
    b->layer = -1;
    x = layer_norm(b, P_LNF, "norm", "norm.stat", x);
    int head = build_param(b, P_HEAD);
    build_head(b, x, head >= 0 ? head : wte);
}

const struct architecture arch_gpt2 = {
    .name = "gpt2",
    .hf_class = "GPT2LMHeadModel",
    .activation = "gelu_new",
    .prefix = "transformer.",
    .gguf = "gpt2",
    .keys = {[FIELD_HIDDEN] = "n_embd",
             [FIELD_INNER] = "n_inner",
             [FIELD_LAYERS] = "n_layer",
             [FIELD_HEADS] = "n_head",
             [FIELD_POSITIONS] = "n_positions",
             [FIELD_NORM_EPS] = "layer_norm_epsilon",
             [FIELD_GATED] = "activation_function",
             [FIELD_DROPOUT_1 + DROP_RESIDUAL] = "resid_pdrop",
             [FIELD_DROPOUT_1 + DROP_EMBEDDING] = "embd_pdrop",
             [FIELD_DROPOUT_1 + DROP_ATTENTION] = "attn_pdrop",
             HAS(SCALE_BY_LAYER),
             HAS(CONTEXT)},
    .params = params,
    .nparams = P_COUNT,
    .inner_multiple = 4,
    .demands = {{"scale_attn_weights", "true"}, {"add_cross_attention", "false"}},
    .defaults = defaults,
    .emit = emit,
};
