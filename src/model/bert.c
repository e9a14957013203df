/* bert.c - BERT, and MiniLM, which is a smaller one. */
#include "model/encoder.h"

#define HEAD "cls.predictions."

static const struct param_row params[ENCODER_PARAMS] = {
    ENCODER_EMBEDDINGS("bert"),
    ENCODER_LAYERS("bert"),
    ENCODER_TOKEN_HEAD(HEAD "transform.dense", HEAD "transform.LayerNorm", HEAD "decoder", HEAD "bias"),
    ENCODER_LABEL_HEAD("bert.pooler.dense"),
};

static const char *const classes[MODEL_TASKS] = ENCODER_CLASSES("Bert");

static void defaults(struct model_spec *spec)
{
    encoder_defaults(spec);
    spec->dropout[ENCODER_DROP_LABELS] = -1; /* as that of the hidden state */
    spec->token_types = 2;
}

static void emit(struct builder *b) { encoder_emit(b, true); }

const struct architecture arch_bert = {
    .name = "bert",
    .hf_class = "BertForMaskedLM",
    .task_classes = classes,
    .activation = "gelu",
    .prefix = "bert.",
    .keys = {ENCODER_KEYS},
    .params = params,
    .nparams = ENCODER_PARAMS,
    .encoder = true,
    .inner_multiple = 4,
    .row_act = ACTIVATION_TANH,
    .demands = ENCODER_DEMANDS,
    .defaults = defaults,
    .emit = emit,
};
