/* kernels.h - every kernel of the CPU backend, by the list of ops; cpu_device.c has the table.
 *
 * tape/op.h defines what each computes. Rules for all of them:
 *  1. Results do not depend on the number of threads: every sum has a fixed order, whoever computes it.
 *  2. Sums over rows that an op adds to (dw of norm, db of linear, the loss) have the same bits whether the rows come in one
 *     call or in several, if calls are cut at multiples of KERNEL_ROW_BLOCK rows (of GEMM_KC rows for dW of linear, see
 *     gemm.h) and the sums are f32 or wider; a narrower one is rounded by each call.
 *  3. Outputs may take over the bytes of the inputs that op_shares(kind, slot) names. Also allowed:
 *     norm_bwd writes dx over dy, glu_bwd writes its results over any of its inputs, elementwise
 *     ops over either operand. Otherwise operands do not overlap.
 *  4. They allocate nothing; call->work has the bytes that the op's _workspace function gives.
 *  5. Ids, targets and positions are in range (the data layer ensures it), except negative targets.
 */
#pragma once

#include "device/device.h"

#define KERNEL_ROW_BLOCK 256

/* cpu_<name> of every op, and its place in the table. */
#define DECLARE_KERNEL(name)                                                                                 \
    kernel_run cpu_##name;                                                                                   \
    extern const struct kernel cpu_kernel_##name;
#define DECLARE_CPU_ONLY(name) DECLARE_KERNEL(name)
#define DECLARE_COPY(name)
#define DECLARE_NONE(name)
#define DECLARE(kind, name, kernels) DECLARE_##kernels(name)
OP_KINDS(DECLARE)
DECLARE_KERNEL(copy) /* fetch and store */
#undef DECLARE

/* Next to each kernel: CPU_KERNEL(xent, cpu_xent_workspace); NULL: it needs none. */
#define CPU_KERNEL(name, workspace) const struct kernel cpu_kernel_##name = {cpu_##name, workspace}

kernel_workspace cpu_attn_workspace, cpu_attn_bwd_workspace;
