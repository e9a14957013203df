/* reference_ops.h - the functions behind reference_run, one per op kind, and the few helpers they share.
 *
 * Each takes the call alone and finds its sizes in the descriptors. Operand order is that of tape/op.h.
 */
#ifndef PLIM_DEVICE_REFERENCE_REFERENCE_OPS_H
#define PLIM_DEVICE_REFERENCE_REFERENCE_OPS_H

#include "reference/reference.h"

typedef void ref_op(const struct ref_call *call);

ref_op ref_embed, ref_embed_bwd, ref_norm, ref_norm_bwd;                            /* reference_rows.c */
ref_op ref_xent, ref_rope_table, ref_rope, ref_split3, ref_join3;                   /* reference_rows.c */
ref_op ref_column_scale, ref_column_scale_bwd;                                      /* reference_rows.c */
ref_op ref_row_gate, ref_row_gate_bwd, ref_dora_norm, ref_take, ref_adapter_linear; /* reference_rows.c */
ref_op ref_pool, ref_pool_bwd;                                                      /* reference_pool.c */
ref_op ref_dropout;                                                                 /* reference_drop.c */
ref_op ref_linear, ref_linear_dx, ref_linear_dw;                                    /* reference_linear.c */
ref_op ref_attn, ref_attn_bwd;                                                      /* reference_attn.c */
ref_op ref_glu, ref_glu_bwd, ref_act, ref_act_bwd, ref_add;                         /* reference_each.c */
ref_op ref_route, ref_dispatch, ref_expert_linear, ref_combine, ref_router_loss, ref_route_bwd,
    ref_expert_linear_dx, ref_expert_linear_dw, ref_combine_dw; /* reference_experts.c */
ref_op ref_sumsq, ref_clip, ref_adamw, ref_sgd;                 /* reference_optim.c */
ref_op ref_adamw8, ref_factor_stat, ref_adafactor;              /* reference_optim.c */
ref_op ref_kv_append, ref_copy;                                 /* reference_copy.c */
ref_op ref_kv_put, ref_kv_put8, ref_attn_paged;                 /* reference_paged.c */
ref_op ref_preference;                                          /* reference_preference.c */
double ref_e4m3_value(int code);
double ref_e4m3_code(double x);                                   /* of what is not too large */
ref_op ref_quantise8, ref_linear8, ref_linear8_dw, ref_linear_f8; /* reference_fp8.c */
ref_op ref_sample;                                                /* reference_sample.c */
ref_op ref_linear_q, ref_embed_q, ref_expert_linear_q, ref_linear_q_dx, ref_dora_norm_q,
    ref_expert_linear_q_dx; /* reference_quantised.c */

static inline const struct tensor *ref_in(const struct ref_call *call, int slot) { return call->desc[slot]; }

static inline const struct tensor *ref_out(const struct ref_call *call, int slot)
{
    return call->desc[OP_MAX_IN + slot];
}

/* Dropout (reference_drop.c): the random numbers of row b, and what element i of a row or line is multiplied with. */
uint32_t ref_mix(uint32_t x);
uint32_t ref_drop_row(const struct op_attr *attr, const double *scalars, int64_t b);
double ref_drop(const struct op_attr *attr, uint32_t line, uint32_t i);

/* Start of an accumulating output: zero, unless the call adds to what is there. */
static inline void ref_begin(const struct ref_call *call, int slot)
{
    if (call->accumulate) return;
    int64_t n = tensor_count(ref_out(call, slot));
    for (int64_t i = 0; i < n; i++) call->out[slot].f[i] = 0;
}

#endif
