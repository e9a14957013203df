/* cuda_absent.c - stands in for the CUDA backend in a build without it. */
#include "device/backing.h"
#include "device/device.h"

static enum plim_status absent(struct plim_error *err)
{
    return plim_fail(
        err, PLIM_UNSUPPORTED,
        "this plimsoll was built without CUDA; build it where nvcc is, with make PLIMSOLL_CUDA=ON");
}

bool device_cuda_present(void) { return false; }

bool device_cuda_peek(const struct context *, int, struct device_facts *) { return false; }

enum plim_status device_cuda_open(const struct context *, int, int, struct device **out,
                                  struct plim_error *err)
{
    *out = NULL;
    return absent(err);
}

enum plim_status cuda_backing_open(int, struct cache_backing **out, struct plim_error *err)
{
    *out = NULL;
    return absent(err);
}

void cuda_backing_close(struct cache_backing *) {}
