/* decoder.h - the decoder that LLaMA and its relatives share: RMSNorm, rotary positions, grouped heads, a gated
 * feed-forward part.
 *
 * Architectures differ only in data. A table of rows lists a model's parameters, and a norm or a fused projection is
 * computed if its row is present. The spec and the architecture's flags say the rest. An architecture's file composes its
 * table from the pieces below:
 *
 *     static const struct param_row params[DECODER_PARAMS] = {DECODER_ENDS(RULE_ONES), DECODER_ATTENTION, DECODER_GATED,
 *                                                             DECODER_NORMS, DECODER_QK_NORMS(DIM_D, DIM_D, RULE_ONES)};
 *
 * Only model/ includes this header.
 */
#pragma once

#include "model/arch.h"

/* Each bias follows its weight. */
enum decoder_param {
    P_EMBED,
    P_NORM1, /* before attention */
    P_QKV,
    P_QKV_BIAS,
    P_Q_NORM, /* per head [D] or over all heads [HD] */
    P_K_NORM,
    P_O,
    P_O_BIAS,
    P_POST1, /* after attention, before the sum */
    P_NORM2, /* before the feed-forward part */
    P_GATE,
    P_GATE_BIAS,
    P_UP,
    P_UP_BIAS,
    P_GATE_UP, /* gate and up in one tensor */
    P_DOWN,
    P_DOWN_BIAS,
    P_ROUTER, /* of a mixture: [E,C], [E,F,C], [E,F,C], [E,C,F] */
    P_EXPERT_GATE,
    P_EXPERT_UP,
    P_EXPERT_DOWN,
    P_SHARED_GATE, /* the expert that sees every token, and the factor of its result: [1,C] */
    P_SHARED_UP,
    P_SHARED_DOWN,
    P_SHARED_WEIGHT,
    P_POST2, /* after the feed-forward part, before the sum */
    P_NORM,
    P_HEAD,
    DECODER_PARAMS
};

#define DECODER_LAYER "model.layers.%d."

#define DECODER_MATRIX(name, rows, columns)                                                                  \
    {                                                                                                        \
        DECODER_LAYER name ".weight", {rows, columns}, RULE_NORMAL, WHEN_ALWAYS                              \
    }
#define DECODER_BIAS(name, rows, when)                                                                       \
    {                                                                                                        \
        DECODER_LAYER name ".bias", {rows}, RULE_ZEROS, when                                                 \
    }
#define DECODER_NORM(name, rows, rule)                                                                       \
    {                                                                                                        \
        DECODER_LAYER name ".weight", {rows}, rule, WHEN_ALWAYS                                              \
    }

/* `rule`: RULE_ONES, or RULE_ZEROS if the norm multiplies by 1 + w. */
#define DECODER_ENDS(rule)                                                                                   \
    [P_EMBED] = {"model.embed_tokens.weight", {DIM_V, DIM_C}, RULE_NORMAL, WHEN_ALWAYS},                     \
    [P_NORM] = {"model.norm.weight", {DIM_C}, rule, WHEN_ALWAYS},                                            \
    [P_HEAD] = {"lm_head.weight", {DIM_V, DIM_C}, RULE_NORMAL, WHEN_UNTIED}

#define DECODER_ATTENTION                                                                                    \
    [P_QKV] = DECODER_MATRIX("self_attn.{q,k,v}_proj", DIM_QKV, DIM_C),                                      \
    [P_QKV_BIAS] = DECODER_BIAS("self_attn.{q,k,v}_proj", DIM_QKV, WHEN_QKV_BIAS),                           \
    [P_O] = DECODER_MATRIX("self_attn.o_proj", DIM_C, DIM_HD),                                               \
    [P_O_BIAS] = DECODER_BIAS("self_attn.o_proj", DIM_C, WHEN_O_BIAS)

#define DECODER_GATED                                                                                        \
    [P_GATE] = DECODER_MATRIX("mlp.gate_proj", DIM_F, DIM_C),                                                \
    [P_GATE_BIAS] = DECODER_BIAS("mlp.gate_proj", DIM_F, WHEN_MLP_BIAS),                                     \
    [P_UP] = DECODER_MATRIX("mlp.up_proj", DIM_F, DIM_C),                                                    \
    [P_UP_BIAS] = DECODER_BIAS("mlp.up_proj", DIM_F, WHEN_MLP_BIAS),                                         \
    [P_DOWN] = DECODER_MATRIX("mlp.down_proj", DIM_C, DIM_F),                                                \
    [P_DOWN_BIAS] = DECODER_BIAS("mlp.down_proj", DIM_C, WHEN_MLP_BIAS)

/* `block` is the name of the mixture in a layer; the others name an expert's three matrices. Files written by
 * transformers 5 may hold all experts in two tensors. */
#define DECODER_EXPERT(name, rows, columns, other, part, parts)                                              \
    {                                                                                                        \
        DECODER_LAYER name ".weight", {DIM_E, rows, columns}, RULE_NORMAL, WHEN_MIXTURE,                     \
            DECODER_LAYER other, part, parts                                                                 \
    }
#define DECODER_EXPERTS(block, gate, up, down)                                                               \
    [P_ROUTER] = {DECODER_LAYER block ".gate.weight",                                                        \
                  {DIM_E, DIM_C},                                                                            \
                  RULE_NORMAL,                                                                               \
                  WHEN_MIXTURE,                                                                              \
                  DECODER_LAYER "mlp.gate.weight"},                                                          \
    [P_EXPERT_GATE] =                                                                                        \
        DECODER_EXPERT(block ".experts.{}." gate, DIM_F, DIM_C, "mlp.experts.gate_up_proj", 0, 2),           \
    [P_EXPERT_UP] = DECODER_EXPERT(block ".experts.{}." up, DIM_F, DIM_C, "mlp.experts.gate_up_proj", 1, 2), \
    [P_EXPERT_DOWN] = DECODER_EXPERT(block ".experts.{}." down, DIM_C, DIM_F, "mlp.experts.down_proj", 0, 1)

/* The expert that sees every token. */
#define DECODER_MIXTURE_MATRIX(name, rows, columns)                                                          \
    {                                                                                                        \
        DECODER_LAYER name ".weight", {rows, columns}, RULE_NORMAL, WHEN_MIXTURE                             \
    }
#define DECODER_SHARED_EXPERT                                                                                \
    [P_SHARED_GATE] = DECODER_MIXTURE_MATRIX("mlp.shared_expert.gate_proj", DIM_SHARED, DIM_C),              \
    [P_SHARED_UP] = DECODER_MIXTURE_MATRIX("mlp.shared_expert.up_proj", DIM_SHARED, DIM_C),                  \
    [P_SHARED_DOWN] = DECODER_MIXTURE_MATRIX("mlp.shared_expert.down_proj", DIM_C, DIM_SHARED),              \
    [P_SHARED_WEIGHT] = DECODER_MIXTURE_MATRIX("mlp.shared_expert_gate", DIM_ONE, DIM_C)

/* Layers without experts in a model that has some. */
#define DECODER_DENSE_MATRIX(name, rows, columns)                                                            \
    {                                                                                                        \
        DECODER_LAYER name ".weight", {rows, columns}, RULE_NORMAL, WHEN_DENSE                               \
    }
#define DECODER_DENSE_LAYERS                                                                                 \
    [P_GATE] = DECODER_DENSE_MATRIX("mlp.gate_proj", DIM_DENSE, DIM_C),                                      \
    [P_UP] = DECODER_DENSE_MATRIX("mlp.up_proj", DIM_DENSE, DIM_C),                                          \
    [P_DOWN] = DECODER_DENSE_MATRIX("mlp.down_proj", DIM_C, DIM_DENSE)

/* Norms before both parts. */
#define DECODER_NORMS                                                                                        \
    [P_NORM1] = DECODER_NORM("input_layernorm", DIM_C, RULE_ONES), [P_NORM2] = DECODER_NORM(                 \
                                                                       "post_attention_layernorm", DIM_C,    \
                                                                       RULE_ONES)

/* Norms before and after both parts. */
#define DECODER_SANDWICH_NORMS(rule)                                                                         \
    [P_NORM1] = DECODER_NORM("input_layernorm", DIM_C, rule),                                                \
    [P_POST1] = DECODER_NORM("post_attention_layernorm", DIM_C, rule),                                       \
    [P_NORM2] = DECODER_NORM("pre_feedforward_layernorm", DIM_C, rule),                                      \
    [P_POST2] = DECODER_NORM("post_feedforward_layernorm", DIM_C, rule)

/* Norms of queries and keys. */
#define DECODER_QK_NORMS(q, k, rule)                                                                         \
    [P_Q_NORM] = DECODER_NORM("self_attn.q_norm", q, rule), [P_K_NORM] =                                     \
                                                                DECODER_NORM("self_attn.k_norm", k, rule)

/* Fields of every such config.json, and of a mixture's; `experts` is the key of their number. */
#define DECODER_KEYS                                                                                         \
    HAS(POSITIONS), HAS(NORM_EPS), HAS(KV_HEADS), HAS(THETA),                                                \
        HAS(ROPE), [FIELD_DROPOUT_1] = "attention_dropout"
#define DECODER_MIXTURE_KEYS(experts)                                                                        \
    [FIELD_EXPERTS] = experts, HAS(EXPERTS_PER_TOKEN), HAS(BALANCE), HAS(Z), HAS(ROUTER_LOSSES)

/* Members of struct architecture that all these decoders share. */
#define DECODER(table)                                                                                       \
    .prefix = "model.", .params = table, .nparams = DECODER_PARAMS, .rope = true, .emit = decoder_emit

extern const struct param_row decoder_params[DECODER_PARAMS]; /* LLaMA's */

void decoder_emit(struct builder *b);

/* Gemma 2 and Gemma 3. */
#define GEMMA_KEYS                                                                                           \
    DECODER_KEYS, HAS(WINDOW), HAS(QKV_BIAS), HAS(QUERY_SCALAR),                                             \
        HAS(FINAL_CAP), [FIELD_GATED] = "hidden_activation"
/* All but positions, caps and which layers have windows. */
void gemma_defaults(struct model_spec *spec);
