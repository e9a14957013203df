/* roberta.c - RoBERTa: BERT with its positions behind that of padding, and a head of other names. */
#include "model/encoder.h"

#define EMBED "roberta.embeddings."
#define LAYER "roberta.encoder.layer.%d."

static const struct param_row params[ENCODER_PARAMS] = {
    [ENCODER_WORDS] = {EMBED "word_embeddings.weight", {DIM_V, DIM_C}, RULE_NORMAL, WHEN_ALWAYS},
    [ENCODER_POSITIONS] = {EMBED "position_embeddings.weight", {DIM_P, DIM_C}, RULE_NORMAL, WHEN_ALWAYS},
    [ENCODER_TYPES] = {EMBED "token_type_embeddings.weight", {DIM_TYPES, DIM_C}, RULE_NORMAL, WHEN_TYPES},
    [ENCODER_NORM] = {EMBED "LayerNorm.weight", {DIM_C}, RULE_ONES, WHEN_ALWAYS},
    [ENCODER_NORM_BIAS] = {EMBED "LayerNorm.bias", {DIM_C}, RULE_ZEROS, WHEN_ALWAYS},
    [ENCODER_QKV] = {LAYER "attention.self.{query,key,value}.weight",
                     {DIM_QKV, DIM_C},
                     RULE_NORMAL,
                     WHEN_ALWAYS},
    [ENCODER_QKV_BIAS] = {LAYER "attention.self.{query,key,value}.bias", {DIM_QKV}, RULE_ZEROS, WHEN_ALWAYS},
    [ENCODER_O] = {LAYER "attention.output.dense.weight", {DIM_C, DIM_C}, RULE_NORMAL, WHEN_ALWAYS},
    [ENCODER_O_BIAS] = {LAYER "attention.output.dense.bias", {DIM_C}, RULE_ZEROS, WHEN_ALWAYS},
    [ENCODER_NORM1] = {LAYER "attention.output.LayerNorm.weight", {DIM_C}, RULE_ONES, WHEN_ALWAYS},
    [ENCODER_NORM1_BIAS] = {LAYER "attention.output.LayerNorm.bias", {DIM_C}, RULE_ZEROS, WHEN_ALWAYS},
    [ENCODER_FC] = {LAYER "intermediate.dense.weight", {DIM_F, DIM_C}, RULE_NORMAL, WHEN_ALWAYS},
    [ENCODER_FC_BIAS] = {LAYER "intermediate.dense.bias", {DIM_F}, RULE_ZEROS, WHEN_ALWAYS},
    [ENCODER_PROJ] = {LAYER "output.dense.weight", {DIM_C, DIM_F}, RULE_NORMAL, WHEN_ALWAYS},
    [ENCODER_PROJ_BIAS] = {LAYER "output.dense.bias", {DIM_C}, RULE_ZEROS, WHEN_ALWAYS},
    [ENCODER_NORM2] = {LAYER "output.LayerNorm.weight", {DIM_C}, RULE_ONES, WHEN_ALWAYS},
    [ENCODER_NORM2_BIAS] = {LAYER "output.LayerNorm.bias", {DIM_C}, RULE_ZEROS, WHEN_ALWAYS},
    [ENCODER_TRANSFORM] = {"lm_head.dense.weight", {DIM_C, DIM_C}, RULE_NORMAL, WHEN_SAYS_TOKENS},
    [ENCODER_TRANSFORM_BIAS] = {"lm_head.dense.bias", {DIM_C}, RULE_ZEROS, WHEN_SAYS_TOKENS},
    [ENCODER_HEAD_NORM] = {"lm_head.layer_norm.weight", {DIM_C}, RULE_ONES, WHEN_SAYS_TOKENS},
    [ENCODER_HEAD_NORM_BIAS] = {"lm_head.layer_norm.bias", {DIM_C}, RULE_ZEROS, WHEN_SAYS_TOKENS},
    [ENCODER_HEAD] = {"lm_head.decoder.weight", {DIM_V, DIM_C}, RULE_NORMAL, WHEN_UNTIED_TOKENS},
    [ENCODER_HEAD_BIAS] = {"lm_head.bias", {DIM_V}, RULE_ZEROS, WHEN_SAYS_TOKENS},
    [ENCODER_LABELS] = {"classifier.weight", {DIM_LABELS, DIM_C}, RULE_NORMAL, WHEN_SAYS_LABELS},
    [ENCODER_LABELS_BIAS] = {"classifier.bias", {DIM_LABELS}, RULE_ZEROS, WHEN_SAYS_LABELS},
};

static const char *const classes[MODEL_TASKS] = {
    [TASK_TOKENS] = "RobertaForMaskedLM",
    [TASK_LABELS] = "RobertaForTokenClassification",
    [TASK_EMBEDDING] = "RobertaModel",
};

static const struct hf_demand demands[] = {
    {.key = "is_decoder"},
    {.key = "add_cross_attention"},
    {.key = "position_embedding_type", .text = "absolute"},
    {.key = NULL},
};

static void defaults(struct model_spec *spec)
{
    spec->max_positions = 512;
    spec->norm_eps = 1e-5;
    spec->tie_embeddings = true;
    spec->qkv_bias = spec->o_bias = spec->mlp_bias = true;
    spec->token_types = 1;
    spec->bos_token_id = 0, spec->pad_token_id = 1;
    spec->eos_token_ids[0] = 2, spec->eos_count = 1;
}

static void emit(struct builder *b) { encoder_emit(b, true); }

const struct architecture arch_roberta = {
    .name = "roberta",
    .hf_type = "roberta",
    .hf_class = "RobertaForMaskedLM",
    .task_classes = classes,
    .activation = "gelu",
    .prefix = "roberta.",
    .keys = &encoder_keys,
    .params = params,
    .nparams = ENCODER_PARAMS,
    .encoder = true,
    .positions_after_pad = true,
    .inner_multiple = 4,
    .demands = demands,
    .defaults = defaults,
    .check = encoder_check,
    .emit = emit,
};
