/* linear_q_wide.h - products with weights in blocks that first become numbers of the compute type.
 *
 * For types whose codes are no whole numbers (a table's), for products that may not round x (attr.keep_x), and for all
 * gradients. A part of the weight at a time is widened into scratch and multiplied as gemm.h does, so every result has the
 * bits of linear, or linear_dx, with the widened weight.
 */
#pragma once

#include "device/kernel.h"

/* True if linear_q and expert_linear_q multiply in this way. */
bool linear_q_is_wide(const struct op_attr *attr);

/* linear_q and expert_linear_q. */
void linear_q_wide(const struct kernel_call *call);
size_t linear_q_wide_workspace(const struct tensor *const *desc, const struct op *op, int threads);
