/* roberta.c - RoBERTa: BERT with its positions behind that of padding, and a head of other names. */
#include "model/encoder.h"

static const struct param_row params[ENCODER_PARAMS] = {
    ENCODER_EMBEDDINGS("roberta"),
    ENCODER_LAYERS("roberta"),
    ENCODER_TOKEN_HEAD("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
    ENCODER_LINEAR(ENCODER_LABELS, "classifier", DIM_LABELS, DIM_C, WHEN_SAYS_LABELS),
    ENCODER_LINEAR(ENCODER_ROW, "classifier.dense", DIM_C, DIM_C, WHEN_LABELS_ROWS),
    ENCODER_LINEAR(ENCODER_ROW_LABELS, "classifier.out_proj", DIM_LABELS, DIM_C, WHEN_LABELS_ROWS),
};

static const char *const classes[MODEL_TASKS] = ENCODER_CLASSES("Roberta");

static void defaults(struct model_spec *spec)
{
    encoder_defaults(spec);
    spec->dropout[ENCODER_DROP_LABELS] = -1; /* as that of the hidden state */
    spec->norm_eps = 1e-5;
    spec->token_types = 1;
    spec->bos_token_id = 0, spec->pad_token_id = 1;
    spec->eos_token_ids[0] = 2, spec->eos_count = 1;
}

static enum plim_status check(const struct model_spec *spec, struct plim_error *err)
{
    if (spec->pad_token_id >= 0) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "key 'pad_token_id': positions of roberta begin behind it; usual is 1");
}

static void emit(struct builder *b) { encoder_emit(b, true); }

const struct architecture arch_roberta = {
    .name = "roberta",
    .hf_class = "RobertaForMaskedLM",
    .task_classes = classes,
    .activation = "gelu",
    .prefix = "roberta.",
    .keys = {ENCODER_KEYS},
    .params = params,
    .nparams = ENCODER_PARAMS,
    .encoder = true,
    .positions_after_pad = true,
    .inner_multiple = 4,
    .row_act = ACTIVATION_TANH,
    .demands = ENCODER_DEMANDS,
    .defaults = defaults,
    .check = check,
    .emit = emit,
};
