/* gemma.h - what Gemma 2 and Gemma 3 share. Only they include it. */
#ifndef PLIM_MODEL_GEMMA_H
#define PLIM_MODEL_GEMMA_H

#include "model/decoder.h"

extern const struct model_keys gemma_keys;

/* All but positions, caps and which layers have windows. */
void gemma_defaults(struct model_spec *spec);

#endif
