/* absent.cpp - experts' products by warpgroups, which are not run on the CPU: clusters of blocks share their copies. */
#include "device/cuda/expert_linear.cuh"

bool grouped_on_warpgroups(const struct cuda_queue *, const struct grouped *) { return false; }
int grouped_run_warpgroups(const struct cuda_queue *, const struct grouped *)
{
    return cudaErrorNotSupported;
}
