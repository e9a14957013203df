/* encoder.h - the encoder that BERT, RoBERTa and DistilBERT share: LayerNorm after each residual, learned positions, full
 * attention inside a row's length, exact GELU, biases everywhere.
 *
 * The three differ in names, in whether segments are told apart, and in where numbers are dropped. Each has a table of
 * ENCODER_PARAMS rows in the order of enum encoder_param; a bias follows its weight. Only model/ includes this header.
 */
#ifndef PLIM_MODEL_ENCODER_H
#define PLIM_MODEL_ENCODER_H

#include "model/arch.h"

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
    ENCODER_PARAMS
};

/* Which of a spec's dropouts is which. */
enum { ENCODER_DROP_HIDDEN, ENCODER_DROP_ATTENTION, ENCODER_DROP_LABELS };

extern const struct model_keys encoder_keys; /* BERT's and RoBERTa's */

/* drops_attention: what leaves attention is dropped like what leaves the feed-forward part. */
void encoder_emit(struct builder *b, bool drops_attention);

/* One key head per query head, which together are as wide as the hidden state. */
enum plim_status encoder_check(const struct model_spec *spec, struct plim_error *err);

#endif
