/* peft_merge.c - an adapter folded into the weights of its model. See peft.h.
 *
 * W + s B A is made a block of rows at a time; with DoRA each output's row gets the length of its magnitude. Where files have W
 * as [in,out] (GPT-2), norms of columns need a first pass over it. */
#include "base/file.h"
#include "model/arch.h"
#include "model/gguf_weights.h"
#include "model/peft.h"
#include "model/weights_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct peft {
    const char *dir;
    const struct model_spec *spec;
    struct adapter_options options;
    struct weights_files files;
    bool *used;
    struct bump bump;
};

/* One module's matrices. */
struct folding {
    int64_t r, in, out;
    float *a, *b, *magnitude; /* [r,in], [out,r]; NULL without DoRA */
    double scale;
    bool turned; /* the weight is [in,out] */
};

/* A GGUF file has the adapter's scale and nothing else of a configuration. */
static enum plim_status open_gguf(struct peft *p, struct plim_error *err)
{
    p->options = (struct adapter_options){.type = ADAPTER_LORA, .path = p->dir};
    p->files.path = p->dir;
    enum plim_status status = gguf_adapter_open(p->dir, p->spec, &p->options.alpha, &p->files.gguf, err);
    if (status == PLIM_OK) p->files.tensors = gguf_weights_list(p->files.gguf, &p->files.count);
    return status;
}

static enum plim_status open_folder(struct peft *p, struct plim_error *err)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/" PEFT_WEIGHTS, p->dir);
    enum plim_status status = peft_read_config(p->dir, &p->bump, &p->options, err);
    if (status == PLIM_OK && !file_exists(path))
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: is missing; point at a folder that PEFT wrote", path);
    return status == PLIM_OK ? weights_files_open(path, &p->files, err) : status;
}

enum plim_status peft_open(const char *dir, const struct model_spec *spec, struct peft **out,
                           struct plim_error *err)
{
    struct peft *p = *out = calloc(1, sizeof *p);
    if (!p) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an adapter was opened");
    p->dir = dir, p->spec = spec;
    enum plim_status status = gguf_is(dir) ? open_gguf(p, err) : open_folder(p, err);
    if (status == PLIM_OK && !(p->used = calloc(p->files.count + 1, sizeof *p->used)))
        status = plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", dir);
    for (size_t i = 0; i < p->files.count && status == PLIM_OK; i++)
        if (strncmp(p->files.tensors[i].name, ADAPTER_PREFIX, sizeof ADAPTER_PREFIX - 1))
            status = plim_fail(err, PLIM_BAD_INPUT, "%s: tensor '%.160s' is not an adapter's: %s",
                               p->files.tensors[i].path, p->files.tensors[i].name,
                               p->files.gguf ? "names are like blk.0.attn_q.weight.lora_a"
                                             : "names begin with " ADAPTER_PREFIX);
    if (status == PLIM_OK) return PLIM_OK;
    peft_close(p);
    *out = NULL;
    return status;
}

void peft_close(struct peft *p)
{
    if (!p) return;
    weights_files_close(&p->files);
    bump_free(&p->bump);
    free(p->used);
    free(p);
}

static const struct safetensor *find(struct peft *p, const char *module, const char *end)
{
    char name[320];
    snprintf(name, sizeof name, "%s%s%s", ADAPTER_PREFIX, module, end);
    return weights_files_find(&p->files, name);
}

static enum plim_status keep(void *arg, int64_t first, const void *elements, int64_t n, struct plim_error *)
{
    memcpy((float *)arg + first, elements, (size_t)n * sizeof(float));
    return PLIM_OK;
}

static enum plim_status read_floats(struct peft *p, const struct safetensor *t, float **out,
                                    struct plim_error *err)
{
    *out = malloc((size_t)(t->count + 1) * sizeof **out);
    p->used[t - p->files.tensors] = true;
    if (!*out) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", p->dir);
    enum plim_status status = weights_files_read(&p->files, t, DT_F32, keep, *out, err);
    int64_t bad = status == PLIM_OK ? dtype_find_nonfinite(DT_F32, *out, t->count) : -1;
    if (bad >= 0)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: tensor '%.160s': element %lld is not finite", t->path,
                         t->name, (long long)bad);
    return status;
}

static enum plim_status refuse_shape(const struct safetensor *t, const char *name, int ndim,
                                     const int64_t *dim, struct plim_error *err)
{
    char have[96], want[96];
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: tensor '%.160s' is %s, but %s of this model is %s: the adapter is of another model",
                     t->path, t->name, safetensors_shape_text(t->ndim, t->dim, have, sizeof have), name,
                     safetensors_shape_text(ndim, dim, want, sizeof want));
}

/* --- whole tensors: modules_to_save and biases ----------------------------------------------------------------- */

static enum plim_status replace(struct peft *p, const struct safetensor *t, const char *name, int ndim,
                                const int64_t *dim, const struct peft_io *io, struct plim_error *err)
{
    float *values = NULL;
    bool same = t->ndim == ndim;
    for (int i = 0; i < ndim && same; i++) same = t->dim[i] == dim[i];
    if (!same) return refuse_shape(t, name, ndim, dim, err);
    enum plim_status status = read_floats(p, t, &values, err);
    if (status == PLIM_OK) status = io->put(io->arg, 0, values, t->count, err);
    free(values);
    return status;
}

/* --- products --------------------------------------------------------------------------------------------------- */

/* Adds s B A to elements of one line of the weight: a row [in] of output `line`, or a column's worth [out] of input `line`. */
static void add_line(const struct folding *f, int64_t line, float *w)
{
    int64_t n = f->turned ? f->out : f->in;
    for (int64_t k = 0; k < f->r; k++) {
        const float *along = f->turned ? f->b + k : f->a + k * f->in;
        int64_t step = f->turned ? f->r : 1;
        double by = f->scale * (double)(f->turned ? f->a[k * f->in + line] : f->b[line * f->r + k]);
        for (int64_t i = 0; i < n; i++) w[i] = (float)((double)w[i] + by * (double)along[i * step]);
    }
}

/* Norms of columns, for weights that lie the other way. */
static enum plim_status column_factors(const struct folding *f, const struct peft_io *io, float *line,
                                       double *factor, struct plim_error *err)
{
    memset(factor, 0, (size_t)f->out * sizeof *factor);
    for (int64_t i = 0; i < f->in; i++) {
        enum plim_status status = io->get(io->arg, i * f->out, line, f->out, err);
        if (status != PLIM_OK) return status;
        add_line(f, i, line);
        for (int64_t o = 0; o < f->out; o++) factor[o] += (double)line[o] * (double)line[o];
    }
    for (int64_t o = 0; o < f->out; o++) factor[o] = (double)f->magnitude[o] / sqrt(factor[o]);
    return PLIM_OK;
}

static double row_factor(const struct folding *f, int64_t row, const float *line)
{
    double sum = 0;
    for (int64_t i = 0; i < f->in; i++) sum += (double)line[i] * (double)line[i];
    return (double)f->magnitude[row] / sqrt(sum);
}

static enum plim_status fold(const struct folding *f, const struct peft_io *io, struct plim_error *err)
{
    int64_t lines = f->turned ? f->in : f->out, width = f->turned ? f->out : f->in;
    float *line = malloc((size_t)width * sizeof *line);
    double *factor = f->magnitude && f->turned ? malloc((size_t)f->out * sizeof *factor) : NULL;
    enum plim_status status = PLIM_OK;
    if (!line || (f->magnitude && f->turned && !factor))
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while an adapter was merged");
    if (status == PLIM_OK && factor) status = column_factors(f, io, line, factor, err);
    for (int64_t i = 0; i < lines && status == PLIM_OK; i++) {
        status = io->get(io->arg, i * width, line, width, err);
        if (status != PLIM_OK) break;
        add_line(f, i, line);
        double by = f->magnitude && !factor ? row_factor(f, i, line) : 1;
        for (int64_t k = 0; k < width && f->magnitude; k++)
            line[k] = (float)((double)line[k] * (factor ? factor[k] : by));
        status = io->put(io->arg, i * width, line, width, err);
    }
    free(line), free(factor);
    return status;
}

/* GPT-2's Conv1D has its weights as [in,out]. */
static bool lies_turned(const struct model_spec *spec, const char *name)
{
    return !strcmp(spec->arch->name, "gpt2") && strstr(name, ".c_");
}

/* A and B of a module, whose weight has this shape. */
static enum plim_status read_factors(struct peft *p, const char *module, const char *name, int ndim,
                                     const int64_t *dim, struct folding *f, struct plim_error *err)
{
    const struct safetensor *a = find(p, module, ".lora_A.weight"), *b = find(p, module, ".lora_B.weight");
    if (!a || !b)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: %s has only one of lora_A and lora_B; fetch it again",
                         p->dir, module);
    f->r = a->ndim == 2 ? a->dim[0] : 0;
    f->in = ndim == 2 ? dim[f->turned ? 0 : 1] : 0, f->out = ndim == 2 ? dim[f->turned ? 1 : 0] : 0;
    if (ndim != 2 || a->ndim != 2 || a->dim[1] != f->in) return refuse_shape(a, name, ndim, dim, err);
    if (b->ndim != 2 || b->dim[0] != f->out || b->dim[1] != f->r)
        return refuse_shape(b, name, ndim, dim, err);
    enum plim_status status = adapter_scale(&p->options, module, f->r, &f->scale, err);
    if (status == PLIM_OK) status = read_floats(p, a, &f->a, err);
    if (status == PLIM_OK) status = read_floats(p, b, &f->b, err);
    return status;
}

/* DoRA's length of each output; NULL without it. */
static enum plim_status read_magnitude(struct peft *p, const struct safetensor *m, const char *module,
                                       const char *name, int ndim, const int64_t *dim, struct folding *f,
                                       struct plim_error *err)
{
    if (!m && p->options.dora)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: %s has no lora_magnitude_vector, which use_dora needs",
                         p->dir, module);
    if (m && m->count != f->out) return refuse_shape(m, name, ndim, dim, err);
    return m ? read_floats(p, m, &f->magnitude, err) : PLIM_OK;
}

static enum plim_status fold_module(struct peft *p, const char *module, const char *name, int ndim,
                                    const int64_t *dim, const struct peft_io *io, struct plim_error *err)
{
    const struct safetensor *m = find(p, module, ".lora_magnitude_vector");
    struct folding f = {.turned = lies_turned(p->spec, name)};
    enum plim_status status = read_factors(p, module, name, ndim, dim, &f, err);
    if (status == PLIM_OK) status = read_magnitude(p, m, module, name, ndim, dim, &f, err);
    if (status == PLIM_OK) status = fold(&f, io, err);
    free(f.a), free(f.b), free(f.magnitude);
    return status;
}

const struct adapter_options *peft_options(const struct peft *p) { return &p->options; }

enum plim_status peft_factors(struct peft *p, const char *module, int64_t in, int64_t out,
                              struct peft_factors *factors, struct plim_error *err)
{
    struct folding f = {0};
    bool any = find(p, module, ".lora_A.weight") || find(p, module, ".lora_B.weight");
    enum plim_status status =
        any ? read_factors(p, module, module, 2, (int64_t[]){out, in}, &f, err) : PLIM_OK;
    *factors = (struct peft_factors){f.r, f.a, f.b, f.scale};
    if (status != PLIM_OK) peft_factors_release(factors);
    return status;
}

int64_t peft_rank(struct peft *p, const char *module)
{
    const struct safetensor *a = find(p, module, ".lora_A.weight"), *b = find(p, module, ".lora_B.weight");
    if (!a || !b || a->ndim != 2) return 0;
    p->used[a - p->files.tensors] = p->used[b - p->files.tensors] = true;
    return a->dim[0];
}

void peft_factors_release(struct peft_factors *factors)
{
    free(factors->a), free(factors->b);
    *factors = (struct peft_factors){0};
}

/* The embedding's matrices: A [r,V], B [C,r]. In the weight [V,C] they are a product that lies the other way. */
static enum plim_status fold_embedding(struct peft *p, const char *module, const char *name, int ndim,
                                       const int64_t *dim, const struct safetensor *a,
                                       const struct safetensor *b, const struct peft_io *io,
                                       struct plim_error *err)
{
    const struct safetensor *m = find(p, module, ".lora_magnitude_vector");
    struct folding f = {.turned = true, .r = a->ndim == 2 ? a->dim[0] : 0};
    if (ndim != 2 || a->ndim != 2 || a->dim[1] != dim[0]) return refuse_shape(a, name, ndim, dim, err);
    if (b->ndim != 2 || b->dim[0] != dim[1] || b->dim[1] != f.r) return refuse_shape(b, name, ndim, dim, err);
    f.in = dim[0], f.out = dim[1];
    enum plim_status status = adapter_scale(&p->options, module, f.r, &f.scale, err);
    if (status == PLIM_OK) status = read_floats(p, a, &f.a, err);
    if (status == PLIM_OK) status = read_floats(p, b, &f.b, err);
    if (status == PLIM_OK) status = read_magnitude(p, m, module, name, ndim, dim, &f, err);
    if (status == PLIM_OK) status = fold(&f, io, err);
    free(f.a), free(f.b), free(f.magnitude);
    return status;
}

/* --- one weight ---------------------------------------------------------------------------------------------------- */

/* "a.b.weight": module "a.b", end ".weight". */
static const char *split_name(const char *name, char *module, size_t size)
{
    const char *dot = strrchr(name, '.');
    snprintf(module, size, "%.*s", dot ? (int)(dot - name) : (int)strlen(name), name);
    return dot ? dot : "";
}

enum plim_status peft_merge(struct peft *p, const char *name, int ndim, const int64_t *dim,
                            const struct peft_io *io, bool *changed, struct plim_error *err)
{
    char module[256], base[32];
    const char *end = split_name(name, module, sizeof module);
    const struct safetensor *a = find(p, module, ".lora_A.weight"), *b = find(p, module, ".lora_B.weight"),
                            *ea = find(p, module, ".lora_embedding_A"),
                            *eb = find(p, module, ".lora_embedding_B"), *whole = find(p, module, end);
    snprintf(base, sizeof base, ".base_layer%.16s", end);
    if (!whole) whole = find(p, module, base);
    bool weight = !strcmp(end, ".weight");
    *changed = true;
    if (weight && (a || b)) {
        if (whole) p->used[whole - p->files.tensors] = true; /* the base's own, saved beside */
        return fold_module(p, module, name, ndim, dim, io, err);
    }
    if (weight && ea && eb) {
        if (whole) p->used[whole - p->files.tensors] = true;
        return fold_embedding(p, module, name, ndim, dim, ea, eb, io, err);
    }
    *changed = whole != NULL;
    return whole ? replace(p, whole, name, ndim, dim, io, err) : PLIM_OK;
}

const char *peft_unused(const struct peft *p, size_t *count)
{
    const char *first = NULL;
    *count = 0;
    for (size_t i = p->files.count; i-- > 0;)
        if (!p->used[i]) ++*count, first = p->files.tensors[i].name;
    return first;
}

enum plim_status peft_check_used(const struct peft *p, struct plim_error *err)
{
    size_t left;
    const char *first = peft_unused(p, &left);
    if (!first) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: tensor '%.160s' has no module in this model (%zu of %zu tensors have none): the "
                     "adapter is of another model",
                     p->dir, first, left, p->files.count);
}
