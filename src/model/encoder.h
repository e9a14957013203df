/* encoder.h - the encoder that BERT, RoBERTa and DistilBERT share: LayerNorm after each residual, learned positions, full
 * attention inside a row's length, exact GELU, biases everywhere.
 *
 * The three differ in names, in segments, and in where dropout applies. An architecture's file composes its table from the
 * pieces below:
 *
 *     static const struct param_row params[ENCODER_PARAMS] = {ENCODER_EMBEDDINGS("bert"), ENCODER_LAYERS("bert"),
 *                                                             ENCODER_TOKEN_HEAD(...),
 *                                                             ENCODER_LABEL_HEAD("bert.pooler.dense")};
 *
 * Only model/ includes this header.
 */
#pragma once

#include "model/arch.h"

/* Each bias follows its weight. */
enum encoder_param {
    ENCODER_WORDS,
    ENCODER_POSITIONS,
    ENCODER_TYPES,
    ENCODER_NORM,
    ENCODER_NORM_BIAS,
    ENCODER_QKV,
    ENCODER_QKV_BIAS,
    ENCODER_O,
    ENCODER_O_BIAS,
    ENCODER_NORM1,
    ENCODER_NORM1_BIAS,
    ENCODER_FC,
    ENCODER_FC_BIAS,
    ENCODER_PROJ,
    ENCODER_PROJ_BIAS,
    ENCODER_NORM2,
    ENCODER_NORM2_BIAS,
    ENCODER_TRANSFORM, /* before the projection to tokens */
    ENCODER_TRANSFORM_BIAS,
    ENCODER_HEAD_NORM,
    ENCODER_HEAD_NORM_BIAS,
    ENCODER_HEAD, /* untied only */
    ENCODER_HEAD_BIAS,
    ENCODER_LABELS,
    ENCODER_LABELS_BIAS,
    ENCODER_ROW, /* applied to a row's first token before the projection to labels */
    ENCODER_ROW_BIAS,
    ENCODER_ROW_LABELS, /* if it differs from ENCODER_LABELS */
    ENCODER_ROW_LABELS_BIAS,
    ENCODER_PARAMS
};

/* Index of each dropout in a spec. */
enum { ENCODER_DROP_HIDDEN, ENCODER_DROP_ATTENTION, ENCODER_DROP_LABELS };

#define ENCODER_LINEAR(row, name, rows, columns, when)                                                       \
    [row] = {name ".weight", {rows, columns}, RULE_NORMAL, when},                                            \
    [row##_BIAS] = {name ".bias", {rows}, RULE_ZEROS, when}
#define ENCODER_LAYER_NORM(row, name, when)                                                                  \
    [row] = {name ".weight", {DIM_C}, RULE_ONES, when},                                                      \
    [row##_BIAS] = {name ".bias", {DIM_C}, RULE_ZEROS, when}

#define ENCODER_EMBEDDINGS(model)                                                                            \
    [ENCODER_WORDS] = {model ".embeddings.word_embeddings.weight",                                           \
                       {DIM_V, DIM_C},                                                                       \
                       RULE_NORMAL,                                                                          \
                       WHEN_ALWAYS},                                                                         \
    [ENCODER_POSITIONS] = {model ".embeddings.position_embeddings.weight",                                   \
                           {DIM_P, DIM_C},                                                                   \
                           RULE_NORMAL,                                                                      \
                           WHEN_ALWAYS},                                                                     \
    [ENCODER_TYPES] = {model ".embeddings.token_type_embeddings.weight",                                     \
                       {DIM_TYPES, DIM_C},                                                                   \
                       RULE_NORMAL,                                                                          \
                       WHEN_TYPES},                                                                          \
    ENCODER_LAYER_NORM(ENCODER_NORM, model ".embeddings.LayerNorm", WHEN_ALWAYS)

/* Layers as BERT and RoBERTa call them. */
#define ENCODER_LAYER(model, name) model ".encoder.layer.%d." name
#define ENCODER_LAYERS(model)                                                                                \
    ENCODER_LINEAR(ENCODER_QKV, ENCODER_LAYER(model, "attention.self.{query,key,value}"), DIM_QKV, DIM_C,    \
                   WHEN_ALWAYS),                                                                             \
        ENCODER_LINEAR(ENCODER_O, ENCODER_LAYER(model, "attention.output.dense"), DIM_C, DIM_C,              \
                       WHEN_ALWAYS),                                                                         \
        ENCODER_LAYER_NORM(ENCODER_NORM1, ENCODER_LAYER(model, "attention.output.LayerNorm"), WHEN_ALWAYS),  \
        ENCODER_LINEAR(ENCODER_FC, ENCODER_LAYER(model, "intermediate.dense"), DIM_F, DIM_C, WHEN_ALWAYS),   \
        ENCODER_LINEAR(ENCODER_PROJ, ENCODER_LAYER(model, "output.dense"), DIM_C, DIM_F, WHEN_ALWAYS),       \
        ENCODER_LAYER_NORM(ENCODER_NORM2, ENCODER_LAYER(model, "output.LayerNorm"), WHEN_ALWAYS)

/* With tied embeddings the projection uses the word embeddings. Its bias has a full name of its own. */
#define ENCODER_TOKEN_HEAD(transform, norm, projection, bias)                                                \
    ENCODER_LINEAR(ENCODER_TRANSFORM, transform, DIM_C, DIM_C, WHEN_SAYS_TOKENS),                            \
        ENCODER_LAYER_NORM(ENCODER_HEAD_NORM, norm, WHEN_SAYS_TOKENS),                                       \
        [ENCODER_HEAD] = {projection ".weight", {DIM_V, DIM_C}, RULE_NORMAL, WHEN_UNTIED_TOKENS},            \
        [ENCODER_HEAD_BIAS] = {bias, {DIM_V}, RULE_ZEROS, WHEN_SAYS_TOKENS}
/* `row`: the layer between a row's first token and its labels. Rows and tokens share the projection to
 * labels. */
#define ENCODER_LABEL_HEAD(row)                                                                              \
    ENCODER_LINEAR(ENCODER_LABELS, "classifier", DIM_LABELS, DIM_C, WHEN_ANY_LABELS),                        \
        ENCODER_LINEAR(ENCODER_ROW, row, DIM_C, DIM_C, WHEN_LABELS_ROWS)

/* hf_class of each task. */
#define ENCODER_CLASSES(name)                                                                                \
    {                                                                                                        \
        [TASK_TOKENS] = name "ForMaskedLM", [TASK_LABELS] = name "ForTokenClassification",                   \
        [TASK_EMBEDDING] = name "Model", [TASK_ROW_LABELS] = name "ForSequenceClassification"                \
    }

/* Fields of BERT's and RoBERTa's config.json. */
#define ENCODER_KEYS                                                                                         \
    HAS(POSITIONS), HAS(TYPES),                                                                              \
        HAS(LABELS), [FIELD_NORM_EPS] = "layer_norm_eps",                                                    \
                     [FIELD_DROPOUT_1 + ENCODER_DROP_HIDDEN] = "hidden_dropout_prob",                        \
                     [FIELD_DROPOUT_1 + ENCODER_DROP_ATTENTION] = "attention_probs_dropout_prob",            \
                     [FIELD_DROPOUT_1 + ENCODER_DROP_LABELS] = "classifier_dropout"

#define ENCODER_DEMANDS                                                                                      \
    {                                                                                                        \
        {"is_decoder", "false"}, {"add_cross_attention", "false"}, { "position_embedding_type", "absolute" } \
    }

/* BERT's defaults, except for segments. */
void encoder_defaults(struct model_spec *spec);

/* drops_attention: dropout applies to the output of attention as well as of the feed-forward part. */
void encoder_emit(struct builder *b, bool drops_attention);
