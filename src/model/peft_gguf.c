/* peft_gguf.c - a PEFT folder as a GGUF adapter. See peft.h.
 *
 * Matrices keep their element types. Rows of B lie as the weight's rows do in GGUF files, and an embedding's A by tokens. The file has
 * one alpha, and readers divide it by each module's rank: a module with another scale has the difference in its B. */
#include "base/file.h"
#include "model/gguf_weights.h"
#include "model/peft.h"
#include "model/weights_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GGUF_VERSION = 3, GGUF_FLOAT32 = 6, GGUF_STRING = 8, GGUF_ALIGNMENT = 32 };

struct gguf_out {
    const char *to;
    const struct model_spec *spec;
    struct adapter_options options;
    double alpha;
    struct weights_files files;
    struct bump bump;
    struct strbuf head;
    struct file_atomic file;
    uint64_t at; /* bytes written */
};

/* One matrix. */
struct gguf_matrix {
    const struct safetensor *t;
    char name[128]; /* in the file */
    bool second;    /* B */
    double factor;  /* of its elements */
    struct gguf_lines lines;
};

/* --- names --------------------------------------------------------------------------------------------------------- */

/* The module of a tensor's name, without prefix and end. False: the tensor is not a matrix of LoRA's. */
static bool split_key(const char *key, char *module, size_t size, bool *second)
{
    static const char *const ends[] = {".lora_A.weight", ".lora_embedding_A", ".lora_B.weight",
                                       ".lora_embedding_B"};
    size_t start = sizeof ADAPTER_PREFIX - 1, n = strlen(key);
    if (strncmp(key, ADAPTER_PREFIX, start)) return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t k = strlen(ends[i]);
        if (n < start + k || strcmp(key + n - k, ends[i])) continue;
        snprintf(module, size, "%.*s", (int)(n - k - start), key + start);
        *second = i >= 2;
        return true;
    }
    return false;
}

static enum plim_status describe(struct gguf_out *g, size_t index, struct gguf_matrix *m,
                                 struct plim_error *err)
{
    const struct safetensor *t = &g->files.tensors[index];
    char module[256];
    *m = (struct gguf_matrix){.t = t, .factor = 1};
    if (!split_key(t->name, module, sizeof module, &m->second) || t->ndim != 2 || !dtype_is_float(t->type) ||
        !gguf_adapter_name(g->spec, module, m->second, m->name, sizeof m->name, &m->lines))
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "%s: tensor '%.160s' has no place in a GGUF adapter, which holds LoRA matrices alone; "
            "export with --merge",
            t->path, t->name);
    if (m->lines.heads && t->dim[0] % (2 * m->lines.heads))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: tensor '%.160s': %lld rows are not whole pairs of %d heads", t->path, t->name,
                         (long long)t->dim[0], m->lines.heads);
    if (!m->second) return PLIM_OK;
    enum plim_status status = adapter_scale(&g->options, module, t->dim[1], &m->factor, err);
    m->factor *= (double)t->dim[1] / g->alpha;
    return status;
}

/* --- the file ------------------------------------------------------------------------------------------------------ */

static void put_number(struct strbuf *b, uint64_t value, size_t bytes) { strbuf_addn(b, &value, bytes); }

static void put_text(struct strbuf *b, const char *text)
{
    put_number(b, strlen(text), 8);
    strbuf_add(b, text);
}

static void put_pair(struct strbuf *b, const char *key, const char *value)
{
    put_text(b, key);
    put_number(b, GGUF_STRING, 4);
    put_text(b, value);
}

static void put_metadata(struct gguf_out *g)
{
    float alpha = (float)g->alpha;
    strbuf_add(&g->head, "GGUF");
    put_number(&g->head, GGUF_VERSION, 4);
    put_number(&g->head, g->files.count, 8);
    put_number(&g->head, 4, 8);
    put_pair(&g->head, "general.architecture", gguf_architecture(g->spec));
    put_pair(&g->head, "general.type", "adapter");
    put_pair(&g->head, "adapter.type", "lora");
    put_text(&g->head, "adapter.lora.alpha");
    put_number(&g->head, GGUF_FLOAT32, 4);
    strbuf_addn(&g->head, &alpha, sizeof alpha);
}

static uint64_t padded(uint64_t bytes)
{
    return (bytes + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT;
}

static enum plim_status put_matrices(struct gguf_out *g, struct plim_error *err)
{
    uint64_t at = 0;
    for (size_t i = 0; i < g->files.count; i++) {
        struct gguf_matrix m;
        enum plim_status status = describe(g, i, &m, err);
        if (status != PLIM_OK) return status;
        put_text(&g->head, m.name);
        put_number(&g->head, 2, 4);
        put_number(&g->head, (uint64_t)m.t->dim[m.lines.transposed ? 0 : 1], 8);
        put_number(&g->head, (uint64_t)m.t->dim[m.lines.transposed ? 1 : 0], 8);
        put_number(&g->head, m.t->type == DT_F32 ? 0 : m.t->type == DT_F16 ? 1 : 30, 4);
        put_number(&g->head, at, 8);
        at += padded(m.t->bytes);
    }
    static const char zeros[GGUF_ALIGNMENT];
    strbuf_addn(&g->head, zeros, padded(g->head.len) - g->head.len);
    return strbuf_status(&g->head, err);
}

/* Padding between tensors is a hole in the file: zeros. */
static enum plim_status write_bytes(struct gguf_out *g, const void *data, uint64_t n, struct plim_error *err)
{
    enum plim_status status = file_pwrite_full(g->file.fd, data, n, g->at, g->to, err);
    g->at += padded(n);
    return status;
}

static enum plim_status keep(void *arg, int64_t first, const void *elements, int64_t n, struct plim_error *)
{
    memcpy((float *)arg + first, elements, (size_t)n * sizeof(float));
    return PLIM_OK;
}

/* Element [row,column] of the matrix goes to its place in the file. */
static void lay(const struct gguf_matrix *m, const float *from, float *to)
{
    int64_t rows = m->t->dim[0], width = m->t->dim[1], size = m->lines.heads ? rows / m->lines.heads : 0;
    for (int64_t r = 0; r < rows; r++) {
        int64_t row = size ? gguf_paired_row(r, size) : r;
        for (int64_t c = 0; c < width; c++)
            to[m->lines.transposed ? c * rows + r : row * width + c] =
                m->factor == 1 ? from[r * width + c] : (float)(m->factor * (double)from[r * width + c]);
    }
}

static enum plim_status write_matrix(struct gguf_out *g, size_t index, struct plim_error *err)
{
    struct gguf_matrix m;
    enum plim_status status = describe(g, index, &m, err);
    if (status != PLIM_OK) return status;
    float *values = malloc((size_t)m.t->count * 2 * sizeof *values + 1), *laid = values + m.t->count;
    if (!values) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", g->to);
    status = weights_files_read(&g->files, m.t, DT_F32, keep, values, err);
    if (status == PLIM_OK) {
        lay(&m, values, laid);
        if (m.t->type != DT_F32) dtype_convert(values, m.t->type, laid, DT_F32, m.t->count);
        status = write_bytes(g, m.t->type == DT_F32 ? laid : values, m.t->bytes, err);
    }
    free(values);
    return status;
}

static enum plim_status write_file(struct gguf_out *g, struct plim_error *err)
{
    enum plim_status status = file_atomic_begin(&g->file, g->to, err);
    if (status != PLIM_OK) return status;
    status = write_bytes(g, g->head.data, g->head.len, err);
    for (size_t i = 0; i < g->files.count && status == PLIM_OK; i++) status = write_matrix(g, i, err);
    if (status == PLIM_OK) return file_atomic_commit(&g->file, err);
    file_atomic_abandon(&g->file);
    return status;
}

enum plim_status peft_write_gguf(const char *dir, const struct model_spec *spec, const char *to,
                                 struct plim_error *err)
{
    struct gguf_out g = {.to = to, .spec = spec};
    char path[4200];
    snprintf(path, sizeof path, "%s/" PEFT_WEIGHTS, dir);
    if (!gguf_architecture(spec))
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "%s: GGUF adapters of %s are not written; export a PEFT folder", to,
                         model_architecture_name(spec->arch));
    enum plim_status status = peft_read_config(dir, &g.bump, &g.options, err);
    if (status == PLIM_OK) status = weights_files_open(path, &g.files, err);
    if (status == PLIM_OK) {
        g.alpha = g.options.alpha * (g.options.rslora ? sqrt((double)g.options.r) : 1);
        put_metadata(&g);
        status = put_matrices(&g, err);
        if (status == PLIM_OK) status = write_file(&g, err);
        weights_files_close(&g.files);
    }
    strbuf_release(&g.head);
    bump_free(&g.bump);
    return status;
}
