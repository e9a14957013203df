/* reference_rows.c - ops on one row of channels at a time: embedding, norms, rotary embedding, the loss. */
#include "reference/reference_ops.h"

#include <math.h>
#include <string.h>

void ref_embed(const struct ref_call *call)
{
    int64_t rows = tensor_count(ref_in(call, 0)), width = ref_in(call, 1)->dim[1];
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < width; c++) {
            double add = call->in[2].f ? call->in[2].f[r * width + c] : 0;
            call->out[0].f[r * width + c] = call->in[1].f[call->in[0].i[r] * width + c] + add;
        }
    }
}

void ref_embed_bwd(const struct ref_call *call)
{
    int64_t rows = tensor_count(ref_in(call, 0)), width = ref_out(call, 0)->dim[1];
    ref_begin(call, 0);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < width; c++)
            call->out[0].f[call->in[0].i[r] * width + c] += call->in[1].f[r * width + c];
}

/* Mean (0 for RMS) and reciprocal deviation of one row. */
static void row_stat(const double *x, int64_t width, const struct op_attr *attr, double *mean, double *rstd)
{
    double sum = 0, squares = 0;
    for (int64_t c = 0; attr->layer_norm && c < width; c++) sum += x[c];
    *mean = sum / (double)width;
    for (int64_t c = 0; c < width; c++) squares += (x[c] - *mean) * (x[c] - *mean);
    *rstd = 1 / sqrt(squares / (double)width + (double)attr->eps);
}

void ref_norm(const struct ref_call *call)
{
    int64_t width = tensor_count(ref_in(call, 1)), rows = tensor_count(ref_in(call, 0)) / width;
    bool layer = call->op->attr.layer_norm;
    for (int64_t r = 0; r < rows; r++) {
        const double *x = call->in[0].f + r * width;
        double mean, rstd;
        row_stat(x, width, &call->op->attr, &mean, &rstd);
        for (int64_t c = 0; c < width; c++) {
            double bias = call->in[2].f ? call->in[2].f[c] : 0;
            call->out[0].f[r * width + c] = (x[c] - mean) * rstd * call->in[1].f[c] + bias;
        }
        if (layer) call->out[1].f[2 * r] = mean;
        call->out[1].f[layer ? 2 * r + 1 : r] = rstd;
    }
}

/* With h = (x - mean) rstd and e = dy w:  dx = rstd (e - [mean of e] - h mean of (e h)); the middle term is
 * LayerNorm's only. */
void ref_norm_bwd(const struct ref_call *call)
{
    const double *dy = call->in[0].f, *w = call->in[2].f;
    int64_t width = tensor_count(ref_in(call, 2)), rows = tensor_count(ref_in(call, 0)) / width;
    bool layer = call->op->attr.layer_norm;
    ref_begin(call, 1);
    if (call->out[2].f) ref_begin(call, 2);
    for (int64_t r = 0; r < rows; r++, dy += width) {
        const double *x = call->in[1].f + r * width;
        double mean = layer ? call->in[3].f[2 * r] : 0, rstd = call->in[3].f[layer ? 2 * r + 1 : r];
        double sum_e = 0, sum_eh = 0;
        for (int64_t c = 0; c < width; c++) {
            double h = (x[c] - mean) * rstd;
            if (layer) sum_e += dy[c] * w[c];
            sum_eh += dy[c] * w[c] * h;
            call->out[1].f[c] += dy[c] * h;
            if (call->out[2].f) call->out[2].f[c] += dy[c];
        }
        for (int64_t c = 0; c < width; c++) {
            double h = (x[c] - mean) * rstd, add = call->in[4].f ? call->in[4].f[r * width + c] : 0;
            double e = dy[c] * w[c] - sum_e / (double)width - h * sum_eh / (double)width;
            call->out[0].f[r * width + c] = rstd * e + add;
        }
    }
}

void ref_rope_table(const struct ref_call *call)
{
    int64_t rows = tensor_count(ref_in(call, 0)), half = tensor_count(ref_in(call, 1));
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t j = 0; j < half; j++) {
            double angle = (double)call->in[0].i[r] * call->in[1].f[j];
            call->out[0].f[r * 2 * half + j] = cos(angle);
            call->out[0].f[r * 2 * half + half + j] = sin(angle);
        }
    }
}

/* One head: the pairs (j, j + D/2) rotated by the row's table, or a copy without one. */
static void turn_head(const double *x, double *y, int64_t size, const double *table, bool back)
{
    if (!table) {
        memcpy(y, x, (size_t)size * sizeof *y);
        return;
    }
    for (int64_t j = 0, half = size / 2; j < half; j++) {
        double c = table[j], s = back ? -table[half + j] : table[half + j];
        y[j] = x[j] * c - x[half + j] * s;
        y[half + j] = x[half + j] * c + x[j] * s;
    }
}

/* Rows of all heads against q, k and v. */
static void parts(const struct tensor *q, const struct tensor *k, double *whole, double *const part[3],
                  const double *table, bool join)
{
    int64_t size = q->dim[3], counts[3] = {q->dim[2], k->dim[2], k->dim[2]}, at = 0;
    for (int64_t r = 0; r < q->dim[0] * q->dim[1]; r++)
        for (int i = 0; i < 3; i++)
            for (int64_t h = 0; h < counts[i]; h++, at += size) {
                double *there = part[i] + (r * counts[i] + h) * size, *here = whole + at;
                const double *turn = table && i < 2 ? table + r * size : NULL;
                turn_head(join ? there : here, join ? here : there, size, turn, join);
            }
}

void ref_split3(const struct ref_call *call)
{
    double *const part[3] = {call->out[0].f, call->out[1].f, call->out[2].f};
    parts(ref_out(call, 0), ref_out(call, 1), call->in[0].f, part, call->in[1].f, false);
}

void ref_join3(const struct ref_call *call)
{
    double *const part[3] = {call->in[0].f, call->in[1].f, call->in[2].f};
    parts(ref_in(call, 0), ref_in(call, 1), call->out[0].f, part, call->in[3].f, true);
}

static double log_sum_exp(const double *x, int64_t n)
{
    double top = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++) top = fmax(top, x[i]);
    for (int64_t i = 0; i < n; i++) sum += exp(x[i] - top);
    return top + log(sum);
}

void ref_xent(const struct ref_call *call)
{
    int64_t rows = tensor_count(ref_in(call, 1)), vocab = tensor_count(ref_in(call, 0)) / rows;
    double *loss = call->out[0].f, *dlogits = call->out[1].f, scale = call->in[2].f[SCALAR_LOSS_GRAD];
    ref_begin(call, 0);
    for (int64_t r = 0; r < rows; r++) {
        const double *x = call->in[0].f + r * vocab;
        int64_t target = call->in[1].i[r];
        double lse = log_sum_exp(x, vocab);
        if (target >= 0) loss[0] += lse - x[target], loss[1] += 1;
        for (int64_t v = 0; dlogits && v < vocab; v++) {
            double p = target < 0 ? 0 : exp(x[v] - lse);
            dlogits[r * vocab + v] = (p - (v == target)) * scale;
        }
    }
}
