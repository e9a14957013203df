/* absent.cpp - kernels of warpgroups (sm_90a), which are not run on the CPU: nobody asks for them where the loaded code has
 * none. */
#include "device/cuda/attention.cuh"
#include "device/cuda/expert_linear.cuh"

extern "C" bool cuda_attn_has_warpgroups(void) { return false; }
extern "C" int cuda_attn_hopper(const struct cuda_queue *, struct attn *) { return cudaErrorNotSupported; }
extern "C" int cuda_attn_hopper_backward(const struct cuda_queue *, struct attn *)
{
    return cudaErrorNotSupported;
}
bool grouped_on_warpgroups(const struct cuda_queue *, const struct grouped *) { return false; }
int grouped_run_warpgroups(const struct cuda_queue *, const struct grouped *)
{
    return cudaErrorNotSupported;
}
