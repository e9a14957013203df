/* cuda_quantised.c - linear_q and expert_linear_q. Up to CUDA_Q_ROWS rows, and experts, are multiplied as they are
 * (quantised_product.cu); for more rows lines of W become numbers in scratch and cuBLASLt multiplies. */
#include "device/cuda/cuda_quantised.h"
#include "device/cuda/quantised_wide.h"
#include "tape/quantised.h"

/* Appends the parts of a linear's weight to the product. */
static void add_parts(struct cuda_q_product *q, const struct kernel_call *call)
{
    const struct op_attr *attr = &call->op->attr;
    struct quantised_part part;
    for (int i = 0; quantised_part(attr, q->k, i, &part); i++)
        q->part[q->parts++] =
            (struct cuda_q_part){.type = attr->lines[i].type,
                                 .w = (const unsigned char *)call->in[LINEAR_Q_W] + part.offset,
                                 .y = call->out[LINEAR_Q_Y],
                                 .bias = call->in[LINEAR_Q_BIAS],
                                 .add = call->in[LINEAR_Q_ADD],
                                 .m = quantised_lines(attr),
                                 .first = part.first,
                                 .lines = part.lines};
}

struct cuda_q_product cuda_linear_q_product(const struct kernel_call *calls, int count)
{
    const struct tensor *x = call_in(&calls[0], LINEAR_Q_X), *y = call_out(&calls[0], LINEAR_Q_Y);
    int64_t rows = tensor_count(y) / quantised_lines(&calls[0].op->attr);
    struct cuda_q_product q = {.type = x->type,
                               .rows = rows,
                               .k = rows ? tensor_count(x) / rows : 0,
                               .x = calls[0].in[LINEAR_Q_X],
                               .work = calls[0].work};
    for (int i = 0; i < count && rows; i++) add_parts(&q, &calls[i]);
    return q;
}

/* Lines [first, end) of W as numbers, then the columns of y that they make. What is added lies in y already. */
static int multiply_wide(const struct cuda_queue *queue, const struct cuda_q_product *q, int64_t first,
                         int64_t end)
{
    size_t size = dtype_size(q->type);
    char *numbers = (char *)q->work + CUDA_MATMUL_BYTES;
    const struct cuda_q_part *whole = &q->part[0];
    for (const struct cuda_q_part *p = q->part; p < q->part + q->parts; p++) {
        int64_t from = first > p->first ? first - p->first : 0,
                to = end - p->first < p->lines ? end - p->first : p->lines;
        if (from >= to) continue;
        char *at = numbers + (size_t)((p->first + from - first) * q->k) * size;
        int code = cuda_quantised_widen(queue, p, from, to - from, q->k, q->type, at);
        if (code) return code;
    }
    size_t column = (size_t)first * size;
    struct cuda_wide_product product = {.w = numbers,
                                        .x = q->x,
                                        .y = (char *)whole->y + column,
                                        .bias = whole->bias ? (const char *)whole->bias + column : NULL,
                                        .add = whole->add != NULL,
                                        .type = q->type,
                                        .rows = q->rows,
                                        .lines = end - first,
                                        .k = q->k,
                                        .m = whole->m};
    return cuda_matmul_wide(queue, &product, q->work);
}

/* The end of the lines that are widened together, from `first` on: a part that is cut is cut between panels. */
static int64_t end_of_lines(const struct cuda_q_product *q, int64_t first, int64_t m)
{
    int64_t end = first + cuda_wide_lines(m, q->k, q->type);
    if (end >= m) return m;
    for (int i = 0; i < q->parts; i++) {
        const struct cuda_q_part *p = &q->part[i];
        if (end > p->first && end < p->first + p->lines)
            end = p->first + (end - p->first) / PANEL_LINES * PANEL_LINES;
    }
    return end;
}

int cuda_linear_q(const struct cuda_queue *queue, const struct kernel_call *call)
{
    if (cuda_linear_q_is_wide(call->op)) return cuda_linear_q_wide(queue, call);
    struct cuda_q_product q = cuda_linear_q_product(call, 1);
    if (cuda_linear_q_is_few(call->desc, call->op)) return cuda_quantised_multiply(queue, &q);
    const void *add = call->in[LINEAR_Q_ADD];
    int64_t m = quantised_lines(&call->op->attr);
    int code = 0;
    if (add && add != call->out[LINEAR_Q_Y])
        code =
            (int)cudaMemcpyAsync(call->out[LINEAR_Q_Y], add, (size_t)tensor_bytes(call_out(call, LINEAR_Q_Y)),
                                 cudaMemcpyDeviceToDevice, (cudaStream_t)queue->stream);
    for (int64_t first = 0, end; first < m && !code; first = end) {
        end = end_of_lines(&q, first, m);
        code = multiply_wide(queue, &q, first, end);
    }
    return code;
}

int cuda_expert_linear_q(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *x = call_in(call, EXPERT_LINEAR_Q_X);
    struct kernel_call plain = *call; /* as a linear, with the first expert's weight */
    plain.in[LINEAR_Q_BIAS] = plain.in[LINEAR_Q_ADD] = NULL;
    struct cuda_q_product q = {.type = x->type,
                               .rows = x->dim[0],
                               .k = x->dim[1],
                               .x = call->in[EXPERT_LINEAR_Q_X],
                               .ends = call->in[EXPERT_LINEAR_Q_ENDS],
                               .experts = call_in(call, EXPERT_LINEAR_Q_ENDS)->dim[0],
                               .expert_bytes = quantised_bytes(&call->op->attr, x->dim[1]),
                               .work = call->work};
    add_parts(&q, &plain);
    return cuda_quantised_multiply(queue, &q);
}
