/* pass_grad.h - gradient rules, shared by the op table and pass_grad.c. */
#pragma once

#include "tape/op.h"

/* Reverse mode in progress. gradient[t] is the tensor holding d loss / d t so far, or -1. Both lists are by tensor id of the
 * forward tape. */
struct grad_pass {
    struct tape *tape;
    int *gradient;
    bool *moves; /* by root: it depends on a trained parameter, or is one */
};

typedef void grad_rule(struct grad_pass *, const struct op *);
grad_rule grad_none, grad_embed, grad_norm, grad_linear, grad_attn, grad_glu, grad_act, grad_add, grad_split3,
    grad_rope, grad_dropout, grad_pool, grad_route, grad_dispatch, grad_expert_linear, grad_combine,
    grad_router_loss, grad_row_gate, grad_linear_q, grad_expert_linear_q, grad_column_scale, grad_take;
