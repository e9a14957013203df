/* phi3.c - Phi-3 and Phi-4-mini: the shared decoder with one projection for queries, keys and values, one for gate and
 * up, heads that may be rotated in part only, and longrope. */
#include "model/decoder.h"

static const struct param_row params[DECODER_PARAMS] = {
    DECODER_ENDS(RULE_ONES),
    DECODER_NORMS,
    [P_QKV] = DECODER_MATRIX("self_attn.qkv_proj", DIM_QKV, DIM_C),
    [P_O] = DECODER_MATRIX("self_attn.o_proj", DIM_C, DIM_HD),
    [P_GATE_UP] = DECODER_MATRIX("mlp.gate_up_proj", DIM_2F, DIM_C),
    [P_DOWN] = DECODER_MATRIX("mlp.down_proj", DIM_C, DIM_F),
};

static void defaults(struct model_spec *spec)
{
    spec->max_positions = 4096;
    spec->norm_eps = 1e-5;
    spec->full_every = LAYERS_NONE;
    spec->rope.original_max_positions = 4096;
    spec->bos_token_id = 1, spec->pad_token_id = 32000;
    spec->eos_token_ids[0] = 32000, spec->eos_count = 1;
}

const struct architecture arch_phi3 = {
    .name = "phi3",
    .hf_class = "Phi3ForCausalLM",
    .activation = "silu",
    DECODER(params),
    .keys = {DECODER_KEYS, HAS(WINDOW), HAS(PARTIAL),
             HAS(LONG_ROPE), [FIELD_DROPOUT_2] = "resid_pdrop", [FIELD_DROPOUT_3] = "embd_pdrop"},
    .gguf = "phi3",
    .window = WINDOW_ALL_LAYERS,
    .defaults = defaults,
};
