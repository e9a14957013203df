/* gemma.h - the part that Gemma 2 and Gemma 3 share. Only they include it. */
#pragma once

#include "model/decoder.h"

#define GEMMA_KEYS                                                                                           \
    DECODER_KEYS, HAS(WINDOW), HAS(QKV_BIAS), HAS(QUERY_SCALAR),                                             \
        HAS(FINAL_CAP), [FIELD_GATED] = "hidden_activation"

/* Defaults, except for positions, caps and windows. */
void gemma_defaults(struct model_spec *spec);
