/* gemma2.c - Gemma 2: norms before and after both parts with weights of 1 + w, scaled embeddings, GeGLU, soft-caps of
 * scores and logits, and a window on every other layer. */
#include "model/decoder.h"

static const struct param_row params[DECODER_PARAMS] = {DECODER_ENDS(RULE_ZEROS), DECODER_ATTENTION,
                                                        DECODER_GATED, DECODER_SANDWICH_NORMS(RULE_ZEROS)};

void gemma_defaults(struct model_spec *spec)
{
    spec->num_kv_heads = 4, spec->head_dim = 256, spec->query_scalar = 256;
    spec->norm_eps = 1e-6;
    spec->tie_embeddings = true;
    spec->sliding_window = 4096;
    spec->pad_token_id = 0, spec->bos_token_id = 2;
    spec->eos_token_ids[0] = 1, spec->eos_count = 1;
}

static void defaults(struct model_spec *spec)
{
    gemma_defaults(spec);
    spec->max_positions = 8192;
    spec->full_every = 2;
    spec->attn_cap = 50, spec->final_cap = 30;
}

const struct architecture arch_gemma2 = {
    .name = "gemma2",
    .hf_class = "Gemma2ForCausalLM",
    .activation = "gelu_pytorch_tanh",
    .act = ACTIVATION_GELU_TANH,
    DECODER(params),
    .keys = {GEMMA_KEYS, HAS(ATTN_CAP)},
    .gguf = "gemma2",
    .gguf_scaled_layers = 46,
    .norm_plus_one = true,
    .scaled_embed = true,
    .heads_divide = true,
    .window = WINDOW_PATTERN,
    .demands = {{"use_bidirectional_attention", "false"}},
    .defaults = defaults,
};
