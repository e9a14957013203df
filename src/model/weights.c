/* weights.c - matching names, then pouring data. See weights.h.
 *
 * First every parameter of the tape finds its tensor in the set (or the user hears which ones do not), then
 * the data are read once, converted in blocks, and handed on. Nothing is written to the sink before all
 * matched.
 */
#include "model/weights.h"
#include "base/bytes.h"
#include "model/arch.h"
#include "model/weights_blocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_weight(const struct tensor *t)
{
    return t->cls == CLASS_PARAM && t->view_of < 0 && t->owner < 0 && !(t->flags & TENSOR_ADDED);
}

int weights_master(const struct tape *tape, int param)
{
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        if (t->cls == CLASS_MASTER && t->owner == param && t->view_of < 0) return i;
    }
    return -1;
}

/* "a.{q,k,v}_proj" and 1: "a.k_proj"; "a.{}.w1" and 1: "a.1.w1". */
static void pick_name(const char *name, int which, char *out, size_t size)
{
    const char *open = strchr(name, '{'), *close = strchr(name, '}'), *at = open + 1;
    if (at == close) {
        snprintf(out, size, "%.*s%d%s", (int)(open - name), name, which, close + 1);
        return;
    }
    for (; which > 0; which--) at = strchr(at, ',') + 1;
    snprintf(out, size, "%.*s%.*s%s", (int)(open - name), name, (int)strcspn(at, ",}"), at, close + 1);
}

/* The mark of several in one in a tensor's name, or in that of the parameter whose shape it has; NULL: it is one. */
static const char *mark_of(const struct tape *tape, int param)
{
    const struct tensor *t = &tape->tensors[param];
    const struct tensor *of = t->owner >= 0 ? &tape->tensors[t->owner] : t;
    bool shaped = t->ndim == of->ndim && !memcmp(t->dim, of->dim, sizeof t->dim);
    return shaped ? strchr(of->label, '{') : NULL;
}

int weights_part_count(const struct tape *tape, int param)
{
    const char *mark = mark_of(tape, param);
    if (!mark) return 1;
    if (mark[1] != '}') return 3;
    bool blocks = weights_param_in_blocks(tape, param);
    return (int)(blocks ? weights_experts_in_blocks(tape, param) : tape->tensors[param].dim[0]);
}

static const struct param_row *row_labelled(const struct model_spec *spec, const char *label)
{
    const struct architecture *arch = spec->arch;
    for (int i = 0; i < arch->nparams; i++)
        if (arch->params[i].label && !strcmp(arch->params[i].label, label)) return &arch->params[i];
    return NULL;
}

/* A tensor with the shape that files have; the tape has bytes where a parameter is in blocks. */
static struct tensor shape_in_files(const struct model_spec *spec, const struct tape *tape, int param)
{
    struct tensor t = tape->tensors[param];
    if (!is_weight(&t) || !weights_param_in_blocks(tape, param)) return t;
    const struct param_row *row = row_labelled(spec, t.label);
    for (t.ndim = 0; t.ndim < 3 && row->dim[t.ndim] != DIM_NONE; t.ndim++)
        t.dim[t.ndim] = param_dim_size(spec, row->dim[t.ndim]);
    return t;
}

/* True for A of an adapter for queries, keys and values. */
static bool is_joint_rank(const struct tape *tape, int param)
{
    const struct tensor *t = &tape->tensors[param], *of = t->owner >= 0 ? &tape->tensors[t->owner] : t;
    return (of->flags & TENSOR_ADDED) && strstr(of->label, ".lora_A.");
}

struct weights_part weights_part(const struct model_spec *spec, const struct tape *tape, int param, int i)
{
    const struct tensor shape = shape_in_files(spec, tape, param), *t = &shape;
    const char *mark = mark_of(tape, param);
    struct weights_part p = {.ndim = t->ndim, .count = tensor_count(t)};
    char name[sizeof p.name];
    memcpy(p.dim, t->dim, sizeof p.dim);
    tape_tensor_name(tape, param, name, sizeof name);
    if (!mark) {
        memcpy(p.name, name, sizeof p.name);
        return p;
    }
    pick_name(name, i, p.name, sizeof p.name);
    if (mark[1] == '}') { /* a matrix of its own */
        p.count /= t->dim[0], p.first = i * p.count;
        p.ndim--, memmove(p.dim, p.dim + 1, sizeof p.dim - sizeof *p.dim);
        p.dim[p.ndim] = 0;
        return p;
    }
    if (is_joint_rank(tape, param)) { /* as many rows each */
        p.count /= 3, p.first = i * p.count, p.dim[0] /= 3;
        return p;
    }
    int64_t width = p.count / t->dim[0], q = (int64_t)spec->num_heads * spec->head_dim,
            k = (int64_t)spec->num_kv_heads * spec->head_dim;
    p.dim[0] = i ? k : q;
    p.first = i ? (q + (i - 1) * k) * width : 0, p.count = p.dim[0] * width;
    return p;
}

/* --- matching ---------------------------------------------------------------------------------------------
 */

struct match {
    int param, master;
    int64_t first; /* element of the parameter with which the file's tensor begins */
    const struct safetensor *file;
    /* For a file's tensor with all experts: elements of each expert, and this parameter's part of them from `skip`
     * on. 0: the whole tensor. */
    int64_t each, skip, count;
};

struct matching {
    const struct weights_files *files;
    const struct model_spec *spec;
    const struct tape *tape;
    struct match *items;
    int count;
    bool *used; /* by tensor of the set */
    int heads;  /* tensors of a head that were found */
};

const struct safetensor *weights_find(const struct weights_files *files, const struct model_spec *spec,
                                      const char *name)
{
    const char *prefix = spec->arch->prefix;
    size_t n = strlen(prefix);
    const struct safetensor *t = weights_files_find(files, name);
    if (!t && !strncmp(name, prefix, n)) t = weights_files_find(files, name + n);
    return t;
}

static enum plim_status no_memory(const struct matching *m, struct plim_error *err)
{
    return plim_fail(err, PLIM_NO_MEMORY, "%s: weights: out of memory", m->files->path);
}

static const struct safetensor *find_tensor(const struct matching *m, const char *name)
{
    return weights_find(m->files, m->spec, name);
}

static bool same_shape(const struct weights_part *t, const struct safetensor *file)
{
    if (t->ndim != file->ndim) return false;
    for (int i = 0; i < t->ndim; i++)
        if (t->dim[i] != file->dim[i]) return false;
    return true;
}

static enum plim_status check_shape(const struct weights_part *t, const struct safetensor *file,
                                    struct plim_error *err)
{
    char have[96], want[96];
    if (same_shape(t, file)) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: tensor '%s' is %s but the model needs %s; config.json and weights differ",
                     file->path, t->name, safetensors_shape_text(file->ndim, file->dim, have, sizeof have),
                     safetensors_shape_text(t->ndim, t->dim, want, sizeof want));
}

/* The names of up to three missing parameters and how many more there are. */
struct missing {
    int count;
    char names[3 * sizeof((struct weights_part *)0)->name];
    size_t used;
};

static void note_missing(struct missing *lost, const char *name)
{
    if (++lost->count > 3 || lost->used >= sizeof lost->names) return;
    int n = snprintf(lost->names + lost->used, sizeof lost->names - lost->used, "%s'%s'",
                     lost->count > 1 ? ", " : "", name);
    if (n > 0) lost->used += (size_t)n;
}

static enum plim_status fail_missing(const char *path, const struct missing *lost, struct plim_error *err)
{
    bool head_only = lost->count == 1 && !strcmp(lost->names, "'lm_head.weight'");
    char more[32] = "";
    if (lost->count > 3) snprintf(more, sizeof more, " and %d more", lost->count - 3);
    return plim_fail(err, PLIM_BAD_INPUT, "%s: weights: %s%s missing from the files; %s", path, lost->names,
                     more,
                     head_only ? "if the model shares it with the embedding, set tie_word_embeddings to true"
                               : "fetch them again, or correct config.json");
}

/* The tensor that has a parameter under its other name; NULL: there is none, or it is there under its first. */
static const struct safetensor *find_joint(const struct matching *m, int param, const struct param_row *row)
{
    char name[192];
    if (!row || !row->joint || find_tensor(m, weights_part(m->spec, m->tape, param, 0).name)) return NULL;
    const char *mark = strstr(row->joint, "%d");
    snprintf(name, sizeof name, "%.*s%d%s", (int)(mark - row->joint), row->joint,
             m->tape->tensors[param].layer, mark + 2);
    return find_tensor(m, name);
}

static enum plim_status match_joint(struct matching *m, int param, const struct param_row *row,
                                    const struct safetensor *file, struct plim_error *err)
{
    const struct tensor shape = shape_in_files(m->spec, m->tape, param), *t = &shape;
    struct weights_part whole = {.ndim = t->ndim};
    struct match match = {.param = param, .master = -1, .file = file};
    memcpy(whole.dim, t->dim, sizeof whole.dim);
    snprintf(whole.name, sizeof whole.name, "%s", file->name);
    if (row->joint_parts) {
        whole.dim[1] *= row->joint_parts;
        match.count = t->dim[1] * t->dim[2], match.each = match.count * row->joint_parts;
        match.skip = match.count * row->joint_part;
    }
    m->used[file - m->files->tensors] = true;
    m->items[m->count++] = match;
    return check_shape(&whole, file, err);
}

static enum plim_status match_param(struct matching *m, int param, struct missing *lost,
                                    struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    bool head = model_param_is_head(m->spec, m->tape->tensors[param].label);
    const struct param_row *row = row_labelled(m->spec, m->tape->tensors[param].label);
    const struct safetensor *joint = find_joint(m, param, row);
    if (joint) return match_joint(m, param, row, joint, err);
    int count = weights_part_count(m->tape, param);
    for (int i = 0; i < count && status == PLIM_OK; i++) {
        const struct weights_part part = weights_part(m->spec, m->tape, param, i);
        const struct safetensor *file = find_tensor(m, part.name);
        if (!file) {
            note_missing(lost + head, part.name);
            continue;
        }
        m->heads += head;
        status = check_shape(&part, file, err);
        m->used[file - m->files->tensors] = true;
        m->items[m->count++] =
            (struct match){.param = param, .master = -1, .first = part.first, .file = file};
    }
    return status;
}

static enum plim_status match_all(struct matching *m, const struct weights_sink *sink, const struct log *log,
                                  struct plim_error *err)
{
    struct missing lost[2] = {0}; /* of the model, of its head */
    for (int i = 0; i < m->tape->ntensors; i++) {
        enum plim_status status = is_weight(&m->tape->tensors[i]) ? match_param(m, i, lost, err) : PLIM_OK;
        if (status != PLIM_OK) return status;
    }
    if (lost[0].count) return fail_missing(m->files->path, &lost[0], err);
    if (lost[1].count && (m->heads || !sink->new_head)) return fail_missing(m->files->path, &lost[1], err);
    if (lost[1].count) log_warn(log, "weights: the files have no %s; it is initialised", lost[1].names);
    return PLIM_OK;
}

/* Each match finds its parameter's master; one pass over each, because tapes are large. */
static enum plim_status match_masters(struct matching *m, struct plim_error *err)
{
    int *master = malloc(((size_t)m->tape->ntensors + 1) * sizeof *master);
    if (!master) return no_memory(m, err);
    for (int i = 0; i < m->tape->ntensors; i++) master[i] = -1;
    for (int i = m->tape->ntensors - 1; i >= 0; i--) {
        const struct tensor *t = &m->tape->tensors[i];
        if (t->cls == CLASS_MASTER && t->view_of < 0 && t->owner >= 0) master[t->owner] = i;
    }
    for (int i = 0; i < m->count; i++) m->items[i].master = master[m->items[i].param];
    free(master);
    return PLIM_OK;
}

/* Tensors that checkpoints hold besides parameters: a tied head, masks, and tables that are recomputed. */
static bool is_expected_extra(const char *name)
{
    static const char *const ends[] = {"lm_head.weight",
                                       "rotary_emb.inv_freq",
                                       "attn.bias",
                                       "attn.masked_bias",
                                       "embeddings.position_ids",
                                       "pooler.dense.weight",
                                       "pooler.dense.bias",
                                       "predictions.decoder.weight",
                                       "predictions.decoder.bias",
                                       "lm_head.decoder.weight",
                                       "lm_head.decoder.bias",
                                       "vocab_projector.weight",
                                       "encoder.embed_tokens.weight",
                                       "decoder.embed_tokens.weight",
                                       "EncDecAttention.relative_attention_bias.weight"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        size_t k = strlen(ends[i]);
        if (n >= k && !strcmp(name + n - k, ends[i])) return true;
    }
    return false;
}

static void report_unexpected(const struct matching *m, const struct log *log)
{
    const int most = 8;
    int count = 0;
    for (size_t i = 0; i < m->files->count; i++) {
        if (m->used[i] || is_expected_extra(m->files->tensors[i].name)) continue;
        if (count++ < most)
            log_warn(log, "%s: tensor '%s' is not part of this model and is not used",
                     m->files->tensors[i].path, m->files->tensors[i].name);
    }
    if (count > most) log_warn(log, "weights: %d more tensors are not used", count - most);
}

/* --- data -------------------------------------------------------------------------------------------------
 */

#define BLOCK 8192

/* One parameter on its way. */
struct pour {
    const struct weights_sink *sink;
    const struct match *match;
    enum dtype type, master_type;
    safetensors_sink *sort; /* what pour_joint hands on to, */
    enum dtype sorted;      /* in this type */
    uint16_t narrow[BLOCK], low[BLOCK];
};

static enum plim_status put(const struct pour *p, int tensor, int64_t first, const void *elements, int64_t n,
                            struct plim_error *err)
{
    return p->sink->put(p->sink->arg, tensor, p->match->first + first, elements, n, err);
}

/* A number that is none would only show as a loss that is none, many steps from its cause. */
static enum plim_status check_numbers(const struct pour *p, enum dtype type, int64_t first,
                                      const void *elements, int64_t n, struct plim_error *err)
{
    int64_t at = dtype_find_nonfinite(type, elements, n);
    if (at < 0) return PLIM_OK;
    float value;
    dtype_convert(&value, DT_F32, (const char *)elements + (size_t)at * dtype_size(type), type, 1);
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "%s: tensor '%.160s': element %lld is %s%s; the run that wrote it had diverged, or the file is "
        "damaged: take an earlier checkpoint or fetch it again",
        p->match->file->path, p->match->file->name, (long long)(first + at),
        value != value ? "NaN" : "infinite", type == DT_F16 ? " in fp16" : "");
}

/* Elements already in the parameter's type, no master to fill. */
static enum plim_status pour_plain(void *arg, int64_t first, const void *elements, int64_t n,
                                   struct plim_error *err)
{
    const struct pour *p = arg;
    enum plim_status status = check_numbers(p, p->type, first, elements, n, err);
    return status == PLIM_OK ? put(p, p->match->param, first, elements, n, err) : status;
}

/* bf16 elements whose master has nothing to add: low bits say "no rounding happened". */
static enum plim_status pour_exact(void *arg, int64_t first, const void *elements, int64_t n,
                                   struct plim_error *err)
{
    struct pour *p = arg;
    enum plim_status status = check_numbers(p, DT_BF16, first, elements, n, err);
    if (status == PLIM_OK) status = put(p, p->match->param, first, elements, n, err);
    uint16_t weight, none;
    master_split(0.0f, &weight, &none);
    for (int i = 0; i < BLOCK; i++) p->low[i] = none;
    for (int64_t at = 0; at < n && status == PLIM_OK; at += BLOCK)
        status = put(p, p->match->master, first + at, p->low, n - at < BLOCK ? n - at : BLOCK, err);
    return status;
}

/* fp32 elements into a narrow parameter and the master that keeps what rounding takes. */
static enum plim_status pour_split(void *arg, int64_t first, const void *elements, int64_t n,
                                   struct plim_error *err)
{
    struct pour *p = arg;
    const float *values = elements;
    enum plim_status status = check_numbers(p, DT_F32, first, elements, n, err);
    for (int64_t at = 0; at < n && status == PLIM_OK; at += BLOCK) {
        int64_t k = n - at < BLOCK ? n - at : BLOCK;
        const void *master = values + at;
        if (p->master_type == DT_U16) {
            for (int64_t i = 0; i < k; i++) master_split(values[at + i], &p->narrow[i], &p->low[i]);
            master = p->low;
        } else {
            dtype_convert(p->narrow, p->type, values + at, DT_F32, k);
        }
        status = put(p, p->match->param, first + at, p->narrow, k, err);
        if (status == PLIM_OK) status = put(p, p->match->master, first + at, master, k, err);
    }
    return status;
}

/* Passes on this parameter's part of a tensor with all experts, as if it came alone. */
static enum plim_status pour_joint(void *arg, int64_t first, const void *elements, int64_t n,
                                   struct plim_error *err)
{
    struct pour *p = arg;
    const struct match *m = p->match;
    enum plim_status status = PLIM_OK;
    const char *at = elements;
    while (n > 0 && status == PLIM_OK) {
        int64_t expert = first / m->each, within = first % m->each;
        bool before = within < m->skip, mine = !before && within < m->skip + m->count;
        int64_t end = before ? m->skip
                      : mine ? m->skip + m->count
                             : m->each,
                k = end - within < n ? end - within : n;
        if (mine) status = p->sort(p, expert * m->count + within - m->skip, at, k, err);
        first += k, n -= k, at += k * (int64_t)dtype_size(p->sorted);
    }
    return status;
}

static enum plim_status read_into(const struct matching *m, struct pour *p, enum dtype type,
                                  safetensors_sink *sink, struct plim_error *err)
{
    p->sort = sink, p->sorted = type;
    return weights_files_read(m->files, p->match->file, type, p->match->each ? pour_joint : sink, p, err);
}

static enum plim_status pour_one(const struct matching *m, struct pour *p, struct plim_error *err)
{
    const struct match *match = p->match;
    p->type = m->tape->tensors[match->param].type;
    if (weights_param_in_blocks(m->tape, match->param)) {
        struct blocks_source source = {m->files,     match->file, match->param,
                                       match->first, match->skip, match->each};
        return weights_pour_blocks(&source, m->tape, p->sink, err);
    }
    if (match->master < 0) return read_into(m, p, p->type, pour_plain, err);
    p->master_type = m->tape->tensors[match->master].type;
    if (p->master_type == DT_U16 && match->file->type == DT_BF16)
        return read_into(m, p, DT_BF16, pour_exact, err);
    return read_into(m, p, DT_F32, pour_split, err);
}

/* With the types of the first tensor that changes its own. */
static void tell_conversion(const struct matching *m, const struct log *log)
{
    int converted = 0, first = 0;
    for (int i = m->count - 1; i >= 0; i--)
        if (m->tape->tensors[m->items[i].param].type != m->items[i].file->type) converted++, first = i;
    if (converted)
        log_info(log, "converted %d of %d tensors from %s to %s", converted, m->count,
                 dtype_name(m->items[first].file->type),
                 dtype_name(m->tape->tensors[m->items[first].param].type));
}

/* Says what it costs that quantised weights become numbers. */
static void tell_widening(const struct matching *m, const struct log *log)
{
    char small[BYTES_TEXT], large[BYTES_TEXT];
    const char *method, *first = NULL;
    uint64_t stored = 0, wide = 0;
    int count = 0;
    for (int i = 0; i < m->count; i++) {
        const struct match *match = &m->items[i];
        uint64_t bytes = weights_files_stored(m->files, match->file, &method);
        if (!bytes || match->skip || weights_param_in_blocks(m->tape, match->param)) continue;
        if (!first) first = method;
        stored += bytes, count++;
        wide += (uint64_t)match->file->count * dtype_size(m->tape->tensors[match->param].type);
    }
    if (!count) return;
    bytes_format(small, stored), bytes_format(large, wide);
    log_warn(
        log,
        "weights: %d of %d tensors are in %s in the files and widened on loading: they take %s instead of %s",
        count, m->count, first, large, small);
}

static enum plim_status pour_all(const struct matching *m, const struct weights_sink *sink,
                                 const struct log *log, struct plim_error *err)
{
    struct pour *p = malloc(sizeof *p);
    enum plim_status status = PLIM_OK;
    int same = 0;
    if (!p) return no_memory(m, err);
    p->sink = sink;
    for (int i = 0; i < m->count && status == PLIM_OK; i++) {
        p->match = &m->items[i];
        same += m->tape->tensors[p->match->param].type == p->match->file->type;
        status = pour_one(m, p, err);
    }
    if (status == PLIM_OK && m->count && same == m->count)
        log_info(log, "conversion skipped: already %s", dtype_name(m->items[0].file->type));
    free(p);
    return status;
}

enum plim_status weights_load(const struct weights_files *files, const struct model_spec *spec,
                              const struct tape *tape, const struct weights_sink *sink, const struct log *log,
                              struct plim_error *err)
{
    struct matching m = {.files = files, .spec = spec, .tape = tape};
    enum plim_status status = PLIM_OK;
    size_t parts = 1;
    for (int i = 0; i < tape->ntensors; i++)
        if (is_weight(&tape->tensors[i])) parts += (size_t)weights_part_count(tape, i);
    m.items = calloc(parts, sizeof *m.items);
    m.used = calloc(files->count + 1, sizeof *m.used);
    if (!m.items || !m.used) status = no_memory(&m, err);
    if (status == PLIM_OK) status = match_all(&m, sink, log, err);
    if (status == PLIM_OK) status = match_masters(&m, err);
    if (status == PLIM_OK) status = pour_all(&m, sink, log, err);
    if (status == PLIM_OK) tell_conversion(&m, log);
    if (status == PLIM_OK) tell_widening(&m, log);
    if (status == PLIM_OK) report_unexpected(&m, log);
    free(m.items);
    free(m.used);
    return status;
}
