/* attention_standard.h - attention as textbooks have it: all scores [B,H,T,S] at once, in plain loops. For debugging, where
 * attention itself is under suspicion: attr.standard. The same semantics as the tiled kernels, none of their code but
 * which keys a query sees, and the workspace that the planner counts grows with the square of the row.
 */
#ifndef PLIM_DEVICE_CPU_ATTENTION_STANDARD_H
#define PLIM_DEVICE_CPU_ATTENTION_STANDARD_H

#include "device/kernel.h"

kernel_run attn_standard, attn_standard_bwd;
kernel_workspace attn_standard_workspace, attn_standard_bwd_workspace;

#endif
