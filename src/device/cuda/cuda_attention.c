/* cuda_attention.c - see cuda_attention.h. */
#include "device/cuda/cuda_attention.h"
#include "device/cuda/cudnn_attention.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

struct cuda_attention {
    struct cuda_card card;
    struct cudnn_attention *cudnn; /* NULL: not there */
    bool off;                      /* it failed once: our own from then on */
};

static struct attention_shape shape_of(const struct tensor *const *desc, const struct op *op)
{
    bool backward = op->kind == OP_ATTN_BWD;
    const struct tensor *q = desc[backward ? ATTN_BWD_Q : ATTN_Q], *k = desc[backward ? ATTN_BWD_K : ATTN_K];
    return (struct attention_shape){.batch = q->dim[0],
                                    .time = q->dim[1],
                                    .heads = q->dim[2],
                                    .kv_heads = k->dim[2],
                                    .head_size = q->dim[3],
                                    .window = op->attr.window,
                                    .type = q->type,
                                    .scale = op->attr.scale};
}

static enum attention_pass pass_of(const struct op *op)
{
    return op->kind == OP_ATTN_BWD ? ATTENTION_BACKWARD : ATTENTION_FORWARD;
}

static bool aligned(const struct kernel_call *call)
{
    for (int i = 0; i < OP_MAX_IN; i++)
        if ((uintptr_t)call->in[i] % 16) return false;
    for (int i = 0; i < OP_MAX_OUT; i++)
        if ((uintptr_t)call->out[i] % 16) return false;
    return true;
}

void cuda_attention_tune(struct cuda_attention *a, const struct kernel_call *call)
{
    struct attention_shape s = shape_of(call->desc, call->op);
    size_t bytes;
    if (cuda_attn_is_cudnns(&a->card, call->desc, call->op) && cudnn_attention_supports(a->cudnn, &s))
        cudnn_attention_prepare(a->cudnn, &s, pass_of(call->op), &bytes, NULL);
}

/* A plan that was built for this call and keeps within the planned workspace. */
static bool has_plan(const struct cuda_attention *a, const struct attention_shape *s,
                     const struct kernel_call *call)
{
    size_t bytes = 0;
    if (a->off || !cuda_attn_is_cudnns(&a->card, call->desc, call->op) || !aligned(call)) return false;
    if (cudnn_attention_engine(a->cudnn, s, pass_of(call->op), &(bool){false}) < 0) return false;
    return cudnn_attention_prepare(a->cudnn, s, pass_of(call->op), &bytes, NULL) == PLIM_OK &&
           bytes <= cuda_attn_cudnn_bytes(call->desc, call->op);
}

static enum plim_status run_cudnn(struct cuda_attention *a, const struct attention_shape *s,
                                  const struct kernel_call *call)
{
    void *const *in = call->in, *const *out = call->out;
    if (call->op->kind == OP_ATTN) {
        struct attention_forward io = {in[ATTN_Q], in[ATTN_K], in[ATTN_V], out[ATTN_O], out[ATTN_LSE]};
        return cudnn_attention_forward(a->cudnn, s, &io, call->work, NULL);
    }
    struct attention_backward io = {in[ATTN_BWD_DO],  in[ATTN_BWD_Q],   in[ATTN_BWD_K],
                                    in[ATTN_BWD_V],   in[ATTN_BWD_O],   in[ATTN_BWD_LSE],
                                    out[ATTN_BWD_DQ], out[ATTN_BWD_DK], out[ATTN_BWD_DV]};
    return cudnn_attention_backward(a->cudnn, s, &io, call->work, NULL);
}

/* cuDNN's, where it has a plan for the call; false: ours has to do it. */
static bool is_cudnns(const struct cuda_queue *queue, const struct kernel_call *call)
{
    struct cuda_attention *a = queue->attention;
    struct attention_shape s = shape_of(call->desc, call->op);
    if (!has_plan(a, &s, call)) return false;
    if (run_cudnn(a, &s, call) == PLIM_OK) return true;
    a->off = true;
    cudaGetLastError(); /* cuDNN's, not that of the launch that follows */
    return false;
}

int cuda_attn(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return is_cudnns(queue, call) ? 0 : cuda_attn_ours(queue, call);
}

int cuda_attn_bwd(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return is_cudnns(queue, call) ? 0 : cuda_attn_bwd_ours(queue, call);
}

enum plim_status cuda_attention_open(const struct cuda_queue *queue, struct cuda_attention **out,
                                     struct plim_error *err)
{
    struct cuda_attention *a = calloc(1, sizeof *a);
    if (!a) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for attention");
    if (cudnn_attention_open(queue->stream, &a->cudnn, NULL) != PLIM_OK) a->cudnn = NULL;
    a->card = (struct cuda_card){.warpgroups = queue->warpgroups, .cudnn = a->cudnn != NULL};
    *out = a;
    return PLIM_OK;
}

const struct cuda_card *cuda_attention_card(const struct cuda_attention *a) { return &a->card; }

size_t cuda_attention_cudnn(const struct cuda_attention *a)
{
    return a->cudnn ? cudnn_attention_version(a->cudnn) : 0;
}

void cuda_attention_close(struct cuda_attention *a)
{
    if (!a) return;
    cudnn_attention_close(a->cudnn);
    free(a);
}
