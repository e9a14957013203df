/* llama.c - LLaMA 1 to 3: the shared decoder; biases only where the config asks for them. */
#include "model/decoder.h"

static void defaults(struct model_spec *spec)
{
    spec->max_positions = 2048;
    spec->norm_eps = 1e-6;
    spec->bos_token_id = 1;
    spec->eos_token_ids[0] = 2, spec->eos_count = 1;
}

const struct architecture arch_llama = {
    .name = "llama",
    .hf_type = "llama",
    .hf_class = "LlamaForCausalLM",
    .activation = "silu",
    .prefix = "model.",
    .keys = &decoder_keys,
    .params = decoder_params,
    .nparams = DECODER_PARAMS,
    .rope = true,
    .extras = {.attention_bias = true, .mlp_bias = true, .heads_divide = true},
    .defaults = defaults,
    .emit = decoder_emit,
};
