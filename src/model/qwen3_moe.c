/* qwen3_moe.c - Qwen3 with experts: each head of queries and keys has a norm. */
#include "model/decoder.h"

static const struct param_row params[DECODER_PARAMS] = {
    DECODER_ENDS(RULE_ONES),
    DECODER_ATTENTION,
    DECODER_NORMS,
    DECODER_QK_NORMS(DIM_D, DIM_D, RULE_ONES),
    DECODER_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    DECODER_DENSE_LAYERS};

static const struct model_keys keys = {
    DECODER_KEYS("moe_intermediate_size", "hidden_act"),
    .experts = "num_experts",
    .dropout = {"attention_dropout"},
};

static const struct hf_demand demands[] = {{.key = "use_sliding_window", .only = false}, {.key = NULL}};

static void defaults(struct model_spec *spec)
{
    spec->max_positions = 32768;
    spec->norm_eps = 1e-6;
    spec->num_experts = 128, spec->experts_per_token = 8;
    spec->balance_coef = 0.001, spec->router_losses = true;
}

const struct architecture arch_qwen3_moe = {
    .name = "qwen3_moe",
    .hf_type = "qwen3_moe",
    .hf_class = "Qwen3MoeForCausalLM",
    .activation = "silu",
    .prefix = "model.",
    .keys = &keys,
    .params = params,
    .nparams = DECODER_PARAMS,
    .rope = true,
    .extras = {.attention_bias = true, .norm_topk = true, .dense_layers = true, .kv_heads_absent = 4},
    .demands = demands,
    .defaults = defaults,
    .emit = decoder_emit,
};
