/* device.c - what every backend shares. */
#include "device/device.h"

size_t device_workspace(const struct device *dev, const struct tape *tape, const struct op *op)
{
    const struct kernel *kernel = &dev->kernels[op->kind];
    if (!kernel->workspace) return 0;
    const struct tensor *desc[OP_MAX_IN + OP_MAX_OUT] = {NULL};
    for (int i = 0; i < OP_MAX_IN; i++)
        if (op->in[i] >= 0) desc[i] = &tape->tensors[op->in[i]];
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (op->out[i] >= 0) desc[OP_MAX_IN + i] = &tape->tensors[op->out[i]];
    return kernel->workspace(desc, op, dev->facts.threads);
}
