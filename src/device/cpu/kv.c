/* kv.c - new keys and values take their places in the cache. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include <assert.h>
#include <string.h>

/* k, v [B,T,K,D] into the caches [B,S,K,D] */
static void append_body(void *arg, int64_t begin, int64_t end, int)
{
    static const int from[] = {KV_APPEND_K, KV_APPEND_V}, to[] = {KV_APPEND_NEW_KC, KV_APPEND_NEW_VC};
    const struct kernel_call *call = arg;
    const struct tensor *k = call_in(call, KV_APPEND_K), *cache = call_in(call, KV_APPEND_KC);
    const int32_t *pos = call->in[KV_APPEND_POS];
    int64_t width = k->dim[2] * k->dim[3], slots = cache->dim[1];
    for (int64_t r = begin; r < end; r++) {
        assert(pos[r] >= 0 && pos[r] < slots);
        int64_t slot = r / k->dim[1] * slots + pos[r];
        for (int i = 0; i < 2; i++)
            memcpy(out_at(call, to[i], slot * width), in_at(call, from[i], r * width),
                   (size_t)width * dtype_size(k->type));
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
    call_each(call, k->dim[0] * k->dim[1], row_grain(2 * width), append_body);
}

CPU_KERNEL(kv_append, NULL);
