/* quantised_modules.c - see quantised_modules.h. One function for each layout makes a module of the tensor that gives it
 * away; the table `rules` says which tensor that is. */
#include "model/quantised_modules.h"
#include "base/json.h"
#include "tensor/blocks.h"
#include "tensor/blocks_4bit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct finding {
    const struct safetensors *set;
    const struct quant_config *config;
    enum dtype dtype;
    struct quant_modules *out;
    struct plim_error *err;
};

/* The tensor that gives a module away, and the name of the module: the first `base` bytes of the tensor's. */
struct clue {
    const struct safetensor *t;
    int base;
};

static bool is(const struct safetensor *t, const char *type) { return !strcmp(t->type_name, type); }

static bool is_float(const struct safetensor *t)
{
    return t->type != DT_COUNT && dtype_is_float(t->type) && t->type != DT_F64;
}

/* --- operands ------------------------------------------------------------------------------------------------- */

static enum plim_status bad_tensor(const struct finding *f, const struct safetensor *t, const char *what)
{
    return plim_fail(f->err, PLIM_BAD_INPUT, "%s: tensor '%.160s': %s; the folder is damaged: fetch it again",
                     t->path, t->name, what);
}

/* Marks the tensor as a part of the module. */
static const struct safetensor *take(const struct finding *f, struct quant_module *m,
                                     const struct safetensor *t)
{
    if (!t) return NULL;
    f->out->hidden[t - f->set->tensors] = true;
    m->stored += t->bytes;
    return t;
}

static const struct safetensor *find(const struct finding *f, const struct clue *c, const char *suffix)
{
    char name[512];
    snprintf(name, sizeof name, "%.*s%s", c->base, c->t->name, suffix);
    return safetensors_find(f->set, name);
}

static const struct safetensor *part(const struct finding *f, const struct clue *c, struct quant_module *m,
                                     const char *suffix)
{
    return take(f, m, find(f, c, suffix));
}

static enum plim_status need(const struct finding *f, const struct clue *c, struct quant_module *m,
                             const char *suffix, const struct safetensor **out)
{
    *out = part(f, c, m, suffix);
    if (*out) return PLIM_OK;
    return plim_fail(f->err, PLIM_BAD_INPUT,
                     "%s: tensor '%.*s%s' is missing beside '%.160s'; fetch the folder again", c->t->path,
                     c->base, c->t->name, suffix, c->t->name);
}

/* A matrix [rows,columns]; with one column also a list. */
static enum plim_status check_matrix(const struct finding *f, const struct quant_module *m,
                                     const struct safetensor *t, int64_t rows, int64_t columns)
{
    char have[96], want[96], whole[96];
    bool list = t->ndim == 1 && columns == 1 && t->dim[0] == rows;
    if (list || (t->ndim == 2 && t->dim[0] == rows && t->dim[1] == columns)) return PLIM_OK;
    return plim_fail(
        f->err, PLIM_BAD_INPUT,
        "%s: tensor '%.160s' is %s but a weight of %s needs %s; the folder is damaged, or config.json is of "
        "another",
        t->path, t->name, safetensors_shape_text(t->ndim, t->dim, have, sizeof have),
        safetensors_shape_text(2, (int64_t[]){m->rows, m->columns}, whole, sizeof whole),
        safetensors_shape_text(2, (int64_t[]){rows, columns}, want, sizeof want));
}

static enum plim_status check_type(const struct finding *f, const struct safetensor *t, const char *type)
{
    char what[64];
    snprintf(what, sizeof what, "its type is %.12s, not %s", t->type_name, type);
    return is(t, type) ? PLIM_OK : bad_tensor(f, t, what);
}

/* Numbers that quantised_rows.c reads. */
static enum plim_status check_scales(const struct finding *f, const struct safetensor *t)
{
    bool small = is(t, "F8_E4M3") || is(t, "F8_E8M0") || is(t, "U8");
    return small || is_float(t) ? PLIM_OK : bad_tensor(f, t, "its type is none that scales have");
}

/* The weight's own shape is the last `ndim` sizes; rows of several experts follow each other. */
static void set_shape(struct quant_module *m, int ndim, const int64_t *dim)
{
    m->weight.ndim = ndim, m->columns = dim[ndim - 1], m->rows = 1;
    memcpy(m->weight.dim, dim, (size_t)ndim * sizeof *dim);
    for (int i = 0; i < ndim - 1; i++) m->rows *= dim[i];
}

/* --- a grid of scales ------------------------------------------------------------------------------------------- */

static int64_t parts_of(int64_t n, int64_t each) { return (n + each - 1) / each; }

/* How many of `total` share each of `count` scales; 0: no such grid. Blocks are of 128 where they are not whole. */
static int64_t shared_by(int64_t total, int64_t count, int64_t given)
{
    if (count == 1) return total;
    if (given > 0) return parts_of(total, given) == count ? given : 0;
    int64_t each = count > 0 && total % count == 0 ? total / count : 0;
    if (each && !(each & (each - 1))) return each;
    return parts_of(total, 128) == count ? 128 : each;
}

/* Sets what rows and columns share a scale. */
static enum plim_status set_grid(const struct finding *f, struct quant_module *m)
{
    const struct safetensor *s = m->scales;
    enum plim_status status = check_scales(f, s);
    if (status != PLIM_OK) return status;
    int64_t one = m->weight.dim[m->weight.ndim - 2], matrices = one ? m->rows / one : 0;
    int64_t columns = s->ndim > 1 ? s->dim[s->ndim - 1] : 1, rows = columns ? s->count / columns : 0;
    const int64_t *block = f->config->block;
    bool whole = s->count == 1;
    m->groups = columns;
    m->columns_each = shared_by(m->columns, columns, whole ? 0 : block[1]);
    m->rows_each = whole                              ? one
                   : matrices && rows % matrices == 0 ? shared_by(one, rows / matrices, block[0])
                                                      : 0;
    if (m->rows_each && m->columns_each && (whole || rows >= matrices)) return PLIM_OK;
    if (block[0] && block[1])
        return check_matrix(f, m, s, parts_of(m->rows, block[0]), parts_of(m->columns, block[1]));
    return check_matrix(f, m, s, m->rows, 1);
}

/* --- layouts ----------------------------------------------------------------------------------------------------- */

static enum plim_status make_columns(const struct finding *f, const struct clue *c, struct quant_module *m)
{
    enum plim_status status;
    bool awq = f->config->method == QUANT_AWQ;
    int bits = m->bits = f->config->bits;
    m->codes = take(f, m, c->t), m->layout = awq ? QUANT_BY_COLUMN : QUANT_BY_STREAM;
    m->zeros_less_one = f->config->zeros_less_one;
    if ((status = check_type(f, c->t, "I32")) != PLIM_OK) return status;
    if (c->t->ndim != 2) return bad_tensor(f, c->t, "it is no matrix");
    int64_t in = awq ? c->t->dim[0] : c->t->dim[0] * 32 / bits, out = awq ? c->t->dim[1] * 8 : c->t->dim[1];
    set_shape(m, 2, (int64_t[]){out, in});
    m->columns_each = f->config->group_size > 0 ? f->config->group_size : in;
    m->groups = m->columns_each ? parts_of(in, m->columns_each) : 0;
    if ((status = need(f, c, m, ".scales", &m->scales)) != PLIM_OK) return status;
    if ((status = need(f, c, m, ".qzeros", &m->zeros)) != PLIM_OK) return status;
    if ((status = check_type(f, m->zeros, "I32")) != PLIM_OK) return status;
    if ((status = check_scales(f, m->scales)) != PLIM_OK) return status;
    if (out * bits % 32) return bad_tensor(f, c->t, "its columns are no whole words of zeros");
    if ((status = check_matrix(f, m, m->scales, m->groups, out)) != PLIM_OK) return status;
    if ((status = check_matrix(f, m, m->zeros, m->groups, out * bits / 32)) != PLIM_OK) return status;
    m->order = awq ? NULL : part(f, c, m, ".g_idx");
    if (m->order && (status = check_type(f, m->order, "I32")) != PLIM_OK) return status;
    return m->order ? check_matrix(f, m, m->order, in, 1) : PLIM_OK;
}

/* N beside N_scale_inv or N_scale. */
static enum plim_status make_scaled(const struct finding *f, const struct clue *c, struct quant_module *m)
{
    bool whole = is(c->t, "I8");
    if (c->t->ndim < 2 || c->t->ndim > 3) return PLIM_OK;
    if (!is(c->t, "F8_E4M3") && !(whole && f->config->method == QUANT_COMPRESSED)) return PLIM_OK;
    m->codes = take(f, m, c->t), m->layout = QUANT_SCALED, m->signed_codes = whole;
    set_shape(m, c->t->ndim, c->t->dim);
    enum plim_status status = PLIM_OK;
    m->scales = part(f, c, m, "_scale_inv");
    if (!m->scales)
        status =
            need(f, c, m, f->config->method == QUANT_FP8 && !find(f, c, "_scale") ? "_scale_inv" : "_scale",
                 &m->scales);
    if (status == PLIM_OK) status = set_grid(f, m);
    if (status != PLIM_OK) return status;
    m->zeros = part(f, c, m, "_zero_point");
    if (!m->zeros) return PLIM_OK;
    if ((status = check_type(f, m->zeros, "I8")) != PLIM_OK) return status;
    return m->zeros->count == m->scales->count
               ? PLIM_OK
               : bad_tensor(f, m->zeros, "it has not one zero for each scale");
}

/* X.SCB beside X.weight: the largest magnitude of each row stands for 127. */
static enum plim_status make_int8(const struct finding *f, const struct clue *c, struct quant_module *m)
{
    enum plim_status status = need(f, c, m, ".weight", &m->codes);
    if (status != PLIM_OK) return status;
    m->scales = take(f, m, c->t), m->layout = QUANT_SCALED, m->signed_codes = true,
    m->factor = 0.00787401574803149506f;
    if ((status = check_type(f, m->codes, "I8")) != PLIM_OK ||
        (status = check_type(f, m->scales, "F32")) != PLIM_OK)
        return status;
    if (m->codes->ndim != 2) return bad_tensor(f, m->codes, "it is no matrix");
    set_shape(m, 2, m->codes->dim);
    m->rows_each = 1, m->columns_each = m->columns, m->groups = 1;
    return check_matrix(f, m, m->scales, m->rows, 1);
}

/* The number of bits with which lines of so many columns take up so many words; 0: none. */
static int bits_of(int64_t columns, int64_t words)
{
    static const int likely[] = {4, 8, 2, 3, 6, 5, 1, 7};
    for (int i = 0; i < 8; i++)
        if (parts_of(columns * likely[i], 32) == words) return likely[i];
    return 0;
}

static enum plim_status make_words(const struct finding *f, const struct clue *c, struct quant_module *m)
{
    const struct safetensor *shape;
    int64_t dim[2];
    enum plim_status status = need(f, c, m, ".weight_shape", &shape);
    if (status != PLIM_OK) return status;
    if (!is(shape, "I64") || shape->count != 2) return bad_tensor(f, shape, "it is not two whole numbers");
    if ((status = safetensors_read_raw(shape, 0, 2, dim, f->err)) != PLIM_OK) return status;
    if (dim[0] < 1 || dim[1] < 1 || dim[1] > INT64_MAX / 32 / dim[0])
        return bad_tensor(f, shape, "it is no shape");
    set_shape(m, 2, dim);
    m->layout = QUANT_PACKED;
    m->bits = c->t->ndim == 2 && c->t->dim[0] == dim[0] ? bits_of(dim[1], c->t->dim[1]) : 0;
    if (!m->bits) return check_matrix(f, m, c->t, dim[0], parts_of(dim[1] * 4, 32));
    if ((status = set_grid(f, m)) != PLIM_OK) return status;
    int64_t group = f->config->group_size;
    if (m->scales->count > 1 && (m->rows_each > 1 || (group > 0 && m->columns_each != group)))
        return check_matrix(f, m, m->scales, m->rows, group > 0 ? parts_of(m->columns, group) : 1);
    m->zeros = part(f, c, m, ".weight_zero_point"), m->order = part(f, c, m, ".weight_g_idx");
    if (m->order && (!is(m->order, "I32") || m->order->count != m->columns))
        return bad_tensor(f, m->order, "it has not a group for each column");
    if (!m->zeros) return PLIM_OK;
    if ((status = check_type(f, m->zeros, "I32")) != PLIM_OK) return status;
    return check_matrix(f, m, m->zeros, parts_of(m->rows * m->bits, 32), m->groups);
}

/* X.weight_packed: words of whole numbers, or bytes of two FP4 numbers each. */
static enum plim_status make_packed(const struct finding *f, const struct clue *c, struct quant_module *m)
{
    m->codes = take(f, m, c->t);
    enum plim_status status = need(f, c, m, ".weight_scale", &m->scales);
    if (status != PLIM_OK) return status;
    if (is(c->t, "I32")) return make_words(f, c, m);
    if ((status = check_type(f, c->t, "U8")) != PLIM_OK) return status;
    if (c->t->ndim != 2) return bad_tensor(f, c->t, "it is no matrix");
    m->layout = QUANT_FP4, m->global = part(f, c, m, ".weight_global_scale");
    if ((status = check_scales(f, m->scales)) != PLIM_OK) return status;
    if (m->global && (!is(m->global, "F32") || m->global->count != 1))
        return bad_tensor(f, m->global, "it is not one number of 32 bits");
    set_shape(m, 2, (int64_t[]){c->t->dim[0], 2 * c->t->dim[1]});
    m->rows_each = 1, m->columns_each = m->global ? 16 : 32,
    m->groups = parts_of(m->columns, m->columns_each);
    return check_matrix(f, m, m->scales, m->rows, m->groups);
}

/* X_blocks [experts,rows,groups,16] and X_scales [experts,rows,groups]. */
static enum plim_status make_mxfp4(const struct finding *f, const struct clue *c, struct quant_module *m)
{
    m->codes = take(f, m, c->t), m->layout = QUANT_FP4;
    enum plim_status status = need(f, c, m, "_scales", &m->scales);
    if (status != PLIM_OK) return status;
    const int64_t *dim = c->t->dim;
    if (c->t->ndim != 4 || dim[3] != 16 || !is(c->t, "U8"))
        return bad_tensor(f, c->t, "it is not blocks of 16 bytes");
    set_shape(m, 3, (int64_t[]){dim[0], dim[1], dim[2] * 32});
    m->rows_each = 1, m->columns_each = 32, m->groups = dim[2];
    if ((status = check_type(f, m->scales, "U8")) != PLIM_OK) return status;
    bool same = m->scales->ndim == 3 && !memcmp(m->scales->dim, dim, 3 * sizeof *dim);
    return same ? PLIM_OK : check_matrix(f, m, m->scales, m->rows, m->groups);
}

/* --- bitsandbytes' 4 bits --------------------------------------------------------------------------------------- */

/* The JSON text beside the weight. */
static enum plim_status read_state(const struct finding *f, const struct safetensor *t,
                                   struct quant_module *m)
{
    enum { MOST = 1 << 16 };
    struct doc *doc = NULL;
    if (!is(t, "U8") || t->count < 2 || t->count > MOST) return bad_tensor(f, t, "it is no text");
    char *text = malloc((size_t)t->count);
    if (!text) return plim_fail(f->err, PLIM_NO_MEMORY, "%s: out of memory", t->path);
    enum plim_status status = safetensors_read_raw(t, 0, t->count, text, f->err);
    if (status == PLIM_OK) status = json_parse(text, (size_t)t->count, t->name, &doc, f->err);
    free(text);
    if (status != PLIM_OK) return status;
    const struct node *shape = node_get(&doc->root, "shape");
    int64_t dim[2] = {node_int(node_item(shape, 0), 0), node_int(node_item(shape, 1), 0)};
    m->columns_each = node_int(node_get(&doc->root, "blocksize"), 0);
    m->nested_each = node_int(node_get(&doc->root, "nested_blocksize"), 256);
    m->offset = (float)node_float(node_get(&doc->root, "nested_offset"), 0);
    const char *dtype = node_string(node_get(&doc->root, "dtype"), "");
    for (enum dtype d = 0; d < DT_COUNT; d++)
        if (!strcmp(dtype, dtype_torch(d)) && dtype_is_compute(d)) m->weight.type = d;
    bool good = node_count(shape) == 2 && dim[0] > 0 && dim[1] > 0 && dim[1] < INT64_MAX / 8 / dim[0] &&
                m->columns_each > 0 && m->columns_each <= MOST && m->nested_each > 0 &&
                m->nested_each <= MOST;
    if (good) set_shape(m, 2, dim);
    doc_free(doc);
    return good ? PLIM_OK : bad_tensor(f, t, "it has no shape and block size");
}

static enum plim_status check_count(const struct finding *f, const struct safetensor *t, const char *type,
                                    int64_t count)
{
    char what[96];
    enum plim_status status = check_type(f, t, type);
    if (status != PLIM_OK || t->count == count) return status;
    snprintf(what, sizeof what, "it has %lld elements, and its weight needs %lld", (long long)t->count,
             (long long)count);
    return bad_tensor(f, t, what);
}

/* Reads the 16 numbers, and says whether they and the map of magnitudes are those of our blocks. */
static enum plim_status read_tables(const struct finding *f, struct quant_module *m,
                                    const struct safetensor *numbers, const float *ours, bool *same)
{
    float map[256];
    memcpy(m->table, ours, sizeof m->table);
    enum plim_status status = numbers ? check_count(f, numbers, "F32", 16) : PLIM_OK;
    if (status == PLIM_OK && numbers) status = safetensors_read_raw(numbers, 0, 16, m->table, f->err);
    if (status == PLIM_OK && m->map) status = safetensors_read_raw(m->map, 0, 256, map, f->err);
    *same = true;
    for (int i = 0; i < 16; i++) *same = *same && m->table[i] == ours[i];
    for (int i = 0; i < 256 && m->map; i++) *same = *same && map[i] == block4_map(i);
    return status;
}

/* As blocks where rows are whole ones. */
static void keep_blocks(struct quant_module *m, bool nf4, bool same_tables)
{
    bool doubled = m->nested && m->columns % 256 == 0;
    int number = nf4 ? (doubled ? BLOCK_NF4_DQ : BLOCK_NF4) : doubled ? BLOCK_FP4_DQ : BLOCK_FP4;
    const struct block_type *type = block_type_of((uint32_t)number);
    if (!same_tables || m->columns % 64 || m->columns_each % 64) return;
    m->weight.type_name = type->name;
    m->weight.bytes = (uint64_t)(m->rows * m->columns / type->elements * type->bytes);
}

static enum plim_status make_pairs(const struct finding *f, const struct clue *c, struct quant_module *m,
                                   bool nf4)
{
    enum plim_status status = read_state(f, take(f, m, c->t), m);
    if (status != PLIM_OK) return status;
    m->layout = QUANT_PAIRS;
    if ((status = need(f, c, m, "", &m->codes)) != PLIM_OK) return status;
    if ((status = need(f, c, m, ".absmax", &m->scales)) != PLIM_OK) return status;
    int64_t count = m->rows * m->columns, blocks = parts_of(count, m->columns_each);
    if (m->codes->bytes != (uint64_t)parts_of(count, 2))
        return bad_tensor(f, m->codes, "it has not half a byte for each element");
    m->nested = part(f, c, m, ".nested_absmax");
    if ((status = check_count(f, m->scales, m->nested ? "U8" : "F32", blocks)) != PLIM_OK) return status;
    if (m->nested) {
        if ((status = check_count(f, m->nested, "F32", parts_of(blocks, m->nested_each))) != PLIM_OK)
            return status;
        if ((status = need(f, c, m, ".nested_quant_map", &m->map)) != PLIM_OK) return status;
        if ((status = check_count(f, m->map, "F32", 256)) != PLIM_OK) return status;
    }
    bool same = false;
    status = read_tables(f, m, part(f, c, m, ".quant_map"), nf4 ? block4_nf4 : block4_fp4, &same);
    if (status == PLIM_OK) keep_blocks(m, nf4, same);
    return status;
}

static enum plim_status make_nf4(const struct finding *f, const struct clue *c, struct quant_module *m)
{
    return make_pairs(f, c, m, true);
}

static enum plim_status make_fp4(const struct finding *f, const struct clue *c, struct quant_module *m)
{
    return make_pairs(f, c, m, false);
}

/* --- all modules of a folder ------------------------------------------------------------------------------------- */

struct rule {
    const char *suffix; /* of the tensor that gives the module away */
    const char *weight; /* follows the module's name in the weight's */
    enum plim_status (*make)(const struct finding *, const struct clue *, struct quant_module *);
};

enum { RULES = 3 };
static const struct rule rules[QUANT_METHODS][RULES] = {
    [QUANT_BITSANDBYTES] = {{".quant_state.bitsandbytes__nf4", "", make_nf4},
                            {".quant_state.bitsandbytes__fp4", "", make_fp4},
                            {".SCB", ".weight", make_int8}},
    [QUANT_AWQ] = {{".qweight", ".weight", make_columns}},
    [QUANT_GPTQ] = {{".qweight", ".weight", make_columns}},
    [QUANT_FP8] = {{"", "", make_scaled}},
    [QUANT_COMPRESSED] = {{".weight_packed", ".weight", make_packed}, {"", "", make_scaled}},
    [QUANT_MXFP4] = {{"_blocks", "", make_mxfp4}},
};

/* The rest of a module that its weight does not need. */
static bool is_for_activations(const char *name)
{
    static const char *const ends[] = {
        ".input_scale", ".activation_scale", ".input_zero_point", ".input_global_scale", ".k_scale",
        ".v_scale",     ".q_scale",          ".output_scale",     ".weight_format"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t k = strlen(ends[i]);
        if (n > k && !strcmp(name + n - k, ends[i])) return true;
    }
    return false;
}

/* Name, type and bytes of the weight of a module whose shape is known. */
static enum plim_status name_weight(const struct finding *f, const struct clue *c, const char *suffix,
                                    struct quant_module *m)
{
    char name[512];
    struct safetensor *w = &m->weight;
    int n = snprintf(name, sizeof name, "%.*s%s", c->base, c->t->name, suffix);
    w->name = n > 0 && (size_t)n < sizeof name ? bump_copy(&f->out->store, name, (size_t)n) : NULL;
    if (!w->name) return plim_fail(f->err, PLIM_NO_MEMORY, "%s: out of memory", c->t->path);
    w->path = c->t->path, w->count = m->rows * m->columns;
    if (w->type_name) return PLIM_OK; /* blocks */
    w->type_name = dtype_safetensors(w->type), w->bytes = (uint64_t)w->count * dtype_size(w->type);
    return PLIM_OK;
}

/* A tensor that another module has already taken gives nothing away: names are in order, and a module's first. */
static enum plim_status try_rule(const struct finding *f, const struct rule *rule, const struct safetensor *t)
{
    size_t n = strlen(t->name), k = strlen(rule->suffix);
    if (n <= k || strcmp(t->name + n - k, rule->suffix) || f->out->hidden[t - f->set->tensors])
        return PLIM_OK;
    struct clue clue = {t, (int)(n - k)};
    struct quant_module m = {.weight = {.type = f->dtype == DT_COUNT ? DT_BF16 : f->dtype}};
    enum plim_status status = rule->make(f, &clue, &m);
    if (status != PLIM_OK || !m.codes) return status;
    status = name_weight(f, &clue, rule->weight, &m);
    if (status == PLIM_OK) f->out->list[f->out->count++] = m;
    return status;
}

static int by_weight(const void *a, const void *b)
{
    return strcmp(((const struct quant_module *)a)->weight.name,
                  ((const struct quant_module *)b)->weight.name);
}

enum plim_status quant_modules_find(const struct safetensors *set, const struct quant_config *config,
                                    enum dtype dtype, struct quant_modules *out, struct plim_error *err)
{
    struct finding f = {set, config, dtype, out, err};
    enum plim_status status = PLIM_OK;
    *out = (struct quant_modules){.store = BUMP_INIT};
    out->list = calloc(set->count + 1, sizeof *out->list);
    out->hidden = calloc(set->count + 1, sizeof *out->hidden);
    if (!out->list || !out->hidden) status = plim_fail(err, PLIM_NO_MEMORY, "weights: out of memory");
    for (size_t i = 0; i < set->count && status == PLIM_OK; i++) {
        const struct safetensor *t = &set->tensors[i];
        out->hidden[i] = out->hidden[i] || is_for_activations(t->name);
        for (int r = 0; r < RULES && rules[config->method][r].make && status == PLIM_OK; r++)
            status = try_rule(&f, &rules[config->method][r], t);
    }
    if (status == PLIM_OK && out->count) qsort(out->list, out->count, sizeof *out->list, by_weight);
    if (status != PLIM_OK) quant_modules_release(out);
    return status;
}

void quant_modules_release(struct quant_modules *m)
{
    free(m->list);
    free(m->hidden);
    bump_free(&m->store);
    *m = (struct quant_modules){.store = BUMP_INIT};
}
