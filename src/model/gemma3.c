/* gemma3.c - Gemma 3, the text model: Gemma 2 with norms over queries and keys instead of soft-caps, five layers with a
 * window to one without, and rotary frequencies of their own for the former. */
#include "model/gemma.h"

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

/* transformers reads attn_logit_softcapping and computes nothing with it. */
static const struct hf_demand demands[] = {{.key = "use_bidirectional_attention", .only = false},
                                           {.key = "attn_logit_softcapping", .null_only = true},
                                           {.key = NULL}};

const struct architecture arch_gemma3 = {
    .name = "gemma3",
    .hf_type = "gemma3_text",
    .hf_class = "Gemma3ForCausalLM",
    .activation = "gelu_pytorch_tanh",
    .act = ACTIVATION_GELU_TANH,
    .prefix = "model.",
    .keys = &gemma_keys,
    .params = params,
    .nparams = DECODER_PARAMS,
    .rope = true,
    .norm_plus_one = true,
    .scaled_embed = true,
    .extras = {.attention_bias = true,
               .heads_divide = true,
               .caps = true,
               .local_theta = true,
               .window_pattern = true,
               .kv_heads_absent = 4,
               .head_dim_absent = 256,
               .query_scalar_absent = 256},
    .window = WINDOW_PATTERN,
    .demands = demands,
    .defaults = defaults,
    .emit = decoder_emit,
};
