/* gemma3.c - Gemma 3, the text model: Gemma 2 with norms over queries and keys instead of soft-caps, five layers with a
 * window to one without, and rotary frequencies of their own for the former. */
#include "model/decoder.h"

static const struct param_row params[DECODER_PARAMS] = {DECODER_ENDS(RULE_ZEROS), DECODER_ATTENTION,
                                                        DECODER_GATED, DECODER_SANDWICH_NORMS(RULE_ZEROS),
                                                        DECODER_QK_NORMS(DIM_D, DIM_D, RULE_ZEROS)};

static void defaults(struct model_spec *spec)
{
    gemma_defaults(spec);
    spec->max_positions = 131072;
    spec->rope_theta = 1e6, spec->rope_local_theta = 10000;
    spec->full_every = 6;
}

const struct architecture arch_gemma3 = {
    .name = "gemma3",
    .hf_type = "gemma3_text",
    .hf_class = "Gemma3ForCausalLM",
    .activation = "gelu_pytorch_tanh",
    .act = ACTIVATION_GELU_TANH,
    DECODER(params),
    .keys = {GEMMA_KEYS, HAS(LOCAL_THETA), HAS(FULL_EVERY)},
    .gguf = "gemma3",
    .gguf_scaled_layers = 62,
    .norm_plus_one = true,
    .scaled_embed = true,
    .heads_divide = true,
    .window = WINDOW_PATTERN,
    /* transformers reads attn_logit_softcapping and computes nothing with it. */
    .demands = {{"use_bidirectional_attention", "false"}, {"attn_logit_softcapping", "null"}},
    .defaults = defaults,
};
