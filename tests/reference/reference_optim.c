/* reference_optim.c - the global norm and the optimizers: torch.optim's, Adafactor, AdamW on moments of 8 bits.
 *
 * The parameter an optimizer steps is the master where there is one; the weight then is the master rounded.
 * Outputs that are rounded stochastically are left unrounded here like all others (reference.h); codes of 8 bits are
 * whole numbers.
 */
#include "reference/reference_ops.h"
#include "tensor/quant8.h"

#include <math.h>
#include <stdlib.h>

void ref_sumsq(const struct ref_call *call)
{
    int64_t n = tensor_count(ref_in(call, SUMSQ_GRAD));
    ref_begin(call, SUMSQ_SUM);
    for (int64_t i = 0; i < n; i++)
        call->out[SUMSQ_SUM].f[0] += call->in[SUMSQ_GRAD].f[i] * call->in[SUMSQ_GRAD].f[i];
}

/* A norm that is not finite leaves multiplier 0 and asks the optimizers to skip the step. */
void ref_clip(const struct ref_call *call)
{
    const double *scalars = call->in[CLIP_SCALARS].f;
    double unscale = scalars[SCALAR_UNSCALE], limit = scalars[SCALAR_CLIP], *coef = call->out[CLIP_COEF].f;
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(ref_in(call, CLIP_SUMS)); i++) sum += call->in[CLIP_SUMS].f[i];
    double norm = sqrt(sum) * unscale;
    bool finite = isfinite(norm);
    for (int i = 0; i < CLIP_COUNT; i++) coef[i] = 0;
    coef[CLIP_NORM] = norm;
    coef[CLIP_FINITE] = finite;
    if (finite) coef[CLIP_MULTIPLIER] = limit > 0 ? unscale * fmin(1, limit / (norm + 1e-6)) : unscale;
}

/* What one step of one parameter reads besides its own values. */
struct step {
    const struct op_attr *attr;
    double lr, bias1, bias2, multiplier;
    bool skip;
};

static struct step step_of(const struct ref_call *call, int scalars_slot, int coef_slot)
{
    const double *scalars = call->in[scalars_slot].f, *coef = call->in[coef_slot].f;
    return (struct step){.attr = &call->op->attr,
                         .lr = scalars[SCALAR_LR],
                         .bias1 = scalars[SCALAR_BIAS1],
                         .bias2 = scalars[SCALAR_BIAS2],
                         .multiplier = coef ? coef[CLIP_MULTIPLIER] : 1,
                         .skip = coef && coef[CLIP_FINITE] == 0};
}

/* Attributes are fp32, torch's betas are the doubles people write: 1 - 0.999 differs in the fifth digit.
 * Seven decimals give back what was written. */
static double as_written(float beta) { return round((double)beta * 1e7) / 1e7; }

static double adamw_one(const struct step *s, double p, double g, double *m, double *v)
{
    double beta1 = as_written(s->attr->beta1), beta2 = as_written(s->attr->beta2);
    p *= 1 - s->lr * (double)s->attr->decay;
    *m = beta1 * *m + (1 - beta1) * g;
    *v = beta2 * *v + (1 - beta2) * g * g;
    return p - s->lr / s->bias1 * *m / (sqrt(*v) / sqrt(s->bias2) + (double)s->attr->eps);
}

void ref_adamw(const struct ref_call *call)
{
    const struct step s = step_of(call, ADAMW_SCALARS, ADAMW_COEF);
    int64_t n = tensor_count(ref_in(call, ADAMW_P));
    for (int64_t i = 0; i < n; i++) {
        double p = call->in[ADAMW_MASTER].f ? call->in[ADAMW_MASTER].f[i] : call->in[ADAMW_P].f[i];
        double m = call->in[ADAMW_M].f[i], v = call->in[ADAMW_V].f[i];
        if (!s.skip) p = adamw_one(&s, p, call->in[ADAMW_G].f[i] * s.multiplier, &m, &v);
        call->out[ADAMW_NEW_P].f[i] = s.skip ? call->in[ADAMW_P].f[i] : p;
        call->out[ADAMW_NEW_M].f[i] = m;
        call->out[ADAMW_NEW_V].f[i] = v;
        if (call->out[ADAMW_NEW_MASTER].f) call->out[ADAMW_NEW_MASTER].f[i] = p;
    }
}

static double sgd_one(const struct step *s, double p, double g, double *momentum)
{
    double beta = (double)s->attr->beta1;
    g += (double)s->attr->decay * p;
    if (momentum) {
        *momentum = beta * *momentum + g;
        g = s->attr->nesterov ? g + beta * *momentum : *momentum;
    }
    return p - s->lr * g;
}

void ref_sgd(const struct ref_call *call)
{
    const struct step s = step_of(call, SGD_SCALARS, SGD_COEF);
    int64_t n = tensor_count(ref_in(call, SGD_P));
    for (int64_t i = 0; i < n; i++) {
        double p = call->in[SGD_MASTER].f ? call->in[SGD_MASTER].f[i] : call->in[SGD_P].f[i];
        double momentum = call->in[SGD_M].f ? call->in[SGD_M].f[i] : 0;
        double g = call->in[SGD_G].f[i] * s.multiplier;
        if (!s.skip) p = sgd_one(&s, p, g, call->in[SGD_M].f ? &momentum : NULL);
        call->out[SGD_NEW_P].f[i] = s.skip ? call->in[SGD_P].f[i] : p;
        if (call->out[SGD_NEW_M].f) call->out[SGD_NEW_M].f[i] = momentum;
        if (call->out[SGD_NEW_MASTER].f) call->out[SGD_NEW_MASTER].f[i] = p;
    }
}

/* The code of the value nearest to x, of the one nearer to 0 on a tie. */
static int nearest_code(const struct quant8_map *map, double x)
{
    int best = map->zero;
    for (int i = 0; i < QUANT8_CODES; i++) {
        double here = fabs((double)map->value[i] - x), before = fabs((double)map->value[best] - x);
        if (here < before || (here == before && abs(i - map->zero) < abs(best - map->zero))) best = i;
    }
    return best;
}

/* One block of one moment: its scale and codes. */
static void encode(const struct quant8_map *map, const double *x, int64_t n, double *codes, double *scale)
{
    double top = 0;
    for (int64_t i = 0; i < n; i++) top = fmax(top, fabs(x[i]));
    bool tiny = top < 0x1p-126;
    *scale = tiny ? 0 : top;
    for (int64_t i = 0; i < n; i++) {
        double y = tiny ? 0 : x[i] / top;
        int code = nearest_code(map, y);
        codes[i] = map->zero == 0 && y > 0 && code == 0 ? 1 : code;
    }
}

static void keep(const struct ref_call *call, int in, int out)
{
    if (!call->out[out].f) return;
    int64_t n = tensor_count(ref_out(call, out));
    for (int64_t i = 0; i < n; i++) call->out[out].f[i] = call->in[in].f[i];
}

static void adamw8_block(const struct ref_call *call, const struct step *s, int64_t block, int64_t n)
{
    const struct quant8_map *maps[2] = {quant8_signed(), quant8_unsigned()};
    double moments[2][QUANT8_BLOCK];
    int64_t first = block * QUANT8_BLOCK, count = n - first < QUANT8_BLOCK ? n - first : QUANT8_BLOCK;
    for (int64_t k = 0; k < count; k++) {
        int64_t i = first + k;
        for (int j = 0; j < 2; j++)
            moments[j][k] =
                (double)maps[j]->value[(int)call->in[ADAMW8_MQ + j].f[i]] * call->in[ADAMW8_MS + j].f[block];
        double p = call->in[ADAMW8_MASTER].f ? call->in[ADAMW8_MASTER].f[i] : call->in[ADAMW8_P].f[i];
        p = adamw_one(s, p, call->in[ADAMW8_G].f[i] * s->multiplier, &moments[0][k], &moments[1][k]);
        call->out[ADAMW8_NEW_P].f[i] = p;
        if (call->out[ADAMW8_NEW_MASTER].f) call->out[ADAMW8_NEW_MASTER].f[i] = p;
    }
    for (int j = 0; j < 2; j++)
        encode(maps[j], moments[j], count, call->out[ADAMW8_NEW_MQ + j].f + first,
               call->out[ADAMW8_NEW_MS + j].f + block);
}

void ref_adamw8(const struct ref_call *call)
{
    const struct step s = step_of(call, ADAMW8_SCALARS, ADAMW8_COEF);
    int64_t n = tensor_count(ref_in(call, ADAMW8_P));
    for (int64_t block = 0; block * QUANT8_BLOCK < n && !s.skip; block++) adamw8_block(call, &s, block, n);
    if (!s.skip) return;
    keep(call, ADAMW8_P, ADAMW8_NEW_P);
    keep(call, ADAMW8_MQ, ADAMW8_NEW_MQ), keep(call, ADAMW8_VQ, ADAMW8_NEW_VQ);
    keep(call, ADAMW8_MS, ADAMW8_NEW_MS), keep(call, ADAMW8_VS, ADAMW8_NEW_VS);
    keep(call, ADAMW8_MASTER, ADAMW8_NEW_MASTER);
}

/* The step before learning rate and clipping. */
static double adafactor_u(double g, const double *row, const double *col, double mean, int64_t i, int64_t j)
{
    return col ? g / sqrt(row[i] / mean) / sqrt(col[j]) : g / sqrt(row[i]);
}

void ref_factor_stat(const struct ref_call *call)
{
    const struct step s = step_of(call, FACTOR_STAT_SCALARS, FACTOR_STAT_COEF);
    double beta2 = call->in[FACTOR_STAT_SCALARS].f[SCALAR_BETA2], eps = (double)s.attr->eps;
    double *row = call->out[FACTOR_STAT_NEW_ROW].f, *col = call->out[FACTOR_STAT_NEW_COL].f,
           *factor = call->out[FACTOR_STAT_FACTOR].f;
    int64_t n = tensor_count(ref_in(call, FACTOR_STAT_G)),
            rows = tensor_count(ref_out(call, FACTOR_STAT_NEW_ROW)), columns = n / rows;
    keep(call, FACTOR_STAT_ROW, FACTOR_STAT_NEW_ROW);
    keep(call, FACTOR_STAT_COL, FACTOR_STAT_NEW_COL);
    factor[FACTOR_SCALE] = factor[FACTOR_MEAN] = 1;
    if (s.skip) return;
    for (int64_t i = 0; i < rows; i++) row[i] *= beta2;
    for (int64_t j = 0; col && j < columns; j++) col[j] *= beta2;
    for (int64_t k = 0; k < n; k++) {
        double g = call->in[FACTOR_STAT_G].f[k] * s.multiplier, square = g * g + eps;
        row[k / columns] += (1 - beta2) * square / (double)columns;
        if (col) col[k % columns] += (1 - beta2) * square / (double)rows;
    }
    double mean = 0, sum = 0;
    for (int64_t i = 0; i < rows; i++) mean += row[i] / (double)rows;
    if (col) factor[FACTOR_MEAN] = mean;
    for (int64_t k = 0; k < n; k++) {
        double g = call->in[FACTOR_STAT_G].f[k] * s.multiplier;
        sum += pow(adafactor_u(g, row, col, mean, k / columns, k % columns), 2);
    }
    factor[FACTOR_SCALE] = 1 / fmax(1, sqrt(sum / (double)n) / (double)s.attr->limit);
}

void ref_adafactor(const struct ref_call *call)
{
    const struct step s = step_of(call, ADAFACTOR_SCALARS, ADAFACTOR_COEF);
    const double *row = call->in[ADAFACTOR_ROW].f, *col = call->in[ADAFACTOR_COL].f,
                 *factor = call->in[ADAFACTOR_FACTOR].f;
    int64_t n = tensor_count(ref_in(call, ADAFACTOR_P)),
            columns = n / tensor_count(ref_in(call, ADAFACTOR_ROW));
    double beta1 = as_written(s.attr->beta1), keep_share = 1 - s.lr * (double)s.attr->decay;
    for (int64_t k = 0; k < n; k++) {
        double p = call->in[ADAFACTOR_MASTER].f ? call->in[ADAFACTOR_MASTER].f[k]
                                                : call->in[ADAFACTOR_P].f[k],
               m = call->in[ADAFACTOR_M].f ? call->in[ADAFACTOR_M].f[k] : 0;
        double g = call->in[ADAFACTOR_G].f[k] * s.multiplier;
        if (!s.skip) {
            double u = adafactor_u(g, row, col, factor[FACTOR_MEAN], k / columns, k % columns);
            double step = s.lr * factor[FACTOR_SCALE] * u;
            if (call->in[ADAFACTOR_M].f) step = m = beta1 * m + (1 - beta1) * step;
            p = p * keep_share - step;
        }
        call->out[ADAFACTOR_NEW_P].f[k] = s.skip ? call->in[ADAFACTOR_P].f[k] : p;
        if (call->out[ADAFACTOR_NEW_M].f) call->out[ADAFACTOR_NEW_M].f[k] = m;
        if (call->out[ADAFACTOR_NEW_MASTER].f) call->out[ADAFACTOR_NEW_MASTER].f[k] = p;
    }
}
