/* numerics.h - which tensor is the first to leave the numbers: a debug mode that looks at what every op wrote.
 *
 * Overflow: a value that is not finite. Underflow: in a narrow type, more than half of the values of a tensor are
 * zero or subnormal although the op's first input is not mostly zero. Each kind is told once, with step, op and
 * tensor; looking costs about as much as the step itself.
 */
#ifndef PLIM_TRAIN_NUMERICS_H
#define PLIM_TRAIN_NUMERICS_H

#include "exec/exec.h"
#include <stdbool.h>

struct trainer;

struct numerics {
    struct trainer *trainer;
    bool told_overflow, told_underflow;
};

/* An exec's inspector; arg is a struct numerics. */
void numerics_inspect(void *arg, const struct exec *exec, int op);

#endif
