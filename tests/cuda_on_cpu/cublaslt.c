/* cublaslt.c - products of cuBLASLt on the CPU (include/cublasLt.h): D = op(A) op(B) (+ C) (+ bias), columns first, sums in double
 * precision and rounded once. cuda_api.c finds them by name. */
#include "cublasLt.h"
#include "runtime.h"
#include "tensor/dtype.h"

#include <stdlib.h>
#include <string.h>

struct cublasLtMatrixLayout {
    cudaDataType_t type;
    int64_t rows, cols, step;
};

struct cublasLtMatmulDesc {
    uint64_t attr[CUBLASLT_MATMUL_DESC_COUNT]; /* numbers, and pointers */
};

struct cublasLtMatmulPreference {
    int unused;
};

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = malloc(1);
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) { return CUDART_VERSION; }
const char *cublasLtGetStatusString(cublasStatus_t status) { return status ? "not supported" : "success"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    (void)compute, (void)scale;
    *desc = calloc(1, sizeof **desc);
    return *desc ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attr,
                                              const void *value, size_t bytes)
{
    if (attr >= CUBLASLT_MATMUL_DESC_COUNT || bytes > sizeof *desc->attr) return CUBLAS_STATUS_INVALID_VALUE;
    desc->attr[attr] = 0;
    memcpy(&desc->attr[attr], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t step)
{
    *layout = malloc(sizeof **layout);
    if (!*layout) return CUBLAS_STATUS_INVALID_VALUE;
    **layout = (struct cublasLtMatrixLayout){type, (int64_t)rows, (int64_t)cols, step};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *wish)
{
    *wish = malloc(sizeof **wish);
    return *wish ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t wish)
{
    free(wish);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t wish,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *value, size_t bytes)
{
    (void)wish, (void)attr, (void)value, (void)bytes;
    return CUBLAS_STATUS_SUCCESS;
}

static enum dtype dtype_of(cudaDataType_t type)
{
    switch (type) {
    case CUDA_R_16F:
        return DT_F16;
    case CUDA_R_16BF:
        return DT_BF16;
    case CUDA_R_8F_E4M3:
        return DT_E4M3;
    case CUDA_R_8F_E5M2:
        return DT_E5M2;
    default:
        return DT_F32;
    }
}

static bool is_fp8(const struct cublasLtMatrixLayout *m) { return dtype_size(dtype_of(m->type)) == 1; }

/* Products of fp8 are of a transposed A, a B as it is, and rows of 16 bytes. */
static bool is_supported(const struct cublasLtMatmulDesc *desc, const struct cublasLtMatrixLayout *a,
                         const struct cublasLtMatrixLayout *b, const struct cublasLtMatrixLayout *d)
{
    bool by_line = desc->attr[CUBLASLT_MATMUL_DESC_A_SCALE_MODE] == 3;
    if (!is_fp8(a)) return !by_line && a->type == b->type;
    bool turned = desc->attr[CUBLASLT_MATMUL_DESC_TRANSA] == CUBLAS_OP_T &&
                  desc->attr[CUBLASLT_MATMUL_DESC_TRANSB] == CUBLAS_OP_N;
    bool e5m2 = a->type == CUDA_R_8F_E5M2 && b->type == CUDA_R_8F_E5M2;
    return is_fp8(b) && turned && !e5m2 && a->step % 16 == 0 && b->step % 16 == 0 &&
           d->step * (int64_t)dtype_size(dtype_of(d->type)) % 16 == 0 && !(by_line && !cuda_cpu_has_lines());
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wish, int most,
                                              cublasLtMatmulHeuristicResult_t *found, int *count)
{
    (void)handle, (void)c, (void)wish;
    *count = most > 0 && is_supported(desc, a, b, d);
    if (*count) memset(found, 0, sizeof *found);
    return *count ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

struct multiplied {
    struct cublasLtMatmulDesc desc;
    struct cublasLtMatrixLayout a, b, d;
    const void *a_at, *b_at, *c_at;
    void *d_at;
};

static float number(const void *at, enum dtype type, int64_t i)
{
    float x;
    dtype_convert(&x, DT_F32, (const char *)at + i * (int64_t)dtype_size(type), type, 1);
    return x;
}

/* [lines][k] as floats: the lines are rows of A, or columns of B. */
static float *lines_of(const struct cublasLtMatrixLayout *m, const void *at, bool turned)
{
    int64_t lines = turned ? m->cols : m->rows, k = turned ? m->rows : m->cols;
    enum dtype type = dtype_of(m->type);
    float *out = malloc((size_t)(lines * k) * sizeof *out + 1);
    if (!out) abort();
    for (int64_t i = 0; i < lines; i++)
        for (int64_t j = 0; j < k; j++)
            out[i * k + j] = number(at, type, turned ? i * m->step + j : j * m->step + i);
    return out;
}

static double scale(const struct cublasLtMatmulDesc *desc, int pointer, int mode, int64_t line)
{
    const float *at = (const float *)(uintptr_t)desc->attr[pointer];
    return !at ? 1 : at[desc->attr[mode] == 3 ? line : 0];
}

static void multiply(const void *arg)
{
    const struct multiplied *p = arg;
    const struct cublasLtMatmulDesc *desc = &p->desc;
    bool ta = desc->attr[CUBLASLT_MATMUL_DESC_TRANSA], tb = desc->attr[CUBLASLT_MATMUL_DESC_TRANSB];
    enum dtype type = dtype_of(p->d.type);
    const void *bias = (const void *)(uintptr_t)desc->attr[CUBLASLT_MATMUL_DESC_BIAS_POINTER];
    float *a = lines_of(&p->a, p->a_at, ta), *b = lines_of(&p->b, p->b_at, !tb);
    int64_t k = ta ? p->a.rows : p->a.cols;
    for (int64_t j = 0; j < p->d.cols; j++)
        for (int64_t i = 0; i < p->d.rows; i++) {
            double sum = 0;
            for (int64_t n = 0; n < k; n++) sum += (double)a[i * k + n] * (double)b[j * k + n];
            sum *= scale(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, i) *
                   scale(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, j);
            if (p->c_at) sum += number(p->c_at, type, j * p->d.step + i);
            if (bias) sum += number(bias, type, i);
            float rounded = (float)sum;
            dtype_convert((char *)p->d_at + (j * p->d.step + i) * (int64_t)dtype_size(type), type, &rounded,
                          DT_F32, 1);
        }
    free(a);
    free(b);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algo, void *work, size_t work_bytes,
                              cudaStream_t stream)
{
    (void)handle, (void)alpha, (void)c_layout, (void)algo, (void)work, (void)work_bytes, (void)stream;
    if (!is_supported(desc, a_layout, b_layout, d_layout)) return CUBLAS_STATUS_NOT_SUPPORTED;
    struct multiplied m = {*desc, *a_layout, *b_layout, *d_layout, a, b, *(const float *)beta != 0 ? c : NULL,
                           d};
    cuda_cpu_queue(multiply, &m, sizeof m);
    return CUBLAS_STATUS_SUCCESS;
}

/* --- found by name --------------------------------------------------------------------------------------------- */

/* cuda_api.c and cudnn_api.c are compiled with these for dlopen and dlsym: cuBLASLt is here, and no other library. */
void *cuda_cpu_dlopen(const char *name, int flags);
void *cuda_cpu_dlsym(void *library, const char *name);
int cuda_cpu_dlclose(void *library);

void *cuda_cpu_dlopen(const char *name, int flags)
{
    static int library;
    (void)flags;
    return strstr(name, "cublasLt") ? &library : NULL;
}

void *cuda_cpu_dlsym(void *library, const char *name)
{
#define FUNCTION(name)                                                                                       \
    {                                                                                                        \
#name, (void *)(uintptr_t)name                                                                       \
    }
    static const struct {
        const char *name;
        void *function;
    } functions[] = {FUNCTION(cublasLtCreate),
                     FUNCTION(cublasLtDestroy),
                     FUNCTION(cublasLtGetVersion),
                     FUNCTION(cublasLtGetStatusString),
                     FUNCTION(cublasLtMatmul),
                     FUNCTION(cublasLtMatmulDescCreate),
                     FUNCTION(cublasLtMatmulDescDestroy),
                     FUNCTION(cublasLtMatmulDescSetAttribute),
                     FUNCTION(cublasLtMatrixLayoutCreate),
                     FUNCTION(cublasLtMatrixLayoutDestroy),
                     FUNCTION(cublasLtMatmulPreferenceCreate),
                     FUNCTION(cublasLtMatmulPreferenceDestroy),
                     FUNCTION(cublasLtMatmulPreferenceSetAttribute),
                     FUNCTION(cublasLtMatmulAlgoGetHeuristic)};
    (void)library;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(functions[i].name, name)) return functions[i].function;
    return NULL;
}

int cuda_cpu_dlclose(void *library)
{
    (void)library;
    return 0;
}
