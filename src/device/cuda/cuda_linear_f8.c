/* cuda_linear_f8.c - linear_f8: rows of x are rounded by one kernel; then up to CUDA_F8_ROWS of them are multiplied by ours, more by
 * cuBLASLt. On 9.0 that has a scale for each row and line; elsewhere it leaves sums in scratch, and a kernel finishes them. */
#include "device/cuda/linear_f8.h"
#include "device/cuda/cuda_matmul.h"
#include "tensor/f8_lines.h"

struct cuda_q_product cuda_linear_f8_product(const struct kernel_call *calls, int count)
{
    const struct tensor *x = call_in(&calls[0], LINEAR_F8_X), *y = call_out(&calls[0], LINEAR_F8_Y);
    int64_t rows = tensor_count(y) / calls[0].op->attr.lines[0].lines;
    struct cuda_q_product q = {.type = x->type,
                               .rows = rows,
                               .k = rows ? tensor_count(x) / rows : 0,
                               .x = calls[0].in[LINEAR_F8_X],
                               .work = calls[0].work};
    for (int i = 0; i < count && rows; i++) {
        int64_t m = calls[i].op->attr.lines[0].lines;
        q.part[q.parts++] = (struct cuda_q_part){.w = calls[i].in[LINEAR_F8_W],
                                                 .y = calls[i].out[LINEAR_F8_Y],
                                                 .bias = calls[i].in[LINEAR_F8_BIAS],
                                                 .add = calls[i].in[LINEAR_F8_ADD],
                                                 .m = m,
                                                 .lines = m};
    }
    return q;
}

static struct cuda_f8_product large_product(const struct cuda_q_product *q, const struct cuda_q_part *part,
                                            const struct cuda_f8_places *at)
{
    return (struct cuda_f8_product){.w = part->w,
                                    .x = (char *)q->work + at->codes,
                                    .bias = part->bias,
                                    .add = part->add,
                                    .w_scale = cuda_f8_scales(part, q->k),
                                    .x_scale = (const float *)(const void *)((char *)q->work + at->scales),
                                    .y = part->y,
                                    .type = q->type,
                                    .rows = q->rows,
                                    .lines = part->m,
                                    .k = q->k,
                                    .short_sums = q->type != DT_F32};
}

struct cuda_f8_product cuda_linear_f8_large(const struct kernel_call *call)
{
    struct cuda_q_product q = cuda_linear_f8_product(call, 1);
    struct cuda_f8_places at = cuda_f8_places(q.rows, q.part[0].m, q.k);
    return large_product(&q, &q.part[0], &at);
}

/* Sums of some lines at a time. */
static int multiply_by_sums(const struct cuda_queue *queue, const struct cuda_q_product *q,
                            const struct cuda_q_part *part, const struct cuda_f8_places *at)
{
    int code = 0;
    float *sums = (float *)(void *)((char *)q->work + at->sums);
    for (int64_t first = 0; first < part->m && !code; first += at->lines) {
        struct cuda_f8_product p = large_product(q, part, at);
        const float *scales = p.x_scale;
        p.w = part->w + first * q->k, p.lines = part->m - first < at->lines ? part->m - first : at->lines;
        p.y = sums, p.type = DT_F32, p.bias = p.add = NULL, p.w_scale = p.x_scale = NULL;
        code = cuda_matmul_f8(queue, &p, q->work);
        if (!code) code = cuda_f8_finish(queue, q, part, sums, scales, first, p.lines);
    }
    return code;
}

int cuda_f8_multiply(const struct cuda_queue *queue, const struct cuda_q_product *q)
{
    if (q->rows == 0) return 0;
    struct cuda_f8_places at = cuda_f8_places(q->rows, q->part[0].m, q->k);
    unsigned char *codes = (unsigned char *)q->work + at.codes;
    float *scales = (float *)(void *)((char *)q->work + at.scales);
    int code = cuda_f8_round(queue, q, codes, scales);
    if (code) return code;
    struct cuda_queue here = *queue;
    here.follows = queue->warpgroups; /* the kernel before is ours, and awaits what was before it */
    if (q->rows <= CUDA_F8_ROWS) return cuda_f8_few(&here, q, codes, scales);
    for (int i = 0; i < q->parts && !code; i++) {
        struct cuda_f8_product p = large_product(q, &q->part[i], &at);
        code = queue->capability / 10 == 9 ? cuda_matmul_f8(queue, &p, q->work) : cudaErrorNotSupported;
        if (code == cudaErrorNotSupported) code = multiply_by_sums(queue, q, &q->part[i], &at);
    }
    return code;
}

int cuda_linear_f8(const struct cuda_queue *queue, const struct kernel_call *call)
{
    struct cuda_q_product q = cuda_linear_f8_product(call, 1);
    return cuda_f8_multiply(queue, &q);
}
