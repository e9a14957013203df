/* linear_q.c - weights in blocks: the product, and rows of a table. See linear_q.h.
 *
 * Workers share the panels of the weight and nothing else: each unpacks a panel and multiplies it with all rows. Panels of
 * several experts are one list; a panel meets the rows of its expert. */
#include "device/cpu/linear_q.h"
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/linear_q_wide.h"
#include "tape/quantised.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { TASKS_PER_WORKER = 8 };

/* ---- the level ---- */

#if defined(__x86_64__)
static bool has_tiles_of_8_bits(void)
{
    const unsigned int8_tiles = 1u << 25;
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & int8_tiles);
}

const struct linear_q_level *linear_q_level(void)
{
    bool vnni = cpu_has(CPU_AVX512) && __builtin_cpu_supports("avx512vnni");
    if (vnni && cpu_has(CPU_AMX) && has_tiles_of_8_bits()) return &linear_q_amx;
    return vnni ? &linear_q_vnni : cpu_has(CPU_AVX2) ? &linear_q_avx2 : &linear_q_plain;
}
#elif defined(__aarch64__)
const struct linear_q_level *linear_q_level(void)
{
    const unsigned long hwcap_dotprod = 1ul << 20, hwcap2_i8mm = 1ul << 13;
    bool dot = cpu_has(CPU_NEON) && (getauxval(AT_HWCAP) & hwcap_dotprod);
    if (dot && cpu_has(CPU_NEON_BF16) && (getauxval(AT_HWCAP2) & hwcap2_i8mm)) return &linear_q_i8mm;
    return dot ? &linear_q_dotprod : &linear_q_plain;
}
#else
const struct linear_q_level *linear_q_level(void) { return &linear_q_plain; }
#endif

/* ---- the product ---- */

struct product {
    const struct linear_q_level *level;
    const struct op_attr *attr;
    enum dtype type;
    const void *x;
    const unsigned char *w;
    const void *bias, *add;
    void *y;
    const int32_t *ends; /* of experts: the row after the last of each; NULL: all rows meet the one matrix */
    int64_t panels, bytes; /* of a matrix */
    int64_t k, m, rows;
    int8_t *codes; /* of all rows */
    struct x8_block *blocks;
    char *scratch; /* of each worker */
};

static void quantise_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct product *p = arg;
    for (int64_t r = begin; r < end; r++)
        p->level->quantise(element(p->x, p->type, r * p->k), p->type, p->k, r, p->codes, p->blocks);
}

/* Some lines of y, of which the panel has up to 16, and the rows that they meet. */
struct lines {
    int64_t first;
    int count;
    int64_t row, rows;
};

static struct x8 rows_from(const struct product *p, int64_t row, int64_t rows)
{
    return x8_rows(p->level, p->codes, p->blocks, p->k, row, rows);
}

static void put_rows(const struct product *p, const struct lines *l, int64_t row, int64_t rows,
                     const float *value)
{
    const void *bias = p->bias, *add = p->add;
    float fixed[PANEL_LINES] = {0}, extra[PANEL_LINES] = {0};
    if (bias) dtype_convert(fixed, DT_F32, element(bias, p->type, l->first), p->type, l->count);
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = (row + r) * p->m + l->first;
        if (add) {
            dtype_convert(extra, DT_F32, element(add, p->type, at), p->type, l->count);
            for (int i = 0; i < PANEL_LINES; i++) extra[i] += fixed[i];
        }
        p->level->put(element(p->y, p->type, at), p->type, value + r * PANEL_LINES, add ? extra : fixed,
                      l->count);
    }
}

static void multiply_few(const struct product *p, panel_few *few, const unsigned char *panel,
                         const struct lines *l)
{
    float value[PANEL8_FEW * PANEL_LINES];
    struct x8 x = rows_from(p, l->row, l->rows);
    few(panel, &x, value);
    put_rows(p, l, l->row, l->rows, value);
}

/* Panels that are unpacked, at most two, and their lines. */
struct ready {
    struct panel8 w[2];
    struct lines l[2];
    int count;
};

static void multiply_ready(const struct product *p, struct ready *list)
{
    _Alignas(64) float value[2 * PANEL8_ROWS * PANEL_LINES];
    const struct linear_q_level *level = p->level;
    int64_t row = list->l->row, rows = list->count ? list->l->rows : 0;
    for (int64_t r = 0; r < rows; r += PANEL8_ROWS) {
        struct x8 x = rows_from(p, row + r, lesser(PANEL8_ROWS, rows - r));
        if (list->count == 2) level->multiply_two(list->w, &x, value);
        if (list->count == 1) level->multiply(list->w, &x, value);
        for (int i = 0; i < list->count; i++)
            put_rows(p, &list->l[i], row + r, x.rows, value + i * PANEL8_ROWS * PANEL_LINES);
    }
    list->count = 0;
}

static int panels_at_once(const struct product *p) { return p->level->multiply_two ? 2 : 1; }

/* Panels [begin, end) of all parts of the matrix at w, by rows [row, row + rows). */
static void multiply_panels(const struct product *p, const unsigned char *w, int64_t begin, int64_t end,
                            struct lines l, char *scratch)
{
    struct quantised_part part;
    struct ready ready = {.count = 0};
    int64_t before = 0;
    for (int i = 0; quantised_part(p->attr, p->k, i, &part); i++, before += panels_count(part.lines)) {
        int64_t last = lesser(end, before + panels_count(part.lines));
        int type = p->attr->lines[i].type;
        panel_few *few = l.rows <= PANEL8_FEW ? p->level->few[type] : NULL;
        for (int64_t at = begin > before ? begin : before; at < last; at++) {
            int64_t line = (at - before) * PANEL_LINES;
            const unsigned char *from = w + part.offset + (at - before) * panel_bytes(part.type, p->k);
            l.first = part.first + line, l.count = (int)lesser(PANEL_LINES, part.lines - line);
            if (few) {
                multiply_few(p, few, from, &l);
                continue;
            }
            int n = ready.count++;
            ready.l[n] = l;
            panel8_ready(p->level, type, from, p->k, l.rows, scratch + n * panel8_bytes(p->k), &ready.w[n]);
            if (ready.count == panels_at_once(p)) multiply_ready(p, &ready);
        }
    }
    multiply_ready(p, &ready);
}

/* begin and end count panels of all matrices. */
static void panels_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct product *p = arg;
    char *scratch = p->scratch + worker * 2 * panel8_bytes(p->k);
    while (begin < end) {
        int64_t e = begin / p->panels, first = begin % p->panels,
                last = lesser(p->panels, first + end - begin);
        struct lines l = {.rows = p->rows};
        if (p->ends) l.row = e ? p->ends[e - 1] : 0, l.rows = p->ends[e] - l.row;
        if (l.rows > 0) multiply_panels(p, p->w + e * p->bytes, first, last, l, scratch);
        begin += last - first;
    }
}

static int64_t panels_of(const struct op_attr *attr)
{
    int64_t n = 0;
    for (int i = 0; i < OP_LINE_PARTS; i++) n += panels_count(attr->lines[i].lines);
    return n;
}

/* Rows rounded, then all panels of so many matrices. */
static void run_product(struct product *p, const struct kernel_call *call, int64_t matrices)
{
    p->level = linear_q_level(), p->attr = &call->op->attr;
    p->bytes = quantised_bytes(p->attr, p->k), p->panels = panels_of(p->attr),
    p->m = quantised_lines(p->attr);
    p->codes = call->work;
    p->blocks = (struct x8_block *)((char *)call->work + x8_codes_bytes(p->rows, p->k));
    p->scratch = (char *)p->blocks + x8_blocks_bytes(p->rows, p->k);
    int64_t tasks = (int64_t)threads_count(call->team) * TASKS_PER_WORKER;
    threads_each(call->team, p->rows, row_grain(p->k), quantise_body, p);
    threads_each(call->team, matrices * p->panels, (p->panels + tasks - 1) / tasks, panels_body, p);
}

static size_t product_workspace(int64_t rows, int64_t k, int threads)
{
    return (size_t)(x8_codes_bytes(rows, k) + x8_blocks_bytes(rows, k) + threads * 2 * panel8_bytes(k));
}

void cpu_linear_q(const struct kernel_call *call)
{
    if (linear_q_is_wide(&call->op->attr)) {
        linear_q_wide(call);
        return;
    }
    const struct tensor *x = call_in(call, LINEAR_Q_X);
    struct product p = {.type = x->type,
                        .x = call->in[LINEAR_Q_X],
                        .w = call->in[LINEAR_Q_W],
                        .bias = call->in[LINEAR_Q_BIAS],
                        .add = call->in[LINEAR_Q_ADD],
                        .y = call->out[LINEAR_Q_Y]};
    p.k = quantised_columns(&call->op->attr, tensor_bytes(call_in(call, LINEAR_Q_W)));
    p.rows = tensor_count(x) / p.k;
    run_product(&p, call, 1);
}

static size_t cpu_linear_q_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    if (linear_q_is_wide(&op->attr)) return linear_q_wide_workspace(desc, op, threads);
    int64_t k = quantised_columns(&op->attr, tensor_bytes(desc[LINEAR_Q_W]));
    return product_workspace(tensor_count(desc[LINEAR_Q_X]) / k, k, threads);
}

void cpu_expert_linear_q(const struct kernel_call *call)
{
    if (linear_q_is_wide(&call->op->attr)) {
        linear_q_wide(call);
        return;
    }
    const struct tensor *x = call_in(call, EXPERT_LINEAR_Q_X);
    int64_t experts = call_in(call, EXPERT_LINEAR_Q_ENDS)->dim[0];
    struct product p = {.type = x->type,
                        .x = call->in[EXPERT_LINEAR_Q_X],
                        .w = call->in[EXPERT_LINEAR_Q_W],
                        .ends = call->in[EXPERT_LINEAR_Q_ENDS],
                        .y = call->out[EXPERT_LINEAR_Q_Y]};
    p.k = quantised_columns(&call->op->attr, tensor_bytes(call_in(call, EXPERT_LINEAR_Q_W)) / experts);
    p.rows = tensor_count(x) / p.k;
    run_product(&p, call, experts);
}

static size_t cpu_expert_linear_q_workspace(const struct tensor *const *desc, const struct op *op,
                                            int threads)
{
    if (linear_q_is_wide(&op->attr)) return linear_q_wide_workspace(desc, op, threads);
    int64_t experts = desc[EXPERT_LINEAR_Q_ENDS]->dim[0];
    int64_t k = quantised_columns(&op->attr, tensor_bytes(desc[EXPERT_LINEAR_Q_W]) / experts);
    return product_workspace(tensor_count(desc[EXPERT_LINEAR_Q_X]) / k, k, threads);
}

/* ---- rows of a table ---- */

static void embed_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct kernel_call *call = arg;
    const struct op_attr *attr = &call->op->attr;
    enum dtype type = call_out(call, EMBED_Q_Y)->type;
    int64_t k = quantised_columns(attr, tensor_bytes(call_in(call, EMBED_Q_W)));
    float *row = (float *)call->work + worker * k;
    for (int64_t r = begin; r < end; r++) {
        int64_t id = ((const int32_t *)call->in[EMBED_Q_IDS])[r];
        struct quantised_part p;
        for (int i = 0; quantised_part(attr, k, i, &p); i++)
            if (id >= p.first && id < p.first + p.lines)
                panel_read(p.type, k,
                           (const unsigned char *)call->in[EMBED_Q_W] + p.offset +
                               (id - p.first) / PANEL_LINES * panel_bytes(p.type, k),
                           (int)((id - p.first) % PANEL_LINES), row);
        float scale = dtype_round(type, attr->scale);
        for (int64_t i = 0; i < k && scale != 0; i++) row[i] *= scale;
        dtype_convert(element(call->out[EMBED_Q_Y], type, r * k), type, row, DT_F32, k);
    }
}

void cpu_embed_q(const struct kernel_call *call)
{
    struct kernel_call copy = *call;
    threads_each(call->team, tensor_count(call_in(call, EMBED_Q_IDS)), 1, embed_body, &copy);
}

static size_t cpu_embed_q_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    int64_t k = quantised_columns(&op->attr, tensor_bytes(desc[EMBED_Q_W]));
    return (size_t)(threads * k) * sizeof(float);
}

CPU_KERNEL(linear_q, cpu_linear_q_workspace);
CPU_KERNEL(embed_q, cpu_embed_q_workspace);
CPU_KERNEL(expert_linear_q, cpu_expert_linear_q_workspace);
