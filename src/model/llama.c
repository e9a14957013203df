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
    .hf_class = "LlamaForCausalLM",
    .activation = "silu",
    DECODER(decoder_params),
    .keys = {DECODER_KEYS, HAS(QKV_BIAS), HAS(MLP_BIAS)},
    .gguf = "llama",
    .heads_divide = true,
    .defaults = defaults,
};
