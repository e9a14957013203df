/* op_device.c - see op_device.h. */
#include "support/op_device.h"
#include "device/registry.h"
#include "support/fake_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool op_device_is_card(void)
{
    const char *name = getenv("OP_DEVICE");
    return name && !strcmp(name, "cuda");
}

static int opened(void **state, struct device *dev, enum plim_status status, const struct plim_error *err)
{
    if (status != PLIM_OK) fprintf(stderr, "%s\n", err->text);
    *state = dev;
    return dev ? 0 : -1;
}

int op_device_open(void **state)
{
    struct plim_error err = {0};
    struct device *dev = NULL;
    enum plim_status status =
        op_device_is_card() ? device_cuda_open(NULL, 0, 1, &dev, &err) : device_cpu_open(NULL, 2, &dev, &err);
    return opened(state, dev, status, &err);
}

int op_device_open_fake(void **state)
{
    struct plim_error err = {0};
    struct device *dev = NULL;
    if (!op_device_is_card()) return opened(state, &fake_open(PROMPT)->device, PLIM_OK, &err);
    enum plim_status status = device_cuda_open(NULL, 0, 1, &dev, &err);
    return opened(state, dev, status, &err);
}

int op_device_close(void **state)
{
    struct device *dev = *state;
    if (dev) dev->ops->close(dev);
    return 0;
}

size_t op_device_scratch(struct device *dev, const struct kernel_call *call)
{
    const struct kernel *kernel = dev->kernels[call->op->kind];
    if (dev->ops->workspace) return dev->ops->workspace(dev, call->desc, call->op);
    return kernel->workspace ? kernel->workspace(call->desc, call->op, dev->facts.threads) : 0;
}
