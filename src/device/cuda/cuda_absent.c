/* cuda_absent.c - stands in for the CUDA backend in a build without it. */
#include "device/device.h"

bool device_cuda_present(void) { return false; }

bool device_cuda_peek(const struct context *context, int index, struct device_facts *out)
{
    (void)context, (void)index, (void)out;
    return false;
}

enum plim_status device_cuda_open(const struct context *context, int index, int threads, struct device **out,
                                  struct plim_error *err)
{
    (void)context, (void)index, (void)threads;
    *out = NULL;
    return plim_fail(
        err, PLIM_UNSUPPORTED,
        "this plimsoll was built without CUDA; build it where nvcc is, with make PLIMSOLL_CUDA=ON");
}
