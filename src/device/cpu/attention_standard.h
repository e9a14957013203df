/* attention_standard.h - textbook attention: all scores [B,H,T,S] at once, in plain loops. For debugging attention itself
 * (attr.standard). It has the semantics of the tiled kernels and shares none of their code except the computation of the
 * keys a query sees. The workspace that the planner counts grows with the square of the row.
 */
#pragma once

#include "device/kernel.h"

kernel_run attn_standard, attn_standard_bwd;
kernel_workspace attn_standard_workspace, attn_standard_bwd_workspace;
