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

static void emit(struct builder *b) { encoder_emit(b, false); }

const struct architecture arch_distilbert = {
    .name = "distilbert",
    .hf_class = "DistilBertForMaskedLM",
    .task_classes = classes,
    .activation = "gelu",
    .prefix = "distilbert.",
    .keys = {[FIELD_HIDDEN] = "dim",
             [FIELD_INNER] = "hidden_dim",
             [FIELD_LAYERS] = "n_layers",
             [FIELD_HEADS] = "n_heads",
             HAS(POSITIONS),
             HAS(LABELS),
             [FIELD_GATED] = "activation",
             [FIELD_DROPOUT_1 + ENCODER_DROP_HIDDEN] = "dropout",
             [FIELD_DROPOUT_1 + ENCODER_DROP_ATTENTION] = "attention_dropout"},
    .params = params,
    .nparams = ENCODER_PARAMS,
    .encoder = true,
    .inner_multiple = 4,
    .row_act = ACTIVATION_RELU,
    .demands = {{"is_decoder", "false"}, {"add_cross_attention", "false"}},
    .defaults = encoder_defaults,
    .emit = emit,
};
