/* distilbert.c - DistilBERT: no segments, names of its own, and nothing dropped of what leaves attention. */
#include "model/encoder.h"

#define LAYER "distilbert.transformer.layer.%d."

static const struct param_row params[ENCODER_PARAMS] = {
    ENCODER_EMBEDDINGS("distilbert"),
    ENCODER_LINEAR(ENCODER_QKV, LAYER "attention.{q,k,v}_lin", DIM_QKV, DIM_C, WHEN_ALWAYS),
    ENCODER_LINEAR(ENCODER_O, LAYER "attention.out_lin", DIM_C, DIM_C, WHEN_ALWAYS),
    ENCODER_LAYER_NORM(ENCODER_NORM1, LAYER "sa_layer_norm", WHEN_ALWAYS),
    ENCODER_LINEAR(ENCODER_FC, LAYER "ffn.lin1", DIM_F, DIM_C, WHEN_ALWAYS),
    ENCODER_LINEAR(ENCODER_PROJ, LAYER "ffn.lin2", DIM_C, DIM_F, WHEN_ALWAYS),
    ENCODER_LAYER_NORM(ENCODER_NORM2, LAYER "output_layer_norm", WHEN_ALWAYS),
    ENCODER_TOKEN_HEAD("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"),
    ENCODER_LABEL_HEAD("pre_classifier"),
};

static const char *const classes[MODEL_TASKS] = ENCODER_CLASSES("DistilBert");

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
    {.key = "is_decoder"}, {.key = "add_cross_attention"}, {.key = NULL}};

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
    .row_act = ACTIVATION_RELU,
    .demands = demands,
    .defaults = encoder_defaults,
    .check = encoder_check,
    .emit = emit,
};
