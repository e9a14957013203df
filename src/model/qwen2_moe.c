/* qwen2_moe.c - Qwen1.5-MoE and Qwen2-MoE: Qwen2 with experts, and beside them one that every token has. */
#include "model/decoder.h"

static const struct param_row params[DECODER_PARAMS] = {
    DECODER_ENDS(RULE_ONES), DECODER_ATTENTION,
    DECODER_NORMS,           DECODER_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    DECODER_SHARED_EXPERT,   DECODER_DENSE_LAYERS};

static const struct model_keys keys = {
    DECODER_KEYS("moe_intermediate_size", "hidden_act"),
    .experts = "num_experts",
    .dropout = {"attention_dropout"},
};

static const struct hf_demand demands[] = {
    {.key = "use_sliding_window", .only = false}, {.key = "qkv_bias", .only = true}, {.key = NULL}};

static void defaults(struct model_spec *spec)
{
    spec->max_positions = 32768;
    spec->norm_eps = 1e-6;
    spec->qkv_bias = true;
    spec->num_experts = 60, spec->experts_per_token = 4, spec->shared_size = 5632;
    spec->balance_coef = 0.001, spec->router_losses = true;
}

const struct architecture arch_qwen2_moe = {
    .name = "qwen2_moe",
    .hf_type = "qwen2_moe",
    .hf_class = "Qwen2MoeForCausalLM",
    .activation = "silu",
    .prefix = "model.",
    .keys = &keys,
    .params = params,
    .nparams = DECODER_PARAMS,
    .rope = true,
    .extras = {.norm_topk = true, .shared_expert = true, .dense_layers = true, .kv_heads_absent = 16},
    .demands = demands,
    .defaults = defaults,
    .emit = decoder_emit,
};
