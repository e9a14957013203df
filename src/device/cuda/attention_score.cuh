/* attention_score.cuh - what stands between the product q.k and the softmax, and between the softmax and v: soft-cap, bias
 * by distance, dropout (op.h has the formulas).
 *
 * The bias is first spread into a line per head (attention_bias.cu): a pair's is attn_line(a, h)[query - key], also where
 * tiles reach beyond the last query or key. The line of random bits of a query is hashed once; each key takes one more mixing.
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

/* The bias of head h by query - key. */
ON_GPU const float *attn_line(const struct attn &a, int h)
{
    return a.lines + (int64_t)h * a.span + ATTN_BEYOND + a.keys - 1;
}

/* The score of a product, and its slope d score / d (scale q.k). */
ON_GPU float attn_score(const struct attn &a, int h, int query, int key, float product, float *slope)
{
    float x = product * a.scale;
    *slope = 1;
    if (a.cap > 0) {
        float t = tanhf(x / a.cap);
        *slope = fmaf(-t, t, 1.0f), x = a.cap * t;
    }
    return a.lines ? x + attn_line(a, h)[query - key] : x;
}

/* Products become scores with a bias and no soft-cap; line: attn_line of the head. C tiles of queries `row` and keys `column` on,
 * of keys and queries with `keys`; the tile's first elements for this lane. */
template <bool keys, int high, int tiles>
ON_GPU void bias_tile(float (&s)[high][tiles][4], float scale, const float *line, int row, int column)
{
    line += keys ? column - row : row - column;
#pragma unroll
    for (int m = 0; m < high; m++)
#pragma unroll
        for (int n = 0; n < tiles; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int distance = m * 16 + i / 2 * 8 - n * 8 - i % 2;
                s[m][n][i] = fmaf(s[m][n][i], scale, line[keys ? -distance : distance]);
            }
}
