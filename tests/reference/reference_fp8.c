/* reference_fp8.c - fp8 numbers by their definition, and products of them. */
#include "reference/reference_ops.h"

#include <math.h>
#include <string.h>

/* Exponent of the smallest normal number, bits of the fraction, largest number. */
struct format {
    int least, fraction;
    double most;
};

static struct format format_of(enum dtype type)
{
    return type == DT_E4M3 ? (struct format){-6, 3, 448} : (struct format){-14, 2, 57344};
}

/* x to nearest even. Nothing that is finite overflows here. */
static double round_to(enum dtype type, double x)
{
    struct format f = format_of(type);
    int e;
    if (!isfinite(x)) return type == DT_E4M3 ? (double)NAN : x;
    if (x == 0) return 0;
    frexp(x, &e);
    double step = ldexp(1, (e - 1 > f.least ? e - 1 : f.least) - f.fraction);
    return rint(x / step) * step;
}

void ref_quantise8(const struct ref_call *call)
{
    const struct tensor *y = ref_out(call, QUANTISE8_Y), *t = ref_out(call, QUANTISE8_T);
    const double *x = call->in[QUANTISE8_X].f;
    enum dtype type = (y ? y : t)->type;
    int64_t count = tensor_count(ref_in(call, QUANTISE8_X)), columns = y ? y->dim[1] : t->dim[0];
    double most = 0;
    int e = 100;
    if (call->accumulate) return;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(x[i]) && fabs(x[i]) > most) most = fabs(x[i]);
    while (ldexp(most, e) > format_of(type).most) e--;
    if (most == 0) e = 0;
    call->out[QUANTISE8_SCALE].f[0] = ldexp(1, -e);
    for (int64_t i = 0; i < count; i++) {
        double code = round_to(type, ldexp(x[i], e));
        if (y) call->out[QUANTISE8_Y].f[i] = code;
        if (t) call->out[QUANTISE8_T].f[i % columns * (count / columns) + i / columns] = code;
    }
}

double ref_e4m3_value(int code)
{
    int e = code >> 3 & 15;
    double size = e == 15 && (code & 7) == 7 ? (double)NAN
                  : e                        ? ldexp(8 + (code & 7), e - 10)
                                             : ldexp(code & 7, -9);
    return code & 128 ? -size : size;
}

double ref_e4m3_code(double x)
{
    double value = round_to(DT_E4M3, x);
    for (int code = 0; code < 256; code++)
        if (ref_e4m3_value(code) == value && signbit(x) == code >> 7) return code;
    return 0x7f;
}

/* A line's scale, behind all codes: bytes as doubles. */
static double scale_at(const double *bytes)
{
    unsigned char raw[4];
    float scale;
    for (int i = 0; i < 4; i++) raw[i] = (unsigned char)bytes[i];
    memcpy(&scale, raw, sizeof scale);
    return (double)scale;
}

void ref_linear_f8(const struct ref_call *call)
{
    const double *w = call->in[LINEAR_F8_W].f, *bias = call->in[LINEAR_F8_BIAS].f,
                 *add = call->in[LINEAR_F8_ADD].f;
    int64_t m = call->op->attr.lines[0].lines, rows = tensor_count(ref_out(call, LINEAR_F8_Y)) / m,
            k = tensor_count(ref_in(call, LINEAR_F8_X)) / rows;
    for (int64_t r = 0; r < rows; r++) {
        const double *x = call->in[LINEAR_F8_X].f + r * k;
        double most = 0;
        int e = 100;
        for (int64_t i = 0; i < k; i++)
            if (isfinite(x[i]) && fabs(x[i]) > most) most = fabs(x[i]);
        while (ldexp(most, e) > 448) e--;
        if (most == 0) e = 0;
        for (int64_t i = 0; i < m; i++) {
            double sum = 0;
            for (int64_t n = 0; n < k; n++)
                sum += ldexp(round_to(DT_E4M3, ldexp(x[n], e)), -e) * ref_e4m3_value((int)w[i * k + n]);
            call->out[LINEAR_F8_Y].f[r * m + i] =
                sum * scale_at(w + m * k + 4 * i) + (bias ? bias[i] : 0) + (add ? add[r * m + i] : 0);
        }
    }
}

/* Row i of a with row j of b, both k long. */
static double dot(const double *a, const double *b, int64_t i, int64_t j, int64_t k)
{
    double sum = 0;
    for (int64_t n = 0; n < k; n++) sum += a[i * k + n] * b[j * k + n];
    return sum;
}

void ref_linear8(const struct ref_call *call)
{
    int64_t rows = ref_in(call, LINEAR8_X)->dim[0], m = ref_in(call, LINEAR8_W)->dim[0],
            k = ref_in(call, LINEAR8_X)->dim[1];
    const double *bias = call->in[LINEAR8_BIAS].f, *add = call->in[LINEAR8_ADD].f;
    double scale = call->in[LINEAR8_X_SCALE].f[0] * call->in[LINEAR8_W_SCALE].f[0];
    for (int64_t i = 0; i < rows * m; i++)
        call->out[LINEAR8_Y].f[i] =
            scale * dot(call->in[LINEAR8_X].f, call->in[LINEAR8_W].f, i / m, i % m, k) +
            (bias ? bias[i % m] : 0) + (add ? add[i] : 0);
}

void ref_linear8_dw(const struct ref_call *call)
{
    int64_t m = ref_in(call, LINEAR8_DW_DY)->dim[0], k = ref_in(call, LINEAR8_DW_X)->dim[0],
            rows = ref_in(call, LINEAR8_DW_X)->dim[1];
    double scale = call->in[LINEAR8_DW_DY_SCALE].f[0] * call->in[LINEAR8_DW_X_SCALE].f[0];
    ref_begin(call, LINEAR8_DW_DW);
    for (int64_t i = 0; i < m * k; i++)
        call->out[LINEAR8_DW_DW].f[call->op->attr.weight_kn ? i % k * m + i / k : i] +=
            scale * dot(call->in[LINEAR8_DW_DY].f, call->in[LINEAR8_DW_X].f, i / k, i % k, rows);
}
