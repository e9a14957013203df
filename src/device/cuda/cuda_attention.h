/* cuda_attention.h - which attention runs: cuDNN's where it knows the case and is there, else our own.
 *
 * cuDNN's plans take half a second to build, so they are built by _tune only; a call whose plan was not built takes
 * our kernels. Which kernel may run a call, and the larger workspace of those that may, is a formula (cuda_workspace.h), so that
 * planning builds nothing. */
#ifndef PLIM_DEVICE_CUDA_CUDA_ATTENTION_H
#define PLIM_DEVICE_CUDA_CUDA_ATTENTION_H

#include "base/status.h"
#include "device/cuda/kernels.h"

struct cuda_attention;

/* Never fails for want of cuDNN. */
enum plim_status cuda_attention_open(const struct cuda_queue *queue, struct cuda_attention **out,
                                     struct plim_error *err);
void cuda_attention_close(struct cuda_attention *attention);

/* Returns the card properties that the size formulas use; owned by the attention. */
const struct cuda_card *cuda_attention_card(const struct cuda_attention *attention);
/* cuDNN's version, 91900 for 9.19.0; 0: not there. */
size_t cuda_attention_cudnn(const struct cuda_attention *attention);

void cuda_attention_tune(struct cuda_attention *attention, const struct kernel_call *call);

#endif
