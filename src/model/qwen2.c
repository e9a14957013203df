/* qwen2.c - Qwen2 and Qwen2.5: the shared decoder with biases on query, key and value. */
#include "model/decoder.h"

static void defaults(struct model_spec *spec)
{
    spec->max_positions = 32768;
    spec->norm_eps = 1e-6;
    spec->full_every = LAYERS_NONE;
    spec->qkv_bias = true;
}

const struct architecture arch_qwen2 = {
    .name = "qwen2",
    .hf_class = "Qwen2ForCausalLM",
    .activation = "silu",
    DECODER(decoder_params),
    .keys = {DECODER_KEYS, HAS(WINDOW)},
    .gguf = "qwen2",
    .window = WINDOW_LATE_LAYERS,
    .defaults = defaults,
};
