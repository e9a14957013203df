/* attention_score.cuh - what stands between the product q.k and the softmax, and between the softmax and v: soft-cap, bias
 * by distance, dropout (op.h has the formulas).
 *
 * The bias is first spread into a line per head (attention_bias.cu): a pair's is lines[h][query - key + keys - 1]. The line
 * of random bits of a query is hashed once; each key takes one more mixing.
 */
#pragma once

#include "device/cuda/attention.cuh"
#include "device/cuda/random.cuh"

/* Where query t of row b stands among the keys. */
ON_GPU int attn_stands(const struct attn &a, int b, int t)
{
    return a.cached ? a.pos[(int64_t)b * a.time + t] : t;
}

ON_GPU uint32_t attn_drop_line(const struct attn &a, int b, int h, int query)
{
    return random_mix(dropout_row(a.drop, b) ^ ((uint32_t)h << 24 ^ (uint32_t)query));
}

ON_GPU float attn_keep(const struct attn &a, uint32_t line, int key)
{
    return dropout_factor(a.drop, line, (uint32_t)key);
}

/* The score of a product, and its slope d score / d (scale q.k). What lies beyond rows and keys stays in the line. */
ON_GPU float attn_score(const struct attn &a, int h, int query, int key, float product, float *slope)
{
    float x = product * a.scale;
    *slope = 1;
    if (a.cap > 0) {
        float t = tanhf(x / a.cap);
        *slope = fmaf(-t, t, 1.0f), x = a.cap * t;
    }
    if (!a.lines) return x;
    int at = min(max(query - key + a.keys - 1, 0), a.span - 1);
    return x + a.lines[(int64_t)h * a.span + at];
}
