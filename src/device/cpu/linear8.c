/* linear8.c - conversion to fp8, and products of fp8 numbers.
 *
 * Every fp8 number is exactly a bf16 number, also after multiplication with a power of two. So a product is one of bf16 (gemm.h)
 * whose operands are bytes: 256 bf16 numbers say what each stands for, and those of the second operand include both scales.
 *
 * quantise8 reads its operand twice. The largest number of a block of rows is the same whoever finds it, and so is the largest of
 * all of them. Conversion goes by tiles, so that a transpose writes whole cache lines. */
#include "device/cpu/call.h"
#include "device/cpu/gemm.h"
#include "device/cpu/kernels.h"

#include <math.h>
#include <string.h>

enum { TILE = 64 };

/* ---- conversion ---- */

struct conversion {
    const struct kernel_call *call;
    const char *x;
    enum dtype from, to;
    int64_t rows, columns;
    float factor; /* x times this is converted */
};

static uint32_t magnitude_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffffu;
}

/* Bits of the largest finite magnitude of each worker's elements. */
static void largest_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct conversion *c = arg;
    uint32_t *largest = (uint32_t *)c->call->work + worker, most = *largest;
    float wide[TILE];
    for (int64_t i = begin; i < end; i += TILE) {
        int64_t n = lesser(TILE, end - i);
        dtype_convert(wide, DT_F32, element(c->x, c->from, i), c->from, n);
        for (int64_t k = 0; k < n; k++) {
            uint32_t m = magnitude_of(wide[k]);
            m = m < 0x7f800000u ? m : 0;
            most = m > most ? m : most;
        }
    }
    *largest = most;
}

static float largest_of(struct conversion *c)
{
    int workers = threads_count(c->call->team);
    uint32_t *largest = c->call->work, most = 0;
    float value;
    memset(largest, 0, (size_t)workers * sizeof *largest);
    threads_each(c->call->team, c->rows * c->columns, SPAN_GRAIN, largest_body, c);
    for (int i = 0; i < workers; i++) most = largest[i] > most ? largest[i] : most;
    memcpy(&value, &most, sizeof value);
    return value;
}

/* The exponent of op.h: 2^e times the largest is at most the type's largest number. */
static int exponent_for(float largest, enum dtype to)
{
    enum { MOST = 100 };
    int top, own;
    float limit = to == DT_E4M3 ? 448 : 57344;
    if (largest == 0) return 0;
    bool above = frexpf(limit, &top) < frexpf(largest, &own);
    int e = top - own - above;
    return e > MOST ? MOST : e;
}

/* 8 x 8 bytes: halves, quarters and eighths of two words change places. */
static void turn8(const uint8_t *from, uint8_t *to)
{
    static const uint64_t low[] = {
        [4] = 0x00000000ffffffffu, [2] = 0x0000ffff0000ffffu, [1] = 0x00ff00ff00ff00ffu};
    uint64_t w[8];
    for (int i = 0; i < 8; i++) memcpy(&w[i], from + i * TILE, 8);
    for (int step = 4; step; step /= 2)
        for (int i = 0; i < 8; i++) {
            if (i & step) continue;
            uint64_t moved = (w[i] >> 8 * step ^ w[i + step]) & low[step];
            w[i + step] ^= moved, w[i] ^= moved << 8 * step;
        }
    for (int i = 0; i < 8; i++) memcpy(to + i * TILE, &w[i], 8);
}

/* A tile's codes, row by row, into its columns of t. */
static void put_turned(const struct conversion *c, const uint8_t *code, uint8_t *t, int64_t row,
                       int64_t column)
{
    uint8_t turned[TILE * TILE];
    int64_t rows = lesser(TILE, c->rows - row), columns = lesser(TILE, c->columns - column);
    for (int64_t r = 0; r < rows; r += 8)
        for (int64_t k = 0; k < columns; k += 8) turn8(code + r * TILE + k, turned + k * TILE + r);
    for (int64_t k = 0; k < columns; k++)
        memcpy(t + (column + k) * c->rows + row, turned + k * TILE, (size_t)rows);
}

/* begin and end count tiles, those of a row of tiles together. */
static void convert_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct conversion *c = arg;
    uint8_t *y = c->call->out[QUANTISE8_Y], *t = c->call->out[QUANTISE8_T], code[TILE * TILE] = {0};
    float wide[TILE];
    int64_t across = blocks_of(c->columns, TILE);
    for (int64_t tile = begin; tile < end; tile++) {
        int64_t row = tile / across * TILE, column = tile % across * TILE;
        int64_t rows = lesser(TILE, c->rows - row), n = lesser(TILE, c->columns - column);
        for (int64_t r = 0; r < rows; r++) {
            int64_t at = (row + r) * c->columns + column;
            dtype_convert(wide, DT_F32, element(c->x, c->from, at), c->from, n);
            for (int64_t k = 0; k < n; k++) wide[k] *= c->factor;
            dtype_convert(code + r * TILE, c->to, wide, DT_F32, n);
            if (y) memcpy(y + at, code + r * TILE, (size_t)n);
        }
        if (t) put_turned(c, code, t, row, column);
    }
}

void cpu_quantise8(const struct kernel_call *call)
{
    const struct tensor *x = call_in(call, QUANTISE8_X),
                        *y = call_out(call, call->out[QUANTISE8_Y] ? QUANTISE8_Y : QUANTISE8_T);
    if (call->accumulate || !y) return;
    struct conversion c = {call, call->in[QUANTISE8_X], x->type, y->type, 0, 0, 0};
    c.columns = y->dim[call->out[QUANTISE8_Y] ? 1 : 0], c.rows = tensor_count(x) / c.columns;
    int e = exponent_for(largest_of(&c), c.to);
    c.factor = ldexpf(1, e);
    *(float *)call->out[QUANTISE8_SCALE] = ldexpf(1, -e);
    threads_each(call->team, blocks_of(c.rows, TILE) * blocks_of(c.columns, TILE), 4, convert_body, &c);
}

static size_t cpu_quantise8_workspace(const struct tensor *const *, const struct op *, int threads)
{
    return (size_t)threads * sizeof(uint32_t);
}

/* ---- products ---- */

/* The bf16 number of each byte, times a scale. */
static void fill_numbers(uint16_t numbers[256], enum dtype type, float scale)
{
    for (int i = 0; i < 256; i++) {
        uint8_t byte = (uint8_t)i;
        numbers[i] = f32_to_bf16((type == DT_E4M3 ? e4m3_to_f32(byte) : e5m2_to_f32(byte)) * scale);
    }
}

/* Operands of a product: A's bytes and B's, with their scales' slots. */
struct operand {
    int bytes, scale;
};

/* g: its shape and what is added are set. */
static void multiply(const struct kernel_call *call, struct gemm *g, struct operand a, struct operand b)
{
    uint16_t a_numbers[256], b_numbers[256];
    float scale = *(const float *)call->in[a.scale] * *(const float *)call->in[b.scale];
    fill_numbers(a_numbers, call_in(call, a.bytes)->type, 1);
    fill_numbers(b_numbers, call_in(call, b.bytes)->type, scale);
    g->a = call->in[a.bytes], g->b = call->in[b.bytes];
    g->a_numbers = a_numbers, g->b_numbers = b_numbers;
    gemm_run(g, call->work, call->team);
}

void cpu_linear8(const struct kernel_call *call)
{
    const struct tensor *x = call_in(call, LINEAR8_X), *w = call_in(call, LINEAR8_W);
    struct gemm g = gemm_by_lines(x->dim[0], w->dim[0], x->dim[1], DT_BF16, call_out(call, LINEAR8_Y)->type);
    g.c = call->out[LINEAR8_Y], g.bias = call->in[LINEAR8_BIAS], g.add = call->in[LINEAR8_ADD];
    multiply(call, &g, (struct operand){LINEAR8_X, LINEAR8_X_SCALE},
             (struct operand){LINEAR8_W, LINEAR8_W_SCALE});
}

static size_t cpu_linear8_workspace(const struct tensor *const *desc, const struct op *, int threads)
{
    return gemm_workspace(desc[LINEAR8_X]->dim[0], desc[LINEAR8_W]->dim[0], desc[LINEAR8_X]->dim[1], DT_BF16,
                          desc[OP_MAX_IN + LINEAR8_Y]->type, threads);
}

/* dW [M,K] = dy [M,R] . x [K,R]', or the other way round where W is [K,M]. */
void cpu_linear8_dw(const struct kernel_call *call)
{
    struct operand dy = {LINEAR8_DW_DY, LINEAR8_DW_DY_SCALE}, x = {LINEAR8_DW_X, LINEAR8_DW_X_SCALE};
    bool kn = call->op->attr.weight_kn;
    const struct tensor *dw = call_out(call, LINEAR8_DW_DW);
    struct gemm g =
        gemm_by_lines(dw->dim[0], dw->dim[1], call_in(call, LINEAR8_DW_X)->dim[1], DT_BF16, dw->type);
    g.c = call->out[LINEAR8_DW_DW];
    if (call->accumulate && !call->op->attr.fresh) g.add = g.c;
    multiply(call, &g, kn ? x : dy, kn ? dy : x);
}

static size_t cpu_linear8_dw_workspace(const struct tensor *const *desc, const struct op *, int threads)
{
    const struct tensor *dw = desc[OP_MAX_IN + LINEAR8_DW_DW];
    return gemm_workspace(dw->dim[0], dw->dim[1], desc[LINEAR8_DW_X]->dim[1], DT_BF16, dw->type, threads);
}

CPU_KERNEL(quantise8, cpu_quantise8_workspace);
CPU_KERNEL(linear8, cpu_linear8_workspace);
CPU_KERNEL(linear8_dw, cpu_linear8_dw_workspace);
