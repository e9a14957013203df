/* bert.c - BERT, and MiniLM, which is a smaller one. */
#include "model/encoder.h"

#define EMBED "bert.embeddings."
#define LAYER "bert.encoder.layer.%d."

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
    [ENCODER_TRANSFORM] = {"cls.predictions.transform.dense.weight",
                           {DIM_C, DIM_C},
                           RULE_NORMAL,
                           WHEN_SAYS_TOKENS},
    [ENCODER_TRANSFORM_BIAS] = {"cls.predictions.transform.dense.bias",
                                {DIM_C},
                                RULE_ZEROS,
                                WHEN_SAYS_TOKENS},
    [ENCODER_HEAD_NORM] = {"cls.predictions.transform.LayerNorm.weight",
                           {DIM_C},
                           RULE_ONES,
                           WHEN_SAYS_TOKENS},
    [ENCODER_HEAD_NORM_BIAS] = {"cls.predictions.transform.LayerNorm.bias",
                                {DIM_C},
                                RULE_ZEROS,
                                WHEN_SAYS_TOKENS},
    [ENCODER_HEAD] = {"cls.predictions.decoder.weight", {DIM_V, DIM_C}, RULE_NORMAL, WHEN_UNTIED_TOKENS},
    [ENCODER_HEAD_BIAS] = {"cls.predictions.bias", {DIM_V}, RULE_ZEROS, WHEN_SAYS_TOKENS},
    [ENCODER_LABELS] = {"classifier.weight", {DIM_LABELS, DIM_C}, RULE_NORMAL, WHEN_SAYS_LABELS},
    [ENCODER_LABELS_BIAS] = {"classifier.bias", {DIM_LABELS}, RULE_ZEROS, WHEN_SAYS_LABELS},
};

static const char *const classes[MODEL_TASKS] = {
    [TASK_TOKENS] = "BertForMaskedLM",
    [TASK_LABELS] = "BertForTokenClassification",
    [TASK_EMBEDDING] = "BertModel",
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
    spec->norm_eps = 1e-12;
    spec->tie_embeddings = true;
    spec->qkv_bias = spec->o_bias = spec->mlp_bias = true;
    spec->token_types = 2;
    spec->pad_token_id = 0;
}

static void emit(struct builder *b) { encoder_emit(b, true); }

const struct architecture arch_bert = {
    .name = "bert",
    .hf_type = "bert",
    .hf_class = "BertForMaskedLM",
    .task_classes = classes,
    .activation = "gelu",
    .prefix = "bert.",
    .keys = &encoder_keys,
    .params = params,
    .nparams = ENCODER_PARAMS,
    .encoder = true,
    .inner_multiple = 4,
    .demands = demands,
    .defaults = defaults,
    .check = encoder_check,
    .emit = emit,
};
