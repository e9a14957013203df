/* kernels.h - every kernel of the CPU backend; cpu_device.c puts them into the table by op kind.
 *
 * What each computes is said in tape/op.h. Here is what all of them keep:
 *  1. Results do not depend on the number of threads: every sum has a fixed order, whoever computes it.
 *  2. Sums over rows that an op adds to (dw of norm, db of linear, the loss) are the same bits whether
 *     the rows come in one call or in several that add up, when calls are cut at multiples of
 *     KERNEL_ROW_BLOCK rows (of GEMM_KC rows for dW of linear, see gemm.h) and the sums are f32 or wider: one
 *     of fewer bits is rounded by each call.
 *  3. Outputs may take over the bytes of the inputs that op_shares(kind, slot) names. Also allowed:
 *     norm_bwd writes dx over dy, glu_bwd writes its results over any of its inputs, elementwise
 *     ops over either operand. Otherwise operands do not overlap.
 *  4. Nothing is allocated; call->work holds what the _workspace function of the op says.
 *  5. Ids, targets and positions are in range (the data layer sees to it), except negative targets.
 */
#ifndef PLIM_DEVICE_CPU_KERNELS_H
#define PLIM_DEVICE_CPU_KERNELS_H

#include "device/device.h"

#define KERNEL_ROW_BLOCK 256

kernel_run cpu_embed, cpu_embed_bwd;
kernel_workspace cpu_embed_bwd_workspace;

kernel_run cpu_norm, cpu_norm_bwd;
kernel_workspace cpu_norm_bwd_workspace;

kernel_run cpu_linear, cpu_linear_dx, cpu_linear_dw;
kernel_workspace cpu_linear_workspace, cpu_linear_dx_workspace, cpu_linear_dw_workspace;

kernel_run cpu_linear_q, cpu_embed_q, cpu_expert_linear_q;
kernel_workspace cpu_linear_q_workspace, cpu_embed_q_workspace, cpu_expert_linear_q_workspace;

kernel_run cpu_rope_table, cpu_rope, cpu_split3, cpu_join3;

kernel_run cpu_attn, cpu_attn_bwd;
kernel_workspace cpu_attn_workspace, cpu_attn_bwd_workspace;

kernel_run cpu_glu, cpu_glu_bwd, cpu_act, cpu_act_bwd, cpu_add;

kernel_run cpu_row_gate, cpu_row_gate_bwd;

kernel_run cpu_dropout;

kernel_run cpu_pool, cpu_pool_bwd;
kernel_workspace cpu_pool_workspace, cpu_pool_bwd_workspace;
kernel_run cpu_route, cpu_route_bwd, cpu_router_loss;
kernel_workspace cpu_route_workspace, cpu_route_bwd_workspace;

kernel_run cpu_dispatch, cpu_combine, cpu_combine_dw, cpu_expert_linear, cpu_expert_linear_dx,
    cpu_expert_linear_dw;
kernel_workspace cpu_expert_linear_workspace,
    cpu_expert_linear_dw_workspace; /* of expert_linear and its dx; of dw */

kernel_run cpu_xent;
kernel_workspace cpu_xent_workspace;

kernel_run cpu_kv_append, cpu_kv_put;
kernel_run cpu_attn_paged, cpu_kv_put8;
kernel_workspace cpu_attn_paged_workspace;
kernel_run cpu_sample;
kernel_workspace cpu_sample_workspace;

kernel_run cpu_sumsq, cpu_clip, cpu_adamw, cpu_sgd, cpu_adamw8, cpu_adafactor;
kernel_workspace cpu_sumsq_workspace;

kernel_run cpu_factor_stat;
kernel_workspace cpu_factor_stat_workspace;

kernel_run cpu_copy; /* fetch and store */

#endif
