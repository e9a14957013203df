/* quantised_folder.c - see quantised_folder.h. */
#include "model/quantised_folder.h"
#include "base/json.h"
#include "model/quantised_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct quantised_folder {
    const struct safetensors *set;
    struct quant_config config;
    struct quant_modules modules;
    struct safetensor *tensors;
    size_t count;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct safetensor *)a)->name, ((const struct safetensor *)b)->name);
}

/* Weights take the place of their parts. */
static enum plim_status list_tensors(struct quantised_folder *f, struct plim_error *err)
{
    f->tensors = malloc((f->set->count + f->modules.count + 1) * sizeof *f->tensors);
    if (!f->tensors) return plim_fail(err, PLIM_NO_MEMORY, "weights: out of memory");
    for (size_t i = 0; i < f->set->count; i++)
        if (!f->modules.hidden[i]) f->tensors[f->count++] = f->set->tensors[i];
    for (size_t i = 0; i < f->modules.count; i++) f->tensors[f->count++] = f->modules.list[i].weight;
    if (f->count) qsort(f->tensors, f->count, sizeof *f->tensors, by_name);
    return PLIM_OK;
}

static enum dtype dtype_of(const struct node *root)
{
    const char *name = node_string(node_get(root, "torch_dtype"), node_string(node_get(root, "dtype"), ""));
    for (enum dtype d = 0; d < DT_COUNT; d++)
        if (dtype_is_compute(d) && !strcmp(name, dtype_torch(d))) return d;
    return DT_COUNT;
}

static enum plim_status open_quantised(const struct node *root, const char *path,
                                       const struct safetensors *set, struct quantised_folder **out,
                                       struct plim_error *err)
{
    struct quantised_folder *f = calloc(1, sizeof *f);
    if (!f) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", path);
    f->set = set;
    enum plim_status status = quant_config_read(node_get(root, "quantization_config"), path, &f->config, err);
    if (status == PLIM_OK) status = quant_modules_find(set, &f->config, dtype_of(root), &f->modules, err);
    if (status == PLIM_OK) status = list_tensors(f, err);
    if (status == PLIM_OK)
        *out = f;
    else
        quantised_folder_close(f);
    return status;
}

/* The folder's config.json if it has a quantization_config; *out is NULL if not. */
static enum plim_status load_config(const char *dir, char *path, size_t size, struct doc **out,
                                    struct plim_error *err)
{
    *out = NULL;
    if ((size_t)snprintf(path, size, "%s/config.json", dir) >= size || !file_exists(path)) return PLIM_OK;
    enum plim_status status = json_load(path, out, err);
    const struct node *config = status == PLIM_OK ? node_get(&(*out)->root, "quantization_config") : NULL;
    if (status != PLIM_OK || (config && config->kind != NODE_NULL)) return status;
    doc_free(*out);
    *out = NULL;
    return PLIM_OK;
}

bool quantised_folder_is(const char *dir)
{
    char path[4096];
    struct doc *doc;
    if (load_config(dir, path, sizeof path, &doc, NULL) != PLIM_OK || !doc) return false;
    doc_free(doc);
    return true;
}

enum plim_status quantised_folder_open(const char *dir, const struct safetensors *set,
                                       struct quantised_folder **out, struct plim_error *err)
{
    char path[4096];
    struct doc *doc;
    *out = NULL;
    enum plim_status status = load_config(dir, path, sizeof path, &doc, err);
    if (status != PLIM_OK || !doc) return status;
    status = open_quantised(&doc->root, path, set, out, err);
    doc_free(doc);
    return status;
}

void quantised_folder_close(struct quantised_folder *f)
{
    if (!f) return;
    quant_modules_release(&f->modules);
    free(f->tensors);
    free(f);
}

const struct safetensor *quantised_folder_list(const struct quantised_folder *f, size_t *count)
{
    *count = f->count;
    return f->tensors;
}

static int by_weight(const void *name, const void *module)
{
    return strcmp(name, ((const struct quant_module *)module)->weight.name);
}

static const struct quant_module *module_of(const struct quantised_folder *f, const struct safetensor *t)
{
    const struct quant_modules *m = &f->modules;
    return m->count ? bsearch(t->name, m->list, m->count, sizeof *m->list, by_weight) : NULL;
}

bool quantised_folder_has(const struct quantised_folder *f, const struct safetensor *t, uint64_t *stored)
{
    const struct quant_module *m = module_of(f, t);
    if (m) *stored = m->stored;
    return m != NULL;
}

const char *quantised_folder_method(const struct quantised_folder *f)
{
    return quant_method_name(f->config.method);
}

/* Rows of a module, some at a time, in order. */
typedef enum plim_status each_row(void *arg, const struct quant_rows *rows, int64_t row,
                                  struct plim_error *err);

static enum plim_status for_rows(const struct quant_module *m, int64_t first, int64_t n, each_row *each,
                                 void *arg, struct plim_error *err)
{
    int64_t most = quant_rows_most(m);
    enum plim_status status = PLIM_OK;
    for (int64_t at = first; at < first + n && status == PLIM_OK; at += most) {
        struct quant_rows rows;
        int64_t end = at + most < first + n ? at + most : first + n;
        status = quant_rows_open(&rows, m, at, end - at, err);
        if (status != PLIM_OK) break;
        for (int64_t row = at; row < end && status == PLIM_OK; row++) status = each(arg, &rows, row, err);
        quant_rows_close(&rows);
    }
    return status;
}

struct passing {
    safetensors_sink *sink;
    void *arg;
    enum dtype type;
    float *row;
    void *out;
};

static enum plim_status pass_row(void *arg, const struct quant_rows *rows, int64_t row,
                                 struct plim_error *err)
{
    const struct passing *p = arg;
    int64_t columns = rows->m->columns;
    quant_rows_read(rows, row, p->row);
    dtype_convert(p->out, p->type, p->row, DT_F32, columns);
    return p->sink(p->arg, row * columns, p->out, columns, err);
}

enum plim_status quantised_folder_read(const struct quantised_folder *f, const struct safetensor *t,
                                       enum dtype type, safetensors_sink *sink, void *arg,
                                       struct plim_error *err)
{
    const struct quant_module *m = module_of(f, t);
    if (!m) return safetensors_read(f->set, t, type, sink, arg, err);
    size_t columns = (size_t)m->columns;
    char *memory = malloc(columns * (sizeof(float) + sizeof(double)));
    if (!memory) return plim_fail(err, PLIM_NO_MEMORY, "weights: out of memory");
    struct passing p = {sink, arg, type, (float *)(void *)memory, memory + columns * sizeof(float)};
    enum plim_status status = for_rows(m, 0, m->rows, pass_row, &p, err);
    free(memory);
    return status;
}

struct placing {
    int64_t first, row_bytes;
    enum dtype type; /* DT_COUNT: blocks */
    float *row;
    char *out;
};

static enum plim_status place_row(void *arg, const struct quant_rows *rows, int64_t row, struct plim_error *)
{
    const struct placing *p = arg;
    char *to = p->out + (row - p->first) * p->row_bytes;
    if (p->type == DT_COUNT) {
        quant_rows_blocks(rows, row, (unsigned char *)to);
        return PLIM_OK;
    }
    quant_rows_read(rows, row, p->row);
    dtype_convert(to, p->type, p->row, DT_F32, rows->m->columns);
    return PLIM_OK;
}

enum plim_status quantised_folder_rows(const struct quantised_folder *f, const struct safetensor *t,
                                       int64_t first, int64_t n, void *out, struct plim_error *err)
{
    const struct quant_module *m = module_of(f, t);
    if (!m) return plim_fail(err, PLIM_UNSUPPORTED, "%s: tensor '%.160s' is not quantised", t->path, t->name);
    bool blocks = t->bytes < (uint64_t)t->count * dtype_size(t->type);
    struct placing p = {first, (int64_t)(t->bytes / (uint64_t)m->rows), blocks ? DT_COUNT : t->type, NULL,
                        out};
    p.row = malloc((size_t)m->columns * sizeof *p.row);
    if (!p.row) return plim_fail(err, PLIM_NO_MEMORY, "weights: out of memory");
    enum plim_status status = for_rows(m, first, n, place_row, &p, err);
    free(p.row);
    return status;
}

bool quantised_folder_is_f8(const struct quantised_folder *f, const struct safetensor *t)
{
    const struct quant_module *m = module_of(f, t);
    return m && quant_rows_are_f8(m);
}

struct keeping {
    int64_t first;
    uint8_t *codes;
    float *scales;
};

static enum plim_status keep_row(void *arg, const struct quant_rows *rows, int64_t row, struct plim_error *)
{
    const struct keeping *k = arg;
    k->scales[row - k->first] = quant_rows_f8(rows, row, k->codes + (row - k->first) * rows->m->columns);
    return PLIM_OK;
}

enum plim_status quantised_folder_f8_rows(const struct quantised_folder *f, const struct safetensor *t,
                                          int64_t first, int64_t n, uint8_t *codes, float *scales,
                                          struct plim_error *err)
{
    struct keeping k = {first, codes, scales};
    return for_rows(module_of(f, t), first, n, keep_row, &k, err);
}

struct cutting {
    int64_t first, n;
    float *row, *out;
};

static enum plim_status cut_row(void *arg, const struct quant_rows *rows, int64_t row, struct plim_error *)
{
    const struct cutting *c = arg;
    int64_t columns = rows->m->columns, begin = row * columns, end = begin + columns, last = c->first + c->n;
    int64_t from = begin > c->first ? begin : c->first, to = end < last ? end : last;
    quant_rows_read(rows, row, c->row);
    memcpy(c->out + (from - c->first), c->row + (from - begin), (size_t)(to - from) * sizeof *c->out);
    return PLIM_OK;
}

static enum plim_status copy_part(void *arg, int64_t first, const void *elements, int64_t n,
                                  struct plim_error *)
{
    const struct cutting *c = arg;
    memcpy(c->out + (first - c->first), elements, (size_t)n * sizeof *c->out);
    return PLIM_OK;
}

enum plim_status quantised_folder_part(const struct quantised_folder *f, const struct safetensor *t,
                                       int64_t first, int64_t n, float *out, struct plim_error *err)
{
    const struct quant_module *m = module_of(f, t);
    struct cutting c = {first, n, NULL, out};
    if (!m) return safetensors_read_part(f->set, t, DT_F32, first, n, copy_part, &c, err);
    c.row = malloc((size_t)m->columns * sizeof *c.row);
    if (!c.row) return plim_fail(err, PLIM_NO_MEMORY, "weights: out of memory");
    int64_t row = first / m->columns, end = (first + n + m->columns - 1) / m->columns;
    enum plim_status status = for_rows(m, row, end - row, cut_row, &c, err);
    free(c.row);
    return status;
}
