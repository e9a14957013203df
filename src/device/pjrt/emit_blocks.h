/* emit_blocks.h - products with weights in quantised blocks (tape/quantised.h), and rows of them.
 *
 *     struct hlo_value y = blocks_product(h, &op->attr, x, bytes);           // x[R,K] W': [R,M]
 *     struct hlo_value dx = blocks_product_back(h, &op->attr, dy, bytes);    // dy[R,M] W: [R,K]
 *
 * `bytes` is the weight of one matrix, U8 [bytes]. Elements are decoded to F32 and rounded to the type of x; sums are F32. At most
 * BLOCKS_TILE elements are decoded at a time, or 16 lines: a loop goes over the panels of a larger matrix.
 */
#pragma once

#include "device/pjrt/hlo.h"
#include "tape/quantised.h"

#define BLOCKS_TILE ((int64_t)1 << 22)

struct hlo_value blocks_product(struct hlo *h, const struct op_attr *attr, struct hlo_value x,
                                struct hlo_value bytes);
struct hlo_value blocks_product_back(struct hlo *h, const struct op_attr *attr, struct hlo_value dy,
                                     struct hlo_value bytes);

/* Lines ids[R] (I32) of a matrix with k columns, F32 [R,k]. */
struct hlo_value blocks_rows(struct hlo *h, const struct op_attr *attr, int64_t k, struct hlo_value bytes,
                             struct hlo_value ids);

/* Is this block type (tensor/blocks.h) known here? Every one that kernels multiply must be. */
bool blocks_decoded(int number);

/* Scratch of a product with rows of k elements. */
size_t blocks_workspace(const struct op_attr *attr, int64_t k);
