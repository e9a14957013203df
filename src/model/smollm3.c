/* smollm3.c - SmolLM3: the shared decoder with every fourth layer blind to positions. */
#include "model/decoder.h"

static void defaults(struct model_spec *spec)
{
    spec->max_positions = 32768;
    spec->norm_eps = 1e-6;
    spec->rope_theta = 2e6;
    spec->tie_embeddings = true;
    spec->no_rope_every = 4, spec->full_every = LAYERS_NONE;
    spec->bos_token_id = 128000, spec->pad_token_id = 128004;
    spec->eos_token_ids[0] = 128001, spec->eos_count = 1;
}

const struct architecture arch_smollm3 = {
    .name = "smollm3",
    .hf_type = "smollm3",
    .hf_class = "SmolLM3ForCausalLM",
    .activation = "silu",
    .prefix = "model.",
    .keys = &decoder_keys,
    .params = decoder_params,
    .nparams = DECODER_PARAMS,
    .rope = true,
    .extras = {.attention_bias = true, .mlp_bias = true, .no_rope = true, .kv_heads_absent = 4},
    .window = WINDOW_NO_ROPE,
    .defaults = defaults,
    .emit = decoder_emit,
};
