/* cuda_matmul.c - see cuda_matmul.h.
 *
 * cuBLASLt counts columns first, our tensors rows first: a row-major [R,K] is to it a K x R matrix. Every op is
 * one product D = op(A) op(B) (+ C) (+ bias) in its terms:
 *
 *     linear      D = y  [M x R]   A = W  (K x M, transposed;   kn: M x K)   B = x  (K x R)
 *     linear_dx   D = dx [K x R]   A = W  (K x M;   kn: M x K, transposed)   B = dy (M x R)
 *     linear_dw   D = dW [K x M]   A = x  (K x R)                            B = dy (M x R, transposed)
 *            kn   D = dW [M x K]   A = dy (M x R)                            B = x  (K x R, transposed)
 *     linear8     D = y  [M x R]   A = W  (K x M, transposed)                B = x  (K x R)
 *     linear_f8   as linear8
 *     linear8_dw  D = dW [K x M]   A = x  (R x K, transposed)                B = dy (R x M)
 *            kn   D = dW [M x K]   A = dy (R x M, transposed)                B = x  (R x K)
 *
 * Parts of a weight (op.h) are one product each, whose operands are columns of x, dx, y or dy.
 *
 * fp8 operands come with the addresses of their scales: one for all of a matrix, or, on 9.0 and only for linear_f8, one for each line. Tensor cores
 * keep 14 bits of a sum of fp8 products. Sums are moved to fp32 in between, except where the op allows those of the tensor cores (attr.fast_sums, and
 * linear_f8 with a narrow y; "fast accumulation").
 */
#include "device/cuda/cuda_matmul.h"
#include "device/cuda/matmul_small.h"
#include "tape/parts.h"

#include <stdlib.h>
#include <string.h>

#define WAYS_MAX 512 /* shapes remembered */
#define TRIALS   8   /* ways tried when tuning */

struct matrix {
    const void *at;
    int64_t rows, cols; /* as cuBLASLt counts */
    bool transposed;
    enum dtype type;
    int64_t step; /* leading dimension where it is not rows; 0: it is */
};

struct product {
    struct matrix a, b, c, d; /* c.at NULL: nothing is added */
    const void *bias;
    const void *a_scale, *b_scale; /* of fp8 operands */
    bool by_line;                  /* these are one for each line of A and B, instead of one for all */
    bool short_sums;               /* fp8: sums may be those of the tensor cores */
    bool tf32;
};

/* Properties that decide how a product is computed. */
struct key {
    int64_t m, n, k, a_step, b_step, step;
    int type, b_type, out_type;
    bool ta, tb, adds, bias, tf32, by_line, short_sums;
    unsigned align;
};

struct way {
    struct key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulAlgo_t algo;
};

struct cuda_matmul {
    const struct cuda_api *api;
    cublasLtHandle_t handle;
    const char *words; /* what cuBLASLt said of the last failure */
    struct way ways[WAYS_MAX];
    int count, next; /* next: the one to go when all places are taken */
};

static cudaDataType_t data_type(enum dtype type)
{
    switch (type) {
    case DT_F32:
        return CUDA_R_32F;
    case DT_BF16:
        return CUDA_R_16BF;
    case DT_F16:
        return CUDA_R_16F;
    case DT_E4M3:
        return CUDA_R_8F_E4M3;
    case DT_E5M2:
        return CUDA_R_8F_E5M2;
    default:
        __builtin_trap(); /* op_check lets no other type through */
    }
}

static struct matrix rows_of(const void *at, const struct tensor *t, int64_t width)
{
    return (struct matrix){at, width, tensor_count(t) / width, false, t->type};
}

/* A weight [M,K], or its gradient, as it is stored; K x M when attr.weight_kn. */
struct weight {
    struct matrix matrix;
    int64_t m, k;
};

static struct weight weight_of(const void *at, const struct tensor *t, bool kn)
{
    return (struct weight){{at, t->dim[1], t->dim[0], false, t->type},
                           .m = kn ? t->dim[1] : t->dim[0],
                           .k = kn ? t->dim[0] : t->dim[1]};
}

/* Columns [first, first + count) of rows. */
static struct matrix columns_of(struct matrix rows, int64_t first, int64_t count)
{
    if (count == rows.rows) return rows;
    rows.at = (const char *)rows.at + first * (int64_t)dtype_size(rows.type);
    rows.step = rows.rows, rows.rows = count;
    return rows;
}

/* Lines of a weight that are a part of it; a weight with parts is [M,K]. */
static struct matrix lines_of(const struct weight *w, const struct weight_part *part)
{
    struct matrix lines = w->matrix;
    if (part->lines == w->m) return lines;
    lines.at = (const char *)lines.at + part->line * w->k * (int64_t)dtype_size(lines.type);
    lines.cols = part->lines;
    return lines;
}

static const void *number_at(const void *from, int64_t i, enum dtype type)
{
    return from ? (const char *)from + i * (int64_t)dtype_size(type) : NULL;
}

/* x or dx, of which each part has k columns. */
static struct matrix x_of(const struct kernel_call *call, const void *at, const struct tensor *t, int64_t k,
                          const struct weight_part *part)
{
    return columns_of(rows_of(at, t, k * weight_parts(&call->op->attr)), part->column, k);
}

static struct product linear(const struct kernel_call *call, bool kn, const struct weight_part *part)
{
    struct weight w = weight_of(call->in[LINEAR_W], call_in(call, LINEAR_W), kn);
    struct matrix y = rows_of(call->out[LINEAR_Y], call_out(call, LINEAR_Y), w.m);
    struct product p = {.a = lines_of(&w, part),
                        .b = x_of(call, call->in[LINEAR_X], call_in(call, LINEAR_X), w.k, part),
                        .d = columns_of(y, part->line, part->lines),
                        .bias = number_at(call->in[LINEAR_BIAS], part->line, y.type)};
    p.a.transposed = !kn;
    if (call->in[LINEAR_ADD]) p.c = p.d, p.c.at = number_at(call->in[LINEAR_ADD], part->line, y.type);
    return p;
}

static struct product linear_dx(const struct kernel_call *call, bool kn, const struct weight_part *part)
{
    struct weight w = weight_of(call->in[LINEAR_DX_W], call_in(call, LINEAR_DX_W), kn);
    struct matrix dy = rows_of(call->in[LINEAR_DX_DY], call_in(call, LINEAR_DX_DY), w.m);
    struct product p = {.a = lines_of(&w, part),
                        .b = columns_of(dy, part->line, part->lines),
                        .d = x_of(call, call->out[LINEAR_DX_DX], call_out(call, LINEAR_DX_DX), w.k, part)};
    p.a.transposed = kn;
    if (call->in[LINEAR_DX_ADD])
        p.c = p.d, p.c.at = number_at(call->in[LINEAR_DX_ADD], part->column, p.d.type);
    return p;
}

static struct product linear_dw(const struct kernel_call *call, bool kn, const struct weight_part *part)
{
    struct weight dw = weight_of(call->out[LINEAR_DW_DW], call_out(call, LINEAR_DW_DW), kn);
    struct matrix dy = columns_of(rows_of(call->in[LINEAR_DW_DY], call_in(call, LINEAR_DW_DY), dw.m),
                                  part->line, part->lines),
                  x = x_of(call, call->in[LINEAR_DW_X], call_in(call, LINEAR_DW_X), dw.k, part);
    struct product p = {.a = kn ? dy : x, .b = kn ? x : dy, .d = lines_of(&dw, part)};
    p.b.transposed = true;
    if (call->accumulate && !call->op->attr.fresh) p.c = p.d;
    return p;
}

static struct product linear8(const struct kernel_call *call, bool, const struct weight_part *)
{
    const struct tensor *x = call_in(call, LINEAR8_X), *w = call_in(call, LINEAR8_W);
    struct product p = {.a = rows_of(call->in[LINEAR8_W], w, w->dim[1]),
                        .b = rows_of(call->in[LINEAR8_X], x, x->dim[1]),
                        .d = rows_of(call->out[LINEAR8_Y], call_out(call, LINEAR8_Y), w->dim[0]),
                        .bias = call->in[LINEAR8_BIAS],
                        .a_scale = call->in[LINEAR8_W_SCALE],
                        .b_scale = call->in[LINEAR8_X_SCALE]};
    p.a.transposed = true;
    if (call->in[LINEAR8_ADD]) p.c = p.d, p.c.at = call->in[LINEAR8_ADD];
    return p;
}

static struct product linear8_dw(const struct kernel_call *call, bool kn, const struct weight_part *)
{
    const struct tensor *x = call_in(call, LINEAR8_DW_X), *dy = call_in(call, LINEAR8_DW_DY);
    struct weight dw = weight_of(call->out[LINEAR8_DW_DW], call_out(call, LINEAR8_DW_DW), kn);
    struct matrix turned_x = rows_of(call->in[LINEAR8_DW_X], x, x->dim[1]),
                  turned_dy = rows_of(call->in[LINEAR8_DW_DY], dy, dy->dim[1]);
    const void *x_scale = call->in[LINEAR8_DW_X_SCALE], *dy_scale = call->in[LINEAR8_DW_DY_SCALE];
    struct product p = {.a = kn ? turned_dy : turned_x,
                        .b = kn ? turned_x : turned_dy,
                        .d = dw.matrix,
                        .a_scale = kn ? dy_scale : x_scale,
                        .b_scale = kn ? x_scale : dy_scale};
    p.a.transposed = true;
    if (call->accumulate && !call->op->attr.fresh) p.c = p.d;
    return p;
}

static struct product f8_product(const struct cuda_f8_product *f)
{
    struct product p = {.a = {f->w, f->k, f->lines, true, DT_E4M3, 0},
                        .b = {f->x, f->k, f->rows, false, DT_E4M3, 0},
                        .d = {f->y, f->lines, f->rows, false, f->type, 0},
                        .bias = f->bias,
                        .a_scale = f->w_scale,
                        .b_scale = f->x_scale,
                        .by_line = f->w_scale != NULL,
                        .short_sums = f->short_sums};
    if (f->add) p.c = p.d, p.c.at = f->add;
    return p;
}

static struct product linear_f8(const struct kernel_call *call, bool, const struct weight_part *)
{
    struct cuda_f8_product f = cuda_linear_f8_large(call);
    return f8_product(&f);
}

static struct product product_of(const struct kernel_call *call, const struct weight_part *part)
{
    static struct product (*const makers[OP_KIND_COUNT])(const struct kernel_call *, bool,
                                                         const struct weight_part *) = {
        [OP_LINEAR] = linear,   [OP_LINEAR_DX] = linear_dx,   [OP_LINEAR_DW] = linear_dw,
        [OP_LINEAR8] = linear8, [OP_LINEAR8_DW] = linear8_dw, [OP_LINEAR_F8] = linear_f8};
    const struct op_attr *attr = &call->op->attr;
    struct product p = makers[call->op->kind](call, attr->weight_kn, part);
    p.tf32 = attr->tf32 && p.a.type == DT_F32, p.short_sums = p.short_sums || attr->fast_sums;
    return p;
}

/* Part i of what an op computes; false behind the last. Only products with numbers have several. */
static bool next_part(const struct kernel_call *call, int i, struct weight_part *out)
{
    int kind = call->op->kind;
    const struct tensor *w = kind == OP_LINEAR      ? call_in(call, LINEAR_W)
                             : kind == OP_LINEAR_DX ? call_in(call, LINEAR_DX_W)
                             : kind == OP_LINEAR_DW ? call_out(call, LINEAR_DW_DW)
                                                    : NULL;
    bool kn = call->op->attr.weight_kn;
    return w ? weight_part(&call->op->attr, w->dim[kn ? 1 : 0], w->dim[kn ? 0 : 1], i, out) : i == 0;
}

static unsigned alignment_of(const void *at)
{
    uintptr_t bits = (uintptr_t)at | 256;
    return (unsigned)(bits & -bits);
}

static struct key key_of(const struct product *p)
{
    struct key key;
    memset(&key, 0, sizeof key); /* compared as bytes */
    key.m = p->d.rows, key.n = p->d.cols;
    key.a_step = p->a.step, key.b_step = p->b.step, key.step = p->d.step;
    key.k = p->a.transposed ? p->a.rows : p->a.cols;
    key.type = (int)p->a.type, key.b_type = (int)p->b.type, key.out_type = (int)p->d.type;
    key.ta = p->a.transposed, key.tb = p->b.transposed;
    key.adds = p->c.at != NULL, key.bias = p->bias != NULL, key.tf32 = p->tf32;
    key.by_line = p->by_line, key.short_sums = p->short_sums;
    key.align = alignment_of(p->a.at);
    const void *others[] = {p->b.at, p->d.at, p->c.at};
    for (int i = 0; i < 3; i++)
        if (others[i] && alignment_of(others[i]) < key.align) key.align = alignment_of(others[i]);
    return key;
}

static void way_release(const struct cuda_api *api, struct way *w)
{
    if (w->desc) api->cublasLtMatmulDescDestroy(w->desc);
    cublasLtMatrixLayout_t layouts[] = {w->a, w->b, w->c, w->d};
    for (int i = 0; i < 4; i++)
        if (layouts[i]) api->cublasLtMatrixLayoutDestroy(layouts[i]);
    memset(w, 0, sizeof *w);
}

static int64_t step_of(const struct matrix *m) { return m->step ? m->step : m->rows; }

static bool layout_of(const struct cuda_api *api, const struct matrix *m, cublasLtMatrixLayout_t *out)
{
    return api->cublasLtMatrixLayoutCreate(out, data_type(m->type), (uint64_t)m->rows, (uint64_t)m->cols,
                                           step_of(m)) == CUBLAS_STATUS_SUCCESS;
}

static void point_at_scales(const struct cuda_api *api, const struct product *p, const struct way *w)
{
    if (!p->a_scale) return;
    api->cublasLtMatmulDescSetAttribute(w->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p->a_scale,
                                        sizeof p->a_scale);
    api->cublasLtMatmulDescSetAttribute(w->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p->b_scale,
                                        sizeof p->b_scale);
}

/* cuBLASLt has this mode from 12.9 on; false: it has not. */
static bool scale_by_line(const struct cuda_api *api, const struct way *w)
{
    int32_t mode = 3;                  /* CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F */
    const int attributes[] = {31, 32}; /* CUBLASLT_MATMUL_DESC_A_SCALE_MODE, _B_SCALE_MODE */
    bool good = true;
    for (int i = 0; i < 2; i++)
        good = good &&
               api->cublasLtMatmulDescSetAttribute(w->desc, (cublasLtMatmulDescAttributes_t)attributes[i],
                                                   &mode, sizeof mode) == CUBLAS_STATUS_SUCCESS;
    return good;
}

static bool describe(struct cuda_matmul *mm, const struct product *p, struct way *w)
{
    const struct cuda_api *api = mm->api;
    cublasComputeType_t compute = p->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasOperation_t ta = p->a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                      tb = p->b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    cudaDataType_t bias_type = data_type(p->d.type);
    bool good = api->cublasLtMatmulDescCreate(&w->desc, compute, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
                layout_of(api, &p->a, &w->a) && layout_of(api, &p->b, &w->b) &&
                layout_of(api, &p->d, &w->c) && layout_of(api, &p->d, &w->d);
    if (!good) return false;
    api->cublasLtMatmulDescSetAttribute(w->desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    api->cublasLtMatmulDescSetAttribute(w->desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    point_at_scales(api, p, w);
    if (p->by_line && !scale_by_line(api, w)) return false;
    if (p->short_sums) {
        int8_t yes = 1;
        api->cublasLtMatmulDescSetAttribute(w->desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &yes, sizeof yes);
    }
    if (p->bias) {
        api->cublasLtMatmulDescSetAttribute(w->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                            sizeof epilogue);
        api->cublasLtMatmulDescSetAttribute(w->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type,
                                            sizeof bias_type);
        api->cublasLtMatmulDescSetAttribute(w->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias,
                                            sizeof p->bias);
    }
    return true;
}

/* Ways cuBLASLt proposes, best guess first; their number. */
static int propose(struct cuda_matmul *mm, const struct way *w, cublasLtMatmulHeuristicResult_t *found,
                   int most)
{
    const struct cuda_api *api = mm->api;
    cublasLtMatmulPreference_t wish;
    size_t workspace = CUDA_MATMUL_BYTES;
    uint32_t align = w->key.align,
             schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* partial sums stay fp32 */
    int count = 0;
    if (api->cublasLtMatmulPreferenceCreate(&wish) != CUBLAS_STATUS_SUCCESS) return 0;
    api->cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                              sizeof workspace);
    api->cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                              sizeof schemes);
    const cublasLtMatmulPreferenceAttributes_t aligns[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (int i = 0; i < 4; i++)
        api->cublasLtMatmulPreferenceSetAttribute(wish, aligns[i], &align, sizeof align);
    if (api->cublasLtMatmulAlgoGetHeuristic(mm->handle, w->desc, w->a, w->b, w->c, w->d, wish, most, found,
                                            &count) != CUBLAS_STATUS_SUCCESS)
        count = 0;
    api->cublasLtMatmulPreferenceDestroy(wish);
    return count;
}

static int multiply(struct cuda_matmul *mm, const struct cuda_queue *queue, const struct product *p,
                    const struct way *w, const cublasLtMatmulAlgo_t *algo, void *work)
{
    const struct cuda_api *api = mm->api;
    float one = 1, beta = p->c.at ? 1 : 0;
    point_at_scales(api, p, w);
    if (p->bias)
        api->cublasLtMatmulDescSetAttribute(w->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias,
                                            sizeof p->bias);
    cublasStatus_t status = api->cublasLtMatmul(
        mm->handle, w->desc, &one, p->a.at, w->a, p->b.at, w->b, &beta, p->c.at ? p->c.at : p->d.at, w->c,
        (void *)(uintptr_t)p->d.at, w->d, algo, work, CUDA_MATMUL_BYTES, (cudaStream_t)queue->stream);
    if (status == CUBLAS_STATUS_SUCCESS) return cudaSuccess;
    mm->words = api->cublasLtGetStatusString(status);
    return cudaErrorUnknown;
}

const char *cuda_matmul_words(const struct cuda_matmul *mm) { return mm->words ? mm->words : "linear"; }

static struct way *find_way(struct cuda_matmul *mm, const struct key *key)
{
    for (int i = 0; i < mm->count; i++)
        if (!memcmp(&mm->ways[i].key, key, sizeof *key)) return &mm->ways[i];
    return NULL;
}

static struct way *place_for(struct cuda_matmul *mm)
{
    if (mm->count < WAYS_MAX) return &mm->ways[mm->count++];
    struct way *w = &mm->ways[mm->next++ % WAYS_MAX];
    way_release(mm->api, w);
    return w;
}

static struct way *add_way(struct cuda_matmul *mm, const struct product *p, const struct key *key)
{
    struct way *w = place_for(mm);
    cublasLtMatmulHeuristicResult_t best;
    w->key = *key;
    if (describe(mm, p, w) && propose(mm, w, &best, 1) == 1) {
        w->algo = best.algo;
        return w;
    }
    way_release(mm->api, w);
    if (w == &mm->ways[mm->count - 1]) mm->count--;
    return NULL;
}

static void *after_workspace(const struct kernel_call *call)
{
    return (char *)call->work + CUDA_MATMUL_BYTES;
}

/* Not worth a choice among cuBLASLt's kernels. */
#define SMALL ((int64_t)1 << 18)

static bool is_small(const struct key *key)
{
    return dtype_is_compute((enum dtype)key->type) && key->m * key->n * key->k < SMALL;
}

static int multiply_small(const struct cuda_queue *queue, const struct product *p, const struct key *key)
{
    struct small_product s = {.a = p->a.at,
                              .b = p->b.at,
                              .c = p->c.at,
                              .bias = p->bias,
                              .d = (void *)(uintptr_t)p->d.at,
                              .m = key->m,
                              .n = key->n,
                              .k = key->k,
                              .a_step = step_of(&p->a),
                              .b_step = step_of(&p->b),
                              .d_step = step_of(&p->d),
                              .ta = key->ta,
                              .tb = key->tb,
                              .type = p->a.type,
                              .out_type = p->d.type};
    return cuda_matmul_small(queue, &s);
}

struct few_product cuda_linear_few(const struct kernel_call *call)
{
    bool kn = call->op->attr.weight_kn;
    struct weight w = weight_of(call->in[LINEAR_W], call_in(call, LINEAR_W), kn);
    return (struct few_product){.x = call->in[LINEAR_X],
                                .w = call->in[LINEAR_W],
                                .bias = call->in[LINEAR_BIAS],
                                .add = call->in[LINEAR_ADD],
                                .y = call->out[LINEAR_Y],
                                .rows = tensor_count(call_in(call, LINEAR_X)) / w.k,
                                .m = w.m,
                                .k = w.k,
                                .kn = kn,
                                .type = w.matrix.type};
}

static int multiply_few(const struct cuda_queue *queue, const struct kernel_call *call)
{
    struct few_product f = cuda_linear_few(call);
    return cuda_matmul_few(queue, &f);
}

static struct skinny_product skinny_of(const struct product *p, const struct key *key, void *work)
{
    return (struct skinny_product){.a = p->a.at,
                                   .b = p->b.at,
                                   .c = p->c.at,
                                   .d = (void *)(uintptr_t)p->d.at,
                                   .m = key->m,
                                   .n = key->n,
                                   .k = key->k,
                                   .a_step = p->a.step,
                                   .b_step = p->b.step,
                                   .d_step = p->d.step,
                                   .ta = key->ta,
                                   .tb = key->tb,
                                   .type = p->a.type,
                                   .out_type = p->d.type,
                                   .work = work};
}

static bool is_skinny(const struct product *p, const struct key *key)
{
    struct skinny_product s = skinny_of(p, key, NULL);
    return !p->bias && p->a.type == p->b.type && cuda_matmul_skinny_suits(&s);
}

int cuda_linear_skinny(const struct kernel_call *call, struct skinny_product out[OP_LINE_PARTS])
{
    struct weight_part part;
    int count = 0;
    if (cuda_linear_is_few(call->desc, call->op)) return 0;
    for (; next_part(call, count, &part); count++) {
        struct product p = product_of(call, &part);
        struct key key = key_of(&p);
        out[count] = skinny_of(&p, &key, call->work);
        if (is_small(&key) || !is_skinny(&p, &key)) return 0;
    }
    return count;
}

static int multiply_skinny(const struct cuda_queue *queue, const struct product *p, const struct key *key,
                           void *work)
{
    struct skinny_product s = skinny_of(p, key, work);
    return cuda_matmul_skinny(queue, &s);
}

static int multiply_large(struct cuda_matmul *mm, const struct cuda_queue *queue, const struct product *p,
                          const struct key *key, void *work)
{
    struct way *w = find_way(mm, key);
    if (!w) w = add_way(mm, p, key);
    return w ? multiply(mm, queue, p, w, &w->algo, work) : cudaErrorNotSupported;
}

/* Adding in place and adding from elsewhere round differently in cuBLASLt, and which of them a plan has depends on its
 * layout: where bits must repeat it is always in place. */
static int add_in_place(const struct cuda_queue *queue, struct product *p)
{
    if (!p->c.at || p->c.at == p->d.at) return 0;
    size_t size = dtype_size(p->d.type), step = (size_t)step_of(&p->d) * size;
    void *to = (void *)(uintptr_t)p->d.at;
    const void *from = p->c.at;
    size_t width = (size_t)p->d.rows * size, count = (size_t)p->d.cols;
    cudaStream_t stream = (cudaStream_t)queue->stream;
    p->c.at = p->d.at;
    if (step == width) return (int)cudaMemcpyAsync(to, from, width * count, cudaMemcpyDeviceToDevice, stream);
    return (int)cudaMemcpy2DAsync(to, step, from, step, width, count, cudaMemcpyDeviceToDevice, stream);
}

static int run_part(const struct cuda_queue *queue, const struct kernel_call *call,
                    const struct weight_part *part)
{
    struct product p = product_of(call, part);
    struct key key = key_of(&p);
    if (is_small(&key)) return multiply_small(queue, &p, &key);
    if (is_skinny(&p, &key)) return multiply_skinny(queue, &p, &key, call->work);
    int moved = call->op->attr.repeatable ? add_in_place(queue, &p) : 0;
    if (moved) return moved;
    key = key_of(&p);
    return multiply_large(queue->matmul, queue, &p, &key, call->work);
}

static int run(const struct cuda_queue *queue, const struct kernel_call *call)
{
    struct weight_part part;
    int code = 0;
    if (cuda_linear_is_few(call->desc, call->op)) return multiply_few(queue, call);
    for (int i = 0; !code && next_part(call, i, &part); i++) code = run_part(queue, call, &part);
    return code;
}

static int run_bias(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *dy = call_in(call, LINEAR_DW_DY), *db = call_out(call, LINEAR_DW_DBIAS);
    int64_t width = tensor_count(db);
    return cuda_column_sum(queue, call->in[LINEAR_DW_DY], dy->type, tensor_count(dy) / width, width,
                           call->out[LINEAR_DW_DBIAS], db->type, call->accumulate, after_workspace(call));
}

int cuda_linear(const struct cuda_queue *queue, const struct kernel_call *call) { return run(queue, call); }
int cuda_linear_dx(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return run(queue, call);
}
int cuda_linear_dw(const struct cuda_queue *queue, const struct kernel_call *call)
{
    int code = call->out[LINEAR_DW_DW] ? run(queue, call) : 0;
    return code || !call->out[LINEAR_DW_DBIAS] ? code : run_bias(queue, call);
}

int cuda_linear8(const struct cuda_queue *queue, const struct kernel_call *call) { return run(queue, call); }
int cuda_linear8_dw(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return run(queue, call);
}

int cuda_matmul_wide(const struct cuda_queue *queue, const struct cuda_wide_product *w, void *work)
{
    struct product p = {.a = {w->w, w->k, w->lines, true, w->type, 0},
                        .b = {w->x, w->k, w->rows, false, w->type, 0},
                        .d = {w->y, w->lines, w->rows, false, w->type, w->m},
                        .bias = w->bias};
    if (w->add) p.c = p.d;
    struct key key = key_of(&p);
    return multiply_large(queue->matmul, queue, &p, &key, work);
}

int cuda_matmul_f8(const struct cuda_queue *queue, const struct cuda_f8_product *f, void *work)
{
    struct product p = f8_product(f);
    struct key key = key_of(&p);
    return multiply_large(queue->matmul, queue, &p, &key, work);
}

static float time_way(struct cuda_matmul *mm, const struct cuda_queue *queue, const struct product *p,
                      const struct way *w, const cublasLtMatmulAlgo_t *algo, void *work)
{
    enum { ROUNDS = 5 };
    cudaStream_t stream = (cudaStream_t)queue->stream;
    cudaEvent_t begin, end;
    float ms = 1e30f;
    if (cudaEventCreate(&begin) != cudaSuccess) return ms;
    if (cudaEventCreate(&end) != cudaSuccess) {
        cudaEventDestroy(begin);
        return ms;
    }
    int code = multiply(mm, queue, p, w, algo, work);
    cudaEventRecord(begin, stream);
    for (int i = 0; i < ROUNDS && !code; i++) code = multiply(mm, queue, p, w, algo, work);
    cudaEventRecord(end, stream);
    if (code || cudaEventSynchronize(end) != cudaSuccess ||
        cudaEventElapsedTime(&ms, begin, end) != cudaSuccess)
        ms = 1e30f;
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return ms;
}

static void tune_part(struct cuda_matmul *mm, const struct cuda_queue *queue, const struct kernel_call *call,
                      const struct weight_part *part)
{
    struct product p = product_of(call, part);
    struct key key = key_of(&p);
    if (is_small(&key) || is_skinny(&p, &key) || find_way(mm, &key)) return;
    struct way *w = add_way(mm, &p, &key);
    cublasLtMatmulHeuristicResult_t found[TRIALS];
    int count = w ? propose(mm, w, found, TRIALS) : 0;
    float best = 1e30f;
    for (int i = 0; i < count; i++) {
        float ms = time_way(mm, queue, &p, w, &found[i].algo, call->work);
        if (ms >= best * 0.99f) continue; /* a later proposal must be clearly faster */
        best = ms, w->algo = found[i].algo;
    }
    cudaGetLastError(); /* a way that does not run here is no error of the next launch */
}

void cuda_matmul_tune(struct cuda_matmul *mm, const struct cuda_queue *queue, const struct kernel_call *call)
{
    struct weight_part part;
    if (cuda_linear_is_few(call->desc, call->op) || cuda_linear_f8_is_few(call->desc, call->op)) return;
    for (int i = 0; next_part(call, i, &part); i++) tune_part(mm, queue, call, &part);
}

enum plim_status cuda_matmul_open(const struct cuda_api *api, struct cuda_matmul **out,
                                  struct plim_error *err)
{
    struct cuda_matmul *mm = calloc(1, sizeof *mm);
    if (!mm) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for cuBLASLt");
    mm->api = api;
    cublasStatus_t status = api->cublasLtCreate(&mm->handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        free(mm);
        return plim_fail(err, PLIM_IO, "cuda: cuBLASLt: %s", api->cublasLtGetStatusString(status));
    }
    *out = mm;
    return PLIM_OK;
}

void cuda_matmul_close(struct cuda_matmul *mm)
{
    if (!mm) return;
    for (int i = 0; i < mm->count; i++) way_release(mm->api, &mm->ways[i]);
    mm->api->cublasLtDestroy(mm->handle);
    free(mm);
}
