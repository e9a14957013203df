/* qwen3.c - Qwen3: the shared decoder with a norm over each head of queries and keys. */
#include "model/decoder.h"

static const struct param_row params[DECODER_PARAMS] = {DECODER_ENDS(RULE_ONES), DECODER_ATTENTION,
                                                        DECODER_GATED, DECODER_NORMS,
                                                        DECODER_QK_NORMS(DIM_D, DIM_D, RULE_ONES)};

static void defaults(struct model_spec *spec)
{
    spec->num_kv_heads = 32, spec->head_dim = 128;
    spec->max_positions = 32768;
    spec->norm_eps = 1e-6;
    spec->full_every = LAYERS_NONE;
}

const struct architecture arch_qwen3 = {
    .name = "qwen3",
    .hf_class = "Qwen3ForCausalLM",
    .activation = "silu",
    DECODER(params),
    .keys = {DECODER_KEYS, HAS(WINDOW), HAS(QKV_BIAS)},
    .gguf = "qwen3",
    .window = WINDOW_LATE_LAYERS,
    .defaults = defaults,
};
