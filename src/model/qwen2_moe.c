/* qwen2_moe.c - Qwen1.5-MoE and Qwen2-MoE: Qwen2 with experts, and beside them one that every token has. */
#include "model/decoder.h"

static const struct param_row params[DECODER_PARAMS] = {
    DECODER_ENDS(RULE_ONES), DECODER_ATTENTION,
    DECODER_NORMS,           DECODER_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    DECODER_SHARED_EXPERT,   DECODER_DENSE_LAYERS};

static void defaults(struct model_spec *spec)
{
    spec->num_kv_heads = 16;
    spec->max_positions = 32768;
    spec->norm_eps = 1e-6;
    spec->qkv_bias = true;
    spec->num_experts = 60, spec->experts_per_token = 4, spec->shared_size = 5632;
    spec->balance_coef = 0.001;
}

const struct architecture arch_qwen2_moe = {
    .name = "qwen2_moe",
    .hf_class = "Qwen2MoeForCausalLM",
    .activation = "silu",
    DECODER(params),
    .keys = {DECODER_KEYS, DECODER_MIXTURE_KEYS("num_experts"), [FIELD_INNER] = "moe_intermediate_size",
             HAS(NORM_TOPK), HAS(SHARED), HAS(DENSE), HAS(DENSE_SIZE)},
    .demands = {{"use_sliding_window", "false"}, {"qkv_bias", "true"}},
    .defaults = defaults,
};
