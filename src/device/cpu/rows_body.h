/* rows_body.h - the source of every table of row functions. A .c file defines ROWS_TABLE (the table's name)
 * and an instruction set (see vec.h) and includes this once. The functions are in the five headers. */
#pragma once

#include "device/cpu/rows.h"
#include "device/cpu/rows_activation.h"
#include "device/cpu/rows_elements.h"
#include "device/cpu/rows_reduce.h"
#include "device/cpu/rows_update.h"
#include "device/cpu/rows_update8.h"

#if defined(ROWS_TABLE)
const struct row_ops ROWS_TABLE = {
    .add = row_add,
    .add_to = row_add_to,
    .scale_add = row_scale_add,
    .add_scaled = row_add_scaled,
    .glu = row_glu,
    .glu_bwd = row_glu_bwd,
    .act = row_act,
    .act_bwd = row_act_bwd,
    .drop = row_drop,
    .rope = row_rope,
    .rms = row_rms,
    .layer = row_layer,
    .rms_bwd = row_rms_bwd,
    .layer_bwd = row_layer_bwd,
    .softmax = row_softmax,
    .exp_scaled = row_exp_scaled,
    .exp_capped = row_exp_capped,
    .sumsq = row_sumsq,
    .adamw = row_adamw,
    .sgd = row_sgd,
    .adamw8 = row_adamw8,
    .adafactor = row_adafactor,
    .add_squares = row_add_squares,
    .sumsq_over = row_sumsq_over,
    .second = row_second,
};
#endif
