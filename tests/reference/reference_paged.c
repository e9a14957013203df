/* reference_paged.c - keys and values in blocks, as op.h says it. */
#include "reference/reference_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t layer_of(const struct ref_call *call) { return call->op->layer > 0 ? call->op->layer : 0; }

/* Elements of a head: a pool of bytes has a scale for each position beside them. */
static int64_t size_of(const struct tensor *pool)
{
    return pool->dim[3] / KV_BLOCK - (pool->type == DT_U8 ? 4 : 0);
}

/* Where element j of position `at` of a block lies: keys [d,16], values [16,d]. */
static int64_t place(const struct tensor *pool, int64_t block, int64_t layer, int64_t head, bool value,
                     int64_t at, int64_t j)
{
    int64_t d = size_of(pool);
    int64_t chunk = (block * pool->dim[1] + 2 * layer + value) * pool->dim[2] + head;
    return chunk * pool->dim[3] + (value ? at * d + j : j * KV_BLOCK + at);
}

void ref_kv_put(const struct ref_call *call)
{
    const struct tensor *k = ref_in(call, KV_PUT_K), *pool = ref_in(call, KV_PUT_POOL);
    int64_t heads = k->dim[2], d = k->dim[3], n = k->dim[0] * k->dim[1];
    double *to = call->out[KV_PUT_NEW_POOL].f;
    memcpy(to, call->in[KV_PUT_POOL].f, (size_t)tensor_count(pool) * sizeof *to);
    for (int64_t i = 0; i < n * heads * d; i++) {
        int64_t slot = call->in[KV_PUT_SLOTS].i[i / d / heads], h = i / d % heads, j = i % d;
        if (slot < 0) continue;
        for (int value = 0; value < 2; value++)
            to[place(pool, slot / KV_BLOCK, layer_of(call), h, value, slot % KV_BLOCK, j)] =
                call->in[value ? KV_PUT_V : KV_PUT_K].f[i];
    }
}

/* Where the scale of a position begins. */
static int64_t scale_place(const struct tensor *pool, int64_t block, int64_t layer, int64_t head, bool value,
                           int64_t at)
{
    return place(pool, block, layer, head, value, 0, 0) + KV_BLOCK * size_of(pool) + 4 * at;
}

/* One position of one head in 8 bits; arithmetic is fp32, whose bits are what is asked for. */
static void put8(const struct tensor *pool, double *to, int64_t slot, int64_t layer, int64_t head, bool value,
                 const double *x, bool e4m3)
{
    int64_t d = size_of(pool), block = slot / KV_BLOCK, at = slot % KV_BLOCK;
    float most = 0;
    for (int64_t j = 0; j < d; j++) most = fmaxf(most, fabsf((float)x[j]));
    float scale = most / 127.0f, times = most > 0 ? 127.0f / most : 0;
    int e = 100;
    while (e4m3 && ldexpf(most, e) > 448) e--;
    if (most == 0) e = 0;
    if (e4m3) scale = ldexpf(1, -e), times = ldexpf(1, e);
    unsigned char bytes[4];
    memcpy(bytes, &scale, sizeof bytes);
    for (int64_t i = 0; i < 4; i++) to[scale_place(pool, block, layer, head, value, at) + i] = bytes[i];
    for (int64_t j = 0; j < d; j++) {
        double code = e4m3 ? ref_e4m3_code(x[j] * (double)times) : rint((double)((float)x[j] * times));
        to[place(pool, block, layer, head, value, at, j)] = code < 0 ? code + 256 : code;
    }
}

void ref_kv_put8(const struct ref_call *call)
{
    const struct tensor *k = ref_in(call, KV_PUT_K), *pool = ref_in(call, KV_PUT_POOL);
    int64_t heads = k->dim[2], d = k->dim[3], n = k->dim[0] * k->dim[1];
    double *to = call->out[KV_PUT_NEW_POOL].f;
    memcpy(to, call->in[KV_PUT_POOL].f, (size_t)tensor_count(pool) * sizeof *to);
    for (int64_t i = 0; i < n * heads; i++)
        for (int value = 0; value < 2 && call->in[KV_PUT_SLOTS].i[i / heads] >= 0; value++)
            put8(pool, to, call->in[KV_PUT_SLOTS].i[i / heads], layer_of(call), i % heads, value,
                 call->in[value ? KV_PUT_V : KV_PUT_K].f + i * d, call->op->attr.e4m3);
}

/* Element j of position s of a row, of the pool's type. */
static double stored(const struct ref_call *call, const int32_t *blocks, int64_t s, int64_t kv, bool value,
                     int64_t j)
{
    const struct tensor *pool = ref_in(call, ATTN_PAGED_POOL);
    const double *from = call->in[ATTN_PAGED_POOL].f;
    int64_t block = blocks[s / KV_BLOCK], at = s % KV_BLOCK, layer = layer_of(call);
    double x = from[place(pool, block, layer, kv, value, at, j)];
    if (pool->type != DT_U8) return x;
    const double *bytes = from + scale_place(pool, block, layer, kv, value, at);
    unsigned char raw[4];
    float scale;
    for (int i = 0; i < 4; i++) raw[i] = (unsigned char)bytes[i];
    memcpy(&scale, raw, sizeof scale);
    return (call->op->attr.e4m3 ? ref_e4m3_value((int)x) : x < 128 ? x : x - 256) * (double)scale;
}

/* One query: its head's o. */
static void attend(const struct ref_call *call, const int32_t *blocks, int64_t position, const double *q,
                   int64_t kv, double *p, double *o)
{
    const struct op_attr *attr = &call->op->attr;
    const struct tensor *pool = ref_in(call, ATTN_PAGED_POOL);
    int64_t d = size_of(pool);
    int64_t first = attr->window && position - attr->window + 1 > 0 ? position - attr->window + 1 : 0;
    double top = -INFINITY, sum = 0;
    for (int64_t s = first; s <= position; s++) {
        double dot = 0;
        for (int64_t j = 0; j < d; j++) dot += q[j] * stored(call, blocks, s, kv, false, j);
        p[s] = dot * (double)attr->scale;
        if (attr->cap > 0) p[s] = (double)attr->cap * tanh(p[s] / (double)attr->cap);
        top = fmax(top, p[s]);
    }
    for (int64_t s = first; s <= position; s++) sum += p[s] = exp(p[s] - top);
    for (int64_t s = first; s <= position; s++)
        for (int64_t j = 0; j < d; j++) o[j] += p[s] / sum * stored(call, blocks, s, kv, true, j);
}

void ref_attn_paged(const struct ref_call *call)
{
    const struct tensor *q = ref_in(call, ATTN_PAGED_Q), *blocks = ref_in(call, ATTN_PAGED_BLOCKS);
    int64_t heads = q->dim[2], d = q->dim[3], group = heads / ref_in(call, ATTN_PAGED_POOL)->dim[2];
    double *p = malloc((size_t)(blocks->dim[1] * KV_BLOCK) * sizeof *p), *o = call->out[ATTN_PAGED_O].f;
    if (!p) abort();
    memset(o, 0, (size_t)tensor_count(q) * sizeof *o);
    for (int64_t r = 0; r < blocks->dim[0]; r++) {
        const int32_t *row = call->in[ATTN_PAGED_ROWS].i + 3 * r;
        for (int64_t i = 0; i < row[1] * heads; i++) {
            int64_t at = ((row[0] + i / heads) * heads + i % heads) * d;
            attend(call, call->in[ATTN_PAGED_BLOCKS].i + r * blocks->dim[1], row[2] + i / heads,
                   call->in[ATTN_PAGED_Q].f + at, i % heads / group, p, o + at);
        }
    }
    free(p);
}
