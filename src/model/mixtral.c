/* mixtral.c - Mixtral: Mistral's decoder with experts, of whose weights those of a token add up to 1. */
#include "model/decoder.h"

static const struct param_row params[DECODER_PARAMS] = {
    DECODER_ENDS(RULE_ONES), DECODER_ATTENTION, DECODER_NORMS,
    DECODER_EXPERTS("block_sparse_moe", "w1", "w3", "w2")};

static void defaults(struct model_spec *spec)
{
    spec->num_kv_heads = 8;
    spec->max_positions = 131072;
    spec->norm_eps = 1e-5;
    spec->rope_theta = 1e6;
    spec->full_every = LAYERS_NONE;
    spec->num_experts = 8, spec->experts_per_token = 2, spec->norm_topk = true;
    spec->balance_coef = 0.001;
    spec->bos_token_id = 1;
    spec->eos_token_ids[0] = 2, spec->eos_count = 1;
}

const struct architecture arch_mixtral = {
    .name = "mixtral",
    .hf_class = "MixtralForCausalLM",
    .activation = "silu",
    DECODER(params),
    .keys = {DECODER_KEYS, DECODER_MIXTURE_KEYS("num_local_experts"), HAS(WINDOW)},
    .window = WINDOW_ALL_LAYERS,
    .defaults = defaults,
};
