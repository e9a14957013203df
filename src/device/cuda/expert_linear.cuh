/* expert_linear.cuh - products of many experts with rows of their own, as one problem.
 *
 *     rows      C[j,n] = sum over k of A[j,k] B[e](n,k)      (+ add[j,n])    for rows j of expert e: linear and its dx
 *     weights   C[e][m,n] = sum over rows j of e of A[j,m] B[j,n]  (+ C)     dw
 *
 * Where expert e's rows begin is data: kernels read `ends`, the host does not wait for it. */
#pragma once

#include "device/cuda/vec.cuh"

enum grouped_kind { GROUPED_LINEAR, GROUPED_DX, GROUPED_DW };

struct grouped {
    enum grouped_kind kind;
    enum dtype type, out_type;
    const void *a, *b; /* x W; dy W; dy x */
    const void *add;   /* NULL: none; of dw C itself */
    void *c;
    const int32_t *ends;
    int64_t rows;      /* of all experts together */
    int experts, m, k; /* W is [E,M,K] */
    int32_t *turns;    /* cuda_expert_turns() bytes of scratch; NULL where that is none */
};

/* By whichever kernel takes it. */
int grouped_run(const struct cuda_queue *queue, const struct grouped *g);

/* Whether the warpgroup kernel takes it: 16-bit operands, whole packets, as many experts as it has places for. */
bool grouped_on_warpgroups(const struct cuda_queue *queue, const struct grouped *g);
int grouped_run_warpgroups(const struct cuda_queue *queue, const struct grouped *g);
