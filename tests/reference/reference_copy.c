/* reference_copy.c - ops that only move values. */
#include "reference/reference_ops.h"

#include <string.h>

/* A cache as it was, then the new rows at their positions. */
static void append(const struct ref_call *call, int rows, int cache_in, int cache_out)
{
    const struct tensor *fresh = ref_in(call, rows), *cache = ref_in(call, cache_in);
    int64_t batch = fresh->dim[0], time = fresh->dim[1], width = fresh->dim[2] * fresh->dim[3];
    const double *from = call->in[rows].f;
    double *to = call->out[cache_out].f;
    memcpy(to, call->in[cache_in].f, (size_t)tensor_count(cache) * sizeof *to);
    for (int64_t b = 0; b < batch; b++) {
        for (int64_t t = 0; t < time; t++) {
            int64_t row = b * cache->dim[1] + call->in[KV_APPEND_POS].i[b * time + t];
            memcpy(to + row * width, from + (b * time + t) * width, (size_t)width * sizeof *to);
        }
    }
}

void ref_kv_append(const struct ref_call *call)
{
    append(call, KV_APPEND_K, KV_APPEND_KC, KV_APPEND_NEW_KC);
    append(call, KV_APPEND_V, KV_APPEND_VC, KV_APPEND_NEW_VC);
}

void ref_copy(const struct ref_call *call)
{
    const struct tensor *t = ref_in(call, MOVE_FROM);
    int64_t n = tensor_count(t);
    if (t->type == DT_I32)
        memcpy(call->out[MOVE_TO].i, call->in[MOVE_FROM].i, (size_t)n * sizeof(int32_t));
    else
        memcpy(call->out[MOVE_TO].f, call->in[MOVE_FROM].f, (size_t)n * sizeof(double));
}
