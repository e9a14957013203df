/* reference_copy.c - ops that only move values. */
#include "reference/reference_ops.h"

#include <string.h>

/* The caches as they were, then the new rows at their positions. */
void ref_kv_append(const struct ref_call *call)
{
    const struct tensor *fresh = ref_in(call, 0), *cache = ref_in(call, 3);
    int64_t batch = fresh->dim[0], time = fresh->dim[1], width = fresh->dim[2] * fresh->dim[3];
    for (int i = 0; i < 2; i++) {
        double *to = call->out[i].f;
        memcpy(to, call->in[3 + i].f, (size_t)tensor_count(cache) * sizeof *to);
        for (int64_t b = 0; b < batch; b++) {
            for (int64_t t = 0; t < time; t++) {
                int64_t row = b * cache->dim[1] + call->in[2].i[b * time + t];
                memcpy(to + row * width, call->in[i].f + (b * time + t) * width, (size_t)width * sizeof *to);
            }
        }
    }
}

void ref_copy(const struct ref_call *call)
{
    const struct tensor *t = ref_in(call, 0);
    int64_t n = tensor_count(t);
    if (t->type == DT_I32)
        memcpy(call->out[0].i, call->in[0].i, (size_t)n * sizeof(int32_t));
    else
        memcpy(call->out[0].f, call->in[0].f, (size_t)n * sizeof(double));
}
