/* granite.c - Granite 3: the shared decoder with a factor for embeddings, scores, branches and logits each. */
#include "model/decoder.h"

static void defaults(struct model_spec *spec)
{
    spec->max_positions = 2048;
    spec->norm_eps = 1e-6;
    spec->embed_scale = spec->residual_scale = spec->score_scale = spec->logits_divisor = 1;
    spec->bos_token_id = 1;
    spec->eos_token_ids[0] = 2, spec->eos_count = 1;
}

const struct architecture arch_granite = {
    .name = "granite",
    .hf_class = "GraniteForCausalLM",
    .activation = "silu",
    DECODER(decoder_params),
    .keys = {DECODER_KEYS, HAS(QKV_BIAS), HAS(MLP_BIAS), HAS(EMBED_SCALE), HAS(SCORE_SCALE),
             HAS(RESIDUAL_SCALE), HAS(LOGITS_DIVISOR)},
    .defaults = defaults,
};
