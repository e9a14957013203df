/* device.c - what every backend shares. */
#include "device/device.h"

#define OPERANDS (OP_MAX_IN + OP_MAX_OUT)

void device_describe(const struct tape *tape, const struct op *op, const struct tensor **desc)
{
    for (int i = 0; i < OP_MAX_IN; i++) desc[i] = op->in[i] >= 0 ? &tape->tensors[op->in[i]] : NULL;
    for (int i = 0; i < OP_MAX_OUT; i++)
        desc[OP_MAX_IN + i] = op->out[i] >= 0 ? &tape->tensors[op->out[i]] : NULL;
}

size_t device_table_workspace(const struct kernel *const *kernels, const struct tape *tape,
                              const struct op *op, int threads)
{
    const struct tensor *desc[OPERANDS];
    if (!kernels[op->kind] || !kernels[op->kind]->workspace) return 0;
    device_describe(tape, op, desc);
    return kernels[op->kind]->workspace(desc, op, threads);
}

size_t device_workspace(const struct device *dev, const struct tape *tape, const struct op *op)
{
    const struct tensor *desc[OPERANDS];
    if (!dev->ops->workspace) return device_table_workspace(dev->kernels, tape, op, dev->facts.threads);
    device_describe(tape, op, desc);
    return dev->ops->workspace(dev, desc, op);
}

void device_ledgers_init(struct device *dev, struct ledger own[TIER_COUNT], bool unified)
{
    static const char *const classes[DEVICE_LEDGER_CLASSES] = {"arena", "overhead"};
    for (int tier = 0; tier < TIER_COUNT; tier++) {
        bool shared = unified && tier == TIER_HOST;
        dev->ledger[tier] = &own[shared ? TIER_DEVICE : tier];
        if (!shared)
            ledger_init(&own[tier], tier_name((enum tier)tier), LEDGER_UNLIMITED, classes,
                        DEVICE_LEDGER_CLASSES);
    }
}

void device_ledgers_destroy(struct device *dev)
{
    bool shared = dev->ledger[TIER_HOST] == dev->ledger[TIER_DEVICE];
    for (int tier = 0; tier < TIER_COUNT; tier++)
        if (dev->ledger[tier] && !(shared && tier == TIER_HOST)) ledger_destroy(dev->ledger[tier]);
}
