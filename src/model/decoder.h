/* decoder.h - the decoder that LLaMA, Mistral and Qwen2 share: RMSNorm, rotary positions, grouped heads,
 * SwiGLU.
 *
 * The three differ only in defaults and in which biases they carry, which the spec says. Only model/ includes
 * this header.
 */
#ifndef PLIM_MODEL_DECODER_H
#define PLIM_MODEL_DECODER_H

#include "model/arch.h"

#define DECODER_PARAMS 15

extern const struct param_row decoder_params[DECODER_PARAMS];
extern const struct model_keys decoder_keys;

void decoder_emit(struct builder *b);

#endif
