/* distilbert.c - DistilBERT: no segments, names of its own, and nothing dropped of what leaves attention. */
#include "model/encoder.h"

#define EMBED "distilbert.embeddings."
#define LAYER "distilbert.transformer.layer.%d."

static const struct param_row params[ENCODER_PARAMS] = {
    [ENCODER_WORDS] = {EMBED "word_embeddings.weight", {DIM_V, DIM_C}, RULE_NORMAL, WHEN_ALWAYS},
    [ENCODER_POSITIONS] = {EMBED "position_embeddings.weight", {DIM_P, DIM_C}, RULE_NORMAL, WHEN_ALWAYS},
    [ENCODER_TYPES] = {EMBED "token_type_embeddings.weight", {DIM_TYPES, DIM_C}, RULE_NORMAL, WHEN_TYPES},
    [ENCODER_NORM] = {EMBED "LayerNorm.weight", {DIM_C}, RULE_ONES, WHEN_ALWAYS},
    [ENCODER_NORM_BIAS] = {EMBED "LayerNorm.bias", {DIM_C}, RULE_ZEROS, WHEN_ALWAYS},
    [ENCODER_QKV] = {LAYER "attention.{q,k,v}_lin.weight", {DIM_QKV, DIM_C}, RULE_NORMAL, WHEN_ALWAYS},
    [ENCODER_QKV_BIAS] = {LAYER "attention.{q,k,v}_lin.bias", {DIM_QKV}, RULE_ZEROS, WHEN_ALWAYS},
    [ENCODER_O] = {LAYER "attention.out_lin.weight", {DIM_C, DIM_C}, RULE_NORMAL, WHEN_ALWAYS},
    [ENCODER_O_BIAS] = {LAYER "attention.out_lin.bias", {DIM_C}, RULE_ZEROS, WHEN_ALWAYS},
    [ENCODER_NORM1] = {LAYER "sa_layer_norm.weight", {DIM_C}, RULE_ONES, WHEN_ALWAYS},
    [ENCODER_NORM1_BIAS] = {LAYER "sa_layer_norm.bias", {DIM_C}, RULE_ZEROS, WHEN_ALWAYS},
    [ENCODER_FC] = {LAYER "ffn.lin1.weight", {DIM_F, DIM_C}, RULE_NORMAL, WHEN_ALWAYS},
    [ENCODER_FC_BIAS] = {LAYER "ffn.lin1.bias", {DIM_F}, RULE_ZEROS, WHEN_ALWAYS},
    [ENCODER_PROJ] = {LAYER "ffn.lin2.weight", {DIM_C, DIM_F}, RULE_NORMAL, WHEN_ALWAYS},
    [ENCODER_PROJ_BIAS] = {LAYER "ffn.lin2.bias", {DIM_C}, RULE_ZEROS, WHEN_ALWAYS},
    [ENCODER_NORM2] = {LAYER "output_layer_norm.weight", {DIM_C}, RULE_ONES, WHEN_ALWAYS},
    [ENCODER_NORM2_BIAS] = {LAYER "output_layer_norm.bias", {DIM_C}, RULE_ZEROS, WHEN_ALWAYS},
    [ENCODER_TRANSFORM] = {"vocab_transform.weight", {DIM_C, DIM_C}, RULE_NORMAL, WHEN_SAYS_TOKENS},
    [ENCODER_TRANSFORM_BIAS] = {"vocab_transform.bias", {DIM_C}, RULE_ZEROS, WHEN_SAYS_TOKENS},
    [ENCODER_HEAD_NORM] = {"vocab_layer_norm.weight", {DIM_C}, RULE_ONES, WHEN_SAYS_TOKENS},
    [ENCODER_HEAD_NORM_BIAS] = {"vocab_layer_norm.bias", {DIM_C}, RULE_ZEROS, WHEN_SAYS_TOKENS},
    [ENCODER_HEAD] = {"vocab_projector.weight", {DIM_V, DIM_C}, RULE_NORMAL, WHEN_UNTIED_TOKENS},
    [ENCODER_HEAD_BIAS] = {"vocab_projector.bias", {DIM_V}, RULE_ZEROS, WHEN_SAYS_TOKENS},
    [ENCODER_LABELS] = {"classifier.weight", {DIM_LABELS, DIM_C}, RULE_NORMAL, WHEN_SAYS_LABELS},
    [ENCODER_LABELS_BIAS] = {"classifier.bias", {DIM_LABELS}, RULE_ZEROS, WHEN_SAYS_LABELS},
};

static const char *const classes[MODEL_TASKS] = {
    [TASK_TOKENS] = "DistilBertForMaskedLM",
    [TASK_LABELS] = "DistilBertForTokenClassification",
    [TASK_EMBEDDING] = "DistilBertModel",
};

static const struct model_keys keys = {
    .hidden = "dim",
    .intermediate = "hidden_dim",
    .layers = "n_layers",
    .heads = "n_heads",
    .positions = "max_position_embeddings",
    .activation = "activation",
    .dropout = {"dropout", "attention_dropout"},
    .dropout_absent = 0.1,
};

static const struct hf_demand demands[] = {
    {.key = "is_decoder"},
    {.key = "add_cross_attention"},
    {.key = NULL},
};

static void defaults(struct model_spec *spec)
{
    spec->max_positions = 512;
    spec->norm_eps = 1e-12;
    spec->tie_embeddings = true;
    spec->qkv_bias = spec->o_bias = spec->mlp_bias = true;
    spec->pad_token_id = 0;
}

static void emit(struct builder *b) { encoder_emit(b, false); }

const struct architecture arch_distilbert = {
    .name = "distilbert",
    .hf_type = "distilbert",
    .hf_class = "DistilBertForMaskedLM",
    .task_classes = classes,
    .activation = "gelu",
    .prefix = "distilbert.",
    .keys = &keys,
    .params = params,
    .nparams = ENCODER_PARAMS,
    .encoder = true,
    .inner_multiple = 4,
    .demands = demands,
    .defaults = defaults,
    .check = encoder_check,
    .emit = emit,
};
