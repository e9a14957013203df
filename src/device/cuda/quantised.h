/* quantised.h - kernels for weights in quantised blocks: quantised_product.cu and quantised.cu. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include "device/cuda/matmul_few.h"
#include "tensor/panels.h"

enum { CUDA_Q_PARTS = 2 * OP_LINE_PARTS };

/* `lines` lines of one block type, whose panels are at w. They make columns [first, first + lines) of y [rows,m]; bias [m]
 * and add [rows,m] are added to it (NULL: none). */
struct cuda_q_part {
    int type; /* number of the block type */
    const unsigned char *w;
    void *y;
    const void *bias, *add;
    int64_t m, first, lines;
};

/* Products of the same rows x[rows,k] with up to CUDA_Q_PARTS parts. The rows may be made on the way, as in matmul_few.h. */
struct cuda_q_product {
    enum dtype type; /* of x, y, bias, add */
    int64_t rows, k;
    enum few_source source;
    const void *x, *a, *b;
    float *stat; /* NULL: not needed */
    float eps;
    bool plus_one;
    struct cuda_q_part part[CUDA_Q_PARTS];
    int parts;
    void *
        gated; /* [rows,m]: the gated unit of both parts' y, which are not written (cuda_quantised_gates); NULL: none */
    const int32_t *ends; /* experts: where each one's rows end; NULL: every row meets all parts */
    int64_t experts, expert_bytes;
    void *work; /* the first linear's, as cuda_workspace says */
};

/* At most CUDA_Q_ROWS rows, or any number of experts' rows. */
int cuda_quantised_multiply(const struct cuda_queue *queue, const struct cuda_q_product *q);

/* True if one launch makes the gated unit of two parts, a gate and what it lets through. */
bool cuda_quantised_gates(const struct cuda_queue *queue, const struct cuda_q_product *q);

/* Products of parts of one block type, for cuda_quantised_multiply. x is rounded to scratch already, unless cuda_q_in_shared says that
 * every block of threads rounds it for itself. */
typedef int cuda_q_multiply(const struct cuda_queue *queue, const struct cuda_q_product *q);
cuda_q_multiply cuda_q8_0_multiply, cuda_q4_0_multiply, cuda_q4_k_multiply, cuda_q5_k_multiply,
    cuda_q6_k_multiply;

/* Dequantises lines of a part to `type`: out[lines,k]. first: a multiple of PANEL_LINES, counted from the part's first. */
int cuda_quantised_widen(const struct cuda_queue *queue, const struct cuda_q_part *part, int64_t first,
                         int64_t lines, int64_t k, enum dtype type, void *out);

#ifdef __cplusplus
}
#endif
