/* op_cost.h - functions that complete the cost of an op; the bytes of every operand are already counted once
 * (op_row.cost). */
#pragma once

#include "tape/op.h"

typedef void op_cost_rule(const struct tape *tape, const struct op *op, struct op_cost *cost);

op_cost_rule cost_linear, cost_dora_norm, cost_linear_q, cost_linear_dx, cost_linear_dw, cost_expert_linear;
op_cost_rule cost_linear_q_dx, cost_adapter_linear, cost_expert_linear_q, cost_expert_linear_q_dx;
op_cost_rule cost_expert_linear_dx, cost_expert_linear_dw, cost_attn, cost_attn_bwd, cost_adamw8;
op_cost_rule cost_quantise8, cost_linear8, cost_linear8_dw, cost_linear_f8;
op_cost_rule cost_norm, cost_norm_bwd, cost_split3, cost_join3, cost_rope_table, cost_xent, cost_sumsq,
    cost_adamw;
op_cost_rule cost_glu, cost_glu_bwd, cost_act, cost_act_bwd;
op_cost_rule cost_embed, cost_embed_q, cost_embed_bwd, cost_kv_put, cost_attn_paged, cost_move;
op_cost_rule cost_gather, cost_reduce, cost_sum, cost_hold;
