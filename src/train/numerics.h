/* numerics.h - a debug mode that examines the output of every op and reports the first tensor that overflows or underflows.
 *
 * Overflow: a value is not finite. Underflow: in a narrow type, more than half of a tensor's values are zero or subnormal
 * although the op's first input is not mostly zero. Each kind is reported once, with step, op and tensor. Examining costs
 * about as much as the step itself.
 */
#pragma once

#include "exec/exec.h"
#include <stdbool.h>

struct trainer;

struct numerics {
    struct trainer *trainer;
    bool told_overflow, told_underflow;
};

/* An exec's inspector; arg is a struct numerics. */
void numerics_inspect(void *arg, const struct exec *exec, int op);
