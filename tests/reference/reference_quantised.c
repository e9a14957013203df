/* reference_quantised.c - weights in blocks, element by element from the formulas of the types.
 *
 * An element is found by its line, its place along k and its type, through the order that tensor/panels.h describes;
 * nothing here is shared with the code that packs panels or reads blocks. */
#include "reference/reference_ops.h"

#include <math.h>

/* A block among 16 that lie side by side. */
struct block {
    const double *group; /* bytes of the 16 blocks, one number each */
    int line;
};

/* Byte i of a field whose units are so wide and which begins at byte `at` of a block. */
static int byte_of(const struct block *b, int at, int unit, int i)
{
    return (int)b->group[at * 16 + i / unit * unit * 16 + b->line * unit + i % unit];
}

static double half_of(const struct block *b, int at, int i)
{
    int bits = byte_of(b, at, 2, 2 * i) | byte_of(b, at, 2, 2 * i + 1) << 8;
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double size = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return bits >> 15 ? -size : size;
}

static double q8_0(const struct block *b, int e)
{
    int q = byte_of(b, 2, 4, e);
    return half_of(b, 0, 0) * (q < 128 ? q : q - 256);
}

static double q4_0(const struct block *b, int e)
{
    int q = byte_of(b, 2, 4, e % 16);
    return half_of(b, 0, 0) * ((e < 16 ? q & 15 : q >> 4) - 8);
}

/* d * scale of the part * q - dmin * minimum of the part. */
static double k_value(const struct block *b, int part, int q)
{
    int j = part % 4, low = byte_of(b, 4, 1, j), high = byte_of(b, 4, 1, j + 4),
        last = byte_of(b, 4, 1, j + 8);
    int scale = part < 4 ? low % 64 : last % 16 + 16 * (low / 64);
    int least = part < 4 ? high % 64 : last / 16 + 16 * (high / 64);
    return half_of(b, 0, 0) * scale * q - half_of(b, 0, 1) * least;
}

static double q4_k(const struct block *b, int e)
{
    int part = e / 32, q = byte_of(b, 16, 4, part / 2 * 32 + e % 32);
    return k_value(b, part, part % 2 ? q / 16 : q % 16);
}

static double q5_k(const struct block *b, int e)
{
    int part = e / 32, q = byte_of(b, 48, 4, part / 2 * 32 + e % 32);
    int fifth = byte_of(b, 16, 4, e % 32) >> part & 1;
    return k_value(b, part, (part % 2 ? q / 16 : q % 16) + 16 * fifth);
}

static double q6_k(const struct block *b, int e)
{
    int half = e / 128, quarter = e % 128 / 32, at = e % 32;
    int low = byte_of(b, 0, 4, half * 64 + quarter % 2 * 32 + at) >> (quarter / 2 * 4) & 15;
    int high = byte_of(b, 128, 4, half * 32 + at) >> (quarter * 2) & 3;
    int scale = byte_of(b, 192, 1, e / 16);
    return half_of(b, 208, 0) * (scale < 128 ? scale : scale - 256) * (low + 16 * high - 32);
}

/* A number of 32 bits; `at` counts bytes of a block. */
static double float_of(const struct block *b, int at)
{
    int64_t bits = 0;
    for (int i = 3; i >= 0; i--) bits = bits * 256 + byte_of(b, at, 4, i);
    int exponent = (int)(bits >> 23 & 255);
    double size = ldexp((double)(bits & 0x7fffff) + (exponent ? 0x1p23 : 0), (exponent ? exponent : 1) - 150);
    return bits >> 31 ? -size : size;
}

/* The code of element e of a 64-element part whose 32 bytes begin at `at`. */
static int four_bits(const struct block *b, int at, int e)
{
    int byte = byte_of(b, at, 4, e / 32 * 16 + e % 16);
    return e % 32 < 16 ? byte % 16 : byte / 16;
}

static double nf4_number(int code)
{
    static const double upper[] = {0.07958029955625534, 0.16093020141124725,
                                   0.24611230194568634, 0.33791524171829224,
                                   0.44070982933044434, 0.5626170039176941,
                                   0.7229568362236023,  1.0},
                        lower[] = {0.09105003625154495,
                                   0.18477343022823334,
                                   0.28444138169288635,
                                   0.39491748809814453,
                                   0.5250730514526367,
                                   0.6961928009986877,
                                   1.0};
    return code > 7 ? upper[code - 8] : code < 7 ? -lower[6 - code] : 0;
}

static double fp4_number(int code)
{
    static const double size[] = {0, 0.0625, 8, 12, 4, 6, 2, 3};
    return (code < 8 ? size[code] : -size[code - 8]) / 12;
}

static double nf4(const struct block *b, int e) { return nf4_number(four_bits(b, 4, e)) * float_of(b, 0); }
static double fp4(const struct block *b, int e) { return fp4_number(four_bits(b, 4, e)) * float_of(b, 0); }

/* Seven decades of 1, 2, 4 ... 64 numbers on each side of zero, and one. */
static double magnitude(const struct block *b, int part)
{
    int code = byte_of(b, 8, 4, part), place = code > 127 ? code - 127 : 127 - code, decade = 0;
    double size = 0;
    while (place >> (decade + 1)) decade++;
    if (place) size = pow(10, decade - 6) * (0.1 + 0.9 * (place - (1 << decade) + 0.5) / (1 << decade));
    if (code == 255) size = 1;
    return (code > 127 ? size : -size) * float_of(b, 4) + float_of(b, 0);
}

static double nf4_dq(const struct block *b, int e)
{
    return nf4_number(four_bits(b, 12 + e / 64 * 32, e % 64)) * magnitude(b, e / 64);
}

static double fp4_dq(const struct block *b, int e)
{
    return fp4_number(four_bits(b, 12 + e / 64 * 32, e % 64)) * magnitude(b, e / 64);
}

static const struct {
    int elements, bytes;
    double (*value)(const struct block *, int element);
} types[] = {[2] = {32, 18, q4_0},    [8] = {32, 34, q8_0},      [12] = {256, 144, q4_k},
             [13] = {256, 176, q5_k}, [14] = {256, 210, q6_k},   [64] = {64, 36, nf4},
             [65] = {64, 36, fp4},    [66] = {256, 140, nf4_dq}, [67] = {256, 140, fp4_dq}};

struct matrix {
    const struct op_lines *parts;
    const double *bytes;
    int64_t k;
};

static int64_t part_bytes(const struct op_lines *p, int64_t k)
{
    return (p->lines + 15) / 16 * 16 * (k / types[p->type].elements) * types[p->type].bytes;
}

/* The number of columns with which the parts take up so many bytes. */
static struct matrix matrix_of(const struct ref_call *call, const double *bytes, int64_t count)
{
    struct matrix m = {call->op->attr.lines, bytes, 0};
    int64_t used = 0;
    while (used < count) {
        m.k += 32, used = 0;
        for (int i = 0; i < OP_LINE_PARTS; i++)
            if (m.parts[i].lines) used += part_bytes(&m.parts[i], m.k);
    }
    return m;
}

static double element(const struct matrix *m, int64_t line, int64_t k)
{
    const double *at = m->bytes;
    const struct op_lines *p = m->parts;
    for (; line >= p->lines; p++) line -= p->lines, at += part_bytes(p, m->k);
    int64_t n = types[p->type].elements, bytes = types[p->type].bytes;
    struct block b = {at + (line / 16 * (m->k / n) + k / n) * 16 * bytes, (int)(line % 16)};
    return types[p->type].value(&b, (int)(k % n));
}

void ref_linear_q(const struct ref_call *call)
{
    struct matrix w = matrix_of(call, call->in[LINEAR_Q_W].f, tensor_count(ref_in(call, LINEAR_Q_W)));
    const double *x = call->in[LINEAR_Q_X].f, *bias = call->in[LINEAR_Q_BIAS].f,
                 *add = call->in[LINEAR_Q_ADD].f;
    int64_t rows = tensor_count(ref_in(call, LINEAR_Q_X)) / w.k,
            lines = tensor_count(ref_out(call, LINEAR_Q_Y)) / rows;
    for (int64_t m = 0; m < lines; m++) {
        for (int64_t r = 0; r < rows; r++)
            call->out[LINEAR_Q_Y].f[r * lines + m] = (bias ? bias[m] : 0) + (add ? add[r * lines + m] : 0);
        for (int64_t k = 0; k < w.k; k++) {
            double value = element(&w, m, k);
            for (int64_t r = 0; r < rows; r++)
                call->out[LINEAR_Q_Y].f[r * lines + m] += x[r * w.k + k] * value;
        }
    }
}

void ref_dora_norm_q(const struct ref_call *call)
{
    struct matrix w = matrix_of(call, call->in[DORA_NORM_Q_W].f, tensor_count(ref_in(call, DORA_NORM_Q_W)));
    int64_t rank = ref_in(call, DORA_NORM_Q_A)->dim[0];
    for (int64_t r = 0; r < ref_out(call, DORA_NORM_Q_Y)->dim[0]; r++) {
        double sum = 0;
        for (int64_t c = 0; c < w.k; c++) {
            double value = element(&w, call->op->attr.first + r, c);
            for (int64_t k = 0; k < rank; k++)
                value += (double)call->op->attr.scale * call->in[DORA_NORM_Q_B].f[r * rank + k] *
                         call->in[DORA_NORM_Q_A].f[k * w.k + c];
            sum += value * value;
        }
        call->out[DORA_NORM_Q_Y].f[r] = sqrt(sum);
    }
}

void ref_linear_q_dx(const struct ref_call *call)
{
    struct matrix w = matrix_of(call, call->in[LINEAR_Q_DX_W].f, tensor_count(ref_in(call, LINEAR_Q_DX_W)));
    const double *dy = call->in[LINEAR_Q_DX_DY].f, *add = call->in[LINEAR_Q_DX_ADD].f;
    double *dx = call->out[LINEAR_Q_DX_DX].f;
    int64_t rows = tensor_count(ref_out(call, LINEAR_Q_DX_DX)) / w.k,
            lines = tensor_count(ref_in(call, LINEAR_Q_DX_DY)) / rows;
    for (int64_t i = 0; i < rows * w.k; i++) dx[i] = add ? add[i] : 0;
    for (int64_t m = 0; m < lines; m++)
        for (int64_t k = 0; k < w.k; k++) {
            double value = element(&w, m, k);
            for (int64_t r = 0; r < rows; r++) dx[r * w.k + k] += dy[r * lines + m] * value;
        }
}

void ref_embed_q(const struct ref_call *call)
{
    struct matrix w = matrix_of(call, call->in[EMBED_Q_W].f, tensor_count(ref_in(call, EMBED_Q_W)));
    enum dtype type = ref_out(call, EMBED_Q_Y)->type;
    double scale = call->op->attr.scale != 0 ? (double)dtype_round(type, call->op->attr.scale) : 1;
    for (int64_t r = 0; r < tensor_count(ref_in(call, EMBED_Q_IDS)); r++)
        for (int64_t k = 0; k < w.k; k++)
            call->out[EMBED_Q_Y].f[r * w.k + k] = element(&w, call->in[EMBED_Q_IDS].i[r], k) * scale;
}

void ref_expert_linear_q(const struct ref_call *call)
{
    int64_t experts = ref_in(call, EXPERT_LINEAR_Q_ENDS)->dim[0],
            bytes = tensor_count(ref_in(call, EXPERT_LINEAR_Q_W)) / experts, r = 0;
    struct matrix w = matrix_of(call, call->in[EXPERT_LINEAR_Q_W].f, bytes);
    int64_t lines =
        tensor_count(ref_out(call, EXPERT_LINEAR_Q_Y)) * w.k / tensor_count(ref_in(call, EXPERT_LINEAR_Q_X));
    for (int64_t e = 0; e < experts; e++, w.bytes += bytes)
        for (; r < call->in[EXPERT_LINEAR_Q_ENDS].i[e]; r++)
            for (int64_t m = 0; m < lines; m++) {
                double sum = 0;
                for (int64_t k = 0; k < w.k; k++)
                    sum += call->in[EXPERT_LINEAR_Q_X].f[r * w.k + k] * element(&w, m, k);
                call->out[EXPERT_LINEAR_Q_Y].f[r * lines + m] = sum;
            }
}

void ref_expert_linear_q_dx(const struct ref_call *call)
{
    int64_t experts = ref_in(call, EXPERT_LINEAR_Q_DX_ENDS)->dim[0],
            bytes = tensor_count(ref_in(call, EXPERT_LINEAR_Q_DX_W)) / experts, r = 0;
    struct matrix w = matrix_of(call, call->in[EXPERT_LINEAR_Q_DX_W].f, bytes);
    const double *add = call->in[EXPERT_LINEAR_Q_DX_ADD].f;
    int64_t lines = tensor_count(ref_in(call, EXPERT_LINEAR_Q_DX_DY)) * w.k /
                    tensor_count(ref_out(call, EXPERT_LINEAR_Q_DX_DX));
    for (int64_t e = 0; e < experts; e++, w.bytes += bytes)
        for (; r < call->in[EXPERT_LINEAR_Q_DX_ENDS].i[e]; r++)
            for (int64_t k = 0; k < w.k; k++) {
                double sum = add ? add[r * w.k + k] : 0;
                for (int64_t m = 0; m < lines; m++)
                    sum += call->in[EXPERT_LINEAR_Q_DX_DY].f[r * lines + m] * element(&w, m, k);
                call->out[EXPERT_LINEAR_Q_DX_DX].f[r * w.k + k] = sum;
            }
}
