/* reference_rows.c - ops on one row of channels at a time: embedding, norms, rotary embedding, the loss. */
#include "reference/reference_ops.h"

#include <math.h>
#include <string.h>

/* The factor of the rows, as the compute type has it. */
static double embed_scale(const struct op *op, enum dtype type)
{
    float x = op->attr.scale, narrow;
    char bits[4];
    if (x == 0) return 1;
    dtype_convert(bits, type, &x, DT_F32, 1);
    dtype_convert(&narrow, DT_F32, bits, type, 1);
    return (double)narrow;
}

void ref_embed(const struct ref_call *call)
{
    double scale = embed_scale(call->op, ref_in(call, EMBED_W)->type);
    bool turned = call->op->attr.weight_kn;
    const struct tensor *w = ref_in(call, EMBED_W);
    int64_t rows = tensor_count(ref_in(call, EMBED_IDS)), width = w->dim[turned ? 0 : 1];
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < width; c++) {
            double add = call->in[EMBED_ADD].f ? call->in[EMBED_ADD].f[r * width + c] : 0;
            int64_t id = call->in[EMBED_IDS].i[r] + call->op->attr.first;
            call->out[EMBED_Y].f[r * width + c] =
                call->in[EMBED_W].f[turned ? c * w->dim[1] + id : id * width + c] * scale + add;
        }
    }
}

void ref_embed_bwd(const struct ref_call *call)
{
    bool turned = call->op->attr.weight_kn;
    const struct tensor *dw = ref_out(call, EMBED_BWD_DW);
    int64_t rows = tensor_count(ref_in(call, EMBED_BWD_IDS)), width = dw->dim[turned ? 0 : 1];
    double scale = embed_scale(call->op, ref_in(call, EMBED_BWD_DY)->type);
    ref_begin(call, EMBED_BWD_DW);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < width; c++) {
            int64_t id = call->in[EMBED_BWD_IDS].i[r] + call->op->attr.first;
            call->out[EMBED_BWD_DW].f[turned ? c * dw->dim[1] + id : id * width + c] +=
                call->in[EMBED_BWD_DY].f[r * width + c] * scale;
        }
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
    int64_t width = tensor_count(ref_in(call, NORM_W)), rows = tensor_count(ref_in(call, NORM_X)) / width;
    bool layer = call->op->attr.layer_norm;
    double plus = call->op->attr.plus_one ? 1 : 0;
    for (int64_t r = 0; r < rows; r++) {
        const double *x = call->in[NORM_X].f + r * width;
        double mean, rstd;
        row_stat(x, width, &call->op->attr, &mean, &rstd);
        for (int64_t c = 0; c < width; c++) {
            double bias = call->in[NORM_BIAS].f ? call->in[NORM_BIAS].f[c] : 0;
            call->out[NORM_Y].f[r * width + c] = (x[c] - mean) * rstd * (call->in[NORM_W].f[c] + plus) + bias;
        }
        if (layer) call->out[NORM_STAT].f[2 * r] = mean;
        call->out[NORM_STAT].f[layer ? 2 * r + 1 : r] = rstd;
    }
}

/* With h = (x - mean) rstd and e = dy w:  dx = rstd (e - [mean of e] - h mean of (e h)); the middle term is
 * LayerNorm's only. */
void ref_norm_bwd(const struct ref_call *call)
{
    const double *dy = call->in[NORM_BWD_DY].f, *w = call->in[NORM_BWD_W].f;
    int64_t width = tensor_count(ref_in(call, NORM_BWD_W)),
            rows = tensor_count(ref_in(call, NORM_BWD_DY)) / width;
    bool layer = call->op->attr.layer_norm;
    double plus = call->op->attr.plus_one ? 1 : 0;
    if (call->out[NORM_BWD_DW].f) ref_begin(call, NORM_BWD_DW);
    if (call->out[NORM_BWD_DBIAS].f) ref_begin(call, NORM_BWD_DBIAS);
    for (int64_t r = 0; r < rows; r++, dy += width) {
        const double *x = call->in[NORM_BWD_X].f + r * width;
        double mean = layer ? call->in[NORM_BWD_STAT].f[2 * r] : 0,
               rstd = call->in[NORM_BWD_STAT].f[layer ? 2 * r + 1 : r];
        double sum_e = 0, sum_eh = 0;
        for (int64_t c = 0; c < width; c++) {
            double h = (x[c] - mean) * rstd;
            if (layer) sum_e += dy[c] * (w[c] + plus);
            sum_eh += dy[c] * (w[c] + plus) * h;
            if (call->out[NORM_BWD_DW].f) call->out[NORM_BWD_DW].f[c] += dy[c] * h;
            if (call->out[NORM_BWD_DBIAS].f) call->out[NORM_BWD_DBIAS].f[c] += dy[c];
        }
        for (int64_t c = 0; c < width; c++) {
            double h = (x[c] - mean) * rstd,
                   add = call->in[NORM_BWD_ADD].f ? call->in[NORM_BWD_ADD].f[r * width + c] : 0;
            double e = dy[c] * (w[c] + plus) - sum_e / (double)width - h * sum_eh / (double)width;
            call->out[NORM_BWD_DX].f[r * width + c] = rstd * e + add;
        }
    }
}

void ref_rope_table(const struct ref_call *call)
{
    int64_t rows = tensor_count(ref_in(call, ROPE_TABLE_POS)),
            half = tensor_count(ref_in(call, ROPE_TABLE_INV_FREQ));
    double scale = call->op->attr.scale == 0 ? 1 : (double)call->op->attr.scale;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t j = 0; j < half; j++) {
            double angle = (double)call->in[ROPE_TABLE_POS].i[r] * call->in[ROPE_TABLE_INV_FREQ].f[j];
            call->out[ROPE_TABLE_TABLE].f[r * 2 * half + j] = cos(angle) * scale;
            call->out[ROPE_TABLE_TABLE].f[r * 2 * half + half + j] = sin(angle) * scale;
        }
    }
}

/* One head: of its first `turned` numbers the pairs (j, j + turned / 2) are rotated by the row's table; the rest is copied. */
static void turn_head(const double *x, double *y, int64_t size, const double *table, int64_t turned,
                      bool back)
{
    if (x != y) memcpy(y + turned, x + turned, (size_t)(size - turned) * sizeof *y);
    for (int64_t j = 0, half = turned / 2; j < half; j++) {
        double c = table[j], s = back ? -table[half + j] : table[half + j];
        y[j] = x[j] * c - x[half + j] * s;
        y[half + j] = x[half + j] * c + x[j] * s;
    }
}

void ref_rope(const struct ref_call *call)
{
    const struct tensor *x = ref_in(call, ROPE_X);
    int64_t heads = x->dim[2], size = x->dim[3], turned = ref_in(call, ROPE_TABLE)->dim[2];
    for (int64_t i = 0; i < tensor_count(x) / size; i++)
        turn_head(call->in[ROPE_X].f + i * size, call->out[ROPE_Y].f + i * size, size,
                  call->in[ROPE_TABLE].f + i / heads * turned, turned, call->op->attr.back);
}

/* Rows of all heads against q, k and v. */
static void parts(const struct tensor *q, const struct tensor *k, double *whole, double *const part[3],
                  const double *table, int64_t turned, bool join)
{
    int64_t size = q->dim[3], counts[3] = {q->dim[2], k->dim[2], k->dim[2]}, at = 0;
    for (int64_t r = 0; r < q->dim[0] * q->dim[1]; r++)
        for (int i = 0; i < 3; i++)
            for (int64_t h = 0; h < counts[i]; h++, at += size) {
                double *there = part[i] + (r * counts[i] + h) * size, *here = whole + at;
                bool turns = table && i < 2;
                turn_head(join ? there : here, join ? here : there, size, turns ? table + r * turned : NULL,
                          turns ? turned : 0, join);
            }
}

void ref_split3(const struct ref_call *call)
{
    double *const part[3] = {call->out[SPLIT3_Q].f, call->out[SPLIT3_K].f, call->out[SPLIT3_V].f};
    parts(ref_out(call, SPLIT3_Q), ref_out(call, SPLIT3_K), call->in[SPLIT3_X].f, part,
          call->in[SPLIT3_TABLE].f, call->in[SPLIT3_TABLE].f ? ref_in(call, SPLIT3_TABLE)->dim[2] : 0, false);
}

void ref_join3(const struct ref_call *call)
{
    double *const part[3] = {call->in[JOIN3_Q].f, call->in[JOIN3_K].f, call->in[JOIN3_V].f};
    parts(ref_in(call, JOIN3_Q), ref_in(call, JOIN3_K), call->out[JOIN3_X].f, part, call->in[JOIN3_TABLE].f,
          call->in[JOIN3_TABLE].f ? ref_in(call, JOIN3_TABLE)->dim[2] : 0, true);
}

/* Logit v of a row, behind the cap where there is one; slope: d of it / d logit. */
static double capped(double x, double cap, double *slope)
{
    double t = cap > 0 ? tanh(x / cap) : 0;
    *slope = 1 - t * t;
    return cap > 0 ? cap * t : x;
}

static double log_sum_exp(const double *x, int64_t n, double cap)
{
    double top = -INFINITY, sum = 0, slope;
    for (int64_t i = 0; i < n; i++) top = fmax(top, capped(x[i], cap, &slope));
    for (int64_t i = 0; i < n; i++) sum += exp(capped(x[i], cap, &slope) - top);
    return top + log(sum);
}

void ref_xent(const struct ref_call *call)
{
    int64_t rows = tensor_count(ref_in(call, XENT_TARGETS)),
            vocab = tensor_count(ref_in(call, XENT_LOGITS)) / rows;
    double *loss = call->out[XENT_LOSS].f, *dlogits = call->out[XENT_DLOGITS].f,
           all = call->in[XENT_SCALARS].f[SCALAR_LOSS_GRAD], cap = (double)call->op->attr.cap, slope;
    double *hits = call->out[XENT_HITS].f;
    const double *weight = call->in[XENT_WEIGHT].f;
    double *logp = call->out[XENT_LOGP].f;
    if (loss) ref_begin(call, XENT_LOSS);
    if (hits) ref_begin(call, XENT_HITS);
    for (int64_t r = 0; r < rows; r++) {
        const double *x = call->in[XENT_LOGITS].f + r * vocab;
        int64_t target = call->in[XENT_TARGETS].i[r];
        double lse = log_sum_exp(x, vocab, cap), scale = weight ? weight[r] : all;
        if (target >= 0 && loss) loss[0] += lse - capped(x[target], cap, &slope), loss[1] += 1;
        if (logp) logp[r] = target >= 0 ? capped(x[target], cap, &slope) - lse : 0;
        bool hit = target >= 0;
        for (int64_t v = 0; v < vocab && hit; v++) hit = x[v] <= x[target];
        if (hits) *hits += hit;
        for (int64_t v = 0; dlogits && v < vocab; v++) {
            double p = target < 0 ? 0 : exp(capped(x[v], cap, &slope) - lse);
            dlogits[r * vocab + v] = target < 0 ? 0 : (p - (v == target)) * scale * slope;
        }
    }
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

void ref_row_gate(const struct ref_call *call)
{
    int64_t rows = tensor_count(ref_in(call, ROW_GATE_GATE)),
            width = tensor_count(ref_in(call, ROW_GATE_X)) / rows;
    for (int64_t i = 0; i < rows * width; i++)
        call->out[ROW_GATE_Y].f[i] =
            call->in[ROW_GATE_X].f[i] * sigmoid(call->in[ROW_GATE_GATE].f[i / width]) +
            (call->in[ROW_GATE_ADD].f ? call->in[ROW_GATE_ADD].f[i] : 0);
}

void ref_row_gate_bwd(const struct ref_call *call)
{
    int64_t rows = tensor_count(ref_in(call, ROW_GATE_BWD_GATE)),
            width = tensor_count(ref_in(call, ROW_GATE_BWD_X)) / rows;
    for (int64_t r = 0; r < rows; r++) {
        double s = sigmoid(call->in[ROW_GATE_BWD_GATE].f[r]), sum = 0;
        for (int64_t i = r * width; i < (r + 1) * width; i++) {
            sum += call->in[ROW_GATE_BWD_DY].f[i] * call->in[ROW_GATE_BWD_X].f[i];
            call->out[ROW_GATE_BWD_DX].f[i] = call->in[ROW_GATE_BWD_DY].f[i] * s;
        }
        call->out[ROW_GATE_BWD_DGATE].f[r] = sum * s * (1 - s);
    }
}

void ref_take(const struct ref_call *call)
{
    int64_t rows = ref_in(call, TAKE_INDEX)->dim[0], width = tensor_count(ref_out(call, TAKE_Y)) / rows;
    for (int64_t i = 0; i < rows * width; i++) {
        call->out[TAKE_Y].f[i] = 0;
        for (int k = 0; k < (call->op->attr.once ? 1 : 2); k++) {
            int64_t from = call->in[TAKE_INDEX].i[2 * (i / width) + k];
            if (from >= 0) call->out[TAKE_Y].f[i] += call->in[TAKE_X].f[from * width + i % width];
        }
    }
}

void ref_dora_norm(const struct ref_call *call)
{
    const struct op_attr *attr = &call->op->attr;
    const struct tensor *a = ref_in(call, DORA_NORM_A);
    int64_t rank = a->dim[0], width = a->dim[1], lines = tensor_count(ref_in(call, DORA_NORM_W)) / width;
    for (int64_t r = 0; r < ref_out(call, DORA_NORM_Y)->dim[0]; r++) {
        double sum = 0;
        for (int64_t c = 0; c < width; c++) {
            int64_t row = attr->first + r;
            double w = call->in[DORA_NORM_W].f[attr->weight_kn ? c * lines + row : row * width + c];
            for (int64_t k = 0; k < rank; k++)
                w += (double)attr->scale * call->in[DORA_NORM_B].f[r * rank + k] *
                     call->in[DORA_NORM_A].f[k * width + c];
            sum += w * w;
        }
        call->out[DORA_NORM_Y].f[r] = sqrt(sum);
    }
}

void ref_adapter_linear(const struct ref_call *call)
{
    const struct tensor *w = ref_in(call, ADAPTER_LINEAR_W);
    const struct op_lines *parts = call->op->attr.lines;
    int64_t rows = tensor_count(ref_in(call, ADAPTER_LINEAR_SLOT)), m = w->dim[1], k = w->dim[2];
    int64_t x_width = tensor_count(ref_in(call, ADAPTER_LINEAR_X)) / rows;
    for (int64_t i = 0; i < rows * m; i++) {
        int64_t row = i / m, line = i % m, slot = call->in[ADAPTER_LINEAR_SLOT].i[row], column = 0;
        if (parts[0].lines && line >= parts[0].lines) column += k;
        if (parts[0].lines && line >= parts[0].lines + parts[1].lines) column += k;
        double sum = call->in[ADAPTER_LINEAR_ADD].f ? call->in[ADAPTER_LINEAR_ADD].f[i] : 0;
        for (int64_t c = 0; c < k && slot >= 0; c++)
            sum += call->in[ADAPTER_LINEAR_X].f[row * x_width + column + c] *
                   call->in[ADAPTER_LINEAR_W].f[(slot * m + line) * k + c];
        call->out[ADAPTER_LINEAR_Y].f[i] = sum;
    }
}

void ref_column_scale(const struct ref_call *call)
{
    int64_t count = tensor_count(ref_in(call, COLUMN_SCALE_X)),
            width = tensor_count(ref_in(call, COLUMN_SCALE_M));
    for (int64_t i = 0; i < count; i++) {
        double bias = call->in[COLUMN_SCALE_BIAS].f ? call->in[COLUMN_SCALE_BIAS].f[i % width] : 0,
               add = call->in[COLUMN_SCALE_ADD].f ? call->in[COLUMN_SCALE_ADD].f[i] : 0,
               by = call->in[COLUMN_SCALE_M].f[i % width] / call->in[COLUMN_SCALE_NORM].f[i % width];
        call->out[COLUMN_SCALE_Y].f[i] = (call->in[COLUMN_SCALE_X].f[i] - bias) * by + bias + add;
    }
}

void ref_column_scale_bwd(const struct ref_call *call)
{
    int64_t count = tensor_count(ref_in(call, COLUMN_SCALE_BWD_X)),
            width = tensor_count(ref_in(call, COLUMN_SCALE_BWD_M));
    ref_begin(call, COLUMN_SCALE_BWD_DM);
    for (int64_t i = 0; i < count; i++) {
        double bias = call->in[COLUMN_SCALE_BWD_BIAS].f ? call->in[COLUMN_SCALE_BWD_BIAS].f[i % width] : 0,
               norm = call->in[COLUMN_SCALE_BWD_NORM].f[i % width], dy = call->in[COLUMN_SCALE_BWD_DY].f[i];
        call->out[COLUMN_SCALE_BWD_DX].f[i] = dy * call->in[COLUMN_SCALE_BWD_M].f[i % width] / norm;
        call->out[COLUMN_SCALE_BWD_DM].f[i % width] += dy * (call->in[COLUMN_SCALE_BWD_X].f[i] - bias) / norm;
    }
}
