/* olmo2.c - OLMo 2: the shared decoder with norms after attention and feed-forward part instead of before them, and over
 * all queries and all keys of a position. */
#include "model/decoder.h"

static const struct param_row params[DECODER_PARAMS] = {
    DECODER_ENDS(RULE_ONES),
    DECODER_ATTENTION,
    DECODER_GATED,
    DECODER_QK_NORMS(DIM_HD, DIM_KD, RULE_ONES),
    [P_POST1] = DECODER_NORM("post_attention_layernorm", DIM_C, RULE_ONES),
    [P_POST2] = DECODER_NORM("post_feedforward_layernorm", DIM_C, RULE_ONES),
};

static void defaults(struct model_spec *spec)
{
    spec->max_positions = 2048;
    spec->norm_eps = 1e-5;
    spec->pad_token_id = 1;
    spec->eos_token_ids[0] = 50279, spec->eos_count = 1;
}

const struct architecture arch_olmo2 = {
    .name = "olmo2",
    .hf_class = "Olmo2ForCausalLM",
    .activation = "silu",
    DECODER(params),
    .keys = {DECODER_KEYS, HAS(QKV_BIAS)},
    .gguf = "olmo2",
    .defaults = defaults,
};
