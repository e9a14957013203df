/* device.c - what every backend shares, and what is known of devices that are not here. */
#include "device/device.h"
#include "device/cuda/cuda_workspace.h"

#include <stdio.h>

#define OPERANDS (OP_MAX_IN + OP_MAX_OUT)

static void describe(const struct tape *tape, const struct op *op, const struct tensor **desc)
{
    for (int i = 0; i < OP_MAX_IN; i++) desc[i] = op->in[i] >= 0 ? &tape->tensors[op->in[i]] : NULL;
    for (int i = 0; i < OP_MAX_OUT; i++)
        desc[OP_MAX_IN + i] = op->out[i] >= 0 ? &tape->tensors[op->out[i]] : NULL;
}

static size_t by_table(const struct kernel *kernels, const struct tape *tape, const struct op *op,
                       int threads)
{
    const struct tensor *desc[OPERANDS];
    if (!kernels[op->kind].workspace) return 0;
    describe(tape, op, desc);
    return kernels[op->kind].workspace(desc, op, threads);
}

size_t device_workspace(const struct device *dev, const struct tape *tape, const struct op *op)
{
    const struct tensor *desc[OPERANDS];
    if (!dev->ops->workspace) return by_table(dev->kernels, tape, op, dev->facts.threads);
    describe(tape, op, desc);
    return dev->ops->workspace(dev, desc, op);
}

static size_t cpu_scratch(const struct device_facts *facts, const struct tape *tape, const struct op *op)
{
    return by_table(device_cpu_kernels(), tape, op, facts->threads);
}

static size_t card_scratch(const struct device_facts *facts, const struct tape *tape, const struct op *op)
{
    const struct tensor *desc[OPERANDS];
    struct cuda_card card = {.warpgroups = facts->capability == 90, .cudnn = true};
    describe(tape, op, desc);
    return cuda_workspace(&card, desc, op);
}

void device_absent_facts(struct device_facts *facts)
{
    facts->workspace = facts->unified_memory ? cpu_scratch : card_scratch;
    facts->no_kernels[0] = '\0';
    if (facts->unified_memory || facts->capability >= DEVICE_CUDA_LEAST) return;
    if (facts->capability)
        snprintf(facts->no_kernels, sizeof facts->no_kernels,
                 "it has compute capability %d.%d, and the kernels need %d.%d or newer",
                 facts->capability / 10, facts->capability % 10, DEVICE_CUDA_LEAST / 10,
                 DEVICE_CUDA_LEAST % 10);
    else
        snprintf(facts->no_kernels, sizeof facts->no_kernels,
                 "there are kernels for CPUs and NVIDIA GPUs alone");
}
