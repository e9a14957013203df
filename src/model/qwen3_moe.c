/* qwen3_moe.c - Qwen3 with experts: each head of queries and keys has a norm. */
#include "model/decoder.h"

static const struct param_row params[DECODER_PARAMS] = {
    DECODER_ENDS(RULE_ONES),
    DECODER_ATTENTION,
    DECODER_NORMS,
    DECODER_QK_NORMS(DIM_D, DIM_D, RULE_ONES),
    DECODER_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    DECODER_DENSE_LAYERS};

static void defaults(struct model_spec *spec)
{
    spec->num_kv_heads = 4;
    spec->max_positions = 32768;
    spec->norm_eps = 1e-6;
    spec->num_experts = 128, spec->experts_per_token = 8;
    spec->balance_coef = 0.001;
}

const struct architecture arch_qwen3_moe = {
    .name = "qwen3_moe",
    .hf_class = "Qwen3MoeForCausalLM",
    .activation = "silu",
    DECODER(params),
    .keys = {DECODER_KEYS, DECODER_MIXTURE_KEYS("num_experts"), [FIELD_INNER] = "moe_intermediate_size",
             HAS(QKV_BIAS), HAS(NORM_TOPK), HAS(DENSE), HAS(DENSE_SIZE)},
    .demands = {{"use_sliding_window", "false"}},
    .defaults = defaults,
};
