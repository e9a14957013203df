/* cuda_attention.h - chooses the attention kernel: cuDNN's if it is installed and supports the case, else our own.
 *
 * cuDNN's plans take half a second to build, so only _tune builds them; a call without a plan uses our kernels. Which
 * kernels may run a call, and the largest workspace among them, is a formula (cuda_workspace.h), so planning builds
 * nothing. */
#pragma once

#include "base/status.h"
#include "device/cuda/kernels.h"

struct cuda_attention;

/* Succeeds without cuDNN. */
enum plim_status cuda_attention_open(const struct cuda_queue *queue, struct cuda_attention **out,
                                     struct plim_error *err);
void cuda_attention_close(struct cuda_attention *attention);

/* Returns the card properties that the size formulas use; owned by the attention. */
const struct cuda_card *cuda_attention_card(const struct cuda_attention *attention);
/* cuDNN's version, 91900 for 9.19.0; 0: not installed. */
size_t cuda_attention_cudnn(const struct cuda_attention *attention);

void cuda_attention_tune(struct cuda_attention *attention, const struct kernel_call *call);
