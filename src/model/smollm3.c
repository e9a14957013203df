/* smollm3.c - SmolLM3: the shared decoder with every fourth layer blind to positions. */
#include "model/decoder.h"

static void defaults(struct model_spec *spec)
{
    spec->num_kv_heads = 4;
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
    .hf_class = "SmolLM3ForCausalLM",
    .activation = "silu",
    DECODER(decoder_params),
    .keys = {DECODER_KEYS, HAS(WINDOW), HAS(QKV_BIAS), HAS(MLP_BIAS), HAS(NO_ROPE), HAS(NO_ROPE_EVERY)},
    .gguf = "smollm3",
    .window = WINDOW_NO_ROPE,
    .defaults = defaults,
};
