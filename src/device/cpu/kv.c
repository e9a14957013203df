/* kv.c - new keys and values take their places in the cache. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include <assert.h>
#include <string.h>

struct append {
    const int32_t *pos;  /* [B,T] */
    const char *from[2]; /* k, v [B,T,K,D] */
    char *to[2];         /* caches [B,S,K,D] */
    int64_t time, slots; /* T, S */
    size_t bytes;        /* of K*D elements */
};

static void append_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct append *a = arg;
    for (int64_t r = begin; r < end; r++) {
        assert(a->pos[r] >= 0 && a->pos[r] < a->slots);
        size_t slot = (size_t)(r / a->time * a->slots + a->pos[r]);
        for (int i = 0; i < 2; i++)
            memcpy(a->to[i] + slot * a->bytes, a->from[i] + (size_t)r * a->bytes, a->bytes);
    }
}

static void keep(void *out, const void *in, const struct tensor *cache)
{
    if (out != in) memcpy(out, in, (size_t)tensor_bytes(cache));
}

void cpu_kv_append(const struct kernel_call *call)
{
    const struct tensor *k = call_in(call, KV_APPEND_K), *cache = call_in(call, KV_APPEND_KC);
    int64_t width = k->dim[2] * k->dim[3];
    keep(call->out[KV_APPEND_NEW_KC], call->in[KV_APPEND_KC], cache);
    keep(call->out[KV_APPEND_NEW_VC], call->in[KV_APPEND_VC], cache);
    struct append a = {
        .pos = call->in[KV_APPEND_POS],
        .from = {call->in[KV_APPEND_K], call->in[KV_APPEND_V]},
        .to = {call->out[KV_APPEND_NEW_KC], call->out[KV_APPEND_NEW_VC]},
        .time = k->dim[1],
        .slots = cache->dim[1],
        .bytes = (size_t)width * dtype_size(k->type),
    };
    threads_each(call->team, k->dim[0] * k->dim[1], row_grain(2 * width), append_body, &a);
}

CPU_KERNEL(kv_append, NULL);
