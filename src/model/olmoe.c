/* olmoe.c - OLMoE: the shared decoder with norms over all queries and all keys of a position, and experts. */
#include "model/decoder.h"

static const struct param_row params[DECODER_PARAMS] = {
    DECODER_ENDS(RULE_ONES), DECODER_ATTENTION, DECODER_NORMS, DECODER_QK_NORMS(DIM_HD, DIM_KD, RULE_ONES),
    DECODER_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj")};

static void defaults(struct model_spec *spec)
{
    spec->max_positions = 4096;
    spec->norm_eps = 1e-5;
    spec->num_experts = 64, spec->experts_per_token = 8;
    spec->balance_coef = 0.01;
    spec->pad_token_id = 1;
    spec->eos_token_ids[0] = 50279, spec->eos_count = 1;
}

const struct architecture arch_olmoe = {
    .name = "olmoe",
    .hf_class = "OlmoeForCausalLM",
    .activation = "silu",
    DECODER(params),
    .keys = {DECODER_KEYS, DECODER_MIXTURE_KEYS("num_experts"), HAS(QKV_BIAS), HAS(NORM_TOPK)},
    .demands = {{"clip_qkv", "null"}},
    .defaults = defaults,
};
