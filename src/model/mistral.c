/* mistral.c - Mistral: the shared decoder with a sliding window on every layer. */
#include "model/decoder.h"

static void defaults(struct model_spec *spec)
{
    spec->num_kv_heads = 8;
    spec->max_positions = 131072;
    spec->norm_eps = 1e-6;
    spec->sliding_window = 4096, spec->full_every = LAYERS_NONE;
    spec->bos_token_id = 1;
    spec->eos_token_ids[0] = 2, spec->eos_count = 1;
}

const struct architecture arch_mistral = {
    .name = "mistral",
    .hf_class = "MistralForCausalLM",
    .activation = "silu",
    DECODER(decoder_params),
    .keys = {DECODER_KEYS, HAS(WINDOW)},
    .window = WINDOW_ALL_LAYERS,
    .defaults = defaults,
};
